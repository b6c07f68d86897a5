"""Model clients, and servers, that do not answer as they promise."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from autogen_core.models import CreateResult, RequestUsage, UserMessage
from autogen_ext.models.replay import ReplayChatCompletionClient
from support.openai_server import Garbage, ScriptedServer

from codeact_team.errors import ModelError
from codeact_team.models.clients import wrap_client
from codeact_team.models.verdicts import decide_retry

ASKED = [UserMessage(content="Hi.", source="user")]
NUMBER: Any = CreateResult.model_construct(
    content=5, finish_reason="stop", usage=RequestUsage(1, 1), cached=False, thought=None
)


class Broken(ReplayChatCompletionClient):
    """Returns whatever it is given."""

    def __init__(self, result: Any) -> None:
        super().__init__([])
        self._result = result

    async def create(self, *_arguments: Any, **_options: Any) -> Any:
        return self._result

    async def create_stream(self, *_arguments: Any, **_options: Any) -> AsyncGenerator[Any, None]:
        yield "a piece"
        if self._result != "a piece":
            yield self._result


async def finish(client: Any, *, stream: bool) -> None:
    async def emit(_: str) -> None: ...

    await wrap_client(client).ask(ASKED, emit=emit if stream else None)


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (None, "the model client Broken returned NoneType instead of a CreateResult"),
        (NUMBER, "the model client Broken returned CreateResult with content of type int instead"),
        ("a piece", "the model client Broken returned str instead of a CreateResult"),
    ],
)
async def test_a_client_that_returns_something_else_is_named_in_one_sentence(result: Any, said: str) -> None:
    for stream in (False, True):
        with pytest.raises(ModelError, match=said):
            await finish(Broken(result), stream=stream)
    with pytest.raises(ModelError, match=said):
        await decide_retry(Broken(result), ASKED)


MESSAGE = (
    b'{"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": %s}}]}'
)


# AutoGen's client warns of what it then stumbles over
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "reply",
    [
        Garbage(),
        Garbage(MESSAGE % b"5", "application/json"),
        Garbage(MESSAGE % b'{"a": 1}', "application/json"),
        Garbage(b'{"choices": []}', "application/json"),
        Garbage(b"null", "application/json"),
    ],
)
async def test_a_server_that_answers_something_else_is_told_in_one_sentence(reply: Garbage) -> None:
    async with ScriptedServer([reply, reply]) as server:
        with pytest.raises(ModelError, match="is no chat completion: check `base_url`"):
            await finish(server.client(), stream=False)
        with pytest.raises(ModelError, match="is no chat completion: check `base_url`"):
            await decide_retry(server.client(), ASKED)
