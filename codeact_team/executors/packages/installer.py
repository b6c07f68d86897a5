"""Resolves and unpacks packages with uv, by the settings of pip."""

from __future__ import annotations

import asyncio
import configparser
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import uv

from codeact_team.core.aio import to_the_end
from codeact_team.errors import SandboxError
from codeact_team.executors.packages.requirements import PythonDescription, Requested
from codeact_team.sandbox.temporary import TemporaryDirectory
from codeact_team.text.redaction import without_user_info

_VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "proxy": "ALL_PROXY",
}
"""Options of pip about the origin of packages, and the variables of uv for them."""
_OPTIONS = (*_VARIABLES, "no-index")
_ABOUT_INDEXES = ("index-url", "extra-index-url", "no-index", "find-links")
_UV_ABOUT_INDEXES = ("index", "index-url", "extra-index-url", "find-links", "no-index")


def settings_for_uv(environment: Mapping[str, str]) -> tuple[dict[str, str], Sequence[str]]:
    """The environment and arguments by which uv finds packages where pip would. Settings for uv stay in force."""
    settings = _pip_settings(environment)
    if _uv_knows_indexes(environment):
        settings = {option: value for option, value in settings.items() if option not in _ABOUT_INDEXES}
    no_index = settings.pop("no-index", "").lower() in ("1", "true", "yes", "on")
    # uv's lists have commas between links, and blanks between all else
    found = {
        _VARIABLES[option]: (",".join if option == "find-links" else " ".join)(value.split())
        for option, value in settings.items()
    }
    return {**found, **environment}, ["--no-index"] if no_index else []


def _pip_settings(environment: Mapping[str, str]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for file in _configuration_files(environment):
        parser = configparser.RawConfigParser()
        try:
            parser.read(file)
        except configparser.Error:
            # pip itself reports it
            continue
        for section in ("global", "install"):
            if parser.has_section(section):
                settings |= {key: value for key, value in parser.items(section) if key in _OPTIONS}
    for option in _OPTIONS:
        if value := environment.get(f"PIP_{option.upper().replace('-', '_')}"):
            settings[option] = value
    return settings


def _configuration_files(environment: Mapping[str, str]) -> Iterator[Path]:
    """The configuration files of pip, the most specific last."""
    special = environment.get("PIP_CONFIG_FILE")
    if special == os.devnull:
        return
    home = Path.home()
    shared = environment.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    if sys.platform == "darwin":
        yield Path("/Library/Application Support/pip/pip.conf")
        yield home / "Library/Application Support/pip/pip.conf"
    yield from (Path(place) / "pip" / "pip.conf" for place in shared.split(os.pathsep))
    yield Path("/etc/pip.conf")
    yield home / ".pip" / "pip.conf"
    yield Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "pip" / "pip.conf"
    yield Path(sys.prefix) / "pip.conf"
    if special:
        yield Path(special)


def _uv_knows_indexes(environment: Mapping[str, str]) -> bool:
    """Whether a configuration file of uv names an index."""
    home = Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    named = environment.get("UV_CONFIG_FILE")
    for file in [Path(named)] if named else [home / "uv" / "uv.toml", Path("/etc/uv/uv.toml")]:
        try:
            settings = tomllib.loads(file.read_text())
        except (OSError, tomllib.TOMLDecodeError):
            continue
        if any(key in settings or key in settings.get("pip", {}) for key in _UV_ABOUT_INDEXES):
            return True
    return False


_MAX_WORDS = 4000
_PROGRESS = re.compile(r"\s*(?:Resolved|Downloading|Downloaded|Prepared|Installed) ")
_NOT_ASKED = "Using CPython"


async def install(
    requested: Requested, interpreter: PythonDescription, directory: Path, report: Callable[[str], None]
) -> None:
    """Unpack the packages and their dependencies, for this Python, into an empty directory.

    Its files may be links to those of uv's cache: they must not be written, and other users may be able to.
    ``report`` gets a line of progress now and then. Raises a ``SandboxError`` if they cannot be had.
    """
    report(f"getting {requested} for {interpreter}")
    environment, options = settings_for_uv(os.environ)
    with TemporaryDirectory() as passing:
        process = await asyncio.create_subprocess_exec(
            uv.find_uv_bin(),
            *_arguments(requested, interpreter, directory, passing),
            *options,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={**environment, "UV_COMPILE_BYTECODE": "0", "NO_COLOR": "1"},
        )
        try:
            said = await _listen(process, report)
            code = await process.wait()
        except BaseException:
            if process.returncode is None:
                process.kill()
            await to_the_end(process.wait())
            raise
    if code != 0:
        raise SandboxError(
            f"the packages {requested} cannot be installed for {interpreter}; only wheels are used, because no code of "
            f"a package may run on this machine. uv says:\n{said}"
        )


def _arguments(
    requested: Requested, interpreter: PythonDescription, directory: Path, passing: Path
) -> Sequence[str]:
    """The arguments for uv. The requirements are written to files in ``passing``."""
    options = {
        "--target": str(directory),
        "--python": sys.executable,
        "--python-version": interpreter.version,
        "--python-platform": interpreter.platform,
        # nothing of a package is run
        "--only-binary": ":all:",
        # with uv's cache: what is there already costs nothing, and what is kept is copied
        "--link-mode": "hardlink",
    }
    lines = requested.lines()
    for option, asked in (("--requirements", lines.requirements), ("--constraints", lines.constraints)):
        if asked:
            file = passing / f"{option.strip('-')}.txt"
            file.write_text("\n".join(asked))
            options[option] = str(file)
    command = ["pip", "install", "--no-progress", "--no-sources", "--preview-features", "pylock"]
    command += [word for pair in options.items() for word in pair]
    return command if requested.lock is None else [*command, "--requirements", str(requested.lock)]


async def _listen(process: asyncio.subprocess.Process, report: Callable[[str], None]) -> str:
    """Report the progress of uv, and return the end of its other output."""
    assert process.stderr is not None
    said = ""
    async for line in process.stderr:
        text = without_user_info(line.decode(errors="replace")).rstrip()
        if _PROGRESS.match(text):
            report(text.strip())
        elif not text.startswith(_NOT_ASKED):
            said = f"{said}{text}\n"[-_MAX_WORDS:]
    return said.strip()
