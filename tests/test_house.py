"""The house: rooms, layers, sizes and names that a newcomer can rely on."""

from __future__ import annotations

import ast
import functools
import inspect
from collections import defaultdict
from pathlib import Path

import pytest

import codeact_team
from codeact_team.config.schema import known_components
from codeact_team.core.providers import schema_of

PACKAGE = Path(codeact_team.__file__).parent
ROOMS = {
    "adapters", "agents", "batch", "cli", "config", "core", "executors", "exports", "files", "journal", "models", "network",
    "runs", "sandbox", "session", "standalone", "telemetry", "text", "tools",
}  # fmt: skip
AT_THE_ROOT = {"__init__.py", "__main__.py", "errors.py", "py.typed", "quickstart.py", "pytest_plugin.py"}
LONGEST = 600
"""Lines."""
TOO_LONG = set[str]()
"""May only get shorter."""


PROGRAMS = (
    "session/runner/",
    "executors/packages/inside/",
    "executors/workspace/inside/",
    "network/inside/",
    "sandbox/confined/supervisor/",
)
"""What runs in or around a sandbox as a program of its own, and knows the standard library only."""
IN_ONE_MODULE = {
    "os.scandir": {"files/trees.py"},
    "os.rename": {"files/trees.py"},
    "os.replace": {"files/atomic.py"},
    "os.walk": set[str](),
    "shutil.rmtree": set[str](),
}
"""What is easily led elsewhere by links that code has planted."""


@functools.cache
def files() -> dict[str, str]:
    return {str(path.relative_to(PACKAGE)): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}


@functools.cache
def trees() -> dict[str, ast.Module]:
    return {name: ast.parse(text) for name, text in files().items()}


def test_the_package_has_these_rooms() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if any(path.glob("*.py"))}
    files = {path.name for path in PACKAGE.iterdir() if path.is_file()}
    assert (rooms, files) == (ROOMS, AT_THE_ROOT)


@pytest.mark.long
def test_no_file_imports_itself_by_way_of_others() -> None:
    import grimp

    graph = grimp.build_graph("codeact_team", exclude_type_checking_imports=True)
    left = {name: set(graph.find_modules_directly_imported_by(name)) for name in graph.modules}
    while last := [name for name, imported in left.items() if not imported & left.keys()]:
        for name in last:
            del left[name]
    first = {name for imported in left.values() for name in imported}
    assert sorted(first & left.keys()) == []


def test_a_file_is_a_chapter_and_no_book() -> None:
    assert {name for name, text in files().items() if len(text.splitlines()) > LONGEST} == TOO_LONG


@pytest.mark.long
def test_names_of_classes_mean_one_thing() -> None:
    homes: dict[str, set[str]] = defaultdict(set)
    for name, tree in trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].add(name)
    twice = {name: found for name, found in homes.items() if len(found) > 1}
    assert twice == {}


def test_a_setting_is_declared_once() -> None:
    ours = {name: kind for name, kind in known_components() if name.startswith("codeact_team.")}
    assert len(ours) > 8
    for name, component in ours.items():
        declared = [
            field
            for owner in schema_of(component).__mro__
            for field in inspect.get_annotations(owner)
            if field in schema_of(component).model_fields
        ]
        assert len(declared) == len(set(declared)), name
        # a constructor may take, besides, what no config can say
        assert set(inspect.signature(component).parameters) - {"functions"} == set(declared) - {
            "functions"
        }, name


def test_the_settings_of_agents_and_executors_have_no_other_form() -> None:
    """Such as a ``TypedDict`` of a constructor's arguments."""
    for name, text in files().items():
        if name.startswith(("agents/", "executors/")):
            assert "TypedDict" not in text, name


def _dotted(node: ast.Attribute) -> str:
    return f"{node.value.id if isinstance(node.value, ast.Name) else ''}.{node.attr}"


@pytest.mark.long
def test_trees_are_walked_and_files_are_replaced_in_one_module() -> None:
    homes: dict[str, set[str]] = {call: set() for call in IN_ONE_MODULE}
    for name, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and not name.startswith(PROGRAMS):
                # of a path, too
                call = "os.rename" if node.attr == "rename" else _dotted(node)
                if call in homes:
                    homes[call].add(name)
    assert homes == IN_ONE_MODULE
