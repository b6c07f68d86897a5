"""Checks for values that fit the schema and cannot work: empty keys, broken source code, missing modules.

Nothing of it runs: source code is parsed, and modules are looked up.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any, cast

from autogen_core.models import ChatCompletionClient
from autogen_core.tools import FunctionTool

from codeact_team.config.models import key_variables
from codeact_team.config.yaml12 import Path
from codeact_team.core.autogen_internals import ComponentClass
from codeact_team.text.visibility import one_line

_LONGEST = 200


def faults(component: ComponentClass, config: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Where in the config of a component something cannot work, and why."""
    if issubclass(component, ChatCompletionClient):
        variables = key_variables(component.__name__, config)
        if config.get("api_key") == "" and variables:
            yield (
                ("api_key",),
                f"an empty key: leave `api_key` out, and the client reads {' or '.join(variables)}",
            )
    elif issubclass(component, FunctionTool):
        yield from _faults_of_source(str(config.get("source_code", "")))
        for number, given in enumerate(cast("list[object]", config.get("global_imports") or [])):
            for module in _modules(given):
                if (lacking := _lacking(module)) is not None:
                    yield ("global_imports", number), lacking


def _faults_of_source(source: str) -> Iterator[tuple[Path, str]]:
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        yield (
            ("source_code",),
            f"does not compile: {one_line(str(error.msg), _LONGEST)} (its line {error.lineno})",
        )
        return
    except (ValueError, RecursionError, MemoryError) as error:
        yield (
            ("source_code",),
            f"does not compile: {one_line(str(error), _LONGEST) or 'it is nested too deeply'}",
        )
        return
    if not any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in ast.walk(tree)):
        yield ("source_code",), "defines no function"
    for node in tree.body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            names = [node.module]
        for name in names:
            if (lacking := _lacking(name)) is not None:
                yield ("source_code",), lacking


def _modules(given: object) -> Iterator[str]:
    """The modules of one of the imports of a function, in any of AutoGen's forms."""
    if isinstance(given, str):
        yield given
    elif isinstance(given, Mapping):
        told = cast("Mapping[str, object]", given)
        if isinstance(name := told.get("module", told.get("name")), str):
            yield name


def _lacking(module: str) -> str | None:
    """Return a problem if the package of a module is not installed; ``None`` if it is."""
    package = module.partition(".")[0]
    if package in sys.modules:
        return None
    try:
        is_there = find_spec(package) is not None
    except (ValueError, ImportError):
        is_there = False
    return None if is_there else f"needs the module {one_line(package, _LONGEST)!r}, which is not installed"
