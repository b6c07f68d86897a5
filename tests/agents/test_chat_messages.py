from __future__ import annotations

import pytest
from autogen_agentchat.messages import (
    BaseChatMessage,
    HandoffMessage,
    MultiModalMessage,
    StopMessage,
    StructuredMessage,
    TextMessage,
    ToolCallSummaryMessage,
)
from pydantic import BaseModel
from support.agents import picture, user

from codeact_team.agents.messages import FoundCode, find_code, text_of
from codeact_team.agents.observations import CodeRecord, ExecutionRecord
from codeact_team.core.execution import Outcome

ONE = "```python\nprint(1)\n```"
TWO = "```sh\necho 2\n```"


class Form(BaseModel):
    code: str


def report(text: str, *codes: str, superseded: tuple[str, ...] = (), source: str = "executor") -> TextMessage:
    record = ExecutionRecord(
        blocks=[CodeRecord(language="python", code=code) for code in codes],
        exit_code=0,
        outcome=Outcome.COMPLETED,
        output=text,
        superseded=[CodeRecord(language="python", code=code) for code in superseded],
    )
    return TextMessage(content=text, source=source, metadata=record.to_metadata())


def found(*messages: BaseChatMessage, sources: list[str] | None = None) -> FoundCode:
    return find_code(messages, ["python", "sh"], sources=sources, default_language=None)


def codes(*messages: BaseChatMessage, sources: list[str] | None = None) -> list[str]:
    return [block.code for block in found(*messages, sources=sources).blocks]


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (TextMessage(content="text", source="a"), "text"),
        (StopMessage(content="stop", source="a"), "stop"),
        (HandoffMessage(content="yours", source="a", target="b"), "yours"),
        (ToolCallSummaryMessage(content="tool", source="a", tool_calls=[], results=[]), "tool"),
        (MultiModalMessage(content=["one", picture(), "two"], source="a"), "one\ntwo"),
        (StructuredMessage[Form](content=Form(code="1"), source="a"), '{"code":"1"}'),
    ],
)
def test_the_text_of_a_message_of_any_type(message: BaseChatMessage, text: str):
    assert text_of(message) == text


def test_new_code_in_a_report_is_found():
    assert codes(user(ONE), report(f"Now run\n{TWO}", "print(1)\n")) == ["echo 2\n"]


def test_the_same_code_is_run_again_if_somebody_asks_again():
    assert codes(user(ONE), report("1\n", "print(1)\n"), user(ONE)) == ["print(1)\n"]


def test_sources_ask_for_code_whoever_else_has_run_it():
    assert codes(user(ONE), report("1\n", "print(1)\n"), sources=["user"]) == ["print(1)\n"]


def test_code_that_no_encoding_can_write_is_made_so_that_one_can():
    [code] = codes(user("x")) or codes(MultiModalMessage(content=["```sh\necho \ud800\n```"], source="user"))
    assert code == "echo ?\n"
