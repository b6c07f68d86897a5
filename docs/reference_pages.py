"""Directives for the parts of the reference that are made from the package itself: ``{commands}``, ``{settings}``, ``{events}``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from enum import StrEnum
from inspect import getdoc
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from typer._click import Context
from typer.cli import get_docs_for_click
from typer.main import get_command

from codeact_team.cli import conversation, json_lines  # noqa: F401 - what they import defines the rest of the events
from codeact_team.cli.app import app
from codeact_team.config.schema import config_reference, markdown
from codeact_team.core.effects import Event

_COMMON = ("at", "span", "parent")
"""The fields that the page describes once."""
_WORDS = {
    str: "text",
    bool: "true or false",
    int: "whole number",
    float: "number",
    NoneType: "null",
    Any: "any JSON",
}


def commands() -> str:
    """Every command with its arguments and options, from its help."""
    command = get_command(app)
    text = get_docs_for_click(obj=command, ctx=Context(command), name="codeact-team", indent=0)
    own, *sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    # the page itself lists the commands
    return "".join(["#", own.partition("**Commands**:")[0], *sections])


def settings() -> str:
    """Every component with its settings, from the JSON Schema of configs."""
    _, *sections = re.split(r"^(?=## )", config_reference(), flags=re.MULTILINE)
    return "".join(sections)


def event_types() -> str:
    """Every event with its fields, from its class."""
    return "\n".join(_described_events())


def _described_events() -> Iterator[str]:
    for name, kind in Event.kinds.items():
        if kind.__subclasses__():
            continue  # what several have in common
        text, _, attributes = markdown(getdoc(kind) or "").partition("\nAttributes:\n")
        explained = dict(re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", attributes, re.MULTILINE))
        yield f"## `{name}`\n\n{text}\n"
        hints = get_type_hints(kind)
        for field in fields(kind):
            if field.name not in _COMMON:
                more = f". {' '.join(explained[field.name].split())}" if field.name in explained else ""
                yield f"- `{field.name}`: {_words_of(hints[field.name])}{more}"


def _words_of(hint: Any) -> str:
    """A type of Python as the type of JSON that it becomes."""
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(map(_words_of, get_args(hint)))
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return ", ".join(f"`{member}`" for member in hint)
    if get_origin(hint) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(hint))
    base = get_origin(hint) or hint
    if base in _WORDS:
        return _WORDS[base]
    if base in (Sequence, list, tuple):
        return f"list of {_words_of(get_args(hint)[0])}"
    if is_dataclass(base):
        return "object with " + ", ".join(f"`{field.name}`" for field in fields(base))
    return "object"


class _Made(SphinxDirective):
    """Puts Markdown that a function makes in the place of the directive."""

    has_content = True
    """What a reader of the source sees in its place."""
    make: ClassVar[Callable[[], str]]

    def run(self) -> list[nodes.Node]:
        self.env.note_reread()  # what it is made from is no file of these pages
        return self.parse_text_to_nodes(type(self).make(), allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives."""
    for name, make in (("commands", commands), ("settings", settings), ("events", event_types)):
        app.add_directive(name, type(name, (_Made,), {"make": staticmethod(make)}))
    return {"parallel_read_safe": True}
