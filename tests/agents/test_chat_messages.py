from __future__ import annotations

from autogen_agentchat.messages import (
    BaseChatMessage,
    MultiModalMessage,
    TextMessage,
)
from support.agents import user

from codeact_team.agents.messages import FoundCode, find_code
from codeact_team.agents.observations import CodeRecord, ExecutionRecord
from codeact_team.core.execution import Outcome

ONE = "```python\nprint(1)\n```"
TWO = "```sh\necho 2\n```"


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


def test_new_code_in_a_report_is_found():
    assert codes(user(ONE), report(f"Now run\n{TWO}", "print(1)\n")) == ["echo 2\n"]


def test_the_same_code_is_run_again_if_somebody_asks_again():
    assert codes(user(ONE), report("1\n", "print(1)\n"), user(ONE)) == ["print(1)\n"]


def test_sources_ask_for_code_whoever_else_has_run_it():
    assert codes(user(ONE), report("1\n", "print(1)\n"), sources=["user"]) == ["print(1)\n"]


def test_code_that_no_encoding_can_write_is_made_so_that_one_can():
    [code] = codes(user("x")) or codes(MultiModalMessage(content=["```sh\necho \ud800\n```"], source="user"))
    assert code == "echo ?\n"
