from __future__ import annotations

import pytest
from autogen_core.models import AssistantMessage, LLMMessage, SystemMessage, UserMessage
from support.openai_server import AnyReply, Json, ScriptedServer, Text

from codeact_team.models.verdicts import RetryDecision, decide_retry

ERROR = "ZeroDivisionError: division by zero"
MESSAGES: list[LLMMessage] = [
    SystemMessage(content="You write code."),
    UserMessage(content="Divide.", source="user"),
    AssistantMessage(content="```python\n1/0\n```", source="executor"),
    UserMessage(content=ERROR, source="executor"),
]


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
