"""The same conversation, by AutoGen's class and by ours."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from autogen_agentchat.agents import CodeExecutorAgent as AutoGenAgent
from autogen_agentchat.messages import BaseChatMessage, CodeExecutionEvent, CodeGenerationEvent
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeResult
from autogen_core.models import CreateResult, RequestUsage
from support.agents import (
    FAILS,
    GIVE_UP,
    PRINTS_42,
    RETRY,
    Foreign,
    Item,
    no,
    replay,
    summary,
    turn,
    user,
    yes,
)

from codeact_team.agents.code_executor import CodeExecutorAgent

ERROR = CodeResult(exit_code=1, output="ZeroDivisionError: division by zero\n")
RIGHT = CodeResult(exit_code=0, output="42\n")
SILENT = CodeResult(exit_code=0, output="")


def thinking(content: str) -> CreateResult:
    return CreateResult(
        finish_reason="stop", content=content, usage=RequestUsage(1, 1), cached=False, thought="Let me see."
    )


@dataclass(frozen=True)
class Conversation:
    """What the user and the model say, and what comes of the code."""

    replies: Sequence[str | CreateResult] = ()
    results: Sequence[CodeResult] = ()
    task: str = "Work out the answer."
    settings: dict[str, Any] = field(default_factory=dict[str, Any])


CONVERSATIONS = {
    "the code works": Conversation([PRINTS_42, "It is 42."], [RIGHT]),
    "the code prints nothing": Conversation([PRINTS_42, "It printed nothing."], [SILENT]),
    "there is no code": Conversation(["I know: 42."]),
    "there are blocks in two languages": Conversation(
        [PRINTS_42 + "and\n```sh\necho 42\n```", "Both are 42."], [RIGHT]
    ),
    "the code fails and may not be mended": Conversation([FAILS, "It failed."], [ERROR]),
    "the code is mended": Conversation(
        [FAILS, json.dumps(RETRY), PRINTS_42, "It is 42."],
        [ERROR, RIGHT],
        settings={"max_retries_on_error": 3},
    ),
    "the model gives up": Conversation(
        [FAILS, json.dumps(GIVE_UP), "It failed."], [ERROR], settings={"max_retries_on_error": 3}
    ),
    "the attempts are used up": Conversation(
        [FAILS, json.dumps(RETRY), FAILS, json.dumps(RETRY), FAILS, "It failed three times."],
        [ERROR, ERROR, ERROR],
        settings={"max_retries_on_error": 2},
    ),
    "the second attempt holds no code": Conversation(
        [FAILS, json.dumps(RETRY), "I do not know."], [ERROR], settings={"max_retries_on_error": 2}
    ),
    "the model thinks aloud": Conversation([thinking(PRINTS_42), thinking("It is 42.")], [RIGHT]),
    "the model is streamed": Conversation(
        [PRINTS_42, "It is 42."], [RIGHT], settings={"model_client_stream": True}
    ),
    "the code is denied": Conversation([PRINTS_42, "They said no."], settings={"approval_func": no}),
    "without a model": Conversation(task=PRINTS_42, results=[RIGHT]),
    "without a model, and the code fails": Conversation(task=FAILS, results=[ERROR]),
    "without a model, and the code prints nothing": Conversation(task=PRINTS_42, results=[SILENT]),
    "without a model, and there is no code": Conversation(task="Hello."),
    "without a model, and the code is denied": Conversation(task=PRINTS_42, settings={"approval_func": no}),
}


async def played(
    kind: type[AutoGenAgent] | type[CodeExecutorAgent], conversation: Conversation
) -> list[Item]:
    settings: dict[str, Any] = {"approval_func": yes}
    if conversation.replies:
        settings["model_client"] = replay(*conversation.replies)
    agent = kind("executor", Foreign(*conversation.results), **settings | conversation.settings)
    return await turn(agent, user(conversation.task))


@pytest.mark.parametrize("conversation", CONVERSATIONS.values(), ids=list(CONVERSATIONS))
async def test_events_their_order_and_their_texts_are_those_of_autogen(conversation: Conversation):
    theirs = await played(AutoGenAgent, conversation)
    ours = await played(CodeExecutorAgent, conversation)
    assert summary(ours) == summary(theirs)
    assert details(ours) == details(theirs)


def details(items: Sequence[Item]) -> list[object]:
    """What the texts of the events do not show."""
    return [
        (item.retry_attempt, item.source, item.result.exit_code)
        if isinstance(item, CodeExecutionEvent)
        else (item.retry_attempt, item.source, item.code_blocks)
        for item in items
        if isinstance(item, CodeExecutionEvent | CodeGenerationEvent)
    ]


async def test_a_subclass_may_override_the_public_methods():
    class Guarded(CodeExecutorAgent):
        async def extract_code_blocks_from_messages(
            self, messages: Sequence[BaseChatMessage]
        ) -> list[CodeBlock]:
            blocks = await super().extract_code_blocks_from_messages(messages)
            return blocks[:1]

        async def execute_code_block(
            self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken
        ) -> CodeResult:
            if "import" in code_blocks[0].code:
                return CodeResult(exit_code=1, output="No imports, please.")
            return await super().execute_code_block(code_blocks, cancellation_token)

    executor = Foreign()
    agent = Guarded("executor", executor, approval_func=yes)
    await turn(agent, user(PRINTS_42 + FAILS))
    assert [block.code for block in executor.executed] == ["print(42)\n"]
    final = await turn(agent, user("```python\nimport os\n```"))
    assert "No imports, please." in summary(final)[-1][1]
    assert len(executor.executed) == 1


def test_the_public_face_of_autogens_class_is_there():
    missing = {name for name in dir(AutoGenAgent) if not name.startswith("_")} - set(dir(CodeExecutorAgent))
    assert missing == set()
    for client in (None, replay()):
        pair = [
            kind("a", Foreign(), model_client=client, approval_func=yes)
            for kind in (AutoGenAgent, CodeExecutorAgent)
        ]
        assert pair[0].description == pair[1].description
        assert pair[0].produced_message_types == pair[1].produced_message_types
    constants = [name for name in vars(AutoGenAgent) if name.isupper()]
    assert {name: getattr(CodeExecutorAgent, name) for name in constants} == {
        name: getattr(AutoGenAgent, name) for name in constants
    }
