from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pytest
from autogen_core import CancellationToken
from autogen_core.models import (
    AssistantMessage,
    ChatCompletionClient,
    CreateResult,
    LLMMessage,
    ModelInfo,
    RequestUsage,
    SystemMessage,
    UserMessage,
)
from autogen_core.tools import Tool, ToolSchema
from autogen_ext.models.replay import ReplayChatCompletionClient
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import (
    APIConnectionError,
    AuthenticationError,
    BadRequestError,
    InternalServerError,
    RateLimitError,
)
from pydantic import BaseModel, Field, TypeAdapter
from support.openai_server import (
    AnyReply,
    Cut,
    Filtered,
    Garbage,
    HttpError,
    Json,
    Refusal,
    ScriptedServer,
    Slow,
    Text,
    ToolCalls,
    Truncated,
)

from codeact_team.structured import MAX_TEXT_CHARS, Answer, ask, parse


class Mark(BaseModel):
    """A mark for an essay."""

    passed: bool
    comment: str
    hints: list[str] = Field(default_factory=list[str])


GOOD = Mark(passed=True, comment="fine")
GOOD_JSON = '{"passed": true, "comment": "fine"}'
MESSAGES: list[LLMMessage] = [
    SystemMessage(content="You are strict."),
    UserMessage(content="Mark this.", source="user"),
]


def capabilities(*, structured: bool = False, json_mode: bool = False) -> ModelInfo:
    return ModelInfo(
        vision=False,
        function_calling=False,
        json_output=json_mode,
        family="unknown",
        structured_output=structured,
    )


async def ask_server(reply: AnyReply, **overrides: Any) -> Answer[Mark | None]:
    async with ScriptedServer([reply]) as server:
        return await ask(server.client(**overrides), MESSAGES, Mark)


# how the model is asked


async def test_structured_output_is_asked_for_where_the_model_has_it():
    async with ScriptedServer([Json(GOOD, prompt_tokens=50, completion_tokens=5)]) as server:
        answer = await ask(server.client(), MESSAGES, Mark)
    assert (answer.value, answer.problem, answer.usage) == (GOOD, None, RequestUsage(50, 5))
    [request] = server.requests
    schema = request["response_format"]["json_schema"]
    assert (schema["name"], schema["strict"]) == ("Mark", True)
    assert schema["schema"]["required"] == ["passed", "comment", "hints"]
    assert schema["schema"]["description"] == "A mark for an essay."
    assert request["messages"][-1]["content"] == "Mark this."


async def test_json_mode_explains_the_schema_in_the_last_message():
    async with ScriptedServer([Json(GOOD)]) as server:
        client = server.client(model_info=capabilities(json_mode=True))
        assert (await ask(client, MESSAGES, Mark)).value == GOOD
    [request] = server.requests
    assert request["response_format"] == {"type": "json_object"}
    assert len(request["messages"]) == len(MESSAGES)
    assert request["messages"][-1]["content"].startswith("Mark this.\n\nAnswer with one JSON object")
    assert '"passed"' in request["messages"][-1]["content"]
    assert MESSAGES[-1].content == "Mark this."


async def test_a_plain_model_is_asked_in_words_only():
    async with ScriptedServer([Text(f"Here you are:\n```json\n{GOOD_JSON}\n```\n")]) as server:
        client = server.client(model_info=capabilities())
        assert (await ask(client, MESSAGES, Mark)).value == GOOD
    assert "response_format" not in server.requests[0]


async def test_the_schema_is_a_message_of_its_own_after_an_assistant_message():
    async with ScriptedServer([Json(GOOD)]) as server:
        client = server.client(model_info=capabilities())
        await ask(client, [*MESSAGES, AssistantMessage(content="Hm.", source="a")], Mark)
    assert [message["role"] for message in server.requests[0]["messages"]] == [
        "system",
        "user",
        "assistant",
        "user",
    ]


@pytest.mark.parametrize("status", [400, 422])
async def test_a_server_that_refuses_a_way_of_asking_is_asked_the_next_and_that_is_remembered(status: int):
    refused = HttpError(status, "response_format is not supported")
    async with ScriptedServer([refused, refused, Json(GOOD), Json(GOOD)]) as server:
        client = server.client()
        assert (await ask(client, MESSAGES, Mark)).value == GOOD
        assert (await ask(client, MESSAGES, Mark)).value == GOOD
        formats = [request.get("response_format", {}).get("type") for request in server.requests]
    assert formats == ["json_schema", "json_object", None, None]


async def test_what_one_client_refused_is_still_tried_on_another():
    async with ScriptedServer([HttpError(400), Json(GOOD), Json(GOOD)]) as server:
        await ask(server.client(), MESSAGES, Mark)
        await ask(server.client(), MESSAGES, Mark)
        formats = [request["response_format"]["type"] for request in server.requests]
    assert formats == ["json_schema", "json_object", "json_schema"]


async def test_a_bad_request_that_is_refused_in_every_way_is_raised_and_nothing_is_remembered():
    replies = [HttpError(400, "the context is too long")] * 3 + [Json(GOOD)]
    async with ScriptedServer(replies) as server:
        client = server.client()
        with pytest.raises(BadRequestError, match="the context is too long"):
            await ask(client, MESSAGES, Mark)
        await ask(client, MESSAGES, Mark)
    assert server.requests[-1]["response_format"]["type"] == "json_schema"


class WithoutStructuredOutput(ReplayChatCompletionClient):
    """Like AutoGen's clients for Azure AI and Anthropic, refuses a schema before it sends anything."""

    async def create(
        self,
        messages: Sequence[LLMMessage],
        *,
        tools: Sequence[Tool | ToolSchema] = (),
        tool_choice: Tool | Literal["auto", "required", "none"] = "auto",
        json_output: bool | type[BaseModel] | None = None,
        extra_create_args: Mapping[str, Any] | None = None,
        cancellation_token: CancellationToken | None = None,
    ) -> CreateResult:
        if isinstance(json_output, type):
            raise ValueError("structured output is not supported")
        return await super().create(messages, json_output=json_output, cancellation_token=cancellation_token)


async def test_a_client_that_refuses_a_schema_itself_is_asked_the_next_way():
    client = WithoutStructuredOutput([GOOD_JSON], capabilities(structured=True, json_mode=True))
    assert (await ask(client, MESSAGES, Mark)).value == GOOD
    assert client.create_calls[0]["json_output"] is True


# what the model answers


async def test_string_booleans_and_missing_optional_fields_are_understood():
    answer = await ask_server(Text('{"passed": "true", "comment": "ok"}'))
    assert answer.value == Mark(passed=True, comment="ok")


async def test_a_fenced_answer_to_a_structured_request_costs_no_second_call():
    answer = await ask_server(Text(f"```json\n{GOOD_JSON}\n```"))
    assert (answer.value, answer.usage) == (GOOD, RequestUsage(100, 10))


@pytest.mark.parametrize(
    "info", [capabilities(structured=True), capabilities(json_mode=True), capabilities()]
)
@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (Text("I think it is fine."), "holds no JSON object"),
        (Text(""), "gave no answer"),
        (Text("null"), "holds no JSON object"),
        (Text('{"passed": "perhaps"}'), "passed: Input should be a valid boolean.*; comment: Field required"),
        (Text(f'{GOOD_JSON} or {{"passed": false, "comment": "bad"}}'), "several JSON objects that differ"),
        (Refusal(), "gave no answer, or declined"),
        (Truncated('{"passed": true, "comm'), "cut off at its token limit"),
        (Filtered('{"passed"'), "stopped by the provider's content filter"),
        (ToolCalls([("mark", {"passed": True})]), "called tools"),
    ],
)
async def test_nonsense_is_a_problem_in_words_and_its_tokens_count(
    reply: AnyReply, problem: str, info: ModelInfo
):
    """AutoGen's client raises for these where structured output is asked for, and the tokens are lost."""
    async with ScriptedServer([reply]) as server:
        answer = await ask(server.client(model_info=info), MESSAGES, Mark)
    assert answer.value is None
    assert answer.problem is not None
    assert re.search(problem, answer.problem), answer.problem
    assert answer.usage == RequestUsage(100, 10)


async def test_an_answer_that_was_complete_before_it_was_cut_off_counts():
    answer = await ask_server(Truncated(GOOD_JSON + "\n" * 50))
    assert (answer.value, answer.problem) == (GOOD, None)


async def test_the_text_is_kept_bounded_and_can_be_written_anywhere():
    answer = await ask_server(Text("\ud800" + "x" * 2 * MAX_TEXT_CHARS))
    assert len(answer.text) == MAX_TEXT_CHARS
    assert answer.text.encode().startswith(b"?xxx")


async def test_the_models_reasoning_is_kept():
    answer = await ask_server(Text(GOOD_JSON, reasoning="Let me see."), model_info=capabilities())
    assert (answer.value, answer.thought) == (GOOD, "Let me see.")


async def test_a_replayed_model_without_structured_output_is_read_leniently():
    client = ReplayChatCompletionClient([f"Sure! {GOOD_JSON} Anything else?", "No idea."])
    assert (await ask(client, MESSAGES, Mark)).value == GOOD
    assert (await ask(client, MESSAGES, Mark)).problem == "The model's answer holds no JSON object."


class Validating(ReplayChatCompletionClient):
    """A client that checks the model's answer in its own way, and raises."""

    async def create(
        self,
        messages: Sequence[LLMMessage],
        *,
        tools: Sequence[Tool | ToolSchema] = (),
        tool_choice: Tool | Literal["auto", "required", "none"] = "auto",
        json_output: bool | type[BaseModel] | None = None,
        extra_create_args: Mapping[str, Any] | None = None,
        cancellation_token: CancellationToken | None = None,
    ) -> CreateResult:
        result = await super().create(messages, json_output=json_output)
        assert isinstance(json_output, type)
        assert isinstance(result.content, str)
        TypeAdapter(json_output).validate_json(result.content)
        return result


async def test_a_client_that_raises_for_nonsense_is_a_problem_not_an_error():
    client = Validating(["No idea."], capabilities(structured=True))
    answer = await ask(client, MESSAGES, Mark)
    assert answer.value is None
    assert answer.problem is not None
    assert "Invalid JSON" in answer.problem
    assert answer.usage == RequestUsage(0, 0)


# what is not the model's fault


@pytest.mark.parametrize(
    "info", [capabilities(structured=True), capabilities(json_mode=True), capabilities()]
)
@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (HttpError(401), AuthenticationError),
        (HttpError(429), RateLimitError),
        (HttpError(500), InternalServerError),
        (Cut(), APIConnectionError),
        (Cut("half of an"), APIConnectionError),
        (Garbage(b"{nope", "application/json"), json.JSONDecodeError),
    ],
)
async def test_a_failing_environment_raises_after_one_call(
    reply: AnyReply, error: type[Exception], info: ModelInfo
):
    async with ScriptedServer([reply]) as server:
        with pytest.raises(error):
            await ask(server.client(model_info=info), MESSAGES, Mark)


async def test_the_token_cancels_the_call_under_way():
    async with ScriptedServer([Slow(60, Json(GOOD))]) as server:
        token = CancellationToken()
        call = asyncio.create_task(ask(server.client(), MESSAGES, Mark, cancellation_token=token))
        await server.wait_until(lambda server: len(server.requests) == 1)
        token.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await server.wait_until(lambda server: server.disconnects == 1)


async def test_an_exhausted_replay_raises():
    client: ChatCompletionClient = ReplayChatCompletionClient(
        [], capabilities(structured=True, json_mode=True)
    )
    with pytest.raises(ValueError, match="No more mock responses"):
        await ask(client, MESSAGES, Mark)


# reading leniently


@settings(deadline=None)
@given(st.text())
def test_any_text_is_read_without_an_error(text: str):
    value, problem = parse(text, Mark)
    assert (value is None) == (problem is not None)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@settings(deadline=None)
@given(
    json_values | st.dictionaries(st.sampled_from(["passed", "comment", "hints"]), json_values),
    st.sampled_from(["", "```json\n", "{", '{"', "[", "<think>"]),
)
def test_any_json_is_read_without_an_error(value: object, before: str):
    parse(before + json.dumps(value), Mark)


prose = st.text().filter(lambda text: "{" not in text)


@settings(deadline=None)
@given(
    st.builds(Mark, passed=st.booleans(), comment=st.text(), hints=st.lists(st.text(), max_size=3)),
    prose.filter(lambda text: not text.lstrip().startswith("<think>")),
    prose,
    st.sampled_from(["{}", "```\n{}\n```", "```json\n{}\n```", "~~~JSON\n{}", "<execute>{}</execute>"]),
)
def test_an_object_is_found_in_fences_and_prose(mark: Mark, before: str, after: str, fence: str):
    text = before + fence.replace("{}", mark.model_dump_json()) + after
    assert parse(text, Mark) == (mark, None)


@pytest.mark.parametrize(
    "text",
    [
        'As {curly} as "{" can be: ' + GOOD_JSON,
        "{see: " + GOOD_JSON + "}",
        '{"unrelated": 1} ' + GOOD_JSON,
        GOOD_JSON + " Again: " + GOOD_JSON,
        f"<think>Perhaps {GOOD_JSON.replace('true', 'false')}?</think>{GOOD_JSON}",
        f"[{GOOD_JSON}]",
        GOOD_JSON + '{"passed": true, "comm',
    ],
)
def test_the_object_is_found_beside_what_is_none(text: str):
    assert parse(text, Mark) == (GOOD, None)


def test_quoted_reasoning_marks_do_not_hide_the_answer():
    quoting = Mark(passed=False, comment=f"It printed </think>{GOOD_JSON}")
    assert parse(quoting.model_dump_json(), Mark) == (quoting, None)


def test_a_bare_line_break_inside_a_string_is_accepted():
    assert parse('{"passed": true, "comment": "one\ntwo"}', Mark)[0] == Mark(passed=True, comment="one\ntwo")


def test_an_object_inside_one_that_was_cut_off_is_not_the_answer():
    assert parse('{"passed": false, "quoted": ' + GOOD_JSON + ', "comm', Mark)[0] is None


def test_an_object_quoted_in_a_field_is_not_the_answer():
    quoting = {"passed": False, "comment": f"It printed {GOOD_JSON}"}
    assert parse(json.dumps(quoting), Mark)[0] == Mark.model_validate(quoting)
    assert parse(json.dumps(quoting)[:-2], Mark)[0] is None


@pytest.mark.parametrize(
    "unit",
    [
        "{",
        '{"',
        '{"a":',
        '{"a":{}',
        '{"a":x',
        "[",
        '{"a":[',
        "{ ",
        '"',
        "\\",
        '{"\\',
        GOOD_JSON,
        '{"a": ' + "9" * 5000,
    ],
)
def test_megabytes_of_hostile_text_are_read_in_bounded_time(unit: str):
    text = unit * (3 * 2**20 // len(unit))
    started = time.perf_counter()
    parse(text, Mark)
    assert time.perf_counter() - started < 1.0
