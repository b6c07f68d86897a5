from __future__ import annotations

import asyncio

import pytest
from autogen_core import CancellationToken
from autogen_core.models import AssistantMessage, LLMMessage, RequestUsage, SystemMessage, UserMessage
from autogen_ext.models.replay import ReplayChatCompletionClient
from support.openai_server import AnyReply, HttpError, Json, Refusal, ScriptedServer, Slow, Text, Truncated

from codeact_team.models.verdicts import RetryDecision, decide_retry

ERROR = "ZeroDivisionError: division by zero"
MESSAGES: list[LLMMessage] = [
    SystemMessage(content="You write code."),
    UserMessage(content="Divide.", source="user"),
    AssistantMessage(content="```python\n1/0\n```", source="executor"),
    UserMessage(content=ERROR, source="executor"),
]


async def test_the_model_decides_with_a_reason():
    decision = RetryDecision(reason="Divide by one.", retry=True)
    async with ScriptedServer([Json(decision)]) as server:
        answer = await decide_retry(server.client(), MESSAGES)
    assert (answer.value, answer.problem, answer.usage) == (decision, None, RequestUsage(100, 10))
    assert server.requests[0]["response_format"]["json_schema"]["name"] == "RetryDecision"


async def test_a_declined_retry_keeps_its_reason():
    async with ScriptedServer([Json({"reason": "Division by zero is the point.", "retry": False})]) as server:
        answer = await decide_retry(server.client(), MESSAGES)
    assert answer.value == RetryDecision(reason="Division by zero is the point.", retry=False)


async def test_the_decision_sees_the_system_message_and_the_error_only_once():
    # the retry decision without a system message, and with the whole error pasted a second time
    async with ScriptedServer([Json({"reason": "", "retry": False})]) as server:
        await decide_retry(server.client(), MESSAGES)
    [request] = server.requests
    assert request["messages"][0] == {"role": "system", "content": "You write code."}
    assert str(request["messages"]).count(ERROR) == 1


async def test_the_decision_can_be_cancelled():
    # the retry decision without a cancellation token
    async with ScriptedServer([Slow(60, Text("never"))]) as server:
        token = CancellationToken()
        call = asyncio.create_task(decide_retry(server.client(), MESSAGES, cancellation_token=token))
        await server.wait_until(lambda server: len(server.requests) == 1)
        token.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


@pytest.mark.parametrize(
    "reply",
    [
        Text('{"retry": "true", "reason": "typo"}'),
        Text('```json\n{"reason": "typo", "retry": true}\n```'),
        Text("{'reason': 'typo', 'retry': True}"),
        Text("{“reason”: “typo”, “retry”: true,}"),
        Text('{"reason": "typo", /* an easy one */ "retry": 1} # so be it'),
    ],
)
async def test_a_decision_that_is_not_clean_json_is_read(reply: AnyReply):
    # a fenced retry decision ended the team with a traceback
    async with ScriptedServer([reply]) as server:
        answer = await decide_retry(server.client(), MESSAGES)
    assert answer.value == RetryDecision(reason="typo", retry=True)


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (Text(""), "no answer"),
        (Text("Let us try again!"), "no JSON object"),
        (Text('{"reason": "typo"}'), "retry: Field required"),
        (Truncated('{"reason": "ty'), "token limit"),
        (Refusal(), "declined"),
    ],
)
async def test_a_decision_that_cannot_be_read_is_not_to_retry_and_says_so(reply: AnyReply, why: str):
    # an empty retry decision, or one with a missing field, ended the team with a traceback
    async with ScriptedServer([reply, reply]) as server:
        answer = await decide_retry(server.client(), MESSAGES)
    assert not answer.value.retry
    assert answer.value.reason.startswith("The decision could not be read. ")
    assert answer.problem is not None
    assert why in answer.problem
    assert answer.problem in answer.value.reason
    assert answer.usage == RequestUsage(200, 20)


@pytest.mark.parametrize(
    "text", ['{"retry": true}', '{"reason": null, "retry": true}', "{'reason': None, 'retry': 'yes'}"]
)
async def test_a_decision_without_a_reason_is_one(text: str):
    async with ScriptedServer([Text(text)]) as server:
        answer = await decide_retry(server.client(), MESSAGES)
    assert answer.value == RetryDecision(retry=True, reason="No reason was given.")


async def test_the_schema_sent_is_one_that_strict_structured_output_takes():
    async with ScriptedServer([Json({"reason": "", "retry": False})]) as server:
        await decide_retry(server.client(), MESSAGES)
    schema = server.requests[0]["response_format"]["json_schema"]["schema"]
    assert schema["required"] == ["reason", "retry"]
    assert schema["properties"]["reason"]["type"] == "string"
    assert "default" not in str(schema)


async def test_a_model_without_structured_output_decides_too():
    client = ReplayChatCompletionClient(['{"retry": "True", "reason": "typo"}', "Yes!", "Yes!"])
    assert (await decide_retry(client, MESSAGES)).value == RetryDecision(reason="typo", retry=True)
    assert not (await decide_retry(client, MESSAGES)).value.retry


async def test_a_local_server_without_response_format_decides_too():
    refused = HttpError(400, "response_format: unsupported")
    async with ScriptedServer([refused, refused, Text('{"retry": true, "reason": "typo"}')]) as server:
        answer = await decide_retry(server.client(), MESSAGES)
    assert answer.value.retry
