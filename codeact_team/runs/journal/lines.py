"""Events as lines of a journal.

A line is the event as ``--json`` prints it, without the fields that have their defaults, or that the request, the outcome or
the begin of its effect has, too. Reading fills them in again.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any, cast

from pydantic import JsonValue
from pydantic_core import from_json, to_json

from codeact_team.agents.observations import EXECUTION_KEY
from codeact_team.core.effects import Event
from codeact_team.core.events import EffectBegan, EffectEnded, dump, load
from codeact_team.runs.journal.blobs import JSON, LONGEST_CHAIN, SEE, Blobs, Reference, is_reference

Known = Mapping[str, JsonValue]
_ALWAYS = ("type", "at", "span")


def shortened(event: Mapping[str, JsonValue], *known: Known) -> dict[str, JsonValue]:
    """An event as JSON without the fields that are the same in ``known``, the first that has them, or by default."""
    held = dict(_defaults(Event.kinds[str(event["type"])]))
    for one in reversed(known):
        held |= one
    return {
        name: value
        for name, value in event.items()
        # mostly a default itself
        if name in _ALWAYS or name not in held or not (value is held[name] or _is_same(value, held[name]))
    }


def _is_same(one: JsonValue, other: JsonValue) -> bool:
    """Whether values are the same, where a missing key counts as ``None``."""
    if isinstance(one, dict) and isinstance(other, dict):
        return all(_is_same(one.get(key), other.get(key)) for key in {*one, *other})
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return type(one) is type(other) and one == other


_UNKNOWN: Any = object()


def _known_value(name: str, known: tuple[Known, ...]) -> JsonValue:
    return next((one[name] for one in known if name in one), _UNKNOWN)


@cache
def _defaults(kind: type[Event]) -> Known:
    found: dict[str, Any] = {}
    for each in fields(kind):
        if each.default is not MISSING:
            found[each.name] = each.default
        elif each.default_factory is not MISSING:
            found[each.name] = each.default_factory()
    return {name: [] if value == () else value for name, value in found.items()}


@cache
def _field_names(kind: type[Event]) -> frozenset[str]:
    return frozenset(field.name for field in fields(kind))


def known_from_request(request: JsonValue) -> Known:
    """The fields that the event of a begin may share with its request."""
    return request if isinstance(request, dict) else {}


def known_from_outcome(outcome: JsonValue) -> Known:
    """The fields that the event of an end may share with its outcome: a text is ``text``, and a tagged outcome has them inside."""
    if isinstance(outcome, str) or (isinstance(outcome, dict) and is_reference(outcome)):
        return {"text": outcome}
    if not isinstance(outcome, dict):
        return {}
    inner = next(iter(outcome.values()), None)
    return inner if len(outcome) == 1 and isinstance(inner, dict) else outcome


def known_from_begin(began: Known) -> Known:
    """The fields that the event of an end may share with that of its begin."""
    return {name: value for name, value in began.items() if name not in _ALWAYS}


@dataclass(frozen=True)
class Repeated:
    """An effect that was recorded before the run was resumed.

    Attributes:
        span: The number that it had then.
        began: Where in the journal the line of its begin is, in bytes.
        ended: Where the line of its end is; -1 where it has none.
    """

    span: int
    began: int
    ended: int


class EventReader:
    """Reads events from the lines of a journal, in order."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._open: dict[int, tuple[EffectBegan, Repeated | None]] = {}
        """The events of effects that have begun, by number, and where else these are recorded."""

    def event(self, entry: Mapping[str, Any]) -> Event:
        """The event of a line that has one; raises ``ValueError`` if it is none of this version."""
        kind = Event.kinds.get(str(entry["type"]))
        names = _field_names(kind) if kind is not None else frozenset[str]()
        known: tuple[Known, ...] = ()
        if kind is not None and issubclass(kind, EffectBegan) and "ask" in entry:
            known = (self._known_request(entry["ask"]),)
        elif kind is not None and issubclass(kind, EffectEnded):
            known = self._known_of_end(entry)
        found = {name: value for name, value in entry.items() if name == "type" or name in names}
        for name in names - found.keys():
            if (value := _known_value(name, known)) is not _UNKNOWN:
                found[name] = value
        event = load(cast("dict[str, JsonValue]", self._blobs.unpack(found)))
        if isinstance(event, EffectBegan):
            self._open[event.span] = event, repeated_of(entry.get("ask"))
        return event

    def _known_request(self, ask: Mapping[str, Any]) -> Known:
        if (repeated := repeated_of(ask)) is not None:
            ask = self._blobs.entry_at(repeated.began)["ask"]
        return known_from_request(self._blobs.opened(ask.get("request")))

    def _known_of_end(self, entry: Mapping[str, Any]) -> tuple[Known, ...]:
        began, repeated = self._open.pop(entry["span"], (None, None))
        if (end := entry.get("end")) is None:
            return ()
        if "outcome" not in end and "error" not in end and repeated is not None and repeated.ended >= 0:
            end = self._blobs.entry_at(repeated.ended).get("end", {})
        outcome = self._blobs.opened(end.get("outcome"))
        if isinstance(outcome, dict) and len(outcome) == 1 and not is_reference(outcome):
            [(tag, inner)] = outcome.items()
            outcome = {tag: self._blobs.opened(inner)}
        return known_from_outcome(outcome), {} if began is None else known_from_begin(vars(began))


_SHORTEST = 60
"""Characters of a text that gets a reference when it is repeated."""
_MOST_TEXTS = 500
"""Texts of earlier lines that are remembered."""


class Repetitions:
    """Replaces texts, and messages for models, that earlier lines have by references to these."""

    def __init__(self) -> None:
        self._texts: dict[str, list[JsonValue]] = {}
        """By text, the place of its line in bytes, and the path there."""
        self._conversations: dict[str, tuple[int, list[JsonValue], int]] = {}
        """By caller, the place of its last request, the messages there, and how many requests that refers to."""

    def conversation(self, by: str, request: JsonValue) -> tuple[int, int]:
        """The place of the last request of the caller, and how many messages this one has in common; 0 for none."""
        messages = _messages_of(request)
        start, before, depth = self._conversations.get(by, (0, [], 0))
        pairs = enumerate(zip(messages, before, strict=False))
        kept = next((n for n, (one, other) in pairs if one != other), min(len(messages), len(before)))
        return (start, kept) if kept and depth < LONGEST_CHAIN else (0, 0)

    def note_conversation(self, by: str, request: JsonValue, start: int, *, is_shared: bool) -> None:
        """Note a request that was written at ``start``."""
        if messages := _messages_of(request):
            depth = self._conversations[by][2] + 1 if is_shared else 0
            self._conversations[by] = start, messages, depth

    def shared(self, value: JsonValue) -> JsonValue:
        """A value with references, to be packed."""
        texts = self._texts
        if isinstance(value, str):
            place = texts.get(value)
            return value if place is None else Reference({SEE: place})
        if isinstance(value, list):
            return [
                self.shared(item) if isinstance(item, dict | list) or item in texts else item
                for item in value
            ]
        if isinstance(value, dict):
            shared = {
                key: self.shared(item) if isinstance(item, dict | list) or item in texts else item
                for key, item in value.items()
            }
            if EXECUTION_KEY in value:
                shared[EXECUTION_KEY] = self._shared_json(value[EXECUTION_KEY])
            return shared
        return value

    def _shared_json(self, text: JsonValue) -> JsonValue:
        """The record of a turn, whose JSON repeats all code of the turn."""
        if isinstance(text, str):
            with suppress(ValueError):
                held = from_json(text)
                if to_json(held).decode() == text:
                    return Reference({JSON: self.shared(held)})
        return self.shared(text)

    def note(self, start: int, value: JsonValue, *path: str | int) -> None:
        """Note the texts in a line that was written at ``start``."""
        if isinstance(value, str):
            if len(value) >= _SHORTEST:
                self._texts.setdefault(value, [start, *path])
                if len(self._texts) > _MOST_TEXTS:
                    del self._texts[next(iter(self._texts))]
        elif isinstance(value, dict | list):
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                # most of a line are numbers and short texts
                if isinstance(item, dict | list) or (isinstance(item, str) and len(item) >= _SHORTEST):
                    self.note(start, item, *path, key)


def _messages_of(request: JsonValue) -> list[JsonValue]:
    messages = request.get("messages") if isinstance(request, dict) else None
    return messages if isinstance(messages, list) else []


def repeated_of(ask: Mapping[str, Any] | None) -> Repeated | None:
    """The recorded effect that the begin of an effect refers to, if it does."""
    same = None if ask is None else ask.get("same")
    return None if same is None else Repeated(int(same["span"]), int(same["began"]), int(same["ended"]))


def event_data(event: Event) -> dict[str, JsonValue]:
    """An event as JSON; a message in it lacks its empty fields."""
    data = dump(event)
    if isinstance(message := data.get("message"), dict):
        data["message"] = {name: value for name, value in message.items() if value not in (None, {})}
    return data
