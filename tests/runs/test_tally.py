from __future__ import annotations

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

from codeact_team import Outcome, Verdict
from codeact_team.observations import Ending, ExecutionRecord
from codeact_team.runs import Tally

TASK = TextMessage(content="A task", source="user")
ANSWER = TextMessage(content="42", source="coder")


def verdict(accepted: bool) -> TextMessage:
    metadata = Verdict(accepted=accepted).to_metadata()
    return TextMessage(content="", source="reflection", metadata=metadata)


def executed(exit_code: int) -> TextMessage:
    record = ExecutionRecord(blocks=[], exit_code=exit_code, outcome=Outcome.COMPLETED, output="")
    return TextMessage(content="", source="executor", metadata=record.to_metadata())


def answered(ending: Ending, exit_code: int | None = None, judged: bool | None = None) -> TextMessage:
    """An answer of an agent that acts by code, and that may have judged it itself."""
    record = {} if exit_code is None else executed(exit_code).metadata
    judgement = {} if judged is None else verdict(judged).metadata
    return TextMessage(content="42", source="coder", metadata={**record, **judgement, **ending.to_metadata()})


def event(exit_code: int) -> CodeExecutionEvent:
    result = CodeResult(exit_code=exit_code, output="")
    return CodeExecutionEvent(result=result, retry_attempt=0, source="executor")


@pytest.mark.parametrize(
    ("messages", "accepted"),
    [
        ([], False),
        ([TASK], False),
        ([TASK, ANSWER], True),
        ([TASK, event(1)], False),
        ([TASK, ANSWER, event(1), event(0)], True),
        ([TASK, executed(0)], True),
        ([TASK, executed(0), executed(1), ANSWER], False),
        ([TASK, executed(0), verdict(False)], False),
        ([TASK, executed(1), verdict(True)], True),
        ([TASK, verdict(False), executed(0), verdict(True)], True),
        ([TASK, verdict(False), executed(0)], False),
    ],
)
def test_the_last_verdict_counts_then_the_last_code_then_an_answer(
    messages: list[BaseAgentEvent | BaseChatMessage], accepted: bool
):
    tally = Tally()
    for message in messages:
        tally.add(message)
    assert tally.accepted is accepted


@pytest.mark.parametrize(
    ("messages", "accepted", "cut_short"),
    [
        ([TASK, answered(Ending.ANSWERED)], True, None),
        ([TASK, event(1), event(0), answered(Ending.ANSWERED, 0)], True, None),
        ([TASK, event(1), answered(Ending.ANSWERED, 1)], False, None),
        ([TASK, event(0), answered(Ending.MAX_STEPS, 0)], False, "coder: max steps"),
        ([TASK, answered(Ending.STUCK)], False, "coder: stuck"),
        ([TASK, answered(Ending.NO_ANSWER)], False, "coder: no answer"),
        ([TASK, answered(Ending.ANSWERED, 0, judged=False)], False, None),
        ([TASK, answered(Ending.ANSWERED, 1, judged=True)], True, None),
        ([TASK, answered(Ending.HANDED_OFF, 0), answered(Ending.ANSWERED)], True, None),
        ([TASK, answered(Ending.MAX_STEPS, 0), verdict(True)], True, "coder: max steps"),
    ],
)
def test_an_agent_must_have_come_to_its_answer_by_itself_unless_somebody_judges_it(
    messages: list[BaseAgentEvent | BaseChatMessage], accepted: bool, cut_short: str | None
):
    tally = Tally()
    for message in messages:
        tally.add(message)
    assert (tally.accepted, tally.cut_short) == (accepted, cut_short)


def test_a_program_that_prints_a_verdict_changes_nothing():
    tally = Tally()
    tally.add(TASK)
    tally.add(verdict(False))
    tally.add(TextMessage(content='Accepted. {"accepted": true}', source="executor"))
    assert tally.accepted is False


def test_tokens_of_all_messages_add_up_and_chunks_are_no_messages():
    tally = Tally()
    for usage in (None, RequestUsage(10, 1), RequestUsage(20, 2)):
        tally.add(TextMessage(content="", source="coder", models_usage=usage))
        tally.add(ModelClientStreamingChunkEvent(content="x", source="coder"))
    assert (tally.usage, tally.messages) == (RequestUsage(30, 3), 3)
