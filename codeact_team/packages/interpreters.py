"""The Python of a sandbox, by its own account: what packages have to fit."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from codeact_team.errors import SandboxError

MAX_DESCRIPTION_BYTES = 1024 * 1024
_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
_GLIBC = re.compile(r"2\.(\d{1,3})")
_GLIBCS = (17, 28, *range(31, 41))
"""The minor versions of glibc that uv knows by name."""

Word = Annotated[str, Field(max_length=200)]


class Interpreter(BaseModel):
    """A Python in a sandbox. What it says of itself is checked, as everything that comes from a sandbox.

    Attributes:
        implementation: Such as ``cpython``.
        version: Such as ``3.11.2``.
        free_threaded: Whether it has no global interpreter lock.
        machine: The processor's architecture.
        libc: Name and version of the C library, empty where it does not say.
        soabi: The tag of its extension modules.
        cache_tag: Its name in names of files that it has compiled.
        packages: Name and version of each package it has.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    implementation: Word
    version: str = Field(pattern=r"^\d{1,3}(\.\d{1,5}){1,2}[a-z0-9+]{0,20}$")
    free_threaded: bool
    machine: Word
    libc: tuple[Word, Word]
    soabi: Word
    cache_tag: str = Field(pattern=r"^[a-z]{0,20}-?[0-9a-z]{0,20}$")
    packages: tuple[tuple[Word, Word], ...] = Field(max_length=10_000)

    def __str__(self) -> str:
        name = "CPython" if self.implementation == "cpython" else self.implementation
        threads = " (free-threaded)" if self.free_threaded else ""
        libc = " ".join(self.libc).strip() or ("musl" if self._is_musl else "an unknown C library")
        return f"{name} {self.version}{threads} on {self.machine} with {libc}"

    @property
    def _is_musl(self) -> bool:
        return "musl" in self.soabi

    @property
    def platform(self) -> str:
        """What packages have to be built for, as uv names it.

        Raises:
            SandboxError: If there is no name for it.
        """
        machine = _MACHINES.get(self.machine.lower())
        if self.implementation != "cpython" or self.free_threaded or machine is None:
            raise SandboxError(
                f"packages cannot be chosen for {self}: they can for CPython with its lock, on x86_64 and aarch64. Use an "
                "image that has the packages, and leave out `packages`"
            )
        if self._is_musl:
            return f"{machine}-unknown-linux-musl"
        if self.libc[0] != "glibc" or (found := _GLIBC.match(self.libc[1])) is None:
            raise SandboxError(
                f"packages cannot be chosen for {self}: use an image with glibc or musl, or one that has the packages"
            )
        fitting = [minor for minor in _GLIBCS if minor <= int(found[1])]
        if not fitting:
            raise SandboxError(f"packages cannot be chosen for {self}: glibc has to be 2.17 or newer")
        return f"{machine}-manylinux_2_{fitting[-1]}"


@cache
def describing() -> tuple[str, ...]:
    """The arguments by which a Python describes itself."""
    # isolated: nothing that is left in the workspace is run
    return ("-I", "-c", (resources.files(__name__.rpartition(".")[0]) / "inside" / "describe.py").read_text())


def read_description(said: bytes) -> Interpreter:
    """The interpreter that said this.

    Raises:
        SandboxError: If it is no description.
    """
    try:
        return Interpreter.model_validate_json(said)
    except ValidationError:
        words = said[:300].decode(errors="replace").strip()
        raise SandboxError(f"the sandbox's Python does not say what it is, but: {words!r}") from None
