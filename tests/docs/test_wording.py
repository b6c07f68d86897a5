"""The pages are in plain English, and name only what there is."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from documents import PAGES, ROOT, blocks_of
from markdown_it import MarkdownIt
from markdown_it.token import Token
from typer import Context
from typer.cli import get_docs_for_click
from typer.main import get_command

from codeact_team.cli.app import app
from codeact_team.core.events import Event

LONGEST_SENTENCE = 30
"""Words; a piece of code is one."""

_END = re.compile(r"(?<=[.!?])[)”\"]?\s+(?=[A-Z`“(])")
_OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]+")
_NAME = re.compile(r"[a-z]+(?:_[a-z0-9]+)+")
_COMMAND = re.compile(r"codeact-team (?P<name>[a-z]\w+)")
_TEXTS = {**PAGES, **{name: ROOT / f"{name}.md" for name in ("CONTRIBUTING", "SECURITY")}}

pages = pytest.mark.parametrize("page", _TEXTS.values(), ids=_TEXTS)


@functools.cache
def _inlines(text: str) -> Sequence[tuple[int, Token]]:
    found: list[tuple[int, Token]] = []
    for token in MarkdownIt().enable("table").parse(text):
        line = (token.map or [0])[0] + 1
        if token.type == "inline":
            found.append((line, token))
        elif token.type == "fence" and token.info == "markdown":
            found += [(line + inner, inline) for inner, inline in _inlines(token.content)]
    return found


def _prose(token: Token) -> str:
    words = {"code_inline": "CODE", "softbreak": " ", "hardbreak": " ", "image": ""}
    return "".join(words.get(child.type, child.content) for child in token.children or ())


def _long_sentences(text: str) -> Iterator[str]:
    for line, token in _inlines(text):
        for sentence in _END.split(_prose(token)):
            if (words := len(sentence.split())) > LONGEST_SENTENCE:
                yield f"line {line}: {words} words: {sentence}"


@pages
def test_no_sentence_is_longer_than_one_reads_at_once(page: Path) -> None:
    assert not list(_long_sentences(page.read_text()))


@pytest.mark.long
@pytest.mark.parametrize("name", ["commands", "settings", "event_types"])
def test_no_sentence_of_the_reference_is_longer_either(name: str) -> None:
    # which makes them for Sphinx
    import reference_pages

    made = getattr(reference_pages, name)()
    assert "\n## " in made
    assert not list(_long_sentences(made))


@functools.cache
def _help() -> str:
    command = get_command(app)
    return get_docs_for_click(obj=command, ctx=Context(command), name="codeact-team", indent=0)


def _code(page: Path) -> Iterator[str]:
    for _, token in _inlines(page.read_text()):
        yield from (child.content for child in token.children or () if child.type == "code_inline")
    for block in blocks_of(page):
        if block.language == "console":
            yield from (line[2:] for line in block.text.splitlines() if line.startswith("$ codeact-team"))


@pages
def test_every_option_and_command_is_one_of_ours(page: Path) -> None:
    for code in _code(page):
        if code.startswith(("-", "codeact-team")):
            for option in _OPTION.findall(code):
                assert re.search(rf"{option}(?![\w-])", _help()), f"{page}: {option} in {code!r}"
        if (command := _COMMAND.match(code)) is not None:
            assert f"## `codeact-team {command['name']}`" in _help(), f"{page}: {code!r}"


def _sections(page: Path) -> Iterator[tuple[str, Sequence[str]]]:
    """What each section names in code, and what one types in it: the words behind `codeact-team`, and commands of a chat."""
    text = page.read_text()
    starts = [
        (token.map or [0])[0]
        for token in MarkdownIt().parse(text)
        if token.type == "heading_open" and token.map
    ]
    lines = text.splitlines()
    for begin, end in pairwise([*starts, len(lines)]):
        named = " ".join(
            child.content
            for line, token in _inlines(text)
            if begin < line <= end
            for child in token.children or ()
            if child.type == "code_inline"
        )
        blocks = [block for block in blocks_of(page) if begin < block.line <= end]
        consoles = "\n".join(block.text for block in blocks if block.language.startswith("console"))
        typed = _COMMAND.findall(consoles)
        for line in consoles.splitlines():
            if line.startswith("$ codeact-team"):
                typed += _OPTION.findall(line)
            elif line.startswith("> /"):
                typed.append(line[2:].split()[0])
        yield named, typed


def test_the_first_hour_has_nobody_type_a_word_that_is_not_explained() -> None:
    explained = ""
    for name in ("tutorial", "guides/first-hour"):
        for named, typed in _sections(PAGES[name]):
            explained = f"{explained} {named}"
            for word in typed:
                assert re.search(rf"(?<![\w-]){word}(?![\w-])", explained), f"{name}: {word}"


@functools.cache
def _vocabulary() -> frozenset[str]:
    sources = [
        *(ROOT / "codeact_team").rglob("*.py"),
        *(ROOT / "configs").glob("*.yaml"),
        ROOT / "pyproject.toml",
    ]
    words = frozenset(word for source in sources for word in re.findall(r"\w+", source.read_text()))
    # the types of events are made from the names of their classes
    return words | Event.kinds.keys()


@pages
def test_every_setting_that_is_named_exists(page: Path) -> None:
    shown = {word for block in blocks_of(page) for word in re.findall(r"\w+", block.text)}
    for code in _code(page):
        if _NAME.fullmatch(code):
            assert code in _vocabulary() | shown, f"{page}: {code}"


@pages
def test_every_link_leads_to_a_file(page: Path) -> None:
    for line, token in _inlines(page.read_text()):
        for child in token.children or ():
            target = str(child.attrGet("href") or child.attrGet("src") or "")
            if target and not re.match(r"[a-z]+:|#", target):
                assert (page.parent / target.partition("#")[0]).exists(), f"{page}:{line}: {target}"
