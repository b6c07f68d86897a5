"""Settings that are declared once: the fields of a config are also the parameters of the component's constructor."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from pydantic import BaseModel, GetPydanticSchema, ValidationError, ValidationInfo
from pydantic.fields import FieldInfo
from pydantic_core import core_schema

from codeact_team.errors import SettingError

Instance = TypeVar("Instance")
Config = TypeVar("Config", bound=BaseModel)
P = ParamSpec("P")

_FROM_CONSTRUCTOR = object()
"""The validation context while a constructor's arguments are read."""


def read_as(kind: Any) -> GetPydanticSchema:
    """Annotates a field that is checked and kept as ``kind``, whatever type callers see."""
    return GetPydanticSchema(lambda _, handler: handler(kind))


def in_config(kind: Any) -> GetPydanticSchema:
    """Annotates a field for a live object, which a config describes as ``kind`` and a constructor does not check."""

    def validate(value: Any, as_kind: core_schema.ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        return value if info.context is _FROM_CONSTRUCTOR else as_kind(value)

    return GetPydanticSchema(
        lambda _, handler: core_schema.with_info_wrap_validator_function(validate, handler(kind))
    )


def takes_settings(
    config: Callable[P, Config],
) -> Callable[[Callable[[Instance, Config], None]], Callable[Concatenate[Instance, P], None]]:
    """Let a constructor that is given a config take the config's fields as keyword arguments instead.

    Type checkers and ``inspect.signature`` see them with their defaults. Fields that say ``kw_only=False`` may be given
    by position, too. ``None`` for a list or a mapping is an empty one, as in AutoGen's constructors. The constructor raises
    a :class:`SettingError` if a value is wrong, and a ``TypeError`` if there is no such setting.

    Args:
        config: The class of the config.
    """
    model = cast("type[Config]", config)
    fields = model.model_fields
    parameters = sorted((_parameter(*item) for item in fields.items()), key=lambda parameter: parameter.kind)
    signature = inspect.Signature(parameters)

    def decorate(init: Callable[[Instance, Config], None]) -> Callable[Concatenate[Instance, P], None]:
        @functools.wraps(init)
        def with_settings(self: Instance, *args: P.args, **settings: P.kwargs) -> None:
            given = signature.bind(*args, **settings).arguments
            for name in [name for name, value in given.items() if value is None]:
                if fields[name].default_factory is not None:
                    del given[name]
            try:
                read = model.model_validate(given, context=_FROM_CONSTRUCTOR)
            except ValidationError as error:
                problems = [_problem(details) for details in error.errors(include_url=False)]
                raise SettingError("; ".join(problems)) from error
            init(self, read)

        owner = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        cast("Any", with_settings).__signature__ = signature.replace(parameters=[owner, *parameters])
        return with_settings

    return decorate


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    return inspect.Parameter(
        name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD if field.kw_only is False else inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty
        if field.is_required()
        else field.get_default(call_default_factory=True),
        annotation=field.annotation,
    )


def _problem(details: Any) -> str:
    field, value = ".".join(map(str, details["loc"])), details["input"]
    match details["type"]:
        case "greater_than_equal":
            return f"{field} is {value}: it must be {details['ctx']['ge']} or more"
        case "greater_than" | "finite_number":
            return f"{field} is {value}: it must be a finite number above 0"
        case _:
            message = details["msg"].removeprefix("Value error, ")
            return f"{field}: {message}" if field else message
