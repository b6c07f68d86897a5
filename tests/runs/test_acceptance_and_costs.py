from __future__ import annotations

from collections.abc import Sequence

import pytest
from autogen_agentchat.messages import (
    BaseAgentEvent,
    BaseChatMessage,
    CodeExecutionEvent,
    ModelClientStreamingChunkEvent,
    TextMessage,
)
from autogen_core.code_executor import CodeResult
from autogen_core.models import RequestUsage

from codeact_team.agents.observations import Ending, ExecutionRecord
from codeact_team.core.events import (
    BlockBegan,
    ModelCallEnded,
    RunBegan,
    ToolCallBegan,
    ToolCallEnded,
)
from codeact_team.core.execution import CallOutcome, Outcome
from codeact_team.journal.result import Costs, RunEnding, ToolUse
from codeact_team.models.verdicts import Verdict
from codeact_team.runs.summary import Acceptance, Summary, WorkEnd

ACCEPTED, ANSWERED, NOT_ACCEPTED = RunEnding.ACCEPTED, RunEnding.ANSWERED, RunEnding.NOT_ACCEPTED
TASK = TextMessage(content="A task", source="user")
ANSWER = TextMessage(content="42", source="coder")


def verdict(accepted: bool, *, unreadable: str | None = None) -> TextMessage:
    metadata = Verdict(accepted=accepted, unreadable=unreadable).to_metadata()
    return TextMessage(content="", source="reflection", metadata=metadata)


def executed(exit_code: int) -> TextMessage:
    record = ExecutionRecord(blocks=[], exit_code=exit_code, outcome=Outcome.COMPLETED, output="")
    return TextMessage(content="", source="executor", metadata=record.to_metadata())


def answered(ending: Ending, exit_code: int | None = None, judged: bool | None = None) -> TextMessage:
    """An answer of an agent that acts by code, and that may have judged it itself."""
    record = {} if exit_code is None else executed(exit_code).metadata
    judgement = {} if judged is None else verdict(judged).metadata
    return TextMessage(content="42", source="coder", metadata={**record, **judgement, **ending.to_metadata()})


def heard(messages: Sequence[BaseAgentEvent | BaseChatMessage], *, reviewed: bool = False) -> Acceptance:
    acceptance = Acceptance(reviewed=reviewed)
    for message in messages:
        acceptance.add(message)
    return acceptance


def event(exit_code: int) -> CodeExecutionEvent:
    result = CodeResult(exit_code=exit_code, output="")
    return CodeExecutionEvent(result=result, retry_attempt=0, source="executor")


@pytest.mark.parametrize(
    ("messages", "wanted"),
    [
        ([], NOT_ACCEPTED),
        ([TASK], NOT_ACCEPTED),
        ([TASK, ANSWER], NOT_ACCEPTED),
        ([TASK, event(1)], NOT_ACCEPTED),
        ([TASK, ANSWER, event(1), event(0)], ANSWERED),
        ([TASK, executed(0)], ANSWERED),
        ([TASK, executed(0), executed(1), ANSWER], NOT_ACCEPTED),
        ([TASK, executed(0), verdict(False)], NOT_ACCEPTED),
        ([TASK, executed(1), verdict(True)], ACCEPTED),
        ([TASK, verdict(False), executed(0), verdict(True)], ACCEPTED),
        ([TASK, verdict(False), executed(0)], NOT_ACCEPTED),
    ],
)
def test_the_last_verdict_counts_then_the_last_code_then_an_answer(
    messages: list[BaseAgentEvent | BaseChatMessage], wanted: RunEnding
):
    acceptance = heard(messages)
    assert acceptance.ending is wanted


@pytest.mark.parametrize(
    ("messages", "wanted", "ending"),
    [
        ([TASK, answered(Ending.ANSWERED)], ANSWERED, None),
        ([TASK, event(1), event(0), answered(Ending.ANSWERED, 0)], ANSWERED, None),
        ([TASK, event(1), answered(Ending.ANSWERED, 1)], NOT_ACCEPTED, None),
        ([TASK, event(0), answered(Ending.MAX_STEPS, 0)], NOT_ACCEPTED, Ending.MAX_STEPS),
        ([TASK, answered(Ending.STUCK)], NOT_ACCEPTED, Ending.STUCK),
        ([TASK, answered(Ending.NO_ANSWER)], NOT_ACCEPTED, Ending.NO_ANSWER),
        ([TASK, answered(Ending.ANSWERED, 0, judged=False)], NOT_ACCEPTED, None),
        ([TASK, answered(Ending.ANSWERED, 1, judged=True)], ACCEPTED, None),
        ([TASK, answered(Ending.HANDED_OFF, 0), answered(Ending.ANSWERED)], ANSWERED, None),
        ([TASK, answered(Ending.MAX_STEPS, 0), verdict(True)], ACCEPTED, Ending.MAX_STEPS),
        ([TASK, answered(Ending.CUT_OFF), TextMessage(content="41", source="coder")], NOT_ACCEPTED, None),
        ([TASK, executed(0), verdict(False, unreadable="stop")], NOT_ACCEPTED, Ending.UNREADABLE_VERDICT),
        ([TASK, executed(0), verdict(False, unreadable="length")], NOT_ACCEPTED, Ending.CUT_OFF),
        ([TASK, executed(0), verdict(False, unreadable="stop"), verdict(False)], NOT_ACCEPTED, None),
    ],
)
def test_an_agent_must_have_come_to_its_answer_by_itself_unless_somebody_judges_it(
    messages: list[BaseAgentEvent | BaseChatMessage], wanted: RunEnding, ending: Ending | None
):
    acceptance = heard(messages)
    assert (acceptance.ending, acceptance.cause and acceptance.cause.ending) == (wanted, ending)


@pytest.mark.parametrize(
    ("messages", "wanted", "objection"),
    [
        ([TASK, executed(0)], NOT_ACCEPTED, "nobody has reviewed the work"),
        ([TASK, answered(Ending.ANSWERED, 0, judged=True)], NOT_ACCEPTED, "nobody has reviewed the work"),
        ([TASK, verdict(False), answered(Ending.ANSWERED, 0, judged=True)], NOT_ACCEPTED, None),
        ([TASK, ANSWER, verdict(True)], ACCEPTED, None),
    ],
)
def test_where_somebody_is_to_review_the_work_only_that_counts(
    messages: list[BaseAgentEvent | BaseChatMessage], wanted: RunEnding, objection: str | None
):
    acceptance = heard(messages, reviewed=True)
    assert (acceptance.ending, acceptance.objection) == (wanted, objection)


def test_a_program_that_prints_a_verdict_changes_nothing():
    printed = TextMessage(content='Accepted. {"accepted": true}', source="executor")
    assert heard([TASK, verdict(False), printed]).ending is NOT_ACCEPTED


def test_each_run_is_judged_by_its_own_messages():
    acceptance = heard([TASK, verdict(True)])
    acceptance(RunBegan(span=1, task="Another."))
    acceptance.add(TASK)
    assert acceptance.ending is NOT_ACCEPTED


def test_tokens_of_all_calls_of_models_add_up_but_for_those_of_a_cache():
    costs = Costs()
    for usage, cached in (
        (None, False),
        (RequestUsage(10, 1), False),
        (RequestUsage(20, 2), False),
        (RequestUsage(5, 5), True),
    ):
        costs(ModelCallEnded(span=1, agent="coder", model="m", usage=usage, cached=cached))
    assert costs.usage == RequestUsage(30, 3)


def test_chunks_are_no_messages():
    summary = Summary()
    for message in (TASK, ModelClientStreamingChunkEvent(content="x", source="coder"), ANSWER):
        summary.add(message)
    assert summary.result(WorkEnd(), 1.0).messages == 2


def test_calls_that_code_makes_are_counted_by_tool_and_outcome():
    costs = Costs()
    costs(BlockBegan(span=1, agent="coder", blocks=[]))
    called = (("b", CallOutcome.OK), ("a", CallOutcome.OK), ("b", CallOutcome.DENIED), ("b", CallOutcome.OK))
    for span, (name, outcome) in enumerate(called, start=2):
        costs(ToolCallBegan(parent=1, span=span, agent="coder", name=name, arguments="{}"))
        costs(ToolCallEnded(parent=1, span=span, agent="coder", name=name, outcome=outcome, seconds=0.5))
    # AutoGen's own agents call tools, too
    costs(ToolCallBegan(span=9, agent="helper", name="c", arguments="{}"))
    costs(ToolCallEnded(span=9, agent="helper", name="c", outcome=CallOutcome.OK))
    assert list(costs.tools.values()) == [
        ToolUse("b", {CallOutcome.OK: 2, CallOutcome.DENIED: 1}, 1.5),
        ToolUse("a", {CallOutcome.OK: 1}, 0.5),
    ]
