"""Runs the calls of host tools that one block makes, in parallel, and sends their answers in any order."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from base64 import b64encode
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from codeact_team.core.execution import Artifact, CallAnswer, CallOutcome, HostTools
from codeact_team.errors import SettingError
from codeact_team.sandbox.system.framing import ProtocolError, frame
from codeact_team.session.protocol import (
    FROM_HOST,
    KIB,
    MAX_ANSWER_BYTES,
    MAX_CALL_BYTES_AT_ONCE,
    MAX_CALLS_AT_ONCE,
    MIB,
    Kind,
)
from codeact_team.text.nesting import check_nesting

logger = logging.getLogger(__name__)

_ID = re.compile(rb'\{\s*"id"\s*:\s*([0-9]{1,15})\s*[,}]')
"""The beginning of a call. The rest, which may be anything, is not parsed before the call's turn."""
_BATCH = 64 * KIB
"""Bytes of small answers that are sent together."""
_MAX_PROBLEM = 500

_CANCELLED = CallAnswer(CallOutcome.CANCELLED, error="the call was cancelled")
_NOT_OFFERED = CallAnswer(CallOutcome.REFUSED, error="no tools are offered here")
_BROKEN = CallAnswer(CallOutcome.FAILED, error="the call failed on the host")

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_encode_ascii = json.JSONEncoder(separators=(",", ":")).encode


class _Request(BaseModel):
    """The payload of a call; see ``Kind.CALL``."""

    model_config = ConfigDict(extra="ignore", strict=True)

    name: str = Field(max_length=200)
    arguments: dict[str, JsonValue]


class ToolCalls:
    """The calls of one block, in the event loop that reads its stream.

    The owner has to await :meth:`aclose`.
    """

    def __init__(
        self,
        tools: HostTools | None,
        send: Callable[[bytes], Awaitable[None]],
        pause: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._tools = tools
        self._send = send
        self._pause = pause
        self._unanswered: dict[int, int] = {}
        """The size of each call by its id, until its answer is being sent."""
        self._unanswered_bytes = 0
        # several threads of the interpreter send: a withdrawal may come before its call
        self._withdrawable = MAX_CALLS_AT_ONCE
        self._waiting: dict[int, bytes] = {}
        self._running: dict[int, asyncio.Task[None]] = {}
        self._begun: set[int] = set()
        """The running calls whose task has begun."""
        self._answers: deque[tuple[int, bytes]] = deque()
        self._answer_bytes = 0
        self._sender: asyncio.Task[None] | None = None
        self._ending = False
        self._ended = False

    @property
    def idle(self) -> bool:
        return not self._unanswered and self._sender is None

    def accept(self, payload: bytes) -> None:
        """Begin a call, or queue it.

        Raises a ``ProtocolError`` if it has no id, its id is in use, or too many calls are unanswered.
        """
        number = _id_of(payload)
        if (
            number in self._unanswered
            or len(self._unanswered) >= MAX_CALLS_AT_ONCE
            or self._unanswered_bytes > MAX_CALL_BYTES_AT_ONCE
        ):
            raise ProtocolError("calls that no honest interpreter makes")
        self._withdrawable += 1
        self._unanswered[number] = size = len(payload)
        self._unanswered_bytes += size
        if self._tools is None:
            self._answer(number, _NOT_OFFERED)
        elif self._ending:
            self._answer(number, _CANCELLED)
        else:
            self._waiting[number] = payload
            self._begin(self._tools)

    def withdraw(self, payload: bytes) -> None:
        """Cancel a call if it is not answered yet.

        Raises a ``ProtocolError`` if it has no id, or there are more withdrawals than calls: nothing else would limit
        them, and the event loop would get no time.
        """
        number = _id_of(payload)
        if not self._withdrawable:
            raise ProtocolError("more calls are withdrawn than made")
        self._withdrawable -= 1
        if self._waiting.pop(number, None) is not None:
            self._answer(number, _CANCELLED)
        elif number in self._running:
            self._cancel(number)

    def end(self) -> None:
        """Cancel all calls, also those that still come. They are answered, since the code may wait for them."""
        self._ending = True
        waiting, self._waiting = self._waiting, {}
        for number in waiting:
            self._answer(number, _CANCELLED)
        for number in self._running:
            self._cancel(number)

    async def aclose(self) -> None:
        """Cancel all calls without answers, as the block has ended, and wait for them."""
        self._ended = True
        self.end()
        self._answers.clear()
        if self._running:
            await asyncio.wait(self._running.values())

    async def sent(self) -> None:
        """Wait until the answer that is being sent is sent. To be called after :meth:`aclose`."""
        if self._sender is not None:
            await asyncio.wait({self._sender})

    async def hang_up(self) -> None:
        """Send nothing more, not even the rest of a frame, as it will not be read."""
        self._ended = True
        self._answers.clear()
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.wait({self._sender})

    def _begin(self, tools: HostTools) -> None:
        # answers that are not read take memory, too
        while (
            self._waiting
            and len(self._running) < tools.max_parallel
            and self._answer_bytes <= MAX_ANSWER_BYTES
        ):
            number = next(iter(self._waiting))
            call = self._run(tools, number, self._waiting.pop(number))
            self._running[number] = asyncio.create_task(call)

    async def _run(self, tools: HostTools, number: int, payload: bytes) -> None:
        self._begun.add(number)
        try:
            answer = await self._call(tools, payload)
        except asyncio.CancelledError:
            answer = _CANCELLED
        except Exception:
            logger.exception("the call of a tool raised")
            answer = _BROKEN
        self._begun.remove(number)
        del self._running[number]
        if self._waiting:
            self._begin(tools)
        if self._running or self._sender is not None:
            self._answer(number, answer)
        elif self._queue(number, answer):
            # no other answer could go with it
            self._sender = asyncio.current_task()
            await self._send_answers()

    async def _call(self, tools: HostTools, payload: bytes) -> CallAnswer:
        try:
            request = _Request.model_validate_json(payload)
        except ValidationError as error:
            return CallAnswer(CallOutcome.REFUSED, error=f"the call cannot be read: {_first_of(error)}")
        return await tools.call(request.name, request.arguments, pause=self._pause)

    def _cancel(self, number: int) -> None:
        task = self._running[number]
        # once: a second cancellation would interrupt the reaction of the tool to the first
        if self._tools is not None and not task.cancelling():
            task.cancel()
            if number not in self._begun:
                # its coroutine will never run
                task.add_done_callback(partial(self._never_begun, self._tools, number))

    def _never_begun(self, tools: HostTools, number: int, _: object) -> None:
        del self._running[number]
        self._answer(number, _CANCELLED)
        self._begin(tools)

    def _answer(self, number: int, answer: CallAnswer) -> None:
        if self._queue(number, answer) and self._sender is None:
            # other answers of this turn of the loop go with it
            self._sender = asyncio.ensure_future(self._send_answers())

    def _queue(self, number: int, answer: CallAnswer) -> bool:
        """Queue an answer to be sent. Returns whether answers are still sent at all."""
        if not self._ended:
            data = frame(Kind.ANSWER, _encoded(number, answer))
            self._answers.append((number, data))
            self._answer_bytes += len(data)
        return not self._ended

    async def _send_answers(self) -> None:
        while self._answers:
            await self._send(self._batch())
            if self._tools is not None:
                self._begin(self._tools)
        self._sender = None

    def _batch(self) -> bytes:
        batch: list[bytes] = []
        size = 0
        while self._answers and (not batch or size + len(self._answers[0][1]) <= _BATCH):
            number, data = self._answers.popleft()
            batch.append(data)
            size += len(data)
            # from now on the interpreter may receive it, and make another call
            self._unanswered_bytes -= self._unanswered.pop(number)
        self._answer_bytes -= size
        return b"".join(batch)


def declaration_frame(declarations: Sequence[Mapping[str, JsonValue]]) -> bytes:
    """Make the frame that declares the tools to the interpreter.

    Raises a ``SettingError`` if they are too large for a frame.
    """
    payload = json.dumps({"tools": [dict(one) for one in declarations]}).encode()
    if len(payload) > (limit := FROM_HOST[Kind.TOOLS]):
        raise SettingError(
            f"the names, descriptions and schemas of the tools have {len(payload) / MIB:.1f} MiB together, of at most "
            f"{limit // MIB} MiB: offer fewer"
        )
    return frame(Kind.TOOLS, payload)


def _id_of(payload: bytes) -> int:
    if (found := _ID.match(payload)) is None:
        raise ProtocolError("a call without an id")
    return int(found[1])


def _first_of(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return ": ".join((*map(str, first["loc"]), first["msg"]))[:_MAX_PROBLEM]


def _encoded(number: int, answer: CallAnswer) -> bytes:
    """Encode an answer; one that cannot be sent becomes an error that says why."""
    if (size := sum(map(_least_size, answer.content))) <= MAX_ANSWER_BYTES:
        try:
            data = _payload(number, answer)
            check_nesting(answer.content)
        except Exception:
            logger.exception("the answer of a tool cannot be encoded")
            return _payload(number, _BROKEN)
        if (size := len(data)) <= MAX_ANSWER_BYTES:
            return data
    too_large = f"its result has {size / MIB:.1f} MiB; at most {MAX_ANSWER_BYTES // MIB} MiB are possible"
    return _payload(number, CallAnswer(CallOutcome.FAILED, error=too_large))


def _least_size(piece: JsonValue | Artifact) -> int:
    """The least number of bytes of a piece, as far as that is known without a copy."""
    if isinstance(piece, Artifact):
        return len(piece.data) * 4 // 3
    return len(piece) if isinstance(piece, str) else 0


def _payload(number: int, answer: CallAnswer) -> bytes:
    fields: dict[str, JsonValue] = {"id": number}
    if answer.outcome is CallOutcome.OK:
        fields["content"] = [_piece(piece) for piece in answer.content]
    else:
        fields |= {"error": answer.error, "outcome": answer.outcome}
    try:
        return _encode(fields).encode()
    except UnicodeEncodeError:
        # half a character
        return _encode_ascii(fields).encode()


def _piece(piece: JsonValue | Artifact) -> JsonValue:
    if isinstance(piece, Artifact):
        return {"mime_type": piece.mime_type, "data": b64encode(piece.data).decode()}
    return {"value": piece}
