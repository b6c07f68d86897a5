"""Conversations with models, of which a journal has each message once.

A request to a model refers to messages by their digests: to an earlier request of the same caller without its last few
messages, and then to the new ones. So its size is the size of its new messages, however long the conversation is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from autogen_core.models import LLMMessage
from pydantic import JsonValue

from codeact_team.errors import JournalError
from codeact_team.journal.blobs import MAX_PARTS, Blobs

Caller = tuple[str, int | None]
"""The caller: an agent and its place in the config, and the block or attempt in which it asks."""
Digests = Sequence[str]
_DIGITS = 32


@dataclass
class KnownMessages:
    """The messages of a request.

    Attributes:
        messages: The messages.
        contents: Their contents: a message that was changed in place has another one.
        lists: Copies of the contents that are lists, by their places: a list may be changed in place, too.
        digests: Their digests.
        through: For each of them, a digest of all up to it.
    """

    messages: list[LLMMessage] = field(default_factory=list["LLMMessage"])
    contents: list[object] = field(default_factory=list[object])
    lists: dict[int, list[object]] = field(default_factory=dict[int, "list[object]"])
    digests: list[str] = field(default_factory=list[str])
    through: list[str] = field(default_factory=list[str])

    def first(self, size: int) -> KnownMessages:
        """The first so many of them."""
        lists = {place: copy for place, copy in self.lists.items() if place < size}
        return KnownMessages(
            self.messages[:size], self.contents[:size], lists, self.digests[:size], self.through[:size]
        )

    def count_in(self, messages: Sequence[LLMMessage]) -> int:
        """The number of first messages that are these, and have not changed."""
        # contents are compared by identity, as a rule: to look at each takes the time of a long conversation
        contents = [message.content for message in messages[: len(self.messages)]]
        same = min(_first_difference(self.messages, messages), _first_difference(self.contents, contents))
        changed = (place for place, copy in self.lists.items() if place < same and contents[place] != copy)
        return next(changed, same)


@dataclass(frozen=True)
class NewMessages:
    """The messages of a request, divided into known and new ones.

    Attributes:
        known: Its first messages, which are known.
        added: The other ones.
        contents: The contents of these.
        lists: Copies of those contents that are lists, by their places in the request.
        dumped: The other ones as JSON.
    """

    known: KnownMessages
    added: list[LLMMessage]
    contents: list[object]
    lists: dict[int, list[object]]
    dumped: list[JsonValue]

    def with_digests(self, added: Sequence[str]) -> KnownMessages:
        """Return all messages, given the digests of the added ones."""
        through = [*self.known.through]
        for digest in added:
            before = through[-1] if through else ""
            through.append(sha256(f"{before}{digest}".encode()).hexdigest()[:_DIGITS])
        return KnownMessages(
            [*self.known.messages, *self.added],
            [*self.known.contents, *self.contents],
            {**self.known.lists, **self.lists},
            [*self.known.digests, *added],
            through,
        )


class Conversations:
    """The messages that a journal has, for its writer."""

    def __init__(self) -> None:
        self._looked_at: dict[Caller, KnownMessages] = {}
        self._written: dict[Caller, tuple[int, Digests]] = {}
        """The number and the messages of the last request in the journal, by caller."""
        self.kept: set[str] = set()
        """The digests of the messages in the journal."""

    def new_in(self, caller: Caller, messages: Sequence[LLMMessage]) -> NewMessages:
        """Dump what is new in a conversation: what was dumped for the last request of the same caller is not touched again."""
        known = self._looked_at.get(caller, KnownMessages())
        if (same := known.count_in(messages)) < len(known.messages):
            known = known.first(same)
        added = [*messages[same:]]
        lists: dict[int, list[object]] = {
            place: [*message.content]
            for place, message in enumerate(added, same)
            if isinstance(message.content, list)
        }
        dumped: list[JsonValue] = [message.model_dump(mode="json") for message in added]
        return NewMessages(known, added, [message.content for message in added], lists, dumped)

    def note(self, caller: Caller, conversation: KnownMessages) -> None:
        """Note all messages of a request."""
        self._looked_at[caller] = conversation

    def not_kept(self, messages: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        """Those of the messages that the journal does not have: it has them from now on."""
        found = {digest: message for digest, message in messages.items() if digest not in self.kept}
        self.kept.update(found)
        return found

    def reference(self, caller: Caller, span: int, digests: Digests) -> dict[str, JsonValue]:
        """A list of messages as the line of the request with this number has it, which is written next."""
        after, before = self._written.get(caller, (0, ()))
        self._written[caller] = span, digests
        same = _first_difference(before, digests)
        if not same:
            return {"add": [*digests]}
        return {"after": after, "drop": len(before) - same, "add": [*digests[same:]]}


def _first_difference(one: Sequence[object], other: Sequence[object]) -> int:
    # which compares the same objects at no cost
    if other[: len(one)] == one:
        return len(one)
    pairs = zip(one, other, strict=False)
    return next((n for n, (mine, yours) in enumerate(pairs) if mine != yours), min(len(one), len(other)))


def digest_of_message(message: JsonValue) -> str:
    """The digest of a message as JSON, without credentials."""
    text = json.dumps(message, ensure_ascii=False, sort_keys=True)
    return sha256(text.encode(errors="backslashreplace")).hexdigest()[:_DIGITS]


class KeptMessages:
    """The messages that a journal has, for a reader of its lines in order.

    Args:
        blobs: Unpacks the messages.
        most: The bytes of a conversation that is read.
    """

    def __init__(self, blobs: Blobs, most: int) -> None:
        self._blobs = blobs
        self._most = most
        self._kept: dict[str, tuple[JsonValue, int]] = {}
        """Each message, and about how many bytes it takes."""
        self._last: dict[Caller, tuple[int, Digests]] = {}

    def of(self, caller: Caller, entry: Mapping[str, Any]) -> list[JsonValue] | None:
        """The messages of the request in the line of a begin; ``None`` if it has none. Each line has to be given.

        Raises:
            JournalError: If it refers to what is not there, or is too large.
        """
        for digest, packed in entry.get("messages", {}).items():
            message = self._blobs.unpack(packed)
            self._kept[digest] = message, len(json.dumps(message))
        if (packed := entry.get("conversation")) is None:
            return None
        reference: Any = self._blobs.unpack(packed)
        before: Digests = ()
        if "after" in reference:
            span, before = self._last.get(caller, (None, ()))
            if span != reference["after"]:
                raise JournalError(
                    f"a request refers to the effect {reference['after']}, which is not its caller's last one"
                )
            before = before[: len(before) - int(reference["drop"])]
        digests = [*before, *reference["add"]]
        self._last[caller] = entry["span"], digests
        try:
            found = [self._kept[digest] for digest in digests]
        except KeyError as error:
            raise JournalError(f"a request has the message {error}, which is not in the journal") from None
        if len(found) > MAX_PARTS or sum(size for _, size in found) > self._most:
            raise JournalError(f"a request is too large to be read: it has more than {self._most >> 20} MiB")
        return [message for message, _ in found]
