"""The magics that start programs: ``!command``, ``%%bash`` and ``%pip``. Their output is that of the block."""

from __future__ import annotations

import os
import re
import shlex
import socket
import sys
from importlib import invalidate_caches
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from subprocess import PIPE, STDOUT, CalledProcessError, Popen

from codeact_team.session.runner.interpreter.user_code import interruptible_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

interruptible_module(__name__)

_SIGNALLED = 128
_NOWHERE = ("192.0.2.1", 9)
"""An address of nobody. To connect a datagram socket to it sends nothing."""
_PYTHON = re.compile(r"\S*python[\d.]*")
_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)(?:\[[^]]*\])?\s*(?:[~=!<>;@].*)?")
_WITH_VALUE = (
    "-r",
    "-c",
    "-e",
    "-i",
    "-f",
    "-t",
    "--requirement",
    "--index-url",
    "--extra-index-url",
    "--target",
)


class Lines(list[str]):
    """The lines of a command's output."""

    @property
    def l(self) -> list[str]:  # noqa: E743 - IPython's name
        """The lines."""
        return list(self)

    @property
    def n(self) -> str:
        """The lines as one text."""
        return "\n".join(self)

    @property
    def s(self) -> str:
        """The lines with blanks between them."""
        return " ".join(self)


def run_command(command: str) -> int:
    """Run a command in a shell. Returns its exit code, which for one that a signal has ended is minus that signal."""
    if "pip" in command and (found := _pip_install(command)) is not None and not _has_network():
        arguments, is_all = found
        _require(arguments)
        if is_all:
            return 0
    return _ended(_run(["/bin/sh", "-c", command]))


def run_for_output(command: str) -> tuple[str, int]:
    """Run a command in a shell. Returns what it wrote, errors included, and its exit code."""
    with Popen(["/bin/sh", "-c", command], stdout=PIPE, stderr=STDOUT) as process:
        try:
            output = process.communicate()[0]
        except BaseException:
            process.kill()
            raise
    return output.decode("utf-8", "replace"), _ended(process.returncode)


def run_cell(shell: str, line: str, body: str, variables: dict[str, Any]) -> None:
    """Run ``body`` in a shell, with the arguments in ``line``. Raises a ``CalledProcessError`` if it fails."""
    exit_code = _run([shell, *shlex.split(line), "-c", body])
    variables["_exit_code"] = exit_code
    if exit_code != 0:
        raise CalledProcessError(exit_code, shell)


def run_pip(line: str, variables: dict[str, Any]) -> None:
    """Run pip where there is a network. Raises a ``ModuleNotFoundError`` for what can be installed only from outside."""
    arguments = shlex.split(line)
    if arguments[:1] == ["install"] and not _has_network():
        _require(arguments[1:])
    else:
        variables["_exit_code"] = _run([sys.executable, "-m", "pip", *arguments])
        invalidate_caches()


def say(text: str) -> None:
    """Write a line to the output of the block."""
    sys.stdout.write(f"{text}\n")


def _run(command: Sequence[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    process = Popen(command)
    try:
        return process.wait()
    except BaseException:
        # the interrupt has reached it, too, but it need not end by that
        process.kill()
        process.wait()
        raise


def _pip_install(command: str) -> tuple[Sequence[str], bool] | None:
    """The arguments of ``pip install``, if a command begins with that, and whether it is the whole command."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:
        # the shell says what is wrong with it
        return None
    end = next(
        (number for number, word in enumerate(words) if not word.strip(lexer.punctuation_chars)), len(words)
    )
    own = words[:end]
    if end < len(words) and words[end][0] in "<>" and own[-1:] == ["2"]:
        # of 2>&1
        own.pop()
    if own[1:2] == ["-m"] and _PYTHON.fullmatch(own[0]):
        del own[:2]
    is_install = own[:1] in (["pip"], ["pip3"]) and own[1:2] == ["install"]
    return (own[2:], end == len(words)) if is_install else None


def _ended(exit_code: int) -> int:
    return _SIGNALLED - exit_code if exit_code > _SIGNALLED else exit_code


def _has_network() -> bool:
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy")):
        return True
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(_NOWHERE)
    except OSError:
        return False
    return True


def _require(arguments: Sequence[str]) -> None:
    """See whether all is there that ``pip install`` is to install. Raises a ``ModuleNotFoundError`` if not, or ``OSError``."""
    names: list[str] = []
    is_value = False
    for argument in arguments:
        found = None if is_value or argument.startswith("-") else _REQUIREMENT.fullmatch(argument)
        if found is not None:
            names.append(found["name"])
        is_value = argument in _WITH_VALUE
    if not names:
        raise OSError("pip can install nothing here, as there is no network")
    for name in names:
        if (present := _version(name)) is None:
            # the host adds what can be done
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        say(f"Requirement already satisfied: {name} {present}".rstrip())


def _version(name: str) -> str | None:
    """The version of a package that is there; empty if it is there without one, ``None`` if it is not."""
    try:
        return version(name)
    except PackageNotFoundError:
        module = name.replace("-", "_")
        return "" if module.isidentifier() and find_spec(module) is not None else None
