"""What packages a person asks for."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from codeact_team.errors import SettingError
from codeact_team.packages.interpreters import Interpreter

_INCLUDE = re.compile(r"^\s*(?:-r|--requirements?|-c|--constraints?)[\s=]+(\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Requested:
    """Packages, as ``packages`` and ``packages_file`` of a config name them.

    Args:
        requirements: One by one, such as ``matplotlib>=3.8``.
        file: A requirements file, or a lock (``pylock.toml``).

    Raises:
        SettingError: If a requirement is none, or the file does not exist.
    """

    requirements: Sequence[str] = ()
    file: Path | None = None

    def __post_init__(self) -> None:
        for one in self.requirements:
            try:
                Requirement(one)
            except InvalidRequirement as error:
                raise SettingError(f"packages: {one!r} is no requirement: {error}") from None
        if self.file is not None and not self.file.is_file():
            raise SettingError(f"packages_file: {str(self.file)!r} does not exist")

    def __bool__(self) -> bool:
        return bool(self.requirements) or self.file is not None

    def __str__(self) -> str:
        return ", ".join([*self.requirements, *([] if self.file is None else [str(self.file)])])

    def digest(self, interpreter: Interpreter) -> str:
        """The same for the same packages for the same kind of Python."""
        texts = [] if self.file is None else [text for _, text in _included(self.file, set())]
        asked = [sorted(self.requirements), texts, interpreter.version, interpreter.platform]
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()


def _included(file: Path, seen: set[Path]) -> Iterator[tuple[Path, str]]:
    """A requirements file, and those that it includes."""
    if (whole := file.resolve()) in seen or not whole.is_file():
        # uv says what is missing
        return
    seen.add(whole)
    text = whole.read_text(errors="replace")
    yield whole, text
    for name in _INCLUDE.findall(text):
        yield from _included(whole.parent / name, seen)
