"""The house: rooms, layers, sizes and names that a newcomer can rely on."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import grimp

import codeact_team

PACKAGE = Path(codeact_team.__file__).parent
ROOMS = {
    "agents", "batch", "cli", "config", "core", "executors", "models", "runs", "sandbox", "session", "telemetry", "tools",
}  # fmt: skip
AT_THE_ROOT = {"__init__.py", "__main__.py", "errors.py", "py.typed", "pytest_plugin.py"}
LONGEST = 600
"""Lines."""
TOO_LONG = {"core/events.py"}
"""May only get shorter."""
TWICE = 22
"""How many names of classes are defined in more than one file: may only get smaller."""


def files() -> Iterator[tuple[str, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield str(path.relative_to(PACKAGE)), path.read_text()


def test_the_package_has_these_rooms() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if any(path.glob("*.py"))}
    files = {path.name for path in PACKAGE.iterdir() if path.is_file()}
    assert (rooms, files) == (ROOMS, AT_THE_ROOT)


def test_no_file_imports_itself_by_way_of_others() -> None:
    graph = grimp.build_graph("codeact_team", exclude_type_checking_imports=True)
    left = {name: set(graph.find_modules_directly_imported_by(name)) for name in graph.modules}
    while last := [name for name, imported in left.items() if not imported & left.keys()]:
        for name in last:
            del left[name]
    first = {name for imported in left.values() for name in imported}
    assert sorted(first & left.keys()) == []


def test_a_file_is_a_chapter_and_no_book() -> None:
    assert {name for name, text in files() if len(text.splitlines()) > LONGEST} == TOO_LONG


def test_names_of_classes_mean_one_thing() -> None:
    homes: dict[str, set[str]] = defaultdict(set)
    for name, text in files():
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].add(name)
    twice = {name: found for name, found in homes.items() if len(found) > 1}
    assert len(twice) == TWICE, twice
