"""What a type checker knows of the package in a program that uses it, without the checker's guesses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

GUESSED = {
    r"\.(event_)?logger$": "what `logging.getLogger` returns is guessed alike by all",
    r"\.standalone\.synchronous\.Sync\w+\.\w+$": "a method that waits has the parameters of its coroutine",
    r"\.adapters\.(agent_framework|deepagents|deepagents_code|smolagents)\.": "their bases are in packages that are not installed",
}
"""Names, as patterns, whose types need not be known, and why."""
OF_A_BASE = "Ambiguous base class override"
"""An attribute of a class whose type a base declares, as AutoGen's and Pydantic's own classes have them."""


def unknown(symbol: dict[str, Any]) -> Iterator[str]:
    """What is not known of a symbol itself, and not only of another one that its type names."""
    for diagnostic in symbol["diagnostics"]:
        first, *more = diagnostic["message"].split("\n")
        names_another = "partially unknown" in first and not any(
            re.search(r"\bUnknown\b", line) for line in more
        )
        if not first.startswith((OF_A_BASE, "No docstring")) and not names_another:
            yield f"{symbol['name']}: {' '.join(line.strip() for line in (first, *more))}"


@pytest.mark.long
def test_all_types_of_public_names_are_known(tmp_path: Path) -> None:
    # away from the settings of this project; pyright asks the first Python of the path for its packages
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    command = [
        sys.executable,
        "-m",
        "pyright",
        "--verifytypes",
        "codeact_team",
        "--ignoreexternal",
        "--outputjson",
    ]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, check=False)
    symbols = json.loads(ran.stdout)["typeCompleteness"]["symbols"]
    exported = [symbol for symbol in symbols if symbol["isExported"]]
    assert len(exported) > 1000

    left = {symbol["name"]: [*unknown(symbol)] for symbol in exported}
    excepted = {name for name in left if any(re.search(pattern, name) for pattern in GUESSED)}
    problems = sorted(problem for name in left.keys() - excepted for problem in left[name])
    assert not problems, "\n".join(["types of public names are not known:", *problems])
    unused = [
        pattern
        for pattern in GUESSED
        if not any(left[name] and re.search(pattern, name) for name in excepted)
    ]
    assert unused == []
