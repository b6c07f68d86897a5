"""Requests of a run: who asks for which effect, without credentials, and by a key under which a journal finds it again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from pydantic import JsonValue

from codeact_team.core.aio import to_the_end
from codeact_team.core.component_effects import CodeEffect
from codeact_team.core.effects import Effect
from codeact_team.core.places import place_of
from codeact_team.core.process_effects import ProcessEffect
from codeact_team.errors import RecordedError
from codeact_team.journal.blobs import is_light
from codeact_team.journal.calls import CallFrame
from codeact_team.journal.conversations import Conversations, KnownMessages, digest_of_message
from codeact_team.journal.lines import failure_of
from codeact_team.journal.seal import Chain
from codeact_team.network.requests import NetworkRequest
from codeact_team.text.redaction import Redactor
from codeact_team.text.visibility import one_line

_MAX_TOLD = 200
"""Characters of a request that is told."""


@dataclass(frozen=True)
class Request:
    """One request for an effect.

    Attributes:
        by: The name of the agent, ``@``, and the place in the config of the component that is asked.
        kind: The kind of the effect.
        value: What is asked, with placeholders for credentials, without the messages for a model.
        call: The effect, which is under way.
        owner: The number of the block or attempt that asks.
        key: A digest of all that.
        conversation: The messages for a model.
        messages: Those of them that the request before of the same caller has not got, by their digests.
    """

    by: str
    kind: str
    value: JsonValue
    call: CallFrame
    owner: int | None
    key: str
    conversation: KnownMessages | None = None
    messages: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])

    @property
    def in_words(self) -> str:
        """What is asked, such as ``one tool call``."""
        words = f"one {self.kind.replace('_', ' ')}"
        match self.kind, self.value:
            case NetworkRequest.kind, {"method": method, "url": url}:
                return f"{words} ({one_line(f'{method} {url}', _MAX_TOLD)})"
            case _:
                return words

    @property
    def place(self) -> str:
        """The place in the config of the component that is asked."""
        return self.by.partition("@")[2]

    @property
    def attempt(self) -> int | None:
        """The number of the attempt that asks, if one does by itself and not by its code."""
        return None if self.is_of_block else self.owner

    @property
    def is_of_block(self) -> bool:
        """Whether code asks."""
        asking = self.call.owner
        return asking is not None and asking[0] == "block"


def is_recorded(call: CallFrame) -> bool:
    """Whether a journal has an effect that is under way, and answers it.

    A process in a sandbox that has no place in the run, such as one that a tool has opened, or a fork, is done again with that:
    nothing would bring back what else is in the sandbox. So is a process by which a program writes or reads a file.
    """
    if not isinstance(call.effect, ProcessEffect):
        return True
    asking = call.caller and call.caller.effect
    return bool(place_of(call.effect.part)) and not (isinstance(asking, CodeEffect) and asking.is_done_again)


class Requests:
    """Makes the requests for effects.

    Args:
        redactor: Replaces credentials by placeholders.
        chain: Authenticates the journal that has them.
        conversations: The messages for models that the journal has.
    """

    def __init__(self, redactor: Redactor, chain: Chain | None, conversations: Conversations) -> None:
        self._redactor = redactor
        self._chain = chain
        self._conversations = conversations

    async def of(self, effect: Effect[Any], call: CallFrame) -> Request:
        """The request for an effect, which is under way as ``call``."""
        by, asking = f"{effect.source}@{place_of(effect.part)}", call.owner
        # what is asked may be large, as tools are, and is made once
        asked, owner = (
            (effect.entry or effect.begin(effect.span)).request,
            None if asking is None else asking[1],
        )
        if isinstance(effect, ProcessEffect):
            # variables and input may be secrets that somebody guesses
            hidden = None
            if self._chain is not None and effect.hidden is not None:
                hidden = self._chain.digest(effect.hidden)
            asked = {**asked, "digest": hidden}
        new = self._conversations.new_in((by, owner), effect.messages) if effect.messages else None

        def make() -> Request:
            value = self._redactor.redact(asked)
            conversation, messages = None, dict[str, JsonValue]()
            if new is not None:
                redacted = list(map(self._redactor.redact, new.dumped))
                added = list(map(digest_of_message, redacted))
                messages, conversation = dict(zip(added, redacted, strict=True)), new.with_digests(added)
            read = conversation.through[-1] if conversation is not None else None
            named = json.dumps([by, effect.kind, value, owner, read], sort_keys=True)
            key = sha256(named.encode(errors="backslashreplace")).hexdigest()[:32]
            return Request(by, effect.kind, value, call, owner, key, conversation, messages)

        is_small = is_light(asked) and (new is None or is_light(new.dumped))
        request = make() if is_small else await to_the_end(asyncio.to_thread(make))
        if request.conversation is not None:
            self._conversations.note((by, owner), request.conversation)
        return request


def recorded_error(recorded: JsonValue, redactor: Redactor) -> RecordedError:
    """An error as a journal has it."""
    failure = failure_of(redactor.restore(recorded))
    return RecordedError(failure.text, type_name=failure.type, status_code=failure.status)
