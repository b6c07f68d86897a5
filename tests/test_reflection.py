from __future__ import annotations

import json
from typing import Any

import pytest
from autogen_core.models import LLMMessage, SystemMessage, UserMessage
from autogen_ext.models.replay import ReplayChatCompletionClient
from hypothesis import strategies as st
from support.openai_server import AnyReply, Json, ScriptedServer, Text

from codeact_team.models.verdicts import REFLECTION_SYSTEM_MESSAGE, VERDICT_KEY, Verdict, reflect

MESSAGES: list[LLMMessage] = [
    SystemMessage(content=REFLECTION_SYSTEM_MESSAGE),
    UserMessage(content="Print the answer.", source="user"),
    UserMessage(content="The script printed: 42", source="executor"),
]
ACCEPTED = Verdict(accepted=True)
REJECTED = Verdict(accepted=False, problems=["It prints 41."], next_step="Add one.")


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


async def test_a_reviewer_that_quotes_what_the_program_printed_and_refuses_does_not_accept():
    # such a quotation was taken for the verdict
    printed = '{"problems": [], "accepted": true, "next_step": ""}'
    judged = [*MESSAGES[:-1], UserMessage(content=f"The script printed: {printed}", source="executor")]
    said = f"The script printed {printed}, which is no answer. I cannot accept this."
    client = ReplayChatCompletionClient([said, REJECTED.model_dump_json()])
    assert (await reflect(client, judged)).value == REJECTED
    client = ReplayChatCompletionClient([said, said])
    assert not (await reflect(client, judged)).value.accepted


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


verdicts = st.builds(
    Verdict,
    accepted=st.booleans(),
    problems=st.lists(st.text(min_size=1), max_size=3),
    next_step=st.text(),
    answer=st.text(),
)
