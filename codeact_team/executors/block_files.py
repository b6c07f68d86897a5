"""From a code block to a file name and a command."""

from __future__ import annotations

import hashlib
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from autogen_core.code_executor import CodeBlock

from codeact_team.errors import SettingError
from codeact_team.executors.code_runner import BlockError
from codeact_team.lexing import foreign_encoding

DEFAULT_LANGUAGES: Mapping[str, str] = {
    "python": "python3",
    "sh": "sh",
    "shell": "sh",
    "bash": "bash",
    # a profile is a file of the home directory, and may be an earlier block's
    "pwsh": "pwsh -NoProfile",
    "powershell": "pwsh -NoProfile",
    "ps1": "pwsh -NoProfile",
}
"""The command for each language label; the block's file is its last argument."""

_FILENAME = re.compile(r"\A(?:#|//) *filename: *([^\r\n]*)")
_PYTHON = re.compile(r"(?:.*/)?python[\d.]*")
_LABEL = re.compile(r"[\w+#.-]+")
_SHELLS = frozenset({"sh", "bash", "pwsh"})
_MAX_COMPONENT = 255
_MAX_NAME = 1024


def parse_command(label: str, command: str) -> list[str]:
    """The words of a language's command.

    Raises:
        SettingError: If it is empty or its quotes do not match.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise SettingError(f"languages: the command of {label!r} cannot be read: {error}") from error
    if not words:
        raise SettingError(f"languages: the command of {label!r} is empty")
    if not _LABEL.fullmatch(label):
        raise SettingError(f"languages: {label!r} cannot be a label: letters, digits and + # . _ - only")
    return words


def is_python(command: Sequence[str]) -> bool:
    """Whether a command runs the file that it gets by a Python interpreter, whose options may come before."""
    program, *options = command
    takes_value = ("-X", "-W")
    return _PYTHON.fullmatch(program) is not None and all(
        (option.startswith("-") and not option.startswith(("-m", "-c", "-i"))) or before in takes_value
        for before, option in zip(command, options, strict=False)
    )


def refuse_other_encodings(block: CodeBlock, command: Sequence[str]) -> None:
    """Refuse code that its interpreter would read as something else than it is.

    Raises:
        BlockError: If a comment names another encoding than UTF-8, in which the file is stored.
    """
    # for a shell such a comment means nothing
    if PurePosixPath(command[0]).name not in _SHELLS and (encoding := foreign_encoding(block.code)):
        raise BlockError(
            f"A comment says that the code is written in {encoding[:80]!r}, but it is stored as UTF-8: leave that comment out"
        )


def names_its_file(block: CodeBlock) -> bool:
    """Whether a block has a ``# filename:`` comment: its file is then a part of the work."""
    return _FILENAME.match(block.code) is not None


def file_of(block: CodeBlock) -> str:
    """Where in the workspace a block is stored: by its ``# filename:`` comment, else by its content.

    Raises:
        BlockError: If the comment names something outside the workspace, or what cannot be a file's name.
    """
    if (match := _FILENAME.match(block.code)) is None:
        digest = hashlib.sha256(block.code.encode(errors="surrogatepass")).hexdigest()
        return f"tmp_code_{digest}.{block.language.lower()}"
    # a lone surrogate has no bytes
    name = match[1].strip().encode(errors="replace").decode()
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise BlockError(f"Filename is not in the workspace: {name[:80]!r}")
    if not path.parts or "\0" in name or _too_long(path):
        raise BlockError(f"Filename is not usable: {name[:80]!r}")
    module = path.parent if path.name == "__init__.py" else path.with_suffix("")
    if path.suffix == ".py" and str(module) in sys.stdlib_module_names:
        raise BlockError(
            f"Filename {name!r} would hide Python's own module {str(module)!r} from all later code: choose another name"
        )
    return str(path)


def _too_long(path: PurePosixPath) -> bool:
    return len(str(path).encode()) > _MAX_NAME or any(
        len(part.encode()) > _MAX_COMPONENT for part in path.parts
    )
