"""Makes text inert, so that no code is found in it, and separates a model's thoughts from its reply.

A server that knows the model's family returns the thoughts separately. Others leave them in the text between tags, some
without the opening tag, because the prompt has ended with it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from codeact_team.text.fences import PREFIX, TAGS

_ZERO_WIDTH = "\u200b"
_BACKTICKS = re.compile("``(?=`)")
# Tildes count at the start of a line only. Python's tracebacks underline with ``~~~^~~``: no label starts with that.
_TILDES = re.compile(rf"^({PREFIX.pattern})(~{{3,}}+)(?!\^)", re.MULTILINE)

_END_OF_DATA = re.compile(r"<(?=\s*/\s*output)", re.IGNORECASE)

_START_TAG = re.compile(
    "|".join(
        re.escape(start) + (r"(?=[^\S\n]*$)" if tag.on_own_lines else "") for start, tag in TAGS.items()
    ),
    re.MULTILINE,
)


def without_zero_width(text: str) -> str:
    """The text as it was before it was made inert."""
    return text.replace(_ZERO_WIDTH, "")


def fenced(text: str, word: str = "") -> str:
    """Text as a block of Markdown, from which it cannot break out; ``word`` names its language, if it can be one."""
    fence = max(["``", *re.findall("`+", text)], key=len) + "`"
    return f"{fence}{word if word.isalnum() else ''}\n{text}\n{fence}"


def quoted(text: str) -> str:
    """Text as code within a line of Markdown, from which it cannot break out."""
    line = " ".join(text.split())
    mark = max(["", *re.findall("`+", line)], key=len) + "`"
    # next to a backtick of its own it would be another mark
    edge = " " if "`" in (line[:1], line[-1:]) else ""
    return f"{mark}{edge}{line}{edge}{mark}"


def make_inert(text: str) -> str:
    """Break everything that could be a fence, or a tag such as ``<execute>``, with zero-width spaces.

    Neither :func:`extract_code` nor the pattern of AutoGen's own executor agent finds code in the result, which looks the
    same. Text without fences and tags is returned as it is.
    """
    text = _BACKTICKS.sub(f"``{_ZERO_WIDTH}", text)
    text = _TILDES.sub(lambda match: match[1] + _ZERO_WIDTH.join(match[2]), text)
    # most outputs hold none, and a search for each is many times faster than the pattern
    for start in TAGS:
        if start in text:
            break
    else:
        return text
    return _START_TAG.sub(lambda tag: f"{tag[0][0]}{_ZERO_WIDTH}{tag[0][1:]}", text)


def as_data(text: str) -> str:
    """Delimit text for a model's context, so that it is read as data and not as a message."""
    inert = _END_OF_DATA.sub(f"<{_ZERO_WIDTH}", text)
    return f"<output>\n{inert}\n</output>"


def make_json_inert(text: str) -> str:
    """Write JSON that is on one line so that it means the same, and no code is found in it."""
    text = _BACKTICKS.sub(lambda _: _escaped("`") * 2, text)
    return _START_TAG.sub(lambda tag: _escaped(tag[0][0]) + tag[0][1:], text)


def _escaped(character: str) -> str:
    return f"\\u{ord(character):04x}"


# DeepSeek's tag, which Qwen and most others share, and the forms of Seed, Magistral, Kimi and gpt-oss
_NAME = "(?i:(?:seed:)?(?:think|thinking|thought|reasoning))"
_OPENING = rf"<{_NAME}>|\[THINK\]|◁think▷|<\|channel\|>analysis<\|message\|>"
_CLOSING = (
    rf"</{_NAME}>|\[/THINK\]|◁/think▷"
    r"|(?:<\|end\|>)?(?:<\|start\|>assistant)?<\|channel\|>final<\|message\|>"
)
# every tag has one of them, and a search for them is many times faster than the pattern
_WORDS = ("think", "thought", "reasoning", "<|channel|>")
_TOKEN = re.compile(rf"(?P<opening>{_OPENING})|(?P<closing>{_CLOSING})|(?P<run>`{{3,}}+|~{{3,}}+)")
_REST_BLANK = re.compile(r"[ \t\r]*+(?=\n|\Z)")
_FENCE_END = re.compile(rf"[ \t\r]*+(?=\n|\Z|{_CLOSING})")
_LABEL = re.compile(r"[ \t]*+[A-Za-z][^\s`]*+[ \t\r]*+(?=\n|\Z)")
_INFO = re.compile(r"[^\n`]*+(?=\n|\Z)")
_BLANK_LINES = re.compile(r"\s*\n")
_OPENING_QUOTES = frozenset("`'\"“«")
_CLOSING_QUOTES = frozenset("`'\"”»")


class SplitReply(NamedTuple):
    """A reply without its thoughts, and the thoughts, if there are any."""

    text: str
    thought: str | None


def take_thoughts_off(text: str, known: str | None = None) -> SplitReply:
    """Separate a model's thoughts from its reply.

    A thought is between tags such as ``<think>`` and ``</think>``, at the beginning or later. One that is not closed
    reaches to the end. If a closing tag has no opening one, everything before it is a thought. Tags that are quoted or in
    a fence are only mentions, and so is a closing tag without an opening one in a text that begins as a JSON object.

    Args:
        text: The model's text. Time is linear in its length for any text.
        known: The thought that the server has separated.
    """
    lowered = text.lower()
    for word in _WORDS:
        if word in lowered:
            break
    else:
        return SplitReply(text, known)
    reader = _Reader(text)
    reader.read()
    if not reader.thoughts:
        return SplitReply(text, known)
    thoughts = [known or "", *(thought.strip() for thought in reader.thoughts)]
    return SplitReply(_joined([_trimmed(part) for part in reader.replies]), _joined(thoughts) or None)


class _Reader:
    """Splits a text into parts of the reply and thoughts, reading it once."""

    def __init__(self, text: str) -> None:
        self.replies: list[str] = []
        self.thoughts: list[str] = []
        self._text = text
        self._is_json = text.lstrip().startswith("{")
        self._thinking = False
        self._start = 0
        """The offset at which the current part begins."""
        self._fence = ""
        """The run of characters of the current fence."""
        self._mentioned: int | None = None
        """The end of an opening tag that is only a mention."""

    def read(self) -> None:
        line = before = 0
        for token in _TOKEN.finditer(self._text):
            newline = self._text.rfind("\n", before, token.start())
            line = newline + 1 or line
            first = line >= before and PREFIX.fullmatch(self._text, line, token.start()) is not None
            if token["run"] is not None:
                self._read_fence(token, first=first)
            elif self._turns(token, first=first):
                (self.replies if token["opening"] else self.thoughts).append(
                    self._text[self._start : token.start()]
                )
                self._thinking = token["opening"] is not None
                self._fence, self._mentioned = "", None
                # the rest counts as a line of its own
                self._start = line = token.end()
            before = token.end()
        (self.thoughts if self._thinking else self.replies).append(self._text[self._start :])

    def _turns(self, tag: re.Match[str], *, first: bool) -> bool:
        """Whether a thought begins or ends at the tag."""
        start, end = tag.span()
        last = _REST_BLANK.match(self._text, end) is not None
        before, after = self._text[max(0, start - 1) : start], self._text[end : end + 1]
        behind_fence = self._text.endswith("```", 0, start)
        quoted = before in _OPENING_QUOTES and after in _CLOSING_QUOTES and not behind_fence
        if tag["opening"] is not None:
            alone = first or (last and not before.isalnum())
            if alone and not (quoted or self._thinking or self._fence):
                return True
            self._mentioned = end
            return False
        mentioned, self._mentioned = self._mentioned, None
        if quoted or (mentioned is not None and (self._fence or "\n" not in self._text[mentioned:start])):
            return False
        if self._fence and not (first and last):
            return False
        return self._thinking or not self._is_json

    def _read_fence(self, run: re.Match[str], *, first: bool) -> None:
        if self._fence:
            if run[0].startswith(self._fence) and _FENCE_END.match(self._text, run.end()):
                self._fence, self._mentioned = "", None
            return
        begins = first and (run[0][0] == "~" or _INFO.match(self._text, run.end()))
        if begins or (run[0][0] == "`" and _LABEL.match(self._text, run.end())):
            self._fence, self._mentioned = run[0], None


def _trimmed(part: str) -> str:
    """Strip blanks around ``part``, except the indentation of its first line."""
    blank = _BLANK_LINES.match(part)
    return part[blank.end() :].rstrip() if blank else part.strip()


def _joined(parts: list[str]) -> str:
    return "\n\n".join(filter(None, parts))
