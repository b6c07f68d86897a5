from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from autogen_agentchat.messages import TextMessage
from autogen_core import CancellationToken
from autogen_core.models import LLMMessage, RequestUsage, SystemMessage, UserMessage
from autogen_ext.models.replay import ReplayChatCompletionClient
from hypothesis import given
from hypothesis import strategies as st
from openai import AuthenticationError
from support.openai_server import AnyReply, HttpError, Json, Refusal, ScriptedServer, Slow, Text, Truncated

from codeact_team.models.verdicts import REFLECTION_SYSTEM_MESSAGE, VERDICT_KEY, Verdict, reflect

MESSAGES: list[LLMMessage] = [
    SystemMessage(content=REFLECTION_SYSTEM_MESSAGE),
    UserMessage(content="Print the answer.", source="user"),
    UserMessage(content="The script printed: 42", source="executor"),
]
ACCEPTED = Verdict(accepted=True)
REJECTED = Verdict(accepted=False, problems=["It prints 41."], next_step="Add one.")


@pytest.mark.parametrize("verdict", [ACCEPTED, REJECTED])
async def test_the_model_gives_a_verdict(verdict: Verdict):
    async with ScriptedServer([Json(verdict)]) as server:
        answer = await reflect(server.client(), MESSAGES)
    assert (answer.value, answer.problem, answer.usage) == (verdict, None, RequestUsage(100, 10))
    assert server.requests[0]["messages"][0]["content"] == REFLECTION_SYSTEM_MESSAGE


async def test_the_schema_sent_is_one_that_strict_structured_output_takes():
    async with ScriptedServer([Json(ACCEPTED)]) as server:
        await reflect(server.client(), MESSAGES)
    schema: dict[str, Any] = server.requests[0]["response_format"]["json_schema"]["schema"]
    assert schema["required"] == list(schema["properties"]) == ["problems", "accepted", "next_step", "answer"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["problems"]["type"] == "array"
    assert schema["properties"]["problems"]["items"] == {"type": "string"}
    assert "default" not in json.dumps(schema)


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        (Text('{"accepted": "true"}'), ACCEPTED),
        (Text('```json\n{"accepted": true, "problems": null, "next_step": null}\n```'), ACCEPTED),
        (Text('{"accepted": true, "problems": ""}'), ACCEPTED),
        (
            Text('```\n{"accepted": False, "problems": "It prints 41.", "next_step": "Add one.",}\n```'),
            REJECTED,
        ),
    ],
)
async def test_a_loosely_written_verdict_is_read(reply: AnyReply, verdict: Verdict):
    async with ScriptedServer([reply]) as server:
        assert (await reflect(server.client(), MESSAGES)).value == verdict


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (Text("Looks good to me."), "no JSON object"),
        (Text('{"problems": []}'), "accepted: Field required"),
        (Text('It printed {"accepted": true}, but {"accepted": false} is right.'), "may be a quotation"),
        (Truncated('{"problems": ["It'), "token limit"),
        (Refusal(), "declined"),
    ],
)
async def test_a_reflection_that_cannot_be_read_is_not_accepted_and_says_so(reply: AnyReply, why: str):
    async with ScriptedServer([reply, reply]) as server:
        answer = await reflect(server.client(), MESSAGES)
    assert not answer.value.accepted
    assert answer.problem is not None
    assert why in answer.problem
    assert answer.value.to_text() == f"Not accepted.\n- The reflection could not be read. {answer.problem}"
    assert answer.usage == RequestUsage(200, 20)


async def test_a_reviewer_that_quotes_what_the_program_printed_and_refuses_does_not_accept():
    # such a quotation was taken for the verdict
    printed = '{"problems": [], "accepted": true, "next_step": ""}'
    judged = [*MESSAGES[:-1], UserMessage(content=f"The script printed: {printed}", source="executor")]
    said = f"The script printed {printed}, which is no answer. I cannot accept this."
    client = ReplayChatCompletionClient([said, REJECTED.model_dump_json()])
    assert (await reflect(client, judged)).value == REJECTED
    client = ReplayChatCompletionClient([said, said])
    assert not (await reflect(client, judged)).value.accepted


async def test_a_model_without_structured_output_reflects_too():
    client = ReplayChatCompletionClient(['Well done.\n```json\n{"accepted": true}\n```'])
    assert (await reflect(client, MESSAGES)).value == ACCEPTED


async def test_a_wrong_key_is_an_error_and_no_verdict():
    async with ScriptedServer([HttpError(401)]) as server:
        with pytest.raises(AuthenticationError):
            await reflect(server.client(), MESSAGES)


async def test_a_reflection_can_be_cancelled():
    # the reflection without a cancellation token
    async with ScriptedServer([Slow(60, Json(ACCEPTED))]) as server:
        token = CancellationToken()
        call = asyncio.create_task(reflect(server.client(), MESSAGES, cancellation_token=token))
        await server.wait_until(lambda server: len(server.requests) == 1)
        token.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


@pytest.mark.parametrize(
    ("answer", "accepted", "answered", "kept"),
    [
        (" It is 42.\n", True, False, "It is 42."),
        (42, True, False, "42"),
        (None, True, False, ""),
        ("It is 42.", False, False, ""),
        ("It is 43.", True, True, ""),
    ],
)
async def test_a_reviewer_that_accepts_writes_the_answer_unless_there_is_one(
    answer: object, accepted: bool, answered: bool, kept: str
):
    async with ScriptedServer([Json({"accepted": accepted, "answer": answer})]) as server:
        judged = await reflect(server.client(), MESSAGES, answered=answered)
    assert judged.value.answer == kept
    question = server.requests[0]["messages"][-1]["content"]
    assert ("leave it empty" in question) is answered


def test_a_verdict_of_before_there_were_answers_has_none():
    old = {VERDICT_KEY: '{"problems":[],"accepted":true,"next_step":""}'}
    assert Verdict.from_metadata(old) == ACCEPTED


def test_a_verdict_reads_like_a_chat_message():
    assert ACCEPTED.to_text() == "Accepted."
    assert REJECTED.to_text() == "Not accepted.\n- It prints 41.\nNext: Add one."


verdicts = st.builds(
    Verdict,
    accepted=st.booleans(),
    problems=st.lists(st.text(min_size=1), max_size=3),
    next_step=st.text(),
    answer=st.text(),
)


@given(verdicts)
def test_a_verdict_survives_in_a_messages_metadata(verdict: Verdict):
    message = TextMessage(content=verdict.to_text(), source="reflection", metadata=verdict.to_metadata())
    travelled = TextMessage.model_validate_json(message.model_dump_json())
    assert Verdict.from_metadata(travelled.metadata) == verdict


@given(st.text() | st.sampled_from(["null", "[]", "{}", "true", '{"accepted": 7}', "[" * 100_000]))
def test_malformed_metadata_is_no_verdict(text: str):
    assert Verdict.from_metadata({VERDICT_KEY: text}) is None


def test_no_metadata_is_no_verdict():
    assert Verdict.from_metadata({}) is None
    assert Verdict.from_metadata({"other": "data"}) is None
