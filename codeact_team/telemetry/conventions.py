"""Names and forms of OpenTelemetry's semantic conventions for generative AI, as of October 2026. None of them is stable."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from opentelemetry.util.types import AttributeValue
from pydantic import JsonValue

from codeact_team.core.redaction import map_texts

Attributes = Mapping[str, AttributeValue]

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
OUTPUT_MESSAGES = "gen_ai.output.messages"
TOOL = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
ARGUMENTS = "gen_ai.tool.call.arguments"
RESULT = "gen_ai.tool.call.result"
EXIT_CODE = "process.exit.code"
ERROR = "error.type"
EVALUATION = "gen_ai.evaluation.result"

_PROVIDERS = {
    "OpenAIChatCompletionClient": "openai",
    "AzureOpenAIChatCompletionClient": "azure.ai.openai",
    "AzureAIChatCompletionClient": "azure.ai.inference",
    "AnthropicChatCompletionClient": "anthropic",
    "AnthropicBedrockChatCompletionClient": "aws.bedrock",
    "OllamaChatCompletionClient": "ollama",
}
_FINISH_REASONS = {"function_calls": "tool_call"}
_ROLES = {"SystemMessage": "system", "UserMessage": "user", "AssistantMessage": "assistant"}


def provider_of(client: str) -> str:
    """The provider whose interface a model client speaks, by the name of its class, which else stands for itself."""
    return _PROVIDERS.get(client, client or "unknown")


def finish_reason_of(reason: str) -> str:
    """Why a model has stopped, from AutoGen's word for it."""
    return _FINISH_REASONS.get(reason, reason)


def error_type_of(error: str) -> str:
    """The class of an error, from the text that an event has of it."""
    return error.partition(":")[0]


def as_text(value: JsonValue, clean: Callable[[str], str]) -> str:
    """A value as JSON text without credentials."""
    return json.dumps(map_texts(value, clean), ensure_ascii=False)


def asked(request: JsonValue) -> dict[str, JsonValue]:
    """What the span of an effect holds of its request, where that is wanted."""
    match request:
        case {"messages": list() as messages, "model": _}:
            given = [_input_message(cast("dict[str, Any]", message)) for message in messages]
            return {INPUT_MESSAGES: given}
        case {"tool": _, "arguments": arguments}:
            return {ARGUMENTS: arguments}
        case _:
            return {}


def answered(request: JsonValue, outcome: JsonValue) -> dict[str, JsonValue]:
    """What the span of an effect holds of its outcome, where that is wanted."""
    match request:
        case {"messages": list(), "model": _}:
            return {OUTPUT_MESSAGES: [_output_message(cast("dict[str, Any]", outcome))]}
        case {"tool": _, "arguments": _}:
            return {RESULT: outcome}
        case _:
            return {}


def text_message(role: str, text: str) -> JsonValue:
    """A message of a conversation that is plain text."""
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def _input_message(message: Mapping[str, Any]) -> JsonValue:
    """A message that a model is given, from the JSON of AutoGen's."""
    if (role := _ROLES.get(message["type"])) is None:
        return {"role": "tool", "parts": [_tool_response(result) for result in message["content"]]}
    return {"role": role, "parts": _parts(message)}


def _output_message(result: Mapping[str, Any]) -> JsonValue:
    """What a model has answered, from the JSON of AutoGen's ``CreateResult``."""
    reason = finish_reason_of(result["finish_reason"])
    return {"role": "assistant", "parts": _parts(result), "finish_reason": reason}


def _parts(message: Mapping[str, Any]) -> list[JsonValue]:
    content: str | Sequence[Any] = message["content"]
    thought = message.get("thought")
    parts: list[JsonValue] = [{"type": "reasoning", "content": thought}] if thought else []
    return parts + [_part(item) for item in ([content] if isinstance(content, str) else content)]


def _part(item: str | Mapping[str, Any]) -> JsonValue:
    if isinstance(item, str):
        return {"type": "text", "content": item}
    if "arguments" in item:
        return {
            "type": "tool_call",
            "id": item["id"],
            "name": item["name"],
            "arguments": _loaded(item["arguments"]),
        }
    # its bytes are of no use in a trace
    return {"type": "image", "base64_characters": len(item.get("data", ""))}


def _tool_response(result: Mapping[str, Any]) -> JsonValue:
    return {"type": "tool_call_response", "id": result["call_id"], "response": result["content"]}


def _loaded(text: str) -> JsonValue:
    try:
        return json.loads(text)
    except ValueError:
        return text
