"""What models were asked and what they answered, from AutoGen's JSON of it to Inspect's messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageTool,
    ChatMessageUser,
    Content,
    ContentImage,
    ContentReasoning,
    ContentText,
    ModelOutput,
    ModelUsage,
    StopReason,
)
from inspect_ai.tool import ToolCall, ToolCallError, ToolInfo
from pydantic import JsonValue, TypeAdapter, ValidationError

_ARGUMENTS = TypeAdapter(dict[str, Any])
_STOP_REASONS: Mapping[str, StopReason] = {
    "stop": "stop",
    "length": "max_tokens",
    "function_calls": "tool_calls",
    "content_filter": "content_filter",
}


def messages_of(messages: Sequence[Mapping[str, Any]]) -> list[ChatMessage]:
    """The messages that a model was given."""
    return [one for message in messages for one in _messages(message)]


def output_of(model: str, result: Mapping[str, Any]) -> ModelOutput:
    """What a model answered, from the JSON of a ``CreateResult``."""
    spent = result["usage"]
    reason = _STOP_REASONS.get(result["finish_reason"], "unknown")
    return ModelOutput(
        model=model,
        choices=[ChatCompletionChoice(message=_assistant(result, model), stop_reason=reason)],
        usage=usage_of(spent["prompt_tokens"], spent["completion_tokens"]),
    )


def usage_of(given: int, written: int) -> ModelUsage:
    """The tokens of a call."""
    return ModelUsage(input_tokens=given, output_tokens=written, total_tokens=given + written)


def tools_of(tools: JsonValue) -> list[ToolInfo]:
    """The tools that a model could call; those whose schema Inspect does not know are left out."""
    found: list[ToolInfo] = []
    for tool in tools if isinstance(tools, list) else ():
        try:
            found.append(ToolInfo.model_validate(tool))
        except ValidationError:
            continue
    return found


def image_of(mime_type: str, base64: str) -> ContentImage:
    """A picture."""
    return ContentImage(image=f"data:{mime_type};base64,{base64}")


def _messages(message: Mapping[str, Any]) -> list[ChatMessage]:
    content: Any = message["content"]
    match message["type"]:
        case "SystemMessage":
            return [ChatMessageSystem(content=content)]
        case "UserMessage":
            return [ChatMessageUser(content=_contents(content), metadata={"source": message["source"]})]
        case "AssistantMessage":
            return [_assistant(message, None)]
        case _:
            return [_tool_message(result) for result in content]


def _assistant(message: Mapping[str, Any], model: str | None) -> ChatMessageAssistant:
    content: Any = message["content"]
    thought: str | None = message.get("thought")
    parts: list[Content] = [ContentReasoning(reasoning=thought)] if thought else []
    if isinstance(content, str):
        return ChatMessageAssistant(
            content=[*parts, ContentText(text=content)] if parts else content, model=model
        )
    calls = [_tool_call(call) for call in content]
    return ChatMessageAssistant(content=parts or "", tool_calls=calls, model=model)


def _contents(content: str | Sequence[Any]) -> str | list[Content]:
    if isinstance(content, str):
        return content
    return [
        ContentText(text=part) if isinstance(part, str) else image_of("image/png", part["data"])
        for part in content
    ]


def _tool_call(call: Mapping[str, Any]) -> ToolCall:
    try:
        arguments, problem = _ARGUMENTS.validate_json(call["arguments"]), None
    except ValidationError:
        arguments, problem = {"arguments": call["arguments"]}, "its arguments are no JSON object"
    return ToolCall(id=call["id"], function=call["name"], arguments=arguments, parse_error=problem)


def _tool_message(result: Mapping[str, Any]) -> ChatMessageTool:
    text: str = result["content"]
    error = ToolCallError(type="unknown", message=text) if result.get("is_error") else None
    return ChatMessageTool(
        content=text, tool_call_id=result["call_id"], function=result.get("name"), error=error
    )
