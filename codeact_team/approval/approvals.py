"""The decisions for one agent: what the rules say, who is asked, what was granted, and a record of it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import replace
from functools import partial

from pydantic import JsonValue

from codeact_team.aio import Turns, is_being_cancelled
from codeact_team.approval.approval_records import HANDLER, ApprovalRecord, Records, record_of
from codeact_team.approval.asked_question import NOBODY_THERE, AskedQuestion
from codeact_team.approval.handlers import Answer, Handler, current_handler
from codeact_team.approval.question import Question
from codeact_team.approval.rules import NO_RULE, ApprovalRule, Chain, Ruling
from codeact_team.effects import current_door, perform, tell
from codeact_team.events import Approval

logger = logging.getLogger(__name__)

Pause = Callable[[], AbstractContextManager[None]]

_GRANT = "standing grant"
_is_decided: ContextVar[bool] = ContextVar("codeact_team_approval_is_decided", default=False)
"""Whether a person has decided on this very call already, and is asked to find out how."""
_NOT_SHOWN = "cannot be shown"
_NOBODY = Ruling("deny", "no one to ask", NOBODY_THERE)
_NOT_PARKED = _NOBODY._replace(reason=f"{NOBODY_THERE}. Nor can this run be parked, as it is not recorded")


@contextmanager
def decided() -> Generator[None]:
    """Within it, a person has decided on the very thing that is asked: no grant for all of its kind counts more."""
    token = _is_decided.set(True)
    try:
        yield
    finally:
        _is_decided.reset(token)


class Approvals:
    """Decides on an agent's code and on its calls of tools; remembers what was granted until it is reset.

    Where a rule says so, the handler is asked, by default whoever :func:`~codeact_team.approval.asking` names.

    Args:
        rules: The first that fits decides.
        handler: Who is asked.
        source: The agent.
        parks: Whether a run that is recorded is to wait for the answer where nobody is there; otherwise it is denied.
    """

    def __init__(
        self, rules: Sequence[ApprovalRule], handler: Handler | None, source: str, *, parks: bool = False
    ) -> None:
        self._parks = parks
        self._chain = Chain(rules)
        self._handler = handler
        self._source = source
        self._door = current_door()
        self._granted: set[tuple[str, str]] = set()
        self._turns = Turns()
        self._records = Records()

    def __bool__(self) -> bool:
        """Whether there are any rules."""
        return bool(self._chain.rules)

    @property
    def records(self) -> Sequence[ApprovalRecord]:
        """The decisions since they were last taken; where no rule fits, there is nothing to tell."""
        return tuple(self._records.kept)

    @property
    def left_out(self) -> int:
        """How many decisions more there were since then than are recorded."""
        return self._records.left_out

    def take_records(self) -> list[ApprovalRecord]:
        """Return the decisions since this was last called."""
        taken, self._records = self._records.kept, Records()
        return taken

    def reset(self) -> None:
        """Forget what was granted, counted and recorded."""
        self._chain.reset()
        # an answer that is still to come grants nothing for the time after
        self._granted = set()
        self._records = Records()

    async def code(
        self, code: str, *, language: str = "python", pause: Pause = nullcontext
    ) -> ApprovalRecord:
        """Decide whether a block of code may run; ``pause`` is entered while an answer is waited for."""
        return await self._settle(Question(self._source, "code", language, code=code), pause)

    async def call(
        self, name: str, arguments: Mapping[str, JsonValue], *, pause: Pause = nullcontext
    ) -> ApprovalRecord:
        """Decide whether a tool may be called with these arguments; ``pause`` is entered while an answer is waited for."""
        return await self._settle(Question(self._source, "tool", name, arguments), pause)

    def count_call(self, name: str, arguments: Mapping[str, JsonValue]) -> None:
        """Count a call that was decided on before the run was interrupted, where a rule allows a number of them."""
        self._decide(Question(self._source, "tool", name, arguments))

    async def _settle(self, question: Question, pause: Pause) -> ApprovalRecord:
        ruling, seconds = self._decide(question), 0.0
        if ruling.decision == "ask":
            began = time.monotonic()
            ruling = await self._ask(question, pause)
            seconds = time.monotonic() - began
        record = record_of(question, ruling, seconds=seconds)
        if ruling.by != NO_RULE:
            self._records.add(record)
            told = record.model_dump(exclude={"arguments", "decision"})
            tell(Approval(agent=self._source, allowed=record.allowed, **told), self._door)
        return record

    def _decide(self, question: Question) -> Ruling:
        ruling = self._chain.decide(question)
        if ruling.decision == "ask" and _kind_of(question) in self._granted and not _is_decided.get():
            return Ruling("allow", _GRANT, ruling.reason)
        return ruling

    async def _ask(self, question: Question, pause: Pause) -> Ruling:
        with pause():
            async with self._turn():
                # what others were answered meanwhile may have settled this, too
                ruling = self._decide(question)
                if ruling.decision != "ask":
                    return ruling
                if obstacle := question.obstacle:
                    return Ruling("deny", _NOT_SHOWN, f"no person can approve it: {obstacle}")
                granted = self._granted
                asked = AskedQuestion(replace(question, reason=ruling.reason), parks=self._parks)
                answer = await perform(asked, partial(self._answer, asked.question), self._door)
                if answer is None:
                    return _NOT_PARKED if self._parks else _NOBODY
                if answer.allowed and answer.always:
                    granted.add(_kind_of(question))
        if answer.allowed:
            return Ruling("allow", HANDLER, answer.reason)
        return Ruling("deny", HANDLER, answer.reason or "whoever was asked said no")

    def _turn(self) -> AbstractAsyncContextManager[object]:
        # what waits for a person who is not there keeps nobody from asking, too
        return self._turns if self._handler or current_handler() else nullcontext()

    async def _answer(self, question: Question) -> Answer | None:
        handler = self._handler or current_handler()
        return None if handler is None else await _answer(handler, question)


def _kind_of(question: Question) -> tuple[str, str]:
    return question.kind, question.name if question.kind == "tool" else ""


async def _answer(handler: Handler, question: Question) -> Answer:
    try:
        answer: object = await handler(question)
    except asyncio.CancelledError:
        if is_being_cancelled():
            raise
        return Answer(False, "the question was cancelled")
    except Exception as error:
        logger.exception("the approval handler failed, so what was asked is denied")
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return Answer(False, f"the approval handler failed: {text}")
    return _checked(answer)


def _checked(answer: object) -> Answer:
    # a handler may be anybody's, and a text such as "no" is true
    if isinstance(answer, Answer):
        fields: tuple[object, ...] = (answer.allowed, answer.reason, answer.always)
        if [type(field) for field in fields] == [bool, str, bool]:
            return answer
    logger.error("the approval handler returned %s, so what was asked is denied", type(answer).__name__)
    return Answer(False, f"the approval handler returned {type(answer).__name__} instead of a proper Answer")
