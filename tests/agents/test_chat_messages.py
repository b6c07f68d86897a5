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
from autogen_core.model_context import UnboundedChatCompletionContext
from autogen_core.models import AssistantMessage, LLMMessage, UserMessage
from pydantic import BaseModel
from support.agents import picture, user

from codeact_team.agents.messages import FoundCode, add_to_context, find_code, text_of
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


def test_code_is_found_in_the_order_of_the_messages():
    assert codes(user(ONE), user("nothing"), user(TWO + "\n" + ONE)) == [
        "print(1)\n",
        "echo 2\n",
        "print(1)\n",
    ]


def test_sources_say_whose_code_counts():
    messages = [TextMessage(content=ONE, source="coder"), user(TWO)]
    assert codes(*messages, sources=["coder"]) == ["print(1)\n"]
    assert codes(*messages, sources=["coder", "user"]) == ["print(1)\n", "echo 2\n"]
    assert codes(*messages, sources=[]) == []


def test_what_has_been_run_is_not_run_again():
    assert codes(user(ONE + "\n" + TWO), report("1\n", "print(1)\n")) == ["echo 2\n"]


def test_nor_is_what_was_tried_before_it():
    assert codes(user(ONE), report("2\n", "print(2)\n", superseded=("print(1)\n",))) == []


def test_nor_is_what_the_report_itself_quotes():
    assert codes(user(ONE), report(f"I ran\n{ONE}", "print(1)\n")) == []


def test_new_code_in_a_report_is_found():
    assert codes(user(ONE), report(f"Now run\n{TWO}", "print(1)\n")) == ["echo 2\n"]


def test_the_same_code_is_run_again_if_somebody_asks_again():
    assert codes(user(ONE), report("1\n", "print(1)\n"), user(ONE)) == ["print(1)\n"]


def test_sources_ask_for_code_whoever_else_has_run_it():
    assert codes(user(ONE), report("1\n", "print(1)\n"), sources=["user"]) == ["print(1)\n"]


def test_unsupported_languages_are_named_once():
    ruby = "```ruby\nputs 1\n```"
    assert found(user(ruby), user(ruby + "\n```perl\nprint 1\n```")).unsupported == ["ruby", "perl"]
    assert found(user(ruby), sources=["coder"]).unsupported == []


def test_code_that_no_encoding_can_write_is_made_so_that_one_can():
    [code] = codes(user("x")) or codes(MultiModalMessage(content=["```sh\necho \ud800\n```"], source="user"))
    assert code == "echo ?\n"


async def test_a_hand_off_brings_its_context_along_before_its_own_words():
    context = UnboundedChatCompletionContext()
    earlier: list[LLMMessage] = [
        UserMessage(content="one", source="user"),
        AssistantMessage(content="two", source="a"),
    ]
    message = HandoffMessage(content="three", source="a", target="b", context=earlier)
    await add_to_context(context, [message, user("four")])
    assert [str(said.content) for said in await context.get_messages()] == ["one", "two", "three", "four"]
