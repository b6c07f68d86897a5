"""Decides whether code runs and tools are called: by rules, by grants, or by asking a person."""

from __future__ import annotations

import asyncio
import inspect
import logging
import shutil
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple, cast

from autogen_core import CancellationToken
from pydantic import BaseModel, ConfigDict, JsonValue, TypeAdapter

from codeact_team.core.aio import FairLock, is_being_cancelled
from codeact_team.core.effects import Begin, Effect, End, current_dispatcher, emit, perform, speaker
from codeact_team.core.events import Approval, QuestionAnswered, QuestionAsked
from codeact_team.core.rulings import NO_RULE, Ruling
from codeact_team.text.visibility import one_line
from codeact_team.tools.approval_rules import (
    MAX_NAME_CHARS,
    ApprovalRule,
    Kind,
    Question,
    approval_chain,
    as_json,
)


@dataclass(frozen=True)
class Answer:
    """The answer to a question.

    Attributes:
        allowed: Whether the code may run, or the tool be called.
        reason: Why, in words for the model; it may be empty.
        always: Whether the same is allowed from now on until the agent is reset: this tool with any arguments, or all
            code. What a rule denies stays denied.
    """

    allowed: bool
    reason: str = ""
    always: bool = False


Handler = Callable[[Question], Awaitable[Answer]]
"""Answers questions. An agent asks one after the other, but several agents may ask at once."""


class _Asking(NamedTuple):
    """Sets the handler that agents here ask for approval.

    Attributes:
        handler: Answers for those without a handler of their own.
        is_decided: Whether a person has decided on this very call already, and is only asked in order to look up the answer.
        approvals: Those of the agent whose code runs.
    """

    handler: Handler | None = None
    is_decided: bool = False
    approvals: Approvals | None = None


_asking: ContextVar[_Asking] = ContextVar("codeact_team_asking", default=_Asking())  # noqa: B039 - it cannot be changed


@contextmanager
def asking(handler: Handler) -> Generator[None]:
    """Have agents without a handler of their own ask this one, for the length of a ``with``.

    Args:
        handler: An ``async`` function that takes a :class:`Question` and returns an :class:`Answer`.
    """
    token = _asking.set(_asking.get()._replace(handler=handler))
    try:
        yield
    finally:
        _asking.reset(token)


def current_handler() -> Handler | None:
    """Return the handler of :func:`asking` in this context, if there is one."""
    return _asking.get().handler


_ATTEMPTS = 3


def ask_with(input_func: Callable[..., str | Awaitable[str]]) -> Handler:
    """Make a handler of an input function.

    Args:
        input_func: Takes a prompt and returns the text that was entered, as ``input`` does. An async one may take a
            cancellation token as well. Any other runs in a thread and cannot be stopped: after a cancellation it still
            waits for its line.
    """
    turns = FairLock()

    async def ask(question: Question) -> Answer:
        prompt = (
            f"{question.to_text(width=shutil.get_terminal_size().columns)}\n"
            f"Allow? y (yes), n (no; a reason may follow), a (always: {question.grant}): "
        )
        async with turns:
            for _ in range(_ATTEMPTS):
                answer = read_answer(await enter(input_func, prompt))
                if answer is not None:
                    return answer
                prompt = "Please answer y, n or a: "
        return Answer(False, "the answer was neither yes nor no")

    return ask


def read_answer(text: str) -> Answer | None:
    """Read an answer in words; ``None`` if its meaning is not clear."""
    word, rest = [*text.split(maxsplit=1), "", ""][:2]
    match word.lower():
        case "n" | "no":
            return Answer(False, rest.strip())
        case "y" | "yes" if not rest:
            return Answer(True)
        case "a" | "always" if not rest:
            return Answer(True, always=True)
        case _:
            return None


async def enter(
    function: Callable[..., Any], prompt: str, cancellation_token: CancellationToken | None = None
) -> str:
    """Call an input function of :func:`ask_with`. The token is passed on, and cancelled if the caller is."""
    token = cancellation_token or CancellationToken()
    arguments = (prompt, token) if _takes_token(function) else (prompt,)
    try:
        if _is_async(function):
            return await function(*arguments)
        entered: Any = await asyncio.to_thread(function, *arguments)
        # a lambda around an async function, among others
        return await entered if inspect.isawaitable(entered) else entered
    except asyncio.CancelledError:
        token.cancel()
        raise


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _takes_token(function: Callable[..., Any]) -> bool:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:
        # a function that is written in C may not tell
        return False
    if len(parameters) < 2:
        return False
    second = parameters[1]
    # AutoGen passes it by position, to async functions only
    return second.name == "cancellation_token" or (
        _is_async(function) and second.kind is not inspect.Parameter.KEYWORD_ONLY
    )


_HANDLER = "handler"

MAX_RECORDS = 500
"""Records that are kept of a handler's answers, and as many of all other decisions: a thousand calls that a rule allows
do not displace what a person was asked."""
_MAX_ARGUMENTS_CHARS = 500
_MAX_REASON_CHARS = 1_000


class ApprovalRecord(BaseModel):
    """A decision on a block of code or on the call of a tool."""

    model_config = ConfigDict(frozen=True)

    what: Kind
    """Whether it is on code or on the call of a tool."""
    name: str
    """The tool, or the language of the code."""
    arguments: str = ""
    """The tool's arguments as JSON, cut if they are long."""
    decision: Literal["allow", "deny"]
    """The decision."""
    by: str
    """The source of the decision: `rule 2` (counted from 1), `handler`, `standing grant`, `no rule`, `no one to ask` or `cannot be
    shown` (to a person, whole and as it would run)."""
    reason: str = ""
    """The reason for the decision."""
    seconds: float = 0.0
    """Seconds of waiting for an answer."""

    @property
    def allowed(self) -> bool:
        """Whether the code may run, or the tool be called."""
        return self.decision == "allow"


def _record_of(question: Question, ruling: Ruling, *, seconds: float = 0.0) -> ApprovalRecord:
    """Record a final decision."""
    arguments = ""
    # without a rule nothing is kept, and must cost nothing
    if question.kind == "tool" and ruling.by != NO_RULE:
        text = as_json(dict(question.arguments))
        arguments = "(too large)" if text is None else one_line(text, _MAX_ARGUMENTS_CHARS)
    return ApprovalRecord(
        what=question.kind,
        name=one_line(question.name, MAX_NAME_CHARS),
        arguments=arguments,
        decision="allow" if ruling.decision == "allow" else "deny",
        by=ruling.by,
        reason=one_line(ruling.reason, _MAX_REASON_CHARS),
        seconds=seconds,
    )


_NOBODY_THERE = (
    "nobody can be asked for approval: run this on a terminal, or set the agent's `approval_timeout` to park, so that the "
    "run waits for `codeact-team answer`; in Python, give it an approval_handler, or run it within "
    "codeact_team.asking(handler)"
)
"""The reason, for a person, if a question had no answer."""
_NOT_PARKED = f"{_NOBODY_THERE}. This run cannot be parked, as it is not recorded"


class AskedQuestion(Effect[Answer | None]):
    """A person is asked for approval; ``None`` if none is there: then a run that ``parks`` suspends."""

    kind = "approval"
    asks_person = True
    form = TypeAdapter[Answer | None](Answer | None)

    def __init__(self, question: Question, *, parks: bool = False) -> None:
        self.parks = parks
        self.source = question.source
        self.question = question

    def request(self) -> JsonValue:
        return {"approval": asdict(self.question)}

    def to_text(self) -> str:
        """The question, fit to be shown."""
        return self.question.to_text()

    @classmethod
    def began(cls, begin: Begin) -> QuestionAsked:
        return QuestionAsked(text=Question(**begin.request["approval"]).to_text())

    @classmethod
    def ended(cls, end: End) -> QuestionAnswered:
        event = QuestionAnswered()
        if end.outcome is not None:
            said = ("always" if end.outcome["always"] else "yes") if end.outcome["allowed"] else "no"
            event.text = f"{said}: {end.outcome['reason']}" if end.outcome["reason"] else said
        else:
            event.error = end.error or _NOBODY_THERE
        return event


logger = logging.getLogger(__name__)

Pause = Callable[[], AbstractContextManager[None]]

_GRANT = "standing grant"
_OF_EXECUTOR = "a rule of the executor"
_NOT_SHOWN = "cannot be shown"
_NOBODY = Ruling("deny", "no one to ask", "the user was not there to approve it")
"""Its reason reaches a model, which knows the task and not this program."""


@contextmanager
def decided() -> Generator[None]:
    """Within it, the person's recorded decision on this very call counts, and not a grant for the tool."""
    token = _asking.set(_asking.get()._replace(is_decided=True))
    try:
        yield
    finally:
        _asking.reset(token)


@contextmanager
def running_code(approvals: Approvals) -> Generator[None]:
    """Within it, the code of an agent runs, whose approvals decide on what its executor leaves to a person."""
    token = _asking.set(_asking.get()._replace(approvals=approvals))
    try:
        yield
    finally:
        _asking.reset(token)


def current_approvals() -> Approvals:
    """The approvals of the agent whose code runs; without an agent, those of nobody in particular."""
    # without rules they are false
    approvals = _asking.get().approvals
    return Approvals([], None, speaker()) if approvals is None else approvals


class Approvals:
    """Decides on an agent's code and calls of tools; remembers grants until it is reset.

    Args:
        rules: The first that fits decides.
        handler: Answers where a rule asks; ``None`` for the handler of :func:`asking`.
        source: The agent that they are of.
        parks: Whether a recorded run suspends if nobody answers. Otherwise it is denied.

    Attributes:
        source: The agent.
        left_out: How many decisions were not recorded, since the records were last taken.
    """

    def __init__(
        self, rules: Sequence[ApprovalRule], handler: Handler | None, source: str, *, parks: bool = False
    ) -> None:
        self._parks = parks
        self._rules = approval_chain(rules)
        self._handler = handler
        self.source = source
        self._dispatcher = current_dispatcher()
        self._turns = FairLock()
        self._granted: set[tuple[str, str]] = set()
        self._records: list[ApprovalRecord] = []
        self._counts = Counter[bool]()
        self.left_out: int = 0

    def __bool__(self) -> bool:
        """Whether there are any rules."""
        return bool(self._rules.rules)

    def take_records(self) -> list[ApprovalRecord]:
        """Return the decisions since the last call of this, except where no rule fitted, and forget them."""
        taken, self._records = self._records, []
        self._counts.clear()
        self.left_out = 0
        return taken

    def reset(self) -> None:
        """Forget all grants, counts and records."""
        self._rules.reset()
        # a new object: an answer that is still to come grants nothing for the time after the reset
        self._granted = set()
        self.take_records()

    async def code(
        self, code: str, *, language: str = "python", pause: Pause = nullcontext
    ) -> ApprovalRecord:
        """Decide whether a block of code may run; waits for an answer within ``pause``."""
        return await self._settle(Question(self.source, "code", language, code=code), pause)

    async def call(
        self, name: str, arguments: Mapping[str, JsonValue], *, pause: Pause = nullcontext
    ) -> ApprovalRecord:
        """Decide whether a tool may be called with these arguments; waits for an answer within ``pause``."""
        return await self._settle(Question(self.source, "tool", name, arguments), pause)

    async def host(
        self,
        name: str,
        reason: str,
        *,
        pause: Pause = nullcontext,
        answered: Callable[[], Ruling | None] = lambda: None,
    ) -> ApprovalRecord:
        """Ask whether code may reach a host, which its executor's rules leave to a person; waits within ``pause``.

        Args:
            name: The host and its port.
            reason: Why a person is asked.
            pause: Makes a context manager within which the code's time stands still.
            answered: Returns what was said of the host meanwhile, where others ask, too.
        """
        return await self._settle(Question(self.source, "host", name, reason=reason), pause, answered)

    def count_call(self, name: str, arguments: Mapping[str, JsonValue]) -> None:
        """Count a call that was allowed before the run was interrupted, for rules that allow a number of them."""
        self._decide(Question(self.source, "tool", name, arguments))

    async def _settle(
        self, question: Question, pause: Pause, answered: Callable[[], Ruling | None] = lambda: None
    ) -> ApprovalRecord:
        ruling, seconds = self._decide(question), 0.0
        if ruling.decision == "ask":
            began = time.monotonic()
            ruling = await self._ask(question, pause, answered)
            seconds = time.monotonic() - began
        record = _record_of(question, ruling, seconds=seconds)
        if ruling.by != NO_RULE:
            is_answer = record.by == _HANDLER
            if self._counts[is_answer] < MAX_RECORDS:
                self._counts[is_answer] += 1
                self._records.append(record)
            else:
                self.left_out += 1
            fields = record.model_dump(exclude={"arguments", "decision"})
            emit(Approval(agent=self.source, allowed=record.allowed, **fields), self._dispatcher)
        return record

    def _decide(self, question: Question) -> Ruling:
        if question.kind == "host":
            ruling = Ruling("ask", _OF_EXECUTOR, question.reason)
        else:
            ruling = self._rules.decide(question)
        if ruling.decision == "ask" and _kind_of(question) in self._granted and not _asking.get().is_decided:
            return Ruling("allow", _GRANT, ruling.reason)
        return ruling

    async def _ask(self, question: Question, pause: Pause, answered: Callable[[], Ruling | None]) -> Ruling:
        with pause():
            # a question that suspends the run holds up no other
            async with self._turns if self._handler or current_handler() else nullcontext():
                # the answer to another question may have settled this one meanwhile
                ruling = answered() or self._decide(question)
                if ruling.decision != "ask":
                    return ruling
                if obstacle := question.obstacle:
                    return Ruling("deny", _NOT_SHOWN, f"no person can approve it: {obstacle}")
                granted = self._granted
                asked = AskedQuestion(replace(question, reason=ruling.reason), parks=self._parks)

                async def work() -> Answer | None:
                    handler = self._handler or current_handler()
                    return None if handler is None else await _answer(handler, asked.question)

                answer = await perform(asked, work, self._dispatcher)
                if answer is None:
                    logger.warning("%s", _NOT_PARKED if self._parks else _NOBODY_THERE)
                    return _NOBODY
                if answer.allowed and answer.always:
                    granted.add(_kind_of(question))
        if answer.allowed:
            return Ruling("allow", _HANDLER, answer.reason)
        return Ruling("deny", _HANDLER, answer.reason or "the person who was asked said no")


def _kind_of(question: Question) -> tuple[str, str]:
    return question.kind, "" if question.kind == "code" else question.name


async def _answer(handler: Handler, question: Question) -> Answer:
    try:
        answer = cast("object", await handler(question))
    except asyncio.CancelledError:
        if is_being_cancelled():
            raise
        return Answer(False, "the question was cancelled")
    except Exception as error:
        logger.exception("the approval handler failed, so the question is denied")
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return Answer(False, f"the approval handler failed: {text}")
    # a handler may return anything, and a text such as "no" is true
    if isinstance(answer, Answer):
        fields: tuple[object, ...] = (answer.allowed, answer.reason, answer.always)
        if [type(field) for field in fields] == [bool, str, bool]:
            return answer
    logger.error("the approval handler returned %s, so the question is denied", type(answer).__name__)
    return Answer(False, f"the approval handler returned {type(answer).__name__} instead of a valid Answer")
