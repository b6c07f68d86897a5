"""Names and forms of OpenTelemetry's semantic conventions for generative AI, as of October 2026. None of them is stable."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast
from urllib.parse import urlsplit

from pydantic import JsonValue

from codeact_team.text.redaction import map_texts, without_secrets

OPERATION = "gen_ai.operation.name"
AGENT = "gen_ai.agent.name"
WORKFLOW = "gen_ai.workflow.name"
PROVIDER = "gen_ai.provider.name"
MODEL = "gen_ai.request.model"
STREAMED = "gen_ai.request.stream"
FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
INPUT_MESSAGES = "gen_ai.input.messages"
_OUTPUT_MESSAGES = "gen_ai.output.messages"
TOOL = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
ARGUMENTS = "gen_ai.tool.call.arguments"
RESULT = "gen_ai.tool.call.result"
EXIT_CODE = "process.exit.code"
PROCESS_ARGUMENTS = "process.command_args"
ERROR = "error.type"
METHOD = "http.request.method"
URL = "url.full"
STATUS = "http.response.status_code"
REQUEST_SIZE = "http.request.body.size"
RESPONSE_SIZE = "http.response.body.size"
SERVER = "server.address"
PORT = "server.port"
EVALUATION = "gen_ai.evaluation.result"

_PROVIDERS = {
    "OpenAIChatCompletionClient": "openai",
    "AzureOpenAIChatCompletionClient": "azure.ai.openai",
    "AzureAIChatCompletionClient": "azure.ai.inference",
    "AnthropicChatCompletionClient": "anthropic",
    "AnthropicBedrockChatCompletionClient": "aws.bedrock",
    "OllamaChatCompletionClient": "ollama",
}
_VALUE = re.compile(r"(?<==)[^&]+|(?:(?<=&)|^)[^&=]+(?=&|$)")
"""Of a query: a value, or what has no name."""
_FINISH_REASONS = {"function_calls": "tool_call"}
_ROLES = {"SystemMessage": "system", "UserMessage": "user", "AssistantMessage": "assistant"}


def provider_of(client: str) -> str:
    """The provider whose interface a model client speaks, by the name of its class, which else stands for itself."""
    return _PROVIDERS.get(client, client or "unknown")


def finish_reason_of(reason: str) -> str:
    """Return the conventions' word for AutoGen's finish reason."""
    return _FINISH_REASONS.get(reason, reason)


def error_type_of(error: str) -> str:
    """The class of an error, from the text that an event has of it."""
    return error.partition(":")[0]


def where(url: str) -> dict[str, Any]:
    """Return the attributes of a URL, or of ``host:port``. Of a query only the names are kept, as values may be secrets."""
    parts = urlsplit(url if "://" in url else f"//{url}")
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    found: dict[str, Any] = {SERVER: parts.hostname or "", PORT: port}
    if parts.scheme:
        found[URL] = without_secrets(parts._replace(query=_VALUE.sub("REDACTED", parts.query)).geturl())
    return found


def as_text(value: JsonValue, clean: Callable[[str], str]) -> str:
    """A value as JSON text without credentials."""
    return json.dumps(map_texts(value, clean), ensure_ascii=False)


def input_of(request: JsonValue) -> dict[str, JsonValue]:
    """The contents that the span of an effect has of its request."""
    match request:
        case {"messages": list() as messages, "model": _}:
            return {INPUT_MESSAGES: [_input_message(cast("dict[str, Any]", message)) for message in messages]}
        case {"tool": _, "arguments": arguments}:
            return {ARGUMENTS: arguments}
        case _:
            return {}


def output_of(request: JsonValue, outcome: JsonValue) -> dict[str, JsonValue]:
    """The contents that the span of an effect has of its outcome."""
    match request:
        case {"messages": list(), "model": _}:
            result = cast("dict[str, Any]", outcome)
            reason = finish_reason_of(result["finish_reason"])
            message: JsonValue = {"role": "assistant", "parts": _parts(result), "finish_reason": reason}
            return {_OUTPUT_MESSAGES: [message]}
        case {"tool": _, "arguments": _}:
            return {RESULT: outcome}
        case _:
            return {}


def text_message(role: str, text: str) -> JsonValue:
    """A message of a conversation that is plain text."""
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def _input_message(message: Mapping[str, Any]) -> JsonValue:
    """A message for a model, from the JSON of AutoGen's."""
    if (role := _ROLES.get(message["type"])) is not None:
        return {"role": role, "parts": _parts(message)}
    parts: list[JsonValue] = [
        {"type": "tool_call_response", "id": result["call_id"], "response": result["content"]}
        for result in message["content"]
    ]
    return {"role": "tool", "parts": parts}


def _parts(message: Mapping[str, Any]) -> list[JsonValue]:
    content: str | Sequence[Any] = message["content"]
    thought = message.get("thought")
    parts: list[JsonValue] = [{"type": "reasoning", "content": thought}] if thought else []
    return parts + [_part(item) for item in ([content] if isinstance(content, str) else content)]


def _part(item: str | Mapping[str, Any]) -> JsonValue:
    if isinstance(item, str):
        return {"type": "text", "content": item}
    if "arguments" in item:
        arguments = item["arguments"]
        with suppress(ValueError):
            arguments = json.loads(arguments)
        return {"type": "tool_call", "id": item["id"], "name": item["name"], "arguments": arguments}
    # its bytes are of no use in a trace
    return {"type": "image", "base64_characters": len(item.get("data", ""))}
