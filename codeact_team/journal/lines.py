"""The lines of a journal that have events: begins and ends of effects, and what else happens in a run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from functools import cache
from typing import Any

from pydantic import JsonValue

from codeact_team.core.effects import NO_FACTS, Begin, Effect, EffectFailure, End, Event, OtherEvent
from codeact_team.core.events import adapter_of, dump, load
from codeact_team.journal.blobs import Blobs

_OF_THE_LINE = ("mac", "crc")
"""Fields of a line besides its entry."""
_BEGIN = {
    *("at", "begin", "span", "parent", "agent", "place", "key", "within", "block", "attempt", "again"),
    *("request", "facts", "conversation", "messages"),
}
_END = {"at", "end", "span", "again", "facts", "outcome", "error", "ran", "cancelled"}
_KINDS = ("files", "given", "used", "copies", "delivered", "rebuilding", "rebuilt", "full", "resumed")
"""The other entries, each by the field that tells its kind."""
_OTHER = {"at", "key", "outcome", "set", *_KINDS}
_MOST_OTHERS = 10_000
"""Events of another version that are read."""


def event_line(event: Event) -> dict[str, JsonValue]:
    """The line of an event that is neither the begin nor the end of an effect; a message in it lacks its empty fields."""
    line = dump(event)
    if isinstance(message := line.get("message"), dict):
        line["message"] = {name: value for name, value in message.items() if value not in (None, {})}
    return line


def failure_of(error: Any) -> EffectFailure:
    """The error in the line of an end, unpacked."""
    return EffectFailure(str(error["type"]), str(error["text"]), error.get("status"))


class EventReader:
    """Reads events from the lines of a journal, in order.

    Args:
        blobs: Unpacks values.
    """

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._open: dict[int, Begin] = {}
        """The effects under way, by their numbers."""
        self._others = 0

    def event(self, line: Mapping[str, Any]) -> Event | None:
        """The event of a line; ``None`` if it has none. Raises a ``ValueError`` if it is none of this version."""
        if "begin" in line:
            begin = self._open[line["span"]] = self._begin(line)
            return _validated(begin.event)
        if "end" in line:
            return _validated(self._end(line).event)
        if "type" not in line:
            return None
        data: Any = self._blobs.unpack({key: value for key, value in line.items() if key not in _OF_THE_LINE})
        return load(data) if data["type"] in Event.kinds else self._other(str(data["type"]), data, line)

    def unknown(self, line: Mapping[str, Any], event: Event | None) -> OtherEvent | None:
        """What a line with an event, or without one, has that is not known; ``None`` if it is all known. Raises as :meth:`event`."""
        if isinstance(event, OtherEvent):
            return None
        name, known = _known(line)
        found = {key: value for key, value in line.items() if key not in known and key not in _OF_THE_LINE}
        if event is not None and name in Effect.kinds:
            in_event = _fields_of(type(event))
            found |= {key: value for key, value in self._facts(line).items() if key not in in_event}
        if not found:
            return None
        data: Any = self._blobs.unpack(found)
        return self._other(name, data, line)

    def _other(self, name: str, data: dict[str, Any], line: Mapping[str, Any]) -> OtherEvent:
        self._others += 1
        if self._others > _MOST_OTHERS:
            raise ValueError("no version has so many events that another one does not know")
        return OtherEvent(name=name, data=data, at=float(line["at"]), parent=line.get("parent"))

    def _begin(self, line: Mapping[str, Any]) -> Begin:
        return Begin(
            kind=line["begin"],
            span=line["span"],
            parent=line["parent"],
            at=line["at"],
            agent=line["agent"],
            request=self._blobs.unpack(line["request"]),
            facts=self._facts(line),
        )

    def _end(self, line: Mapping[str, Any]) -> End:
        error = self._blobs.unpack(line.get("error"))
        return End(
            begin=self._open.pop(line["span"]),
            at=line["at"],
            outcome=self._blobs.unpack(line.get("outcome"), with_bytes=False),
            failure=None if error is None else failure_of(error),
            facts=self._facts(line),
        )

    def _facts(self, line: Mapping[str, Any]) -> Mapping[str, Any]:
        facts: Any = self._blobs.unpack(line.get("facts"))
        return NO_FACTS if facts is None else facts


@cache
def _fields_of(kind: type[Event]) -> frozenset[str]:
    """The fields of an event; a journal has many lines of few kinds."""
    return frozenset(field.name for field in fields(kind))


def _known(line: Mapping[str, Any]) -> tuple[str, Collection[str]]:
    """What the entry of a line is, and the fields of such entries."""
    if "begin" in line:
        return str(line["begin"]), _BEGIN
    if "end" in line:
        return str(line["end"]), _END
    if (kind := Event.kinds.get(str(line.get("type")))) is not None:
        return kind.type, _fields_of(kind) | {"type"}
    name = next((kind for kind in _KINDS if kind in line), None)
    return (
        (name, _OTHER) if name is not None else (next((key for key in line if key != "at"), "entry"), {"at"})
    )


def _validated(event: Event) -> Event:
    """An event that was made of hostile data, once its fields have the right types; else a ``ValueError``."""
    adapter = adapter_of(type(event))
    return adapter.validate_python(adapter.dump_python(event, mode="json", warnings=False))
