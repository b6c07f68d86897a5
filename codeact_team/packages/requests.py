"""What packages a person asks for."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement

from codeact_team.errors import SettingError
from codeact_team.packages.interpreters import Interpreter
from codeact_team.packages.requirement_files import (
    RequirementLines,
    is_lock,
    parsed,
    read_lock,
    read_requirements,
)
from codeact_team.system.regular_files import open_regular


@dataclass(frozen=True)
class Requested:
    """Packages, as ``packages`` and ``packages_file`` of a config name them.

    Args:
        requirements: One by one, such as ``matplotlib>=3.8``.
        file: A requirements file, or a lock (``pylock.toml``).

    Raises:
        SettingError: If a requirement is none, or the file cannot be read.
    """

    requirements: Sequence[str] = ()
    file: Path | None = None

    def __post_init__(self) -> None:
        for one in self.requirements:
            try:
                parsed(one)
            except InvalidRequirement as error:
                raise SettingError(f"packages: {one!r} is no requirement: {error}") from None
        if self.file is not None:
            try:
                os.close(open_regular(self.file))
            except FileNotFoundError:
                raise SettingError(f"packages_file: {str(self.file)!r} does not exist") from None
            except OSError as error:
                raise SettingError(f"packages_file: {self.file} cannot be read: {error.strerror}") from None

    def __bool__(self) -> bool:
        return bool(self.requirements) or self.file is not None

    def __str__(self) -> str:
        return ", ".join([*self.requirements, *([] if self.file is None else [str(self.file)])])

    @property
    def lock(self) -> Path | None:
        """The file, if it is a lock."""
        return self.file if self.file is not None and is_lock(self.file) else None

    def lines(self) -> RequirementLines:
        """All but what a lock names. Reads the files.

        Raises:
            SettingError: Where that fails, or they ask for what only a build could give.
        """
        if self.lock is not None:
            read_lock(self.lock)
        asked = RequirementLines() if self.file is None or self.lock else read_requirements(self.file)
        asked.requirements += self.requirements
        return asked

    def digest(self, interpreter: Interpreter) -> str:
        """The same for the same packages for the same kind of Python. Reads the files.

        Raises:
            SettingError: As :meth:`lines`.
        """
        lines = self.lines()
        locked = "" if self.lock is None else read_lock(self.lock)
        asked = [lines.requirements, lines.constraints, locked, interpreter.version, interpreter.platform]
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()
