"""What code, and the calls of tools, were given and gave, as Inspect shows it."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from typing import Any

from inspect_ai.model import ContentImage, ContentText
from inspect_ai.tool import ToolCallContent, ToolResult
from pydantic import JsonValue

from codeact_team.events import BlockEnded, Code
from codeact_team.execution import Artifact, SessionResult
from codeact_team.execution_records import load_result
from codeact_team.inspect_logs.messages import image_of
from codeact_team.journal import RecordedEffect


def code_arguments(blocks: Sequence[Code]) -> dict[str, JsonValue]:
    """Code blocks, as the arguments of a tool that runs them."""
    if len(blocks) == 1:
        return {"language": blocks[0].language, "code": blocks[0].code}
    return {"blocks": [{"language": block.language, "code": block.code} for block in blocks]}


def code_view(title: str, blocks: Sequence[Code]) -> ToolCallContent:
    """Code blocks as the viewer shows them."""
    parts = [_fenced(block.code, _word(block.language)) for block in blocks]
    return ToolCallContent(title=title, format="markdown", content="\n\n".join(parts))


def _word(language: str) -> str:
    return language if language.isalnum() else ""


def _fenced(text: str, word: str = "") -> str:
    """Text as a block of Markdown, from which it cannot break out."""
    fence = max(["``", *re.findall("`+", text)], key=len) + "`"
    return f"{fence}{word}\n{text}\n{fence}"


def _as_text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def result_text(asked: RecordedEffect | None) -> str:
    """What a tool has returned, as the code or the model gets it, in words."""
    match None if asked is None else asked.outcome:
        case None:
            return ""
        case {"content": list() as pieces} | {"result": list() as pieces}:
            return "\n".join(_piece(piece) for piece in pieces)
        case other:
            return _as_text(other)


def _piece(piece: JsonValue) -> str:
    match piece:
        case {"artifact": {"mime_type": str() as kind}}:
            return f"({kind})"
        case {"content": value} | {"value": value}:
            return _as_text(value)
        case _:
            return _as_text(piece)


def block_result(event: BlockEnded, asked: RecordedEffect | None) -> ToolResult:
    """What code blocks have written, and shown."""
    if asked is None or asked.kind != "block" or asked.outcome is None:
        return event.output
    result = load_result(asked.outcome)
    artifacts = result.artifacts if isinstance(result, SessionResult) else ()
    shown = [found for artifact in artifacts if (found := _shown(artifact)) is not None]
    # beside pictures, the viewer takes text for Markdown
    return [ContentText(text=_fenced(event.output)), *shown] if shown else event.output


def _shown(artifact: Artifact) -> ContentText | ContentImage | None:
    kind = artifact.mime_type.partition(";")[0].strip().lower()
    if kind.startswith("image/"):
        return image_of(kind, base64.b64encode(artifact.data).decode())
    if kind.startswith("text/") or kind.endswith(("json", "xml")):
        return ContentText(text=_fenced(artifact.data.decode(errors="replace")))
    return None


def outcome_of(event: BlockEnded) -> dict[str, Any]:
    """What else is known of code blocks that have ended."""
    told = {
        "exit_code": event.exit_code,
        "outcome": None if event.outcome is None else event.outcome.value,
        "limit": event.limit,
        "state_lost": event.state_lost or None,
        "artifacts": [f"{one.mime_type}, {one.size} bytes, {one.sha256}" for one in event.artifacts] or None,
    }
    return {key: value for key, value in told.items() if value is not None}
