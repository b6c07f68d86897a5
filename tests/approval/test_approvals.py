"""The decisions for one agent: who is asked, in which order, what a grant answers, and what is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import pytest
from autogen_agentchat.base import Response
from autogen_agentchat.messages import BaseChatMessage, TextMessage
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import CancellationToken
from hypothesis import given
from hypothesis import strategies as st
from support.text_agent import TextAgent

from codeact_team.tools.approval_rules import ApprovalRule, Question
from codeact_team.tools.approvals import MAX_RECORDS, Answer, ApprovalRecord, Approvals, Handler, asking

ASK = ApprovalRule(tool="*", decision="ask", reason="a person decides")
ASK_FOR_CODE = ApprovalRule(code="*", decision="ask")
DENY_ETC = ApprovalRule(tool="write", arguments={"path": "/etc/*"}, decision="deny", reason="not there")


class Person:
    """A handler that answers when the test says so."""

    def __init__(self, *answers: Answer) -> None:
        self.asked: list[Question] = []
        self.answers = list(answers)
        self.may_answer = asyncio.Event()
        self.is_asked = asyncio.Event()
        self.at_once = 0

    async def __call__(self, question: Question) -> Answer:
        self.asked.append(question)
        self.at_once += 1
        assert self.at_once == 1
        self.is_asked.set()
        try:
            await self.may_answer.wait()
        finally:
            self.at_once -= 1
        return self.answers.pop(0) if self.answers else Answer(True)


class Clock:
    """Counts who has paused it, and how often."""

    def __init__(self) -> None:
        self.paused = 0
        self.pauses = 0

    @contextmanager
    def pause(self) -> Generator[None]:
        self.paused += 1
        self.pauses += 1
        try:
            yield
        finally:
            self.paused -= 1


def answering(*answers: Answer) -> Handler:
    person = Person(*answers)
    person.may_answer.set()
    return person


async def test_where_no_rule_fits_everything_is_allowed_and_nothing_recorded():
    approvals = Approvals([], None, "helper")
    clock = Clock()
    assert (await approvals.call("t", {"x": 1}, pause=clock.pause)).allowed
    assert (await approvals.code("print(1)", pause=clock.pause)).by == "no rule"
    assert approvals.take_records() == []


async def test_what_rules_decide_is_recorded_and_nobody_is_asked():
    approvals = Approvals([DENY_ETC, ApprovalRule(tool="write", decision="allow")], None, "helper")
    clock = Clock()
    await approvals.call("write", {"path": "/etc/passwd", "n": 1}, pause=clock.pause)
    await approvals.call("write", {"path": "/tmp/a"}, pause=clock.pause)
    denied, allowed = approvals.take_records()
    assert denied == ApprovalRecord(
        what="tool",
        name="write",
        arguments='{"n":1,"path":"/etc/passwd"}',
        decision="deny",
        by="rule 1",
        reason="not there",
    )
    assert (allowed.decision, allowed.by) == ("allow", "rule 2")
    assert approvals.take_records() == []


async def test_a_person_sees_what_is_asked_and_why_and_the_clock_stands_meanwhile():
    person, clock = Person(Answer(False, "too much")), Clock()
    approvals = Approvals([ASK], person, "helper")
    arguments = {"order": "A-17", "amount": 250}
    asking = asyncio.ensure_future(approvals.call("refund", arguments, pause=clock.pause))
    await person.is_asked.wait()
    assert clock.paused == 1
    assert person.asked == [Question("helper", "tool", "refund", arguments, reason="a person decides")]
    person.may_answer.set()
    record = await asking
    assert clock.paused == 0
    assert (record.decision, record.by, record.reason) == ("deny", "handler", "too much")
    assert record.seconds > 0
    assert approvals.take_records() == [record]


async def test_code_is_asked_about_as_a_whole():
    person = Person(Answer(True))
    person.may_answer.set()
    record = await Approvals([ASK_FOR_CODE], person, "helper").code("ls", language="sh")
    assert person.asked == [Question("helper", "code", "sh", code="ls")]
    assert (record.what, record.name, record.allowed) == ("code", "sh", True)


async def test_questions_come_one_after_the_other_in_order():
    person = Person(Answer(True), Answer(False), Answer(True))
    approvals = Approvals([ASK], person, "helper")
    person.may_answer.set()
    records = await asyncio.gather(*(approvals.call(name, {}) for name in "abc"))
    assert [question.name for question in person.asked] == ["a", "b", "c"]
    assert [record.allowed for record in records] == [True, False, True]


async def test_always_answers_those_that_wait_for_the_same_tool_and_what_comes_later():
    person = Person(Answer(True, always=True), Answer(False))
    approvals = Approvals([ASK], person, "helper")
    person.may_answer.set()
    names = ["write", "write", "read", "write"]
    records = await asyncio.gather(*(approvals.call(name, {"n": n}) for n, name in enumerate(names)))
    assert [record.by for record in records] == ["handler", "standing grant", "handler", "standing grant"]
    assert [record.allowed for record in records] == [True, True, False, True]
    assert (await approvals.call("write", {})).by == "standing grant"
    assert len(person.asked) == 2


async def test_always_for_code_is_for_all_code_and_for_no_tool():
    approvals = Approvals([ASK, ASK_FOR_CODE], answering(Answer(True, always=True), Answer(False)), "helper")
    assert (await approvals.code("print(1)")).by == "handler"
    assert (await approvals.code("rm -rf x", language="sh")).by == "standing grant"
    assert not (await approvals.call("python", {})).allowed


async def test_what_a_rule_denies_stays_denied_after_always():
    approvals = Approvals([DENY_ETC, ASK], answering(Answer(True, always=True)), "helper")
    assert (await approvals.call("write", {"path": "/tmp/a"})).allowed
    assert (await approvals.call("write", {"path": "/tmp/b"})).by == "standing grant"
    assert (await approvals.call("write", {"path": "/etc/passwd"})).by == "rule 1"


async def test_a_denial_is_never_for_good():
    approvals = Approvals([ASK], answering(Answer(False, always=True)), "helper")
    assert not (await approvals.call("write", {})).allowed
    assert (await approvals.call("write", {})).by == "handler"


async def test_a_reset_forgets_grants_counts_and_records():
    rules = [ApprovalRule(tool="limited", decision="allow", at_most=1), ASK]
    approvals = Approvals(rules, answering(Answer(True, always=True), Answer(False)), "helper")
    await approvals.call("limited", {})
    await approvals.call("write", {})
    approvals.reset()
    assert approvals.take_records() == []
    assert (await approvals.call("limited", {})).by == "rule 1"
    assert not (await approvals.call("write", {})).allowed


async def test_an_answer_from_before_a_reset_grants_nothing_after_it():
    person = Person(Answer(True, always=True), Answer(False))
    approvals = Approvals([ASK], person, "helper")
    asking = asyncio.ensure_future(approvals.call("write", {}))
    await person.is_asked.wait()
    approvals.reset()
    person.may_answer.set()
    assert (await asking).allowed
    assert not (await approvals.call("write", {})).allowed


async def test_a_wait_that_is_cancelled_leaves_the_queue_to_the_others():
    person, clock = Person(), Clock()
    approvals = Approvals([ASK], person, "helper")
    first, second, third = (
        asyncio.ensure_future(approvals.call(name, {}, pause=clock.pause)) for name in "abc"
    )
    await person.is_asked.wait()
    second.cancel()
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    assert first.cancelled()
    assert second.cancelled()
    person.may_answer.set()
    assert (await third).allowed
    assert [question.name for question in person.asked] == ["a", "c"]
    assert clock.paused == 0
    assert [record.name for record in approvals.take_records()] == ["c"]


async def fails(question: Question) -> Answer:
    raise RuntimeError("the door is shut\x1b[2J")


async def fails_without_words(question: Question) -> Answer:
    raise KeyError


def returns(answer: object) -> Callable[[Question], Awaitable[Any]]:
    async def handler(question: Question) -> object:
        return answer

    return handler


async def gives_up(question: Question) -> Answer:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (fails, "the approval handler failed: RuntimeError: the door is shut␛[2J"),
        (fails_without_words, "the approval handler failed: KeyError"),
        (gives_up, "the question was cancelled"),
        (returns(True), "the approval handler returned bool instead of a valid Answer"),
        (returns("yes"), "the approval handler returned str instead of a valid Answer"),
        (returns(None), "the approval handler returned NoneType instead of a valid Answer"),
        (
            returns(Answer(cast(bool, "no"))),
            "the approval handler returned Answer instead of a valid Answer",
        ),
    ],
)
async def test_a_handler_that_fails_or_answers_nonsense_denies(
    handler: Callable[[Question], Awaitable[Answer]], reason: str
):
    approvals = Approvals([ASK], handler, "helper")
    record = await approvals.call("write", {})
    assert (record.decision, record.by, record.reason) == ("deny", "handler", reason)
    # and the next question is asked all the same
    assert (await approvals.call("write", {})).reason == reason


async def test_a_handler_that_is_not_async_denies():
    handler = cast(Handler, lambda question: Answer(True))  # pyright: ignore[reportUnknownLambdaType]
    record = await Approvals([ASK], handler, "helper").call("write", {})
    assert not record.allowed
    assert "TypeError" in record.reason


async def test_without_anybody_to_ask_it_is_denied_and_a_person_reads_how_to_mend_that(
    caplog: pytest.LogCaptureFixture,
):
    approvals = Approvals([ASK], None, "helper")
    record = await approvals.call("write", {})
    assert (record.decision, record.by) == ("deny", "no one to ask")
    assert record.reason == "the user was not there to approve it"
    assert "give it an approval_handler" in caplog.text
    assert approvals.take_records() == [record]


async def test_the_handler_of_the_context_is_asked_unless_the_agent_has_its_own():
    outer, inner, own = Person(), Person(), Person()
    for person in (outer, inner, own):
        person.may_answer.set()
    approvals = Approvals([ASK], None, "helper")
    with asking(outer):
        with asking(inner):
            await approvals.call("a", {})
        await approvals.call("b", {})
        await Approvals([ASK], own, "other").call("c", {})
    assert not (await approvals.call("d", {})).allowed
    assert [question.name for person in (outer, inner, own) for question in person.asked] == ["b", "a", "c"]


class Asker(TextAgent):
    """An agent whose turn is one call of a tool."""

    def __init__(self) -> None:
        super().__init__("asker", "asks")
        self.approvals = Approvals([ASK], None, self.name)

    async def on_messages(
        self, messages: Sequence[BaseChatMessage], cancellation_token: CancellationToken
    ) -> Response:
        record = await asyncio.create_task(self.approvals.call("write", {}))
        return Response(chat_message=TextMessage(content=record.by, source=self.name))

    async def on_reset(self, cancellation_token: CancellationToken) -> None:
        self.approvals.reset()


async def test_agents_in_a_team_of_autogen_find_the_handler_of_the_context():
    team = RoundRobinGroupChat([Asker()], max_turns=1)
    with asking(answering()):
        result = await team.run(task="go")
    assert result.messages[-1].to_text() == "handler"


def test_approvals_serve_one_event_loop_after_the_other():
    # what is bound to the first loop in which somebody waits fails in the next
    approvals = Approvals([ASK], None, "helper")

    async def several() -> list[ApprovalRecord]:
        with asking(answering()):
            return await asyncio.gather(*(approvals.call(name, {}) for name in "abc"))

    for _ in range(2):
        assert all(record.allowed for record in asyncio.run(several()))


@given(
    at_most=st.integers(1, 5),
    names=st.lists(st.sampled_from(["limited", "asked"]), max_size=20),
    pauses=st.lists(st.integers(0, 2), max_size=20),
)
def test_a_grant_counts_exactly_however_calls_come_together(
    at_most: int, names: list[str], pauses: list[int]
):
    rules = [
        ApprovalRule(tool="limited", decision="allow", at_most=at_most),
        ApprovalRule(tool="asked", decision="ask"),
    ]
    delays = iter(pauses)

    async def slow(question: Question) -> Answer:
        for _ in range(next(delays, 0)):
            await asyncio.sleep(0)
        return Answer(True)

    async def run() -> list[ApprovalRecord]:
        approvals = Approvals(rules, slow, "helper")
        return await asyncio.gather(*(approvals.call(name, {}) for name in names))

    records = asyncio.run(run())
    allowed = [record for record in records if record.by == "rule 1" and record.allowed]
    assert len(allowed) == min(at_most, names.count("limited"))
    assert sum(record.by == "handler" for record in records) == names.count("asked")


async def test_a_flood_of_calls_does_not_drive_out_what_a_person_was_asked():
    rules = [ApprovalRule(tool="free", decision="allow"), ASK]
    approvals = Approvals(rules, answering(), "helper")
    for _ in range(MAX_RECORDS + 7):
        await approvals.call("free", {})
    await approvals.call("write", {})
    assert approvals.left_out == 7
    records = approvals.take_records()
    assert (len(records), records[-1].by) == (MAX_RECORDS + 1, "handler")
    assert approvals.left_out == 0


async def test_records_are_short_and_fit_for_json_whatever_the_code_passes():
    approvals = Approvals([ApprovalRule(tool="*", decision="allow")], None, "helper")
    record = await approvals.call("n" * 10_000, {"\ud800\x1b": "x" * 100_000, "\u202e": "\n"})
    assert len(record.model_dump_json()) < 1_500
    record = await approvals.call("t", {"\ud800\x1b": "\u202e"})
    assert record.arguments == r'{"\ud800\u001b":"\u202e"}'
    assert ApprovalRecord.model_validate_json(record.model_dump_json()) == record
