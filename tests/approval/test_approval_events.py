"""A question to a person goes through the dispatcher, and every decision is an event."""

from __future__ import annotations

from typing import Any

from codeact_team.core.effects import Dispatcher, Effect, Event, Perform
from codeact_team.core.events import Approval, QuestionAnswered, QuestionAsked, dump, load
from codeact_team.tools.approval_rules import ApprovalRule, Question
from codeact_team.tools.approvals import Answer, Approvals

RULES = [
    ApprovalRule(tool="read", decision="allow"),
    ApprovalRule(tool="*", decision="ask", reason="a person decides"),
]


async def grants(question: Question) -> Answer:
    return Answer(True, f"{question.name} is fine", always=True)


async def test_what_is_asked_and_decided_is_told() -> None:
    told: list[Event] = []
    with Dispatcher() as dispatcher:
        dispatcher.listen(told.append)
        approvals = Approvals(RULES, grants, "helper")
        for name in ("read", "write", "write", "read"):
            await approvals.call(name, {"path": "/a"})
    asked, answered = told[1:3]
    assert isinstance(asked, QuestionAsked)
    assert isinstance(answered, QuestionAnswered)
    assert asked.span == answered.span
    assert asked.text.startswith("helper wants to call write:\n| path: ")
    assert answered.text == "always: write is fine"
    decided = [event for event in told if isinstance(event, Approval)]
    assert [(one.agent, one.what, one.name, one.allowed, one.by, one.reason) for one in decided] == [
        ("helper", "tool", "read", True, "rule 1", ""),
        ("helper", "tool", "write", True, "handler", "write is fine"),
        ("helper", "tool", "write", True, "standing grant", "a person decides"),
        ("helper", "tool", "read", True, "rule 1", ""),
    ]
    assert [load(dump(event)) for event in told] == told


async def test_what_stands_in_the_dispatcher_answers_where_nobody_is_there() -> None:
    known: list[Any] = []

    async def record(effect: Effect[Any], do: Perform) -> Any:
        answer = await do()
        known.append((effect.request(), effect.dump(answer)))
        return answer

    async def replay(effect: Effect[Any], do: Perform) -> Any:
        request, answer = known[0]
        assert effect.request() == request
        return effect.load(answer)

    with Dispatcher(record):
        first = await Approvals(RULES, grants, "helper").call("write", {"path": "/a"})
    with Dispatcher(replay):
        again = await Approvals(RULES, None, "helper").call("write", {"path": "/a"})
    assert (again.allowed, again.by, again.reason) == (first.allowed, first.by, first.reason)
    assert known[0][0]["approval"]["arguments"] == {"path": "/a"}


async def test_a_question_without_anybody_to_ask_is_told_as_unanswered() -> None:
    told: list[Event] = []
    with Dispatcher() as dispatcher:
        dispatcher.listen(told.append)
        record = await Approvals(RULES, None, "helper").call("write", {})
    assert record.by == "no one to ask"
    assert isinstance(told[1], QuestionAnswered)
    assert "nobody can be asked" in (told[1].error or "")
