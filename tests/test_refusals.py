"""What servers answer that refuse, as they have said it, and what a person and a batch make of that."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from autogen_core.models import ChatCompletionClient, UserMessage
from support.openai_server import Garbage, HttpError, ScriptedServer

from codeact_team.models.refusals import RefusalKind, ServerRefusal

CONTEXT, QUOTA, KEY, TOO_MANY, TOO_LARGE, REQUEST, SERVER = (
    RefusalKind.CONTEXT,
    RefusalKind.QUOTA,
    RefusalKind.KEY,
    RefusalKind.TOO_MANY,
    RefusalKind.TOO_LARGE,
    RefusalKind.REQUEST,
    RefusalKind.SERVER,
)


def openai_like(message: str, code: Any = None, kind: str = "invalid_request_error") -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


AZURE = (
    "Requests to the ChatCompletions_Create Operation under Azure OpenAI API version 2024-10-21 have exceeded token rate "
    "limit of your current OpenAI S0 pricing tier. Please retry after 7 seconds. Please go here: "
    "https://aka.ms/oai/quotaincrease if you would like to further increase the default rate limit."
)
GEMINI_QUOTA = [
    {
        "error": {
            "code": 429,
            "message": "You exceeded your current quota, please check your plan and billing details.",
            "status": "RESOURCE_EXHAUSTED",
            "details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34s"}],
        }
    }
]
HTML = "<!DOCTYPE html><html><head><title>502 Bad Gateway</title></head><body><h1>502</h1></body></html>"

ANSWERS: dict[str, tuple[int, object, RefusalKind, float | None, str]] = {
    "OpenAI, context": (
        400,
        openai_like("This model's maximum context length is 8192 tokens.", "context_length_exceeded"),
        CONTEXT,
        None,
        "maximum context length is 8192",
    ),
    "OpenAI, quota": (
        429,
        openai_like(
            "You exceeded your current quota, please check your plan and billing details.",
            "insufficient_quota",
            "insufficient_quota",
        ),
        QUOTA,
        None,
        "check its plan and billing",
    ),
    "OpenAI, rate": (
        429,
        openai_like(
            "Rate limit reached for gpt-4.1 on tokens per min (TPM): Limit 30000. Please try again in 1.5s.",
            "rate_limit_exceeded",
            "tokens",
        ),
        TOO_MANY,
        1.5,
        "Rate limit reached",
    ),
    "Azure, rate": (429, {"error": {"code": "429", "message": AZURE}}, TOO_MANY, 7.0, "token rate limit"),
    "Gemini, rate": (429, GEMINI_QUOTA, TOO_MANY, 34.0, "You exceeded your current quota"),
    "Gemini, key": (
        400,
        [
            {
                "error": {
                    "code": 400,
                    "message": "API key not valid. Please pass a valid API key.",
                    "status": "INVALID_ARGUMENT",
                }
            }
        ],
        KEY,
        None,
        "check OPENAI_API_KEY",
    ),
    "Gemini, context": (
        400,
        [
            {
                "error": {
                    "code": 400,
                    "message": "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
                    "status": "INVALID_ARGUMENT",
                }
            }
        ],
        CONTEXT,
        None,
        "1048576",
    ),
    "Anthropic, context": (
        400,
        {
            "type": "error",
            "error": {
                "type": "invalid_request_error",
                "message": "prompt is too long: 210000 tokens > 200000 maximum",
            },
        },
        CONTEXT,
        None,
        "210000 tokens",
    ),
    "Anthropic, overloaded": (
        529,
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
        SERVER,
        None,
        "(529): Overloaded",
    ),
    "Anthropic, credit": (
        400,
        {
            "type": "error",
            "error": {
                "type": "invalid_request_error",
                "message": "Your credit balance is too low to access the Anthropic API.",
            },
        },
        QUOTA,
        None,
        "credit balance",
    ),
    "llama.cpp, context": (
        400,
        {
            "error": {
                "code": 400,
                "message": "the request exceeds the available context size, try increasing it",
                "type": "exceed_context_size_error",
            }
        },
        CONTEXT,
        None,
        "available context size",
    ),
    "llama-cpp-python, context": (
        500,
        openai_like("Requested tokens (5012) exceed context window of 4096", kind="internal_server_error"),
        CONTEXT,
        None,
        "5012",
    ),
    "TGI, context": (
        422,
        {
            "error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096",
            "error_type": "validation",
        },
        CONTEXT,
        None,
        "Input validation error",
    ),
    "Groq, context": (
        400,
        openai_like("Please reduce the length of the messages or completion.", "context_length_exceeded"),
        CONTEXT,
        None,
        "reduce the length",
    ),
    "Groq, too large": (
        413,
        openai_like(
            "Request too large for model `llama` on tokens per minute (TPM): Limit 6000, Requested 7012",
            "rate_limit_exceeded",
            "tokens",
        ),
        TOO_LARGE,
        None,
        "Limit 6000, Requested 7012",
    ),
    "Mistral, context": (
        400,
        {
            "object": "error",
            "message": "Prompt contains 40000 tokens, too large for model with 32768 maximum context length",
            "type": "invalid_request_error",
            "code": 3051,
        },
        CONTEXT,
        None,
        "40000 tokens",
    ),
    "DeepSeek, balance": (
        402,
        openai_like("Insufficient Balance", "invalid_request_error", "unknown_error"),
        QUOTA,
        None,
        "used up (402): Insufficient Balance",
    ),
    "vLLM, field": (
        422,
        {
            "detail": [
                {
                    "loc": ["body", "stream_options"],
                    "msg": "Extra inputs are not permitted",
                    "type": "extra_forbidden",
                }
            ]
        },
        REQUEST,
        None,
        "Extra inputs are not permitted",
    ),
    "Ollama, model": (
        404,
        {"error": {"message": 'model "nowhere" not found, try pulling it first', "type": "api_error"}},
        RefusalKind.UNKNOWN,
        None,
        "try pulling it first",
    ),
    "OpenRouter, model": (
        400,
        {"error": {"message": "openai/gpt-41 is not a valid model ID", "code": 400}},
        RefusalKind.UNKNOWN,
        None,
        "not a valid model ID",
    ),
    "LiteLLM, its provider's model": (
        404,
        openai_like(
            "litellm.NotFoundError: OpenAIException - The model `gpt-41` does not exist. Received Model Group=team",
            "404",
        ),
        RefusalKind.UNKNOWN,
        None,
        "The model `gpt-41` does not exist",
    ),
    "LiteLLM, context": (
        400,
        openai_like("litellm.ContextWindowExceededError: litellm.BadRequestError: too long", "400"),
        CONTEXT,
        None,
        "too long",
    ),
    "LiteLLM, budget": (
        400,
        openai_like(
            "Budget has been exceeded! Current cost: 26.1, Max budget: 25.0", "400", "budget_exceeded"
        ),
        QUOTA,
        None,
        "Max budget: 25.0",
    ),
    "llama.cpp, loading": (
        503,
        {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}},
        SERVER,
        None,
        "failed (503): Loading model",
    ),
    "a proxy, a page": (502, HTML, SERVER, None, "a page of HTML, '502 Bad Gateway'"),
    "a gateway, a text": (400, {"error": "no such route"}, REQUEST, None, "no such route"),
    "a server with empty codes": (
        400,
        {"code": "", "message": "wrong", "type": ""},
        REQUEST,
        None,
        "(400): wrong",
    ),
    "a proxy, nothing": (405, "", REQUEST, None, "(405): it does not say why"),
}


async def asked(client: ChatCompletionClient, *, stream: bool) -> None:
    messages = [UserMessage(content="Hi", source="user")]
    if not stream:
        await client.create(messages)
        return
    async for _ in client.create_stream(messages):
        pass


async def refusal_of(reply: HttpError | Garbage, *, stream: bool = False) -> ServerRefusal:
    async with ScriptedServer([reply]) as server:
        with pytest.raises(Exception, match=r".") as caught:
            await asked(server.client(), stream=stream)
    refusal = ServerRefusal.of(caught.value)
    assert refusal is not None
    return refusal


@pytest.mark.parametrize(("status", "body", "kind", "wait", "said"), ANSWERS.values(), ids=ANSWERS.keys())
async def test_a_refusal_is_read_as_its_server_means_it(
    status: int, body: object, kind: RefusalKind, wait: float | None, said: str
) -> None:
    data = body if isinstance(body, str) else json.dumps(body)
    refusal = await refusal_of(HttpError(status, body=data.encode()))
    assert (refusal.kind, refusal.retry_after) == (kind, wait), refusal
    assert said in str(refusal)
    assert refusal.server in str(refusal)
    assert refusal.is_transient is (kind in (SERVER, TOO_MANY))


async def test_an_answer_that_is_nested_without_end_is_told_like_any_other() -> None:
    body = b'{"error": ' * 900 + b'"deep"' + b"}" * 900
    refusal = await refusal_of(HttpError(400, body=body))
    assert refusal.kind is REQUEST


IN_STREAMS: dict[str, tuple[Mapping[str, Any], RefusalKind, int]] = {
    "OpenRouter": ({"code": 502, "message": "Provider disconnected"}, SERVER, 502),
    "DeepSeek": ({"message": "Server is busy", "type": "server_error"}, SERVER, 500),
    "too many": ({"code": 429, "message": "Rate limit exceeded: free-models-per-min"}, TOO_MANY, 429),
    "context": ({"message": "the request exceeds the available context size", "type": "exceed_context_size_error"}, CONTEXT, 500),
}  # fmt: skip


@pytest.mark.parametrize(("error", "kind", "status"), IN_STREAMS.values(), ids=IN_STREAMS.keys())
async def test_a_refusal_in_a_stream_that_has_begun_is_one(
    error: Mapping[str, Any], kind: RefusalKind, status: int
) -> None:
    body = f"data: {json.dumps({'error': error})}\n\ndata: [DONE]\n\n".encode()
    refusal = await refusal_of(Garbage(body, "text/event-stream"), stream=True)
    assert (refusal.kind, refusal.status) == (kind, status)
    assert error["message"] in str(refusal)
