"""Reads the JSON that a model answers with, even in loose notation, and tells it from objects that the model quotes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

import pyjson5
from pydantic import JsonValue

MARK_FIELD = "answer_mark"
"""The field by which a model marks an object as its answer."""

_MAX_CHARS = 200_000
_MAX_ATTEMPTS = 20
_STRICT = json.JSONDecoder(strict=False)  # models put bare line breaks into strings

_FENCE = re.compile(r"\s*(`{3,}|~{3,})[ \t]*[\w+-]*[ \t]*(.*)")
_NOTATION = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*+(?:"|\Z)|'(?:[^'\\]|\\.)*+(?:'|\Z))"""
    r"|(?P<curly>[“”][^“”]*[“”]|[‘’][^‘’]*[‘’])"
    r"|(?P<word>\b(?:True|False|None)\b)"
    r"|(?P<comment>\#[^\n]*|//[^\n]*|/\*.*?(?:\*/|\Z))",
    re.DOTALL,
)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
_WORDS = {"True": "true", "False": "false", "None": "null"}
_NOISE = str.maketrans(dict.fromkeys("\"'\\“”‘’\u200b"))

_EMPTY = "The model gave no answer, or declined to."
_TOO_LONG = f"The model's answer has more than {_MAX_CHARS:,} characters."
_NOT_WRITABLE = "The model's answer holds half a character, and too much besides."
_NO_OBJECT = "The model's answer holds no JSON object."
_NOT_ALONE = "The JSON object in the model's answer may be a quotation: it neither stands alone nor in a code fence at the end."
_QUOTED = (
    f"The JSON object in the model's answer may be a quotation: the same stands in what was said before, and the "
    f"object has no valid {MARK_FIELD!r}."
)


class UnreadableAnswer(ValueError):
    """There is no answer in what a model wrote, or it cannot be told from a quotation; the text says why."""


class _Candidate(NamedTuple):
    text: str
    is_alone: bool


def read_answer(text: str, *, mark: str | None = None, material: str = "") -> dict[str, Any]:
    """Read the object that a model answers with.

    That is an object that stands alone, in a code fence that ends the text, or at the end of the text if it holds the
    mark. Without the mark, no object counts that may be copied from the material.

    Args:
        text: What the model wrote. The work is bounded, whatever it is.
        mark: What the model was told to put into :data:`MARK_FIELD`, unknown to whoever wrote the material; ``None``
            where the server sees to it that the answer stands alone.
        material: What the model may quote from.

    Returns:
        The object, without the mark.

    Raises:
        UnreadableAnswer: If there is none.
    """
    stripped = text.strip()
    if not stripped:
        raise UnreadableAnswer(_EMPTY)
    if len(stripped) > _MAX_CHARS:
        raise UnreadableAnswer(_TOO_LONG)
    problem: UnreadableAnswer | None = None
    for candidate in _candidates(stripped, mark):
        try:
            found = _load(candidate.text)
        except UnreadableAnswer as error:
            problem = problem or error
            continue
        is_marked = found.pop(MARK_FIELD, None) == mark and mark is not None
        is_certain = is_marked or (mark is None and candidate.is_alone)
        if not is_certain and _may_be_quoted(candidate, found, material):
            raise UnreadableAnswer(_QUOTED)
        return found
    raise problem or UnreadableAnswer(_NOT_ALONE if "{" in stripped else _NO_OBJECT)


def read_value(text: str) -> JsonValue:
    """Read the value, of whatever kind, that a model answers with: alone, or in a code fence that ends the text.

    Raises:
        UnreadableAnswer: If there is none.
    """
    stripped = text.strip()
    if len(stripped) > _MAX_CHARS:
        raise UnreadableAnswer(_TOO_LONG)
    fenced = _fenced_at_the_end(stripped)
    return _decode(stripped if fenced is None else fenced.text)


def _candidates(text: str, mark: str | None) -> Iterator[_Candidate]:
    if text.startswith("{"):
        yield _Candidate(text, is_alone=True)
    if (fenced := _fenced_at_the_end(text)) is not None:
        yield fenced
    if mark is None:
        return
    start = text.rfind(mark)
    for _ in range(_MAX_ATTEMPTS):
        if (start := text.rfind("{", 0, max(start, 0))) < 0:
            return
        yield _Candidate(text[start:], is_alone=False)


def _fenced_at_the_end(text: str) -> _Candidate | None:
    lines = text.split("\n")
    fence, held, begins, ends = "", list[str](), False, False
    for number, line in enumerate(lines, start=1):
        if not fence:
            opening = _FENCE.match(line)
            if opening is None:
                ends = ends and not line.strip()
                continue
            fence, line = opening[1], opening[2]
            held, begins, ends = [], number == 1, True
        bare = line.rstrip()
        if bare.endswith(fence) and (number == len(lines) or not bare.strip(f"{fence[0]} \t")):
            held.append(bare[: -len(fence)])
            fence = ""
        else:
            held.append(line)
    return _Candidate("\n".join(held).strip(), begins) if ends else None


def _decode(text: str) -> JsonValue:
    """The value that ``text`` is, in JSON or a notation that can be mistaken for nothing else; nothing is made up."""
    try:
        value = _STRICT.decode(text)
    except (ValueError, RecursionError) as error:
        try:
            value = pyjson5.decode(_NOTATION.sub(_as_json5, text))
        except pyjson5.Json5Exception:
            raise UnreadableAnswer(_explain(text, error)) from None
    return _writable(value) if _SURROGATE.search(text) else value


def _writable(value: JsonValue) -> JsonValue:
    """The same without halves of characters, which JSON can escape and no encoding can write."""
    try:
        return json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    except (ValueError, RecursionError):
        raise UnreadableAnswer(_NOT_WRITABLE) from None


def _load(text: str) -> dict[str, Any]:
    value = _decode(text)
    if not isinstance(value, dict):
        raise UnreadableAnswer(_NO_OBJECT)
    return cast("dict[str, Any]", value)


def _as_json5(found: re.Match[str]) -> str:
    """What Python, or a typographer, writes otherwise than JSON5, which has comments and trailing commas itself."""
    text = found[0]
    if found["curly"]:
        text = '"' + re.sub(r'(\\.)|"', lambda inner: inner[1] or r"\"", text[1:-1]) + '"'
    if found["string"] or found["curly"]:
        return text.replace("\n", "\\n")
    return _WORDS.get(text, " ")


def _explain(text: str, error: Exception) -> str:
    try:
        _STRICT.raw_decode(text)
    except (ValueError, RecursionError):
        said = (
            error.msg
            if isinstance(error, json.JSONDecodeError)
            else "nested too deeply, or a number too long"
        )
        return f"The model's answer is no valid JSON ({said})."
    return _NOT_ALONE


def _may_be_quoted(candidate: _Candidate, found: Mapping[str, Any], material: str) -> bool:
    """Whether an object may come from the material: as a whole or, amid prose, any of its plain fields.

    Neither spaces nor quotation marks count, as whoever quotes may write them in another way.
    """
    if not material:
        return False
    said = _squeeze(material)
    if _squeeze(candidate.text) in said:
        return True
    if candidate.is_alone:
        return False
    plain = {
        key: _squeeze(json.dumps(value)) for key, value in found.items() if not isinstance(value, list | dict)
    }
    return any(value and f"{_squeeze(key)}:{value}" in said for key, value in plain.items())


def _squeeze(text: str) -> str:
    return "".join(text.lower().translate(_NOISE).split())
