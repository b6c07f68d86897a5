"""How what is returned to a program shows itself: in few words, and in a notebook with its pictures and tables.

It is hostile data: nothing in it runs or loads anything, and of what is large the beginning is shown, or its size.
"""

from __future__ import annotations

import base64
import reprlib
from collections.abc import Container, Iterable, Mapping
from dataclasses import MISSING, Field, fields
from html import escape
from typing import Any

from codeact_team.text.visibility import excerpt, visible

_WHOLE, _BEGIN = 40, 100
"""Bytes that are shown whole, and of more."""
PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp", "image/svg+xml")
_LARGEST_PICTURE, _MOST_BYTES = 4 << 20, 16 << 20
"""Bytes of a picture, and of all that one output of a cell has."""
_CHARS, _LINES = 8_000, 100
"""Of an output."""


class _FewWords(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 200
        self.maxlist = 4

    def repr_float(self, number: float, _: int) -> str:
        return f"{number:.3g}"

    def repr_bytes(self, data: bytes, _: int) -> str:
        if len(data) <= _WHOLE:
            return repr(data)
        begin = repr(data[:_BEGIN])
        # of what is no text it says nothing
        return f"<{len(data):,} bytes>" if "\\x" in begin else f"<{len(data):,} bytes, {begin}...>"


def few_words(instance: Any, *, without: Container[str] = ()) -> str:
    """A dataclass as its ``repr`` shows it: without what has its default, and of what is long the beginning or the size."""
    told = {each.name: getattr(instance, each.name) for each in fields(instance) if each.name not in without}
    defaults = {each.name: _default(each) for each in fields(instance)}
    return in_few_words(instance, {name: told[name] for name in told if told[name] != defaults[name]})


def in_few_words(instance: object, told: Mapping[str, object]) -> str:
    """The same of any object, with what is told of it by name."""
    words = _FewWords()
    return f"{type(instance).__name__}({', '.join(f'{name}={words.repr(told[name])}' for name in told)})"


def _default(of: Field[Any]) -> object:
    return of.default if of.default_factory is MISSING else of.default_factory()


def bundle_of_artifact(words: str, forms: Mapping[str, bytes]) -> dict[str, str]:
    """The forms of an artifact for a notebook, by their types: the picture or the table that it is, and words.

    Other HTML, and all else that may run, is told in words only.
    """
    picture = next((kind for kind in PICTURES if kind in forms), None)
    if picture in ("image/png", "image/jpeg") and len(forms[picture]) <= _LARGEST_PICTURE:
        return {picture: base64.b64encode(forms[picture]).decode(), "text/plain": words}
    shown = _html(forms)
    return {"text/plain": words} if shown is None else {"text/html": shown, "text/plain": words}


def bundle_of_result(
    words: str, rest: str, output: str, artifacts: Iterable[Mapping[str, bytes]]
) -> dict[str, str]:
    """A result for a notebook: its output, its pictures and tables, and the rest of it in words; or all of it in words."""
    printed = visible(excerpt(output, chars=_CHARS, lines=_LINES)).rstrip("\n")
    parts = [f"<pre>{escape(printed)}</pre>"] if printed else []
    left = _MOST_BYTES
    for forms in artifacts:
        shown = _html(forms) if sum(map(len, forms.values())) <= left else None
        if shown is not None:
            left -= len(shown)
            parts.append(shown)
    return {"text/html": "\n".join([*parts, f"<pre>{escape(rest)}</pre>"]), "text/plain": words}


def _html(forms: Mapping[str, bytes]) -> str | None:
    for kind in PICTURES:
        if kind in forms and len(forms[kind]) <= _LARGEST_PICTURE:
            # in such an element a picture runs no scripts and loads nothing, SVG included
            return f'<img src="data:{kind};base64,{base64.b64encode(forms[kind]).decode()}">'
    if (html := forms.get("text/html")) is None:
        return None
    # a program that shows no result in a notebook does not need it
    from codeact_team.text.tables import tables_in

    return tables_in(html)
