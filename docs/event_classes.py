"""Describes the events as Markdown: each with a table of its fields, and then what these consist of, from the classes."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum, StrEnum
from functools import cache
from pydoc import locate
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage
from pydantic import JsonValue

from codeact_team.batch import results as batch_results
from codeact_team.config.schema import markdown
from codeact_team.core import attempt_events, effects, events, network_events, process_events, sandbox_events
from codeact_team.core.effects import Event, SpanEvent
from codeact_team.core.events import AgentEvent
from codeact_team.core.settings import attribute_docs
from codeact_team.journal import result as run_results

_GROUPS = {
    "Events of a run": (
        events,
        sandbox_events,
        attempt_events,
        process_events,
        network_events,
        effects,
        run_results,
    ),
    "Events of a batch": (batch_results,),
}
"""The modules that define them."""
_COMMON = {field.name for base in (Event, SpanEvent, AgentEvent) for field in fields(base)}
"""The fields that the page describes once."""
_WORDS: Mapping[Any, str] = {
    str: "text",
    bool: "true or false",
    int: "whole number",
    float: "number",
    NoneType: "null",
    Any: "any JSON",
    JsonValue: "any JSON",
    BaseChatMessage: "message of AutoGen",
    BaseAgentEvent: "message of AutoGen",
}
_NAMED = re.compile(r":class:`~?([\w.]+)`")
_ATTRIBUTE = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)


def event_types() -> str:
    """Every event of a run, every event of a batch, and the classes of their fields."""
    sections = list[str]()
    described = list[type[Event]]()
    for title, modules in _GROUPS.items():
        names = [module.__name__ for module in modules]
        kinds = [kind for name in names for kind in Event.kinds.values() if kind.__module__ == name]
        # those with others below them are what these have in common
        kinds = [kind for kind in kinds if not kind.__subclasses__()]
        sections += [f"## {title}", *map(_event, kinds)]
        described += kinds
    return "\n\n".join([*sections, "## What is in them", *map(_part, _parts(described))])


def _event(kind: type[Event]) -> str:
    return f"### `{kind.type}`\n\n{_summary(kind)}\n\n{_fields(kind, _COMMON)}"


def _part(kind: type) -> str:
    head = f"### {kind.__name__}\n\n{_summary(kind)}"
    if is_dataclass(kind):
        return f"{head}\n\n{_fields(kind, set())}"
    return f"{head}\n\n{_members(cast('type[Enum]', kind))}"


def _members(kind: type[Enum]) -> str:
    docs = _docs_below(kind)
    return _table(("value", "meaning"), [(f"`{each.value}`", docs.get(each.name, "")) for each in kind])


def _parts(kinds: Iterable[type]) -> Sequence[type]:
    """The classes of all fields, also of those in others, in the order of their names."""
    found = dict[type, None]()
    left = list(kinds)
    while left:
        kind = left.pop()
        hints = get_type_hints(kind)
        for field in fields(kind):
            for part in _classes_in(hints[field.name]):
                if part not in found:
                    found[part] = None
                    left += [part] if is_dataclass(part) else []
    return sorted(found, key=lambda part: part.__name__)


def _classes_in(hint: Any) -> Iterator[type]:
    if _has_section(hint):
        yield hint
    for inner in get_args(hint):
        yield from _classes_in(inner)


def _has_section(hint: Any) -> bool:
    """Whether the page describes it for itself: the short ones, which explain nothing, stand where they are used."""
    if not isinstance(hint, type):
        return False
    return is_dataclass(hint) or (issubclass(hint, StrEnum) and bool(_docs_below(hint)))


def _fields(kind: type, without: set[str]) -> str:
    hints, explained = get_type_hints(kind), _explained(kind)
    names = [field.name for field in fields(kind) if field.name not in without]
    rows = [(f"`{name}`", _words(hints[name]), explained.get(name, "")) for name in names]
    if not any(explained.get(name) for name in names):
        # the text above says it all
        return _table(("field", "value"), [row[:2] for row in rows]) if rows else ""
    return _table(("field", "value", "meaning"), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _words(hint: Any) -> str:
    """A type of Python as the type of JSON that it becomes."""
    if hint in _WORDS:
        return _WORDS[hint]
    if _has_section(hint):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(_words, inner)))
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if isinstance(origin, type):
        if issubclass(origin, Mapping):
            return f"mapping to {_words(inner[1])}"
        return f"list of {_words(inner[0])}"
    if issubclass(hint, StrEnum):
        return ", ".join(f"`{member}`" for member in hint)
    return _WORDS[next(base for base in hint.__mro__ if base in _WORDS)]


def _summary(kind: type) -> str:
    return _shown(_docstring(kind).partition("\nAttributes:\n")[0].strip())


@cache
def _explained(kind: type) -> Mapping[str, str]:
    """What is said of its fields: by its docstring, by the classes that this names, by those that it inherits from."""
    explained = dict[str, str]()
    for named in (*reversed(kind.__bases__), *_named(kind)):
        explained |= _explained(named) if named is not object else {}
    own = _ATTRIBUTE.findall(_docstring(kind).partition("\nAttributes:\n")[2])
    return explained | dict(_docs_below(kind)) | {name: _shown(" ".join(text.split())) for name, text in own}


def _named(kind: type) -> Iterator[type]:
    for name in _NAMED.findall(_docstring(kind)):
        found = locate(name) if "." in name else getattr(sys.modules[kind.__module__], name)
        if isinstance(found, type):
            yield found


def _docs_below(kind: type) -> Mapping[str, str]:
    """The docstrings below its fields or members."""
    return {name: _shown(text) for name, text in attribute_docs(kind).items()}


def _docstring(kind: type) -> str:
    text = kind.__dict__.get("__doc__") or ""
    # dataclasses without one get their signature
    return "" if text.startswith(f"{kind.__name__}(") else inspect.cleandoc(text)


def _shown(text: str) -> str:
    return markdown(text).replace("`None`", "`null`")
