"""Colours for code, and for the code in a model's text."""

from __future__ import annotations

import re

from rich.syntax import Syntax
from rich.text import Text

from codeact_team.lexing import is_lexed_quickly

_FENCE = re.compile(r"[ \t]*(?P<run>`{3,}|~{3,})[ \t]*(?P<label>[\w+#.-]*)")


def highlighted(code: str, language: str) -> Text:
    """``code`` in the colours of its language, where these do not take long."""
    if not is_lexed_quickly(code, language):
        return Text(code)
    # tabs stay: the terminal knows how wide they are
    text = Syntax("", language, theme="ansi_dark", background_color="default", tab_size=0).highlight(code)
    # the lexer ends its text with a line break, and the code may not
    if (surplus := len(text) - len(code)) > 0:
        text.right_crop(surplus)
    return text


def highlighted_prose(text: str) -> Text:
    """``text`` with the code in its fences in colours. Nothing is left out; what runs is decided elsewhere."""
    told, code, fence, language = Text(), "", "", ""
    for line in text.splitlines(keepends=True):
        found = _FENCE.match(line)
        if fence and (found is None or not found["run"].startswith(fence)):
            code += line
            continue
        told.append_text(_code(code, language)).append(line)
        code = ""
        if found is not None:
            fence, language = ("", "") if fence else (found["run"], found["label"])
    return told.append_text(_code(code, language))


def _code(code: str, language: str) -> Text:
    return highlighted(code, language) if code else Text()
