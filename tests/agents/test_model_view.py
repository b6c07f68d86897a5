"""What is put back into a conversation that a context has cut."""

from __future__ import annotations

from typing import Any

import pytest
from autogen_core import FunctionCall
from autogen_core.models import (
    AssistantMessage,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    LLMMessage,
    UserMessage,
)

from codeact_team.agents.codeact.reply import keep_in_view


def u(text: str) -> UserMessage:
    return UserMessage(content=text, source="user")


def a(text: str) -> AssistantMessage:
    return AssistantMessage(content=text, source="coder")


def call(*ids: str) -> AssistantMessage:
    return AssistantMessage(
        content=[FunctionCall(id=one, name="f", arguments="{}") for one in ids], source="coder"
    )


def results(*ids: str) -> FunctionExecutionResultMessage:
    return FunctionExecutionResultMessage(
        content=[FunctionExecutionResult(content="r", name="f", call_id=one, is_error=False) for one in ids]
    )


OLD, TASK = [u("old"), a("old answer")], [u("task")]
SAID = [a("code 1"), u("result 1"), a("code 2"), u("result 2")]
SKIPPED = u("Skipped 3 messages.")


@pytest.mark.parametrize(
    ("kept", "seen"),
    [
        ([*OLD, *TASK, *SAID], [*OLD, *TASK, *SAID]),
        ([], [*TASK, *SAID[2:]]),
        (SAID[3:], [*TASK, *SAID[2:]]),
        (SAID[2:], [*TASK, *SAID[2:]]),
        (SAID[1:], [*TASK, *SAID[1:]]),
        ([*TASK, *SAID[:3]], [*TASK, *SAID]),
        ([OLD[0], SKIPPED, SAID[3]], [OLD[0], SKIPPED, *TASK, *SAID[2:]]),
        ([*TASK, SAID[0], SKIPPED, SAID[3]], [*TASK, SAID[0], SKIPPED, *SAID[2:]]),
        ([*OLD, SAID[0]], [*OLD, *TASK, SAID[0], *SAID[2:]]),
    ],
)
def test_the_task_and_what_came_last_are_put_back_in_their_places(
    kept: list[LLMMessage], seen: list[LLMMessage]
):
    assert keep_in_view(kept, task=TASK, said=SAID, latest=2) == seen


def test_a_task_of_which_a_part_is_missing_is_put_back_whole():
    task = [u("one"), u("two"), u("three")]
    assert keep_in_view([OLD[0], task[1]], task=task, said=[], latest=0) == [OLD[0], *task]


@pytest.mark.parametrize(
    ("kept", "seen"),
    [
        ([results("1"), u("x")], [u("x")]),
        ([call("1"), u("x")], [u("x")]),
        ([call("1", "2"), results("1"), u("x")], [u("x")]),
        ([call("1"), results("2"), u("x")], [u("x")]),
        ([u("x"), call("1")], [u("x")]),
        ([call("1"), results("1"), u("x")], [call("1"), results("1"), u("x")]),
    ],
)
def test_half_of_a_call_of_tools_is_left_out(kept: list[Any], seen: list[Any]):
    assert keep_in_view(kept, task=[], said=[], latest=0) == seen
