"""Where a person's pip gets packages from, in uv's terms: uv does not read pip's configuration."""

from __future__ import annotations

import configparser
import os
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "proxy": "ALL_PROXY",
}
"""pip's options that say where packages come from, and how uv names them."""
_OPTIONS = (*_VARIABLES, "no-index")
_ABOUT_INDEXES = ("index-url", "extra-index-url", "no-index", "find-links")
_UV_ABOUT_INDEXES = ("index", "index-url", "extra-index-url", "find-links", "no-index")


def settings_for_uv(environment: Mapping[str, str]) -> tuple[dict[str, str], Sequence[str]]:
    """With what uv finds packages where pip would. What the person has told uv itself stays in force.

    Args:
        environment: That of this process.

    Returns:
        The environment for uv, and arguments.
    """
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
            # pip itself tells of it whenever it is used
            continue
        for section in ("global", "install"):
            if parser.has_section(section):
                settings |= {key: value for key, value in parser.items(section) if key in _OPTIONS}
    for option in _OPTIONS:
        if value := environment.get(f"PIP_{option.upper().replace('-', '_')}"):
            settings[option] = value
    return settings


def _configuration_files(environment: Mapping[str, str]) -> Iterator[Path]:
    """Those of pip, the most special one last."""
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
    """Whether uv's own files of the person or of the machine say where packages come from."""
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
