"""Markdown as lines for a terminal, and what a terminal shows of a text that comes in pieces."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text
from support.cost import SHORT

from codeact_team.cli import rendering
from codeact_team.cli.rendering import RenderedProse
from codeact_team.cli.screen import between_words

LONG = "result = analyse('a line of code that is a good deal longer than any of the terminals here', verbose=True)"
ANSWER = f"""# Sales

The **north** grew most, by `34.5 %`; the others fell behind by far.

1. first
2. second

- one
- two [link](https://example.org/)

| region | total |
|---|---:|
| North | 12 |

```python
{LONG}
\tprint(1)
```

Done <b>now</b> &amp; then.
"""


def lines(*pieces: str, width: int = 60) -> list[str]:
    prose = RenderedProse(width)
    found = [line.plain for piece in pieces for line in prose.add(piece)]
    return [*found, *(line.plain for line in prose.end())]


def test_headings_lists_tables_and_emphasis_are_rendered_and_all_that_could_deceive_is_as_written():
    told = lines(ANSWER)
    assert told[:3] == ["# Sales", "", "The north grew most, by 34.5 %; the others fell behind by"]
    assert "2. second" in told
    assert " • two [link](https://example.org/)" in told
    assert any(line.split() == ["North", "12"] for line in told)
    assert told[-1] == "Done <b>now</b> &amp; then."


@pytest.mark.parametrize("width", [20, 60, 100, 200])
def test_lines_of_code_are_whole_whatever_the_width(width: int):
    told = lines(ANSWER, width=width)
    assert LONG in told
    assert told[told.index(LONG) - 1 : told.index(LONG) + 3] == ["```python", LONG, "\tprint(1)", "```"]


@pytest.mark.parametrize("width", [20, 60, 100, 200])
def test_no_word_is_broken(width: int):
    told = "\n".join(
        lines(ANSWER + "\n- see https://example.org/a/very/long/path/of/a/file.html\n", width=width)
    )
    words = re.findall(r"\w+", ANSWER)
    assert all(word in told for word in words)
    assert "https://example.org/a/very/long/path/of/a/file.html" in told


@given(st.text(alphabet="`~#*_|-> \n\tab1.[]<&\\", max_size=80), st.integers(min_value=1, max_value=20))
def test_nothing_is_lost_and_pieces_are_as_the_whole(text: str, size: int):
    whole = lines(text)
    pieces = lines(*(text[place : place + size] for place in range(0, len(text), size)))
    assert pieces == whole
    shown = "".join(whole)
    assert all(word in shown for word in re.findall(r"[ab1]+", text))


def test_a_block_is_shown_when_it_is_known_to_end_and_code_line_by_line():
    prose = RenderedProse(60)

    def told(piece: str) -> list[str]:
        return [line.plain for line in prose.add(piece)]

    assert told("One **para") == []
    assert told("graph**\n") == []
    assert prose.unfinished == "One **paragraph**"
    assert told("\n```python\n") == ["One paragraph", "", "```python"]
    assert told("print(1)\npri") == ["print(1)"]
    assert told("nt(2)\n") == ["print(2)"]
    assert told("```\n") == ["```"]


@pytest.mark.parametrize(
    "text",
    [
        "> " * 9_000,
        "- " * 5_000,
        "*a " * 6_000,
        "[" * 9_000,
        "`" * 9_000,
        pytest.param("- a\n" * 4_000, marks=pytest.mark.long),
        pytest.param("a\n" * 9_000, marks=pytest.mark.long),
    ],
)
def test_hostile_text_takes_no_time(text: str):
    began = time.process_time()
    lines(text)
    assert time.process_time() - began < 5 * SHORT


def test_our_lines_are_broken_between_words_and_commands_not_at_all():
    command = "codeact-team resume .codeact-team/runs/20261125-090210-abcdef"
    line = between_words(Text(f"note: to go on when there is time: {command}"), 50)
    assert line.plain == f"note: to go on when there is time:\n{command}"


@pytest.mark.long
@pytest.mark.parametrize("line", ["|x|y|\n", "- an item\n", "- an item\n\n"])
def test_a_long_block_that_comes_line_by_line_is_parsed_a_few_times(
    monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    parses = 0
    parser = rendering._parser()

    class Counting:
        def parse(self, text: str) -> Any:
            nonlocal parses
            parses += 1
            return parser.parse(text)

    monkeypatch.setattr(rendering, "_parser", Counting)
    prose, lines = RenderedProse(80), 0
    for piece in ["|a|b|\n|-|-|\n" if line.startswith("|") else "", *[line] * (3_500 // len(line))]:
        lines += sum(1 for _ in prose.add(piece))
    lines += sum(1 for _ in prose.end())
    assert lines >= 3_500 // len(line)
    # until it is long, at each line
    assert parses < 2_000 // len(line) + 100
