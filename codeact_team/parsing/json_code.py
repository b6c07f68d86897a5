"""Finds code that a model gives as a field of a JSON object instead of in a fence."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, cast

from autogen_core.code_executor import CodeBlock

from codeact_team.parsing.labels import Languages

_MAX_CHARS = 200_000
_DECODER = json.JSONDecoder(strict=False)  # models put bare line breaks into strings
_CALL = re.compile(r"^[ \t]*<tool_call>\s*(?=\{)", re.MULTILINE)
_ALONE = re.compile(r"\s*(?:(?:```|~~~)(?:json)?[ \t]*\n\s*)?(?=\{)", re.IGNORECASE)
_REST = re.compile(r"\s*(?:```|~~~)?\s*\Z")
_RUNS_CODE = re.compile(r"python|code|jupyter|shell|bash", re.IGNORECASE)
_FIELDS = frozenset({"code", "language", "thought", "thoughts", "reasoning"})


def code_in_json(text: str, languages: Languages) -> list[CodeBlock] | None:
    """Find the code in a reply that is a JSON object, or has one between ``<tool_call>`` tags.

    A call of something that runs code is unmistakable, and so is code with its language, or with the thoughts before
    it, and nothing else.

    There is none where the object may as well be something else, such as an answer; ``None`` means that there is no such
    object with a field ``code``.
    """
    call = _CALL.search(text)
    start = call or _ALONE.match(text)
    if start is None or len(text) > _MAX_CHARS:
        return None
    try:
        value, end = _DECODER.raw_decode(text, start.end())
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not (call or _REST.match(text, end)):
        return None
    fields = cast("dict[str, Any]", value)
    name = fields.get("name")
    arguments = fields.get("arguments", fields.get("parameters"))
    if isinstance(name, str) and isinstance(arguments, dict):
        return _read(cast("dict[str, Any]", arguments), languages, is_call=bool(_RUNS_CODE.search(name)))
    return _read(fields, languages, is_call=False)


def _read(fields: Mapping[str, Any], languages: Languages, *, is_call: bool) -> list[CodeBlock] | None:
    code = fields.get("code")
    if not isinstance(code, str) or not code.strip():
        return None
    language = fields.get("language", "python")
    resolved = languages.resolve(language) if isinstance(language, str) else None
    is_clear = is_call or (len(fields) > 1 and fields.keys() <= _FIELDS)
    return [CodeBlock(code=code, language=resolved)] if is_clear and resolved else []
