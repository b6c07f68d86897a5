"""Writes what settings mean into the source, where editors read it, from the docstrings of the fields of configs."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Union, get_args, get_origin

_WIDTH = 110
_END = '"""'


def with_arguments(source: str, name: str, docs: Mapping[str, str]) -> str:
    """The source of a module in which the constructor of the class ``name`` has a docstring with these arguments."""
    made = _class(source, name)
    about = (ast.get_docstring(made) or "").partition("\n\n")[0]
    (constructor,) = [
        node for node in made.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"
    ]
    arguments = [_filled(f"{each}: {docs[each]}", 12, 16) for each in docs]
    docstring = [f"        {_END}{about}", "", "        Args:", *arguments, f"        {_END}"]
    begin = constructor.body[0].lineno
    end = begin - 1 if ast.get_docstring(constructor) is None else constructor.body[0].end_lineno
    return _replaced(source, begin, end, docstring)


def with_fields(source: str, name: str, fields: Mapping[str, tuple[Any, str]]) -> str:
    """The source of a module whose class ``name`` has these fields, of these types and with these docstrings."""
    _, first, *_, last = _class(source, name).body
    lines: list[str] = []
    for field, (kind, text) in fields.items():
        named = _named(kind)
        lines += [f"    {field}: {named}", _filled(f"{_END}{text}{_END}", 4, 4)]
    return _replaced(source, first.lineno, last.end_lineno, lines)


def _named(kind: Any) -> str:
    if get_origin(kind) is Union:
        return " | ".join(map(_named, get_args(kind)))
    # what is not Python's own, the module imports
    named = re.sub(r"codeact_team\.(?:\w+\.)*", "", inspect.formatannotation(kind))
    return named.replace("typing.", "").replace("'", '"').replace("NoneType", "None")


def _class(source: str, name: str) -> ast.ClassDef:
    (found,) = [
        node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == name
    ]
    return found


def _filled(text: str, first: int, others: int) -> str:
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent=" " * first,
        subsequent_indent=" " * others,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _replaced(source: str, first: int, last: int | None, lines: Sequence[str]) -> str:
    """The source with other lines in place of the ``first`` to the ``last``."""
    before, after = source.splitlines()[: first - 1], source.splitlines()[last:]
    return "\n".join([*before, *lines, *after]) + "\n"
