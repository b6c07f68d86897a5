"""Turn what a tool returns into what code gets: values that JSON has, and media."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from io import BytesIO
from typing import cast

from autogen_core import Image
from autogen_core.tools import ImageResultContent, ToolResult
from PIL.Image import Image as Picture
from pydantic import JsonValue
from pydantic_core import PydanticSerializationError, to_jsonable_python

from codeact_team.execution import Artifact
from codeact_team.tools.error_texts import MAX_ERROR, clean
from codeact_team.visibility import cut

Piece = JsonValue | Artifact
"""A part of a result."""

MEDIA_TYPES = (Artifact, bytes, bytearray, memoryview, Image, Picture)
"""JSON has no such values, but a tool may return them, by themselves or in a list."""

ANY_BYTES = "application/octet-stream"
_MIME_TYPE = re.compile(r"[a-zA-Z0-9][\w.+-]{0,60}/[a-zA-Z0-9][\w.+-]{0,100}", re.ASCII)


class ToolFailed(Exception):
    """A tool has failed. The text is for whoever wrote the call."""


def pieces_of(value: object) -> Sequence[Piece]:
    """Turn what a function returned into what the code gets, unless it has no such form.

    Models, dataclasses, enums, dates and the like become what they are in JSON; numbers that JSON lacks, such as
    ``nan``, stay what they are, and bytes within other values become base64.
    """
    items = cast("Sequence[object]", value) if isinstance(value, list | tuple) else ()
    return [_piece(item) for item in (items if any(map(_is_media, items)) else [cast("object", value)])]


def pieces_of_result(result: ToolResult) -> Sequence[Piece]:
    """Turn what a workbench answered into what the code gets, unless that is an error."""
    if result.is_error:
        raise ToolFailed(error_text(result.to_text(replace_image="[a picture]")))
    return [
        _artifact(part.content) if isinstance(part, ImageResultContent) else part.content
        for part in result.result
    ]


def error_text(text: str) -> str:
    """Bound the text of a tool's error."""
    return clean(text, MAX_ERROR) or "the tool failed and does not say why"


def mime_type(text: str | None) -> str:
    """Return ``text`` if it can be a MIME type, and the type of any bytes if not."""
    return text.lower() if text and _MIME_TYPE.fullmatch(text) else ANY_BYTES


def _piece(value: object) -> Piece:
    return _artifact(value) if _is_media(value) else _as_json(value)


def _is_media(value: object) -> bool:
    return isinstance(value, MEDIA_TYPES)


def _artifact(value: object) -> Artifact:
    if isinstance(value, Artifact):
        return value
    if isinstance(value, Image | Picture):
        return Artifact("image/png", _as_png(value.image if isinstance(value, Image) else value))
    return Artifact(ANY_BYTES, bytes(cast("bytes", value)))


def _as_png(picture: Picture) -> bytes:
    file = BytesIO()
    fits = picture.mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16")
    (picture if fits else picture.convert("RGB")).save(file, "PNG")
    return file.getvalue()


def _as_json(value: object) -> JsonValue:
    try:
        plain: JsonValue = to_jsonable_python(value, bytes_mode="base64")
        # a number may be too long for JSON, and a value nested too deeply
        json.dumps(plain)
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        reason = cut(str(error), 300)
        raise ToolFailed(
            f"the tool returned a {type(value).__name__} that has no form in JSON ({reason}); it should return plain "
            "values, or media by themselves or in a list"
        ) from error
    return plain
