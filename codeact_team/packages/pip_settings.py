"""Where a person's pip gets packages from, as environment variables for uv, which does not read pip's configuration."""

from __future__ import annotations

import configparser
import os
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

_VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "proxy": "ALL_PROXY",
}
"""pip's options that say where packages come from, and how uv names them."""
_ABOUT_INDEXES = ("index-url", "extra-index-url", "no-index", "find-links")
_UV_ABOUT_INDEXES = ("index", "index-url", "extra-index-url", "find-links", "no-index")


def environment_for_uv(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment in which uv finds packages where pip would. What the person has told uv itself stays in force.

    Args:
        environment: That of this process.
    """
    settings = _pip_settings(environment)
    if _uv_knows_indexes(environment):
        settings = {option: value for option, value in settings.items() if option not in _ABOUT_INDEXES}
    found: dict[str, str] = {}
    for option, value in settings.items():
        if option == "no-index" and value.lower() not in ("1", "true", "yes", "on"):
            continue
        words = value.split()
        if words:
            # lists of uv's have commas for links, blanks for all else
            found[_VARIABLES[option]] = (",".join if option == "find-links" else " ".join)(words)
    return {**found, **environment}


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
                settings |= {key: value for key, value in parser.items(section) if key in _VARIABLES}
    for option in _VARIABLES:
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
