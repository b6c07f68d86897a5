"""What an MCP server answers, as values and media."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import cast

from mcp import types
from pydantic import BaseModel, JsonValue

from codeact_team.execution import Artifact
from codeact_team.tools.returned_values import Piece, ToolFailed, mime_type
from codeact_team.tools.schema_documents import Schema, as_schema

_WRAPPER = "result"


def returned_schema(output: Schema | None) -> Schema | None:
    """The schema of the value that code gets, by the output schema of a tool."""
    if output is None or not is_wrapped(output):
        return output
    # what the value's schema refers to stays at the root
    value = as_schema(as_schema(output["properties"])[_WRAPPER])
    return {**{key: output[key] for key in ("$defs", "definitions") if key in output}, **value}


def is_wrapped(output: Schema) -> bool:
    """Whether this is how MCP's own library wraps a value that is no object."""
    return output.get("type") == "object" and list(as_schema(output.get("properties"))) == [_WRAPPER]


def pieces_of_mcp(result: types.CallToolResult, output: Schema | None) -> Sequence[Piece]:
    """What a tool with this output schema answered, unless that is not what it says it is."""
    structured = cast("dict[str, JsonValue] | None", result.structuredContent)
    if structured is None:
        return [_piece(content) for content in result.content]
    value: JsonValue = structured
    if output is not None and is_wrapped(output) and list(structured) == [_WRAPPER]:
        value = structured[_WRAPPER]
    # the same as text comes for clients that know no structured content
    return [
        value,
        *(_piece(content) for content in result.content if not isinstance(content, types.TextContent)),
    ]


def text_of(result: types.CallToolResult) -> str:
    """The text of an error."""
    return "\n".join(content.text for content in result.content if isinstance(content, types.TextContent))


def _piece(content: types.ContentBlock) -> Piece:
    if isinstance(content, types.TextContent):
        return content.text
    if isinstance(content, types.ImageContent | types.AudioContent):
        return _artifact(content.mimeType, content.data)
    if isinstance(content, types.EmbeddedResource):
        resource = content.resource
        if isinstance(resource, types.BlobResourceContents):
            return _artifact(resource.mimeType, resource.blob)
        return _plain(resource)
    return _plain(content)


def _plain(model: BaseModel) -> JsonValue:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


def _artifact(kind: str | None, data: str) -> Artifact:
    try:
        return Artifact(mime_type(kind), base64.b64decode(data, validate=True))
    except binascii.Error as error:
        raise ToolFailed(f"the server sent media that is no base64 ({error})") from None
