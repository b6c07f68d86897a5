"""Which of a run's messages is its answer."""

from __future__ import annotations

import pytest
from autogen_agentchat.messages import (
    CodeExecutionEvent,
    HandoffMessage,
    TextMessage,
    UserInputRequestedEvent,
)
from autogen_core.code_executor import CodeResult

from codeact_team.agents.code_executor import CodeExecutorAgent
from codeact_team.agents.messages import CALLED_A_TOOL, NO_ANSWER
from codeact_team.agents.observations import Ending, ExecutionRecord
from codeact_team.core.effects import Event
from codeact_team.core.events import BlockEnded, MessageSent, ModelCallEnded, RunBegan
from codeact_team.core.execution import Outcome
from codeact_team.models.verdicts import Verdict
from codeact_team.runs.summary import Answers
from codeact_team.text.quoting import make_inert


def say(text: str, source: str = "coder", **metadata: str) -> MessageSent:
    return MessageSent(message=TextMessage(content=text, source=source, metadata=metadata))


DECLINED = ModelCallEnded(span=1, agent="coder", model="m", finish_reason="content_filter")
ANSWERED = ModelCallEnded(span=2, agent="coder", model="m", finish_reason="stop")
NO_CODE = f"{CodeExecutorAgent.NO_CODE_BLOCKS_FOUND_MESSAGE}\n[Code not run.]"
TASK = say("A task", "user")
PROGRAM = say("Here:\n```python\nprint(41)\n```")


def ran(output: str, exit_code: int = 0, answer: str | None = None) -> list[Event]:
    """What an executor tells of code, and passes on of it."""
    record = ExecutionRecord(
        blocks=[], exit_code=exit_code, outcome=Outcome.COMPLETED, output=output, remark="", answer=answer
    )
    ended = BlockEnded(span=1, agent="executor", exit_code=exit_code, output=output)
    return [ended, say(output or "no output", "executor", **record.to_metadata())]


def executed(output: str, exit_code: int = 0) -> list[Event]:
    """What an agent that acts by code tells of a block amid its work."""
    result = CodeResult(exit_code=exit_code, output=output)
    told = CodeExecutionEvent(retry_attempt=0, result=result, source="coder")
    return [
        BlockEnded(span=1, agent="coder", exit_code=exit_code, output=output),
        MessageSent(message=told),
    ]


def feed(answers: Answers, event: Event) -> None:
    answers.add(event.message) if isinstance(event, MessageSent) else answers(event)


def judged(answer: str = "", accepted: bool = True) -> MessageSent:
    verdict = Verdict(accepted=accepted, answer=answer)
    return say(answer or "Accepted.", "reviewer", **verdict.to_metadata())


def came_to(text: str, ending: Ending = Ending.ANSWERED) -> MessageSent:
    """What an agent that acts by code says at last."""
    return say(text, **ending.to_metadata())


@pytest.mark.parametrize(
    ("events", "best"),
    [
        ([], None),
        ([TASK], None),
        ([TASK, PROGRAM], None),
        ([TASK, PROGRAM, *ran("", 0)], None),
        ([TASK, PROGRAM, *ran("Traceback", 1)], None),
        ([TASK, PROGRAM, *ran("41\n"), PROGRAM, *ran("Traceback", 1)], "41"),
        ([TASK, PROGRAM, *ran("41"), judged(accepted=False), PROGRAM], "41"),
        ([TASK, PROGRAM, *ran("41"), judged()], "41"),
        ([TASK, PROGRAM, *ran("41"), judged("It is 41.")], "It is 41."),
        ([TASK, *ran("41"), judged("It is 41."), *ran("42"), judged(accepted=False)], "42"),
        ([TASK, *ran("some lines", answer='{"n": 41}'), say("Well done.", "critic")], '{"n": 41}'),
        ([TASK, *ran("41"), say("It is 41.", "writer")], "It is 41."),
        ([TASK, came_to("It is 41."), say("Well done.", "critic"), judged(accepted=False)], "It is 41."),
        ([TASK, came_to("It may be 41.", Ending.MAX_STEPS)], "It may be 41."),
        ([TASK, came_to("It is 41."), came_to("The run was cancelled.", Ending.CANCELLED)], "It is 41."),
        ([TASK, came_to("", Ending.NO_ANSWER)], None),
        ([TASK, *executed("41\n"), *executed("Traceback", 1)], "41"),
        ([TASK, *executed("41\n"), came_to("The run was cancelled.", Ending.CANCELLED)], "41"),
        ([TASK, *executed("41\n"), came_to("It is 41.")], "It is 41."),
        ([TASK, PROGRAM, *ran("41"), say("It is 41."), say(NO_CODE, "executor")], "It is 41."),
        ([TASK, PROGRAM, *ran("41"), say("It is 41."), PROGRAM, *ran("table")], "It is 41."),
        ([TASK, say("I shall look."), PROGRAM, *ran("41")], "41"),
        ([TASK, say(NO_CODE, "executor")], None),
        ([TASK, say(NO_ANSWER)], None),
        ([TASK, *executed("41"), came_to(make_inert("So:\n```python\nprint(1"), Ending.MAX_STEPS)], "41"),
        ([TASK, *executed("41"), came_to(f"{CALLED_A_TOOL}: python.)", Ending.NO_SUCH_TOOL)], "41"),
        ([TASK, came_to("I cannot help with that.", Ending.REFUSED)], None),
        ([TASK, DECLINED, say("I cannot help with that.")], None),
        ([TASK, DECLINED, say("I cannot help with that."), ANSWERED, say("It is 41.")], "It is 41."),
        ([TASK, came_to("As a table:\n```\n4 | 1\n```", Ending.MAX_STEPS)], "As a table:\n```\n4 | 1\n```"),
    ],
)
def test_an_accepted_answer_counts_then_one_that_was_given_then_what_comes_nearest(
    events: list[Event], best: str | None
):
    answers = Answers()
    for event in events:
        feed(answers, event)
    assert answers.best == best


def test_neither_people_nor_those_who_only_steer_answer():
    answers = Answers()
    handoff = HandoffMessage(content="Your turn.", source="coder", target="boss")
    for event in (
        MessageSent(message=UserInputRequestedEvent(request_id="1", source="boss")),
        say("APPROVE", "boss"),
        MessageSent(message=handoff),
    ):
        feed(answers, event)
    assert answers.best is None


def test_each_run_has_its_own_answer():
    answers = Answers()
    feed(answers, judged("It is 41."))
    answers(RunBegan(span=1, task="Another."))
    assert answers.best is None


def test_half_a_character_of_a_model_s_can_be_written():
    answers = Answers()
    feed(answers, say("It is \ud83d."))
    assert answers.best == "It is ?."
