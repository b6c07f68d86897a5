"""Conversations in a journal: each message is there once, and each request has the messages that the model has read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from autogen_agentchat.messages import TextMessage
from autogen_core.models import AssistantMessage, LLMMessage, SystemMessage, UserMessage
from autogen_ext.models.replay import ReplayChatCompletionClient
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue
from support.codeact import py
from support.executing import why_not_confined

from codeact_team import CodeActAgent, ConfinedSessionCodeExecutor, open_team
from codeact_team.agents.observations import EXECUTION_KEY, ExecutionRecord
from codeact_team.core.events import BlockBegan, MessageSent
from codeact_team.errors import JournalError
from codeact_team.journal.blobs import Blobs
from codeact_team.journal.conversations import Conversations, KeptMessages, digest_of_message
from codeact_team.journal.log import read_log
from codeact_team.journal.recorded_run import RecordedRun
from codeact_team.journal.run_directory import RunDirectory

FIRST = "squares = [number * number for number in range(100)]  # a list\nlen(squares)"
SECOND = "final_answer('the number of the squares is ' + str(len(squares)) + ' \\\\ \"é\"')"
CALLER = "coder@config.model_client", None


async def test_each_message_is_in_the_journal_once_and_comes_back_in_every_request(tmp_path: Path) -> None:
    if (reason := why_not_confined()) is not None:
        pytest.skip(reason)
    model = ReplayChatCompletionClient([py(FIRST), py(SECOND)])
    config = CodeActAgent("coder", model, ConfinedSessionCodeExecutor()).dump_component().model_dump()
    async with open_team(config, record=tmp_path / "run") as team:
        messages = (await team.run(task="Go.")).messages
    run = RecordedRun(RunDirectory(tmp_path / "run"))
    lines = [entry for entry in read_log(run.directory.lines) if "begin" in entry]
    kept = [digest for entry in lines for digest in entry.get("messages", ())]
    asked: list[Any] = [effect.request for effect in run.effects() if effect.kind == "model_call"]
    first, second = (request["messages"] for request in asked)
    assert second[: len(first)] == first
    assert [message["type"] for message in second[len(first) :]] == ["AssistantMessage", "UserMessage"]
    assert [digest_of_message(message) for message in second] == kept
    events = list(run.events())
    assert [event.message for event in events if isinstance(event, MessageSent)][-1] == messages[-1]
    assert isinstance(messages[-1], TextMessage)
    record = ExecutionRecord.model_validate_json(messages[-1].metadata[EXECUTION_KEY])
    assert [block.code for block in [*record.superseded, *record.blocks]] == [f"{FIRST}\n", f"{SECOND}\n"]
    blocks = [event.blocks for event in events if isinstance(event, BlockBegan)]
    assert [block.code for each in blocks for block in each] == [f"{FIRST}\n", f"{SECOND}\n"]


class Pair:
    """The writer and the reader of a journal without a file."""

    def __init__(self, directory: Path) -> None:
        self._writer = Conversations()
        self._reader = KeptMessages(Blobs(directory), 1 << 20)
        self._span = 0
        self.dumped = 0

    def passed(self, messages: list[LLMMessage]) -> list[JsonValue] | None:
        """The messages of a request, once they have been in a journal."""
        self._span += 1
        new = self._writer.new_in(CALLER, messages)
        self.dumped += len(new.dumped)
        added = {digest_of_message(message): message for message in new.dumped}
        conversation = new.with_digests(list(map(digest_of_message, new.dumped)))
        self._writer.note(CALLER, conversation)
        entry = {
            "span": self._span,
            "messages": added,
            "conversation": self._writer.reference(CALLER, self._span, conversation.digests),
        }
        return self._reader.of(CALLER, json.loads(json.dumps(entry)))


def as_json(messages: list[LLMMessage]) -> list[JsonValue]:
    return [message.model_dump(mode="json") for message in messages]


STEPS = st.lists(
    st.tuples(st.sampled_from(["append", "drop", "shift", "system", "copy", "change"]), st.text(max_size=3)),
    max_size=12,
)


@given(STEPS)
def test_a_conversation_comes_back_as_it_was_whatever_becomes_of_it(steps: list[tuple[str, str]]) -> None:
    pair = Pair(Path("never-read"))
    messages: list[LLMMessage] = [
        SystemMessage(content="You are."),
        UserMessage(content="Go.", source="user"),
    ]
    assert pair.passed(messages) == as_json(messages)
    for step, text in steps:
        match step:
            case "append":
                messages.append(AssistantMessage(content=text, source="coder"))
            case "drop":
                del messages[-1:]
            case "shift":
                del messages[1:2]
            case "system":
                messages[:1] = [SystemMessage(content=text)]
            case "copy":
                messages = [message.model_copy() for message in messages]
            case _ if messages:
                # in place, as no agent should
                vars(messages[-1])["content"] = text
            case _:
                pass
        assert pair.passed(messages) == as_json(messages)


def test_what_was_dumped_is_not_dumped_again() -> None:
    pair = Pair(Path("never-read"))
    messages: list[LLMMessage] = []
    for number in range(100):
        messages = [*messages, UserMessage(content=str(number), source="user")]
        pair.passed(messages)
    assert pair.dumped == 100


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"conversation": {"add": ["unknown"]}}, "has the message 'unknown', which is not in the journal"),
        ({"conversation": {"after": 7, "drop": 0, "add": []}}, "refers to the effect 7, which is not"),
        ({"messages": {"a": "x" * 1000}, "conversation": {"add": ["a"] * 2000}}, "too large to be read"),
    ],
)
def test_a_request_that_nobody_of_us_has_written_is_refused(entry: dict[str, Any], reason: str) -> None:
    with pytest.raises(JournalError, match=reason):
        KeptMessages(Blobs(Path("never-read")), 1 << 20).of(CALLER, {"span": 8, **entry})
