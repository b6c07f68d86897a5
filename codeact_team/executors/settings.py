"""The settings that every executor has."""

from __future__ import annotations

import os
from typing import Annotated, Literal, Self, TypeAlias, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from codeact_team.core.settings import read_as
from codeact_team.errors import SettingError
from codeact_team.network.rules import Credential, Egress, EgressRule, EgressRules


def _as_text(path: object) -> object:
    return os.fspath(cast("os.PathLike[str]", path)) if isinstance(path, os.PathLike) else path


HostDirectory: TypeAlias = Annotated[
    str | os.PathLike[str] | None, read_as(Annotated[str | None, BeforeValidator(_as_text)])
]
HostPaths: TypeAlias = Annotated[
    list[str | os.PathLike[str]], read_as(list[Annotated[str, BeforeValidator(_as_text)]])
]


EgressSetting: TypeAlias = Annotated[
    list[EgressRule | str] | Literal["report"] | None, read_as(Egress | None)
]


class ExecutorConfig(BaseModel):
    """Settings that every executor has."""

    model_config = ConfigDict(extra="forbid")

    timeout: int = 60
    """Seconds that one code block may take."""
    work_dir: HostDirectory = None
    """Directory of the host that is the code's workspace; made if missing. Default: a temporary one."""
    workspace_mib: int | None = Field(default=4096, ge=1)
    """The most MiB by which a workspace on the host may grow from the start on; counted about every second."""
    workspace_files: int | None = Field(default=100_000, ge=1)
    """The most files, directories among them, that may be added to such a workspace."""
    packages: list[str] = Field(default_factory=list)
    """Python packages that the code can import, such as `matplotlib>=3.8`. This machine gets them, as wheels, and nothing
    of them runs here; the sandbox needs no network for them."""
    packages_file: HostDirectory = None
    """A requirements file, or a lock such as pylock.toml, with such packages."""
    data: HostPaths = Field(default_factory=list[str | os.PathLike[str]])
    """Files and directories of the host, such as `sales.csv`, of which the workspace gets copies before the first block.
    The originals are never changed. Hidden files in a directory are left out. The packages that read Excel and parquet files
    are added to `packages`."""
    egress: EgressSetting = None
    """The hosts that code may reach, by rules, of which the first that fits decides; what none fits is denied. A text, such as
    `pypi.org`, is a host that is allowed. `report` denies all, and lists what was asked for. Default: no network."""
    credentials: list[Credential] = Field(default_factory=list[Credential])
    """Keys of this machine that go along with requests to the hosts of `egress` that are theirs. The code never has them."""
    extra_ca: HostPaths = Field(default_factory=list[str | os.PathLike[str]])
    """Files with certificates, in PEM, by which servers may prove who they are, beside those that this machine trusts."""

    @field_validator("timeout")
    @classmethod
    def _at_least_a_second(cls, timeout: int) -> int:
        if timeout < 1:
            raise ValueError("Timeout must be greater than or equal to 1.")
        return timeout

    def egress_rules(self) -> EgressRules:
        """The rules of ``egress``, unused. Raises a ``SettingError`` if a credential contradicts them."""
        return EgressRules.of(cast("list[EgressRule]", self.egress or []), self.credentials)

    @model_validator(mode="after")
    def _egress_is_sound(self) -> Self:
        if self.egress is None:
            if self.credentials or self.extra_ca:
                raise ValueError(
                    "credentials and extra_ca go with egress: list the hosts that code may reach"
                )
            return self
        try:
            self.egress_rules()
        except SettingError as error:
            raise ValueError(str(error)) from None
        return self
