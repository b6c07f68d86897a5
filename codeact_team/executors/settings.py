"""The settings of every executor, and constructors that take the fields of a config as keyword arguments."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Annotated, Any, Concatenate, ParamSpec, TypeAlias, TypeVar, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetPydanticSchema, field_validator
from pydantic.fields import FieldInfo

Executor = TypeVar("Executor")
Config = TypeVar("Config", bound=BaseModel)
P = ParamSpec("P")


def read_as(kind: Any) -> GetPydanticSchema:
    """An annotation for a field whose values are validated and kept as ``kind``, whatever type it declares."""
    return GetPydanticSchema(lambda _, handler: handler(kind))


def _as_text(path: object) -> object:
    return os.fspath(cast("os.PathLike[str]", path)) if isinstance(path, os.PathLike) else path


HostDirectory: TypeAlias = Annotated[
    str | os.PathLike[str] | None, read_as(Annotated[str | None, BeforeValidator(_as_text)])
]
HostPaths: TypeAlias = Annotated[
    list[str | os.PathLike[str]], read_as(list[Annotated[str, BeforeValidator(_as_text)]])
]


class ExecutorConfig(BaseModel):
    """Settings that every executor has."""

    model_config = ConfigDict(extra="forbid")

    timeout: int = 60
    """Seconds that one code block may take."""
    work_dir: HostDirectory = None
    """Directory of the host that is the code's workspace; made if missing. Default: a temporary one."""
    workspace_mib: int | None = Field(default=4096, ge=1)
    """How much a workspace on the host may grow, in MiB, from the start on; counted about every second."""
    workspace_files: int | None = Field(default=100_000, ge=1)
    """How many files, directories among them, may be added to such a workspace."""
    packages: list[str] = Field(default_factory=list)
    """Python packages that the code can import, such as `matplotlib>=3.8`. This machine gets them, as wheels, and nothing
    of them runs here; the sandbox needs no network for them."""
    packages_file: HostDirectory = None
    """A requirements file, or a lock such as pylock.toml, with such packages."""
    data: HostPaths = Field(default_factory=list[str | os.PathLike[str]])
    """Files and directories of the host, such as `sales.csv`, of which the workspace gets copies before the first block.
    The originals are never changed."""

    @field_validator("timeout")
    @classmethod
    def _at_least_a_second(cls, timeout: int) -> int:
        if timeout < 1:
            raise ValueError("Timeout must be greater than or equal to 1.")
        return timeout


def takes_settings(
    config: Callable[P, Config],
) -> Callable[[Callable[[Executor, Config], None]], Callable[Concatenate[Executor, P], None]]:
    """Let a constructor that is given a config take the config's fields as keyword arguments instead.

    Type checkers and ``inspect.signature`` see them with their defaults. Fields that say ``kw_only=False`` may be given
    by position, too. ``None`` for a list or a mapping is an empty one, as in AutoGen's constructors.

    Args:
        config: The class of the config.
    """
    fields = cast("type[BaseModel]", config).model_fields
    parameters = sorted((_parameter(*item) for item in fields.items()), key=lambda parameter: parameter.kind)
    signature = inspect.Signature(parameters)

    def decorate(init: Callable[[Executor, Config], None]) -> Callable[Concatenate[Executor, P], None]:
        @functools.wraps(init)
        def with_settings(self: Executor, *args: P.args, **settings: P.kwargs) -> None:
            given = signature.bind(*args, **settings).arguments
            for name in [name for name, value in given.items() if value is None]:
                if fields[name].default_factory is not None:
                    del given[name]
            init(self, cast("Callable[..., Config]", config)(**given))

        owner = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        cast("Any", with_settings).__signature__ = signature.replace(parameters=[owner, *parameters])
        return with_settings

    return decorate


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    return inspect.Parameter(
        name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD if field.kw_only is False else inspect.Parameter.KEYWORD_ONLY,
        default=field.get_default(call_default_factory=True),
        annotation=field.annotation,
    )
