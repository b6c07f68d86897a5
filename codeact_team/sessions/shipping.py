"""How the runner gets into a sandbox: as source, over the stream."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib import resources

_PACKAGE = __name__.rpartition(".")[0]


@cache
def payload() -> bytes:
    """The source of every module that runs inside, as ``runner/bootstrap.py`` reads it, and of that one itself."""
    root = resources.files(_PACKAGE)
    runner = root / "runner"
    sources = {
        "codeact_team": "",
        _PACKAGE: "",
        f"{_PACKAGE}.protocol": (root / "protocol.py").read_text(),
        f"{_PACKAGE}.runner": "",
    }
    for file in runner.iterdir():
        name = file.name.removesuffix(".py")
        if file.name.endswith(".py") and name != "__init__":
            sources[f"{_PACKAGE}.runner.{name}"] = file.read_text()
    return json.dumps(sources).encode()


def command(python: str) -> Sequence[str]:
    """How to start the supervisor; its first input is the :func:`payload`.

    Args:
        python: The interpreter, as the sandbox sees it.
    """
    bootstrap = (resources.files(_PACKAGE) / "runner" / "bootstrap.py").read_text()
    # isolated, without site: nothing that code may have left in the sandbox is run
    return [
        python,
        "-I",
        "-S",
        "-u",
        "-c",
        bootstrap,
        "0",
        str(len(payload())),
        f"{_PACKAGE}.runner.supervisor",
    ]
