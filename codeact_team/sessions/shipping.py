"""How the runner gets into a sandbox: as source, over the stream."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

_PACKAGE = __name__.rpartition(".")[0]
_SYSTEM = "codeact_team.system"


@cache
def payload() -> bytes:
    """The source of every module that runs inside, as ``runner/bootstrap.py`` reads it, and of that one itself."""
    root, system = resources.files(_PACKAGE), resources.files(_SYSTEM)
    sources = {
        "codeact_team": "",
        _PACKAGE: "",
        f"{_PACKAGE}.protocol": (root / "protocol.py").read_text(),
        **_sources(root / "runner", f"{_PACKAGE}.runner"),
        **_sources(system, _SYSTEM),
    }
    return json.dumps(sources).encode()


def _sources(directory: Traversable, package: str) -> dict[str, str]:
    sources: dict[str, str] = {}
    for entry in directory.iterdir():
        if entry.is_dir():
            sources |= _sources(entry, f"{package}.{entry.name}")
        elif entry.name == "__init__.py":
            sources[package] = entry.read_text()
        elif entry.name.endswith(".py"):
            sources[f"{package}.{entry.name.removesuffix('.py')}"] = entry.read_text()
    return sources


def command(python: str, *, plain: bool = False) -> Sequence[str]:
    """How to start the supervisor; its first input is the :func:`payload`.

    Args:
        python: The interpreter, as the sandbox sees it.
        plain: Whether it is, with its environment, as the code's own is to be, and nothing of the code's; so that the first of
            those can be a fork of it.
    """
    bootstrap = (resources.files(_PACKAGE) / "runner" / "bootstrap.py").read_text()
    # isolated, without site: nothing that code may have left in the sandbox is run
    isolated = () if plain else ("-I", "-S")
    return [
        python,
        *isolated,
        "-u",
        "-c",
        bootstrap,
        "0",
        str(len(payload())),
        f"{_PACKAGE}.runner.supervisor.supervisor",
        *(("plain",) if plain else ()),
    ]
