"""Finds code in chat messages: in fences by CommonMark, between tags such as ``<execute>``, and in JSON.

Common deviations of models from CommonMark are repaired within bounds.

No Markdown parser is used. For a megabyte of text, markdown-it-py 4.3 takes 0.6 s for prose, 1.7 s for block quotes, 2.2 s for
link definitions and 7.2 s for list items; this reader takes 4 to 7 ms, as it jumps from one line with a fence or a tag to the
next. Nor can a parser be told to read on behind a fence in a docstring.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, cast

from autogen_core.code_executor import CodeBlock

from codeact_team.text.fences import (
    PREFIX,
    STARTS,
    TAGS,
    CodeEnd,
    Fence,
    Languages,
    Lists,
    Tag,
    Where,
    code_end,
    column,
    dedent,
    find_delimiters,
    first_end,
    is_code,
    language_of,
    line_end,
    unquote,
)

_MAX_CHARS = 200_000
_DECODER = json.JSONDecoder(strict=False)  # models put bare line breaks into strings
_CALL = re.compile(r"^[ \t]*<tool_call>\s*(?=\{)", re.MULTILINE)
_ALONE = re.compile(r"\s*(?:(?:```|~~~)(?:json)?[ \t]*\n\s*)?(?=\{)", re.IGNORECASE)
_REST = re.compile(r"\s*(?:```|~~~)?\s*\Z")
_RUNS_CODE = re.compile(r"python|code|jupyter|shell|bash", re.IGNORECASE)
_FIELDS = frozenset({"code", "language", "thought", "thoughts", "reasoning"})


def _code_in_json(text: str, languages: Languages) -> list[CodeBlock] | None:
    """Find the code in a reply that is a JSON object, or has one between ``<tool_call>`` tags.

    The object must be the call of a function that runs code, or have only the code, its language and thoughts. If it may
    mean something else, the list is empty. ``None`` if there is no object with a field ``code``.
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


_CANDIDATE = re.compile(rf"```|~~~|{STARTS}")
_START_TAG = re.compile(STARTS)
_OPENING = re.compile(r"(`{3,}+(?![^\n]*`)|~{3,}+)([^\n]*+)")
_BACKTICKS = re.compile("`++")
_NEXT_FENCE = re.compile(r"(?:[ \t\r]*+\n)*+([ \t]*+)(`{3,}+|~{3,}+)([^\n`]*+)(?:\n|\Z)")
_FENCE_FIRST = re.compile(r"\s*+(?:```|~~~)")
# AutoGen's pattern lets any white space precede the label, line breaks included.
_LABEL_BELOW = re.compile(r"\s*+([^\s`~]++)[ \t]*+\n")

_MAX_QUOTE_DEPTH = 16
_MAX_UNSUPPORTED = 20


class _Findings:
    """The findings in all parts of one message.

    Attributes:
        unsupported: The languages of other code, in order, as keys.
        unclosed: Whether the end of code to run is missing or in doubt.
        rereading_left: Characters that may still be read although they may have to be read again: hostile text must not
            make the time quadratic.
    """

    def __init__(self, languages: Languages, default_language: str | None) -> None:
        self.blocks: list[CodeBlock] = []
        self.unsupported: dict[str, None] = {}
        self.unclosed = False
        self.languages = languages
        self.default_language = default_language
        self.rereading_left = 256 * 1024

    def add(self, language: str, code: str) -> None:
        """Add a block to run."""
        self.blocks.append(CodeBlock(code=code, language=language))

    def report(self, info: str) -> None:
        """Note the language of a fence that is not run, if it is a programming language."""
        language = language_of(info)
        if is_code(language) and len(self.unsupported) < _MAX_UNSUPPORTED:
            self.unsupported[language] = None


class _Line(NamedTuple):
    start: int
    content: int  # behind indentation and list markers
    trimmed: int  # behind the last character that is not blank
    end: int


class _MarkdownReader:
    """Reads a document with line feeds once, and adds its code to the findings.

    Args:
        text: The document.
        findings: Receives the code.
        tags: Whether tags such as ``<execute>`` count.
        quote_depth: The number of block quotes around it.
        is_last: Whether the message ends with it.
    """

    def __init__(
        self, text: str, findings: _Findings, *, tags: bool = True, quote_depth: int = 0, is_last: bool = True
    ) -> None:
        self._text = text
        self._findings = findings
        self._tags = tags
        self._last_ends: dict[str, int] = {}
        self._quote_depth = quote_depth
        self._is_last = is_last
        self._lists = Lists()
        self._line = _Line(0, 0, 0, -1)

    def read(self) -> None:
        """Read the document, and add its code to the findings."""
        position = outside = 0
        while candidate := _CANDIDATE.search(self._text, position):
            # if a block has ended within the line, the rest counts as a line of its own
            start = self._text.rfind("\n", position, candidate.start()) + 1 or position
            self._lists.add(self._text[outside:start])
            outside = start
            resume = self._read_line(start, candidate.start(), position)
            if resume is None:
                position = self._line.end
            else:
                self._lists.add(self._text[start : min(resume, self._line.end)])
                position = outside = resume

    def _read_line(self, start: int, candidate: int, position: int) -> int | None:
        """Read the block that begins on a line; return the offset behind it, or ``None`` if none begins there."""
        end, trimmed = self._line.end, self._line.trimmed
        if end < candidate:
            end = line_end(self._text, candidate)
            trimmed = start + len(self._text[start:end].rstrip())
        match = PREFIX.match(self._text, start, end)
        assert match is not None, "the pattern matches the empty string, too"
        self._line = _Line(start, match.end(), trimmed, end)
        if self._lists.is_indented_code(match[0].partition(">")[0]):
            return None
        if depth := match[0].count(">"):
            return self._quote(position, match[0], depth)
        if opening := _OPENING.match(self._text, self._line.content, end):
            return self._fence(opening[1], opening[2].strip())
        return self._tagged() or self._glued_fence()

    def _quote(self, position: int, prefix: str, depth: int) -> int | None:
        depth += self._quote_depth
        if depth > _MAX_QUOTE_DEPTH:
            return None
        quote, resume = unquote(self._text, position, self._line.start, prefix)
        is_last = self._is_last and resume == len(self._text)
        _MarkdownReader(quote, self._findings, tags=self._tags, quote_depth=depth, is_last=is_last).read()
        return resume

    def _fence(self, run: str, info: str) -> int:
        languages = self._findings.languages
        body = min(self._line.end + 1, len(self._text))
        language = languages.resolve(info) if info else None
        bare = False
        if not info:
            below = _LABEL_BELOW.match(self._text, body)
            if below and languages.is_listed(below[1]):
                language, body = languages.resolve(below[1]), below.end()
            else:
                language, bare = self._findings.default_language, True
        if bare and language is None and (resume := self._wrapped_fence(run, body)) is not None:
            return resume
        fence = Fence(run, self._indent())
        end = self._find_end(body, fence, language)
        code = dedent(self._text[body : end.code], fence.indent)
        has_code = bool(code.strip())
        if language is None:
            self._findings.report(info)
        # AutoGen runs an empty block with a label, too; but prose follows a stray bare fence
        elif (has_code and end.closed) if bare else (has_code or end.closed):
            self._findings.add(language, code)
        self._findings.unclosed |= self._is_last and not (end.closed or bare or language is None)
        return end.resume

    def _wrapped_fence(self, run: str, body: int) -> int | None:
        """Read a fence with a label that is wrapped in another one, without a label and not longer."""
        opening = _NEXT_FENCE.match(self._text, body)
        language = self._findings.languages.resolve(opening[3].strip()) if opening else None
        if opening is None or language is None or opening[2] != run or self._findings.rereading_left <= 0:
            return None
        fence = Fence(run, column(opening[1]))
        end = self._find_end(opening.end(), fence, language)
        outer = _NEXT_FENCE.match(self._text, end.resume) if end.certain else None
        if outer is None or outer[2] != run or outer[3].strip():
            self._findings.rereading_left -= end.resume - body
            return None
        self._findings.add(language, dedent(self._text[opening.end() : end.code], fence.indent))
        return outer.end()

    def _glued_fence(self) -> int | None:
        """Read a fence that is glued to prose: AutoGen runs it, and CommonMark would take its end for a beginning."""
        _, content, trimmed, end_of_line = self._line
        run_end = self._text.rfind("```", content, trimmed) + 3
        label = self._text[run_end:trimmed].split(maxsplit=2) if run_end >= 3 else []
        language = self._findings.languages.resolve(label[0]) if len(label) == 1 else None
        if language is None or self._findings.rereading_left <= 0:
            return None
        before = self._text[content:run_end].rstrip("`")
        if _in_code_span(before):
            return None
        fence = Fence(self._text[content + len(before) : run_end], self._indent())
        end = self._find_end(min(end_of_line + 1, len(self._text)), fence, language)
        if not end.certain:
            self._findings.rereading_left -= end.resume - end_of_line
            return None
        self._findings.add(language, dedent(self._text[end_of_line + 1 : end.code], fence.indent))
        return end.resume

    def _find_end(self, body: int, fence: Fence, language: str | None) -> CodeEnd:
        if language is None or self._findings.rereading_left <= 0:
            return first_end(self._text, body, fence, may_be_glued=language is not None)
        end = code_end(self._text, body, fence, language)
        if end.read_on:
            self._findings.rereading_left -= len(self._text) - end.resume
        return end

    def _tagged(self) -> int | None:
        """Read the block of a tag that begins or ends its line; one in the middle of prose is only a mention."""
        text, (_, content, trimmed, _) = self._text, self._line
        opening = _START_TAG.search(text, content, trimmed) if self._tags else None
        if opening is None or _in_code_span(text[content : opening.start()]):
            return None
        tag, body = TAGS[opening[0]], opening.end()
        language = self._findings.languages.resolve(tag.language)
        alone = body == trimmed
        begins = opening.start() == content
        if language is None or not (alone or begins or text.endswith(tag.end, body, trimmed)):
            return None
        end = self._tag_end(body, tag, language)
        if end is None and not (alone or (begins and tag.may_end_text)):
            return None
        if tag.on_own_lines and not (
            begins and alone and end is not None and not text[text.rfind("\n", 0, end) + 1 : end].strip()
        ):
            self._findings.rereading_left -= end - body if end is not None else 0
            return None
        code = text[body:end]
        code = dedent(code.partition("\n")[2], self._indent()) if alone else code.lstrip(" \t")
        self._add_tagged(language, code.rstrip(" \t"), is_last=end is None and not tag.may_end_text)
        return len(text) if end is None else end + len(tag.end)

    def _add_tagged(self, language: str, code: str, *, is_last: bool) -> None:
        is_last = is_last and self._is_last
        self._findings.unclosed |= is_last and bool(code.strip())
        if _FENCE_FIRST.match(code):
            inner = _MarkdownReader(
                code, self._findings, tags=False, quote_depth=self._quote_depth, is_last=is_last
            )
            inner.read()
        elif code.strip():
            self._findings.add(language, code)

    def _tag_end(self, body: int, tag: Tag, language: str) -> int | None:
        if tag.end not in self._last_ends:
            self._last_ends[tag.end] = self._text.rfind(tag.end)
        if body > self._last_ends[tag.end]:
            return None
        if self._findings.rereading_left > 0:
            for delimiter in find_delimiters(self._text, body, language):
                ends = delimiter.where is Where.CODE or (delimiter.where is Where.COMMENT and delimiter.last)
                if delimiter.text == tag.end and ends:
                    return delimiter.start
            self._findings.rereading_left -= len(self._text) - body
        return None if tag.on_own_lines else self._text.find(tag.end, body)

    def _indent(self) -> int:
        return column(self._text[self._line.start : self._line.content])


def _in_code_span(before: str) -> bool:
    return len(_BACKTICKS.findall(before)) % 2 == 1


@dataclass(frozen=True)
class Extraction:
    """The code in a message.

    Attributes:
        blocks: The code to run, in order, with canonical names of languages.
        unsupported: The unsupported languages of other code, in order, each once, at most 20.
        unclosed: Whether the end of a block is missing or in doubt, so that the message may have been cut off.
        invented: Where its author goes on as if the code had run already; that is not read. ``None`` where it does not.
    """

    blocks: list[CodeBlock]
    unsupported: list[str]
    unclosed: bool
    invented: int | None = None


_OTHER_TAG = re.compile(
    r"^[ \t]*(<(?:code|python|bash|sh|shell|tool_call|tool_code|function_calls?|function=\w{1,40}|execute_\w{1,40})"
    r"\b[^>\n]{0,80}>|\[(?:CODE|BASH|TOOL_CALLS?)\])",
    re.MULTILINE,
)


# an agent asks for the same with each reply
_languages = lru_cache(maxsize=32)(Languages)


def extract_code(text: str, languages: Sequence[str], *, default_language: str | None = None) -> Extraction:
    """Find the code blocks in a chat message.

    Fences are as in CommonMark, with these repairs for what models write: a fence glued to the prose before it or to
    the last line of the code, a missing closing fence or one that is too short, a bare fence around one with a label, a
    fence inside a triple-quoted Python string or a here-document. Blocks between tags such as ``<execute>`` are in the
    tag's language, unless they hold fences. The content of a fence that is not run is a quotation, and never run.

    Args:
        text: The message. Time and memory are linear in its length for any text.
        languages: The supported labels. Aliases such as ``py`` are known; ``sh`` and ``bash`` cover each other.
        default_language: The one of ``languages`` that closed fences without a label are in. Without it these are not
            extracted, unless the label is on the line below the fence.
    """
    supported = _languages(tuple(languages))
    findings = _Findings(supported, supported.resolve(default_language) if default_language else None)
    _MarkdownReader(text.replace("\r\n", "\n"), findings).read()
    return Extraction(findings.blocks, list(findings.unsupported), findings.unclosed)


_TURN = re.compile(
    r"^[ \t]*(?:<output>|<\|(?:im_start|start_header_id)\|>|\[INST\]|(?:#{1,4} |\*\*)?"
    r"(?:Human|User|Observation|Execution (?:[Rr]esult|[Oo]utput))(?:\*\*)?[ \t]*:)",
    re.MULTILINE,
)
"""Begins what somebody else says. ``<output>`` is around the results that a model gets to read here."""
_MAX_TURNS = 8
"""Each takes the time of reading the text once more."""


def extract_before_invention(
    text: str, languages: Sequence[str], *, default_language: str | None = None
) -> Extraction:
    """Find the code blocks in a chat message up to where its author invents their result.

    Models of 7 to 13 billion parameters often do not stop behind their code: they write what they take for its result, and go
    on with more code by that.
    """
    for begin, _ in zip(_TURN.finditer(text), range(_MAX_TURNS), strict=False):
        before = text[: begin.start()]
        found = extract_code(before, languages, default_language=default_language)
        if found.blocks and not found.unclosed and _is_outside(before, languages[0]):
            return replace(found, invented=begin.start())
    return extract_code(text, languages, default_language=default_language)


def _is_outside(before: str, language: str) -> bool:
    """Whether what comes behind a text is in none of its fences: a block there would be found."""
    more = extract_code(f"{before}\n```{language}\n0\n```\n", [language])
    return more.blocks[-1:] == [CodeBlock(code="0\n", language=language)]


_RUN_SOMEWHERE = ("python", "bash", "sh", "powershell", "pwsh", "ps1")
"""Languages that some executor of AutoGen's or ours runs."""
_CLOSINGS = ("```", "~~~", *dict.fromkeys(tag.end for tag in TAGS.values()))


def with_closing_fence(text: str) -> str:
    """A message whose last code has no closing fence, with one; any other as it is.

    Only for a message that is known to be whole, as its author has stopped by itself.
    """
    if not extract_code(text, _RUN_SOMEWHERE).unclosed:
        return text
    for closing in _CLOSINGS:
        closed = text + closing if text.endswith("\n") else f"{text}\n{closing}"
        if not extract_code(closed, _RUN_SOMEWHERE).unclosed:
            return closed
    return text


def extract_from_reply(
    text: str, languages: Sequence[str], *, default_language: str | None = None
) -> Extraction:
    """Find the code in a model's reply to the agent that runs it, as :func:`extract_before_invention` does.

    In addition, code in a JSON object is read if it is unmistakable, and other notations are among the unsupported.
    """
    found = extract_before_invention(text, languages, default_language=default_language)
    if found.blocks or found.unsupported:
        return found
    in_json = _code_in_json(text, _languages(tuple(languages)))
    if in_json is not None:
        return replace(found, blocks=in_json, unsupported=[] if in_json else ["JSON with a field 'code'"])
    other = None if "```" in text else _OTHER_TAG.search(text)
    return found if other is None else replace(found, unsupported=[other[1]])
