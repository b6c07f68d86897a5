"""Tools of the host that an agent's code calls: what the model is told, limits, approval and what is recorded of it."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

import pytest
from autogen_agentchat.messages import TextMessage
from pydantic import BaseModel, StringConstraints
from support.agents import Foreign, answer, calls_of, record_of, replay, turn
from support.codeact import agent_of, outputs, own_session, py
from support.openai_server import ScriptedServer, Text

from codeact_team.agents.agent_config import ToolLimits
from codeact_team.agents.code_executor import CodeExecutorAgent
from codeact_team.agents.observations import Ending
from codeact_team.core.effects import Dispatcher, Effect, Perform
from codeact_team.core.execution import CallAnswer, CallOutcome
from codeact_team.errors import SettingError
from codeact_team.executors.confined import ConfinedCommandLineCodeExecutor, ConfinedSessionCodeExecutor
from codeact_team.tools.approval_rules import ApprovalRule, Question
from codeact_team.tools.approvals import Answer

KEY = "sk-the-key-of-the-shop"
LATE = {2, 3}


@pytest.fixture
def session(fresh_session: ConfinedSessionCodeExecutor) -> ConfinedSessionCodeExecutor:
    """Agents with different tools do not share an interpreter."""
    return fresh_session


async def get_order(number: int) -> dict[str, Any]:
    """Look up an order.

    Args:
        number: Its number.
    """
    assert KEY
    return {"number": number, "late": number in LATE}


async def cancel_order(number: int, reason: str = "") -> str:
    """Cancel an order."""
    return f"cancelled {number}"


async def wait(seconds: float) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return "waited"


def rule(**fields: Any) -> ApprovalRule:
    return ApprovalRule(**fields)


class Person:
    """Somebody who is asked, and answers like this."""

    def __init__(self, *answers: Answer, seconds: float = 0) -> None:
        self._answers = list(answers)
        self._seconds = seconds
        self.asked: list[Question] = []

    async def __call__(self, question: Question) -> Answer:
        self.asked.append(question)
        await asyncio.sleep(self._seconds)
        return self._answers.pop(0)


class Payee(BaseModel):
    name: Annotated[str, StringConstraints(strip_whitespace=True, to_lower=True)]


async def pay(amount: int, to: Payee) -> str:
    """Pay."""
    return f"paid {amount} to {to.name}"


@pytest.mark.long
async def test_code_that_skips_the_check_in_the_sandbox_meets_that_of_the_host(
    session: ConfinedSessionCodeExecutor,
):
    called: list[object] = []

    async def refund(amount: int) -> str:
        """Pay back."""
        called.append(amount)
        return "paid"

    code = """
type(tools.refund)._request.__globals__["plain"] = lambda arguments: arguments
for amount in ("all of it", 1.5, None, [1], True, 7):
    try:
        print(tools.refund(amount))
    except tools.ToolError as error:
        print(type(error).__name__)
"""
    async with ScriptedServer([Text(py(code)), Text("Done.")]) as server:
        items = await turn(agent_of(server, session, tools=[refund]))
    assert called == [7]
    record = record_of(items[-1].chat_message)  # type: ignore[union-attr]
    assert [call.outcome for call in record.tool_calls] == [CallOutcome.REFUSED] * 5 + [CallOutcome.OK]


async def test_every_call_is_in_the_metadata_and_what_became_of_it(
    session: ConfinedSessionCodeExecutor,
):
    code = "tools.get_order(1)\ntools.cancel_order(2, reason='late')\ntools.get_order('x')"
    agent = agent_of(replay(py(code), "Done."), session, tools=[get_order, cancel_order])
    message = await answer(agent)
    first, second, refused = record_of(message).tool_calls
    assert (first.name, first.outcome, json.loads(first.arguments)) == (
        "get_order",
        CallOutcome.OK,
        {"number": 1},
    )
    assert json.loads(second.arguments) == {"number": 2, "reason": "late"}
    assert first.seconds >= 0
    assert (refused.outcome, json.loads(refused.arguments)) == (CallOutcome.REFUSED, {"number": "x"})


async def test_the_budget_counts_calls_and_its_end_is_one_last_call_to_the_model(
    session: ConfinedSessionCodeExecutor,
):
    code = "for n in range(10):\n    print(tools.get_order(n)['number'])"
    model = replay(py(code), "Three orders were looked up.")
    agent = agent_of(model, session, tools=[get_order], tool_limits=ToolLimits(max_calls=3))
    items = await turn(agent)
    message = items[-1].chat_message  # type: ignore[union-attr]
    assert isinstance(message, TextMessage)
    assert outputs(items)[0].count("ToolError: this run may make 3 calls of tools") == 1
    assert Ending.from_metadata(message.metadata) is Ending.MAX_CALLS
    assert message.content == "Three orders were looked up."
    outcomes = [call.outcome for call in record_of(message).tool_calls]
    assert outcomes == [CallOutcome.OK] * 3 + [CallOutcome.REFUSED]


async def test_each_run_has_calls_of_its_own(session: ConfinedSessionCodeExecutor):
    code = py("tools.get_order(1)['number']")
    agent = agent_of(
        replay(code, "1", code, "1"), session, tools=[get_order], tool_limits=ToolLimits(max_calls=1)
    )
    for _ in range(2):
        assert Ending.from_metadata((await answer(agent)).metadata) is Ending.ANSWERED


async def test_a_tool_that_takes_too_long_is_a_time_out_in_the_code(session: ConfinedSessionCodeExecutor):
    code = (
        "try:\n    tools.wait(30)\nexcept TimeoutError as error:\n    print(type(error).__name__, error)\n"
        "print(tools.get_order(1)['number'])"
    )
    limits = ToolLimits(timeouts={"wa*": 0.05})
    agent = agent_of(replay(py(code), "Done."), session, tools=[wait, get_order], tool_limits=limits)
    items = await turn(agent)
    assert outputs(items) == ["ToolTimeout wait was stopped after 0.05 s, its limit (tool_limits)\n1\n"]


async def test_a_denied_call_is_an_exception_with_the_reason_and_costs_no_retry_decision(
    session: ConfinedSessionCodeExecutor,
):
    model = replay(py("print(tools.cancel_order(7))"), "I may not cancel it.")
    agent = agent_of(
        model,
        session,
        tools=[cancel_order, get_order],
        approval=[rule(tool="cancel_*", decision="deny", reason="orders are cancelled by people")],
        max_retries_on_error=2,
    )
    items = await turn(agent)
    assert "ToolDenied: not approved: orders are cancelled by people" in outputs(items)[0]
    assert calls_of(model) == 2, "the model is not asked whether a denial is worth another attempt"
    record = record_of(items[-1].chat_message)  # type: ignore[union-attr]
    assert record.outcome == "denied"
    assert [call.outcome for call in record.tool_calls] == [CallOutcome.DENIED]
    assert [(entry.what, entry.name, entry.decision, entry.by) for entry in record.approvals] == [
        ("tool", "cancel_order", "deny", "rule 1")
    ]


async def test_a_denial_that_a_record_answers_with_is_one(session: ConfinedSessionCodeExecutor):
    async def deny(effect: Effect[Any], perform: Perform) -> Any:
        is_call = effect.kind == "tool_call"
        return CallAnswer(CallOutcome.DENIED, error="not on a Sunday") if is_call else await perform()

    with Dispatcher(deny):
        agent = agent_of(replay(py("tools.cancel_order(7)"), "No."), session, tools=[cancel_order])
        record = record_of(await answer(agent))
    assert (record.outcome, record.tool_calls[0].outcome) == ("denied", CallOutcome.DENIED)


async def test_a_rule_sees_the_arguments_that_a_tool_takes_for_those_left_out(
    session: ConfinedSessionCodeExecutor,
):
    agent = agent_of(
        replay(py("tools.cancel_order(7)"), "No."),
        session,
        tools=[cancel_order],
        approval=[
            rule(tool="*", arguments={"number": "7", "reason": "*"}, decision="deny", reason="say why")
        ],
    )
    assert "ToolDenied: not approved: say why" in outputs(await turn(agent))[0]


async def test_an_error_that_only_calls_itself_a_denial_is_an_error(session: ConfinedSessionCodeExecutor):
    model = replay(py("raise tools.ToolDenied('I say so')"), Json_retry(retry=False), "It failed.")
    agent = agent_of(model, session, tools=[get_order], max_retries_on_error=1)
    record = record_of(await answer(agent))
    assert record.outcome == "completed"
    assert len(record.retry_decisions) == 1


async def test_a_person_is_asked_and_the_time_they_take_is_not_the_codes():
    person = Person(Answer(True, "go on"), Answer(False, "not this one"), seconds=0.6)
    code = "for n in (1, 2):\n    try:\n        print(tools.cancel_order(n))\n    except tools.ToolDenied as error:\n        print(error)"
    async with own_session(timeout=1) as executor:
        agent = agent_of(
            replay(py(code), "Done."),
            executor,
            tools=[cancel_order],
            approval=[rule(tool="*", decision="ask", reason="it cannot be undone")],
            approval_handler=person,
        )
        items = await turn(agent)
    assert outputs(items) == ["cancelled 1\nnot approved: not this one\n"]
    assert [(q.kind, q.name, q.arguments, q.reason) for q in person.asked] == [
        ("tool", "cancel_order", {"number": 1, "reason": ""}, "it cannot be undone"),
        ("tool", "cancel_order", {"number": 2, "reason": ""}, "it cannot be undone"),
    ]
    approvals = record_of(items[-1].chat_message).approvals  # type: ignore[union-attr]
    assert [(entry.decision, entry.by) for entry in approvals] == [("allow", "handler"), ("deny", "handler")]
    assert all(entry.seconds >= 0.5 for entry in approvals)


async def test_nor_does_it_count_against_the_time_of_the_run(session: ConfinedSessionCodeExecutor):
    person = Person(Answer(True), Answer(True), seconds=0.8)
    agent = agent_of(
        replay(py("tools.get_order(1)['number']"), "Order 1."),
        session,
        tools=[get_order],
        max_seconds=1.5,
        approval=[rule(tool="*", decision="ask"), rule(code="*", decision="ask")],
        approval_handler=person,
    )
    message = await answer(agent)
    assert Ending.from_metadata(message.metadata) is Ending.ANSWERED
    assert [question.kind for question in person.asked] == ["code", "tool"]


async def test_the_executor_agent_without_a_model_offers_them_to_code_in_messages(
    session: ConfinedSessionCodeExecutor,
):
    agent = CodeExecutorAgent("worker", session, tools=[get_order])
    said = TextMessage(content=py("print(tools.get_order(2)['late'])"), source="user")
    assert (await answer(agent, said)).content == "True\n"


@pytest.mark.parametrize("executor", [ConfinedCommandLineCodeExecutor(), Foreign()])
def test_an_executor_whose_code_cannot_call_is_refused_with_tools(executor: Any):
    with pytest.raises(SettingError, match=r"tools: code in .* cannot call them; that needs a session"):
        CodeExecutorAgent("worker", executor, tools=[get_order], approval_func=lambda request: None)  # type: ignore[arg-type,return-value]


def test_somebody_to_ask_whom_no_rule_asks_is_refused():
    rules = [rule(tool="*", decision="deny")]
    with pytest.raises(SettingError, match="approval_handler has no effect"):
        agent_of(replay(), ConfinedSessionCodeExecutor(), approval=rules, approval_handler=Person())


def test_a_function_to_ask_and_a_live_tool_cannot_be_dumped():
    executor = ConfinedSessionCodeExecutor()
    asking = agent_of(
        replay(), executor, approval=[rule(tool="*", decision="ask")], approval_handler=Person()
    )
    with pytest.raises(SettingError, match="approval_handler: a function cannot be dumped"):
        asking.dump_component()
    with pytest.raises(SettingError, match="'get_order' is a live function and cannot be dumped"):
        agent_of(replay(), executor, tools=[get_order]).dump_component()


def test_instructions_without_a_place_for_the_tools_are_refused():
    with pytest.raises(SettingError, match=r"tools: .* write \$tools into system_message"):
        agent_of(replay(), ConfinedSessionCodeExecutor(), tools=[get_order], system_message="Act.")


def Json_retry(*, retry: bool) -> str:
    return json.dumps({"reason": "It is no use.", "retry": retry})


async def test_rules_see_what_the_tool_gets(session: ConfinedSessionCodeExecutor):
    # a rule for 100 let 100.0 pass, which the tool took for 100
    code = """
for amount, to in [(100.0, "bob"), (1, " Mallory "), (1.0, "bob")]:
    try:
        print(tools.pay(amount, {"name": to}))
    except tools.ToolDenied:
        print("denied")
"""
    agent = agent_of(
        replay(py(code), "Done."),
        session,
        tools=[pay],
        approval=[
            rule(tool="pay", arguments={"amount": "100"}, decision="deny"),
            rule(tool="pay", arguments={"to": '{"name":"mallory"}'}, decision="deny"),
        ],
    )
    items = await turn(agent)
    assert outputs(items)[0].startswith("denied\ndenied\npaid 1 to bob\n")
