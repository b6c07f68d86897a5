"""Telling what a model says from what it thinks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.variations import mostly_long

from codeact_team.text.quoting import take_thoughts_off

DRAFT = "```python\nremove('everything')\n```"


@pytest.mark.parametrize(
    ("text", "said", "thought"),
    [
        ("<think>Hm.</think>It is 42.", "It is 42.", "Hm."),
        ("\n<think>\nHm.\n</think>\n\nIt is 42.\n", "It is 42.", "Hm."),
        (f"<think>\nPerhaps:\n{DRAFT}\nNo.\n</think>\nNo code.", "No code.", f"Perhaps:\n{DRAFT}\nNo."),
        (f"<think>{DRAFT}</think>{DRAFT}", DRAFT, DRAFT),
        (f"{DRAFT}</think>{DRAFT}", DRAFT, DRAFT),
        ("<thinking>Hm.</thinking> It is 42.", "It is 42.", "Hm."),
        ("<THINK>Hm.</Think>42", "42", "Hm."),
        ("[THINK]Hm.[/THINK]42", "42", "Hm."),
        ("◁think▷Hm.◁/think▷42", "42", "Hm."),
        ("<seed:think>Hm.</seed:think>42", "42", "Hm."),
        (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>42",
            "42",
            "Hm.",
        ),
        # an empty thought
        ("<think>\n\n</think>\n\n42", "42", None),
        # the reply begins inside the thought
        (f"Perhaps:\n{DRAFT}\n</think>\n42", "42", f"Perhaps:\n{DRAFT}"),
        ("Hm. I say 42.</think>42", "42", "Hm. I say 42."),
        # it is cut off in the thought
        (f"<think>\nPerhaps:\n{DRAFT}\nor", "", f"Perhaps:\n{DRAFT}\nor"),
        ("<think>", "", None),
        # the draft's fence is never closed
        ("<think>\n```python\nx\n</think>\n```python\ny\n```", "```python\ny\n```", "```python\nx"),
        ("```python\nx\n</think>\n```python\ny\n```", "```python\ny\n```", "```python\nx"),
        # thoughts between words
        ("<think>a</think>\n1\n<think>\nb\n</think>\n2", "1\n\n2", "a\n\nb"),
        (f"Sure.\n<think>\n{DRAFT}\n</think>\nDone.", "Sure.\n\nDone.", DRAFT),
        (f"Sure. <think>\n{DRAFT}\n</think>\nDone.", "Sure.\n\nDone.", DRAFT),
        (f"Sure. <think>\n{DRAFT}", "Sure.", DRAFT),
        # thoughts about thoughts
        ("<think>The <think> tag, and `</think>`?</think>42", "42", "The <think> tag, and `</think>`?"),
        (
            '<think>\n```python\nt = s.split("</think>")[1]\nu = re.sub("<think>.*?</think>", "", s)\n```\n</think>\n42',
            "42",
            '```python\nt = s.split("</think>")[1]\nu = re.sub("<think>.*?</think>", "", s)\n```',
        ),
        ("<think>\n<thinking>a</thinking>\nb</think>42", "42", "<thinking>a</thinking>\nb"),
        # a fence right behind a thought
        ("<think>a</think>```python\nx = '</think>'\n```", "```python\nx = '</think>'\n```", "a"),
        ("<think>a</think>\n\n  - b\n\n    ```sh\n    c\n", "  - b\n\n    ```sh\n    c", "a"),
    ],
)
def test_thoughts_are_told_from_words(text: str, said: str, thought: str | None):
    # the code in them was run, and the answer began with them
    assert take_thoughts_off(text) == (said, thought)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  It is 42. \n",
        f"\n{DRAFT}\n",
        "```python\nt = s.split('</think>')[1]  # drop all before </think>\n```\nDone.",
        "Here: ```python\nt = s.partition('<think>')\nu = t.find('/think') # </think>\n```\nDone.",
        'Here:\n```python\nPROMPT = """\n<think>\nyour thoughts\n</think>\n"""\n```\nDone.',
        "~~~text\n<think>\n~~~\n",
        "Put it between `<think>` and `</think>`, not “<think>”.",
        "Put it between <think> and </think>.",
        "<execute>\nprint(re.sub('<think>.*</think>', '', s))\n</execute>",
        '{"problems": ["It printed </think> and no more."], "accepted": false}',
        '```json\n{"problems": ["It printed </think> and no more."], "accepted": false}\n```',
        "I think </thin> [think] <think/> thinking> x[THINK]",
    ],
)
def test_a_tag_that_is_mentioned_is_left_alone(text: str):
    assert take_thoughts_off(text) == (text, None)


def test_thoughts_follow_those_that_the_server_has_told_apart():
    assert take_thoughts_off("<think>b</think>c", "a") == ("c", "a\n\nb")
    assert take_thoughts_off("c", "a") == ("c", "a")
    assert take_thoughts_off("c", "") == ("c", "")


pieces = st.sampled_from(
    [
        *(
            "```",
            "\n```\n",
            "\n```python\n",
            "~~~\n",
            "~~~~",
            "> ",
            "- ",
            "<execute>\n",
            '"""',
            "`",
            "'",
            " ",
            "\n",
        ),
        *("a", "b\n", "[", "<", "\r\n"),
    ]
)
plain = st.lists(pieces, max_size=20).map("".join)


@given(st.sampled_from(["<think>", "<think>\n", ""]), plain, plain)
def test_whatever_a_thought_holds_it_ends_at_a_tag_on_a_line_of_its_own(
    opening: str, thought: str, rest: str
):
    said = take_thoughts_off(f"{opening}{thought}\n</think>\n{rest}")
    assert said.text.split() == rest.split()
    assert (said.thought or "").split() == thought.split()


_TAGS = (
    "<think>",
    "</think>",
    "<think></think>",
    "`</think>`",
    "<think>\n",
    "\n</think>",
    "</think> ",
    "a<think>",
)
_OTHERS = ("``` ", "~~~ ", "~~~\n<think>\n", " ", "> ", "- ", "\n", "<", "<|end|>", "`<think>")


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("start", "units"),
    mostly_long([("", _TAGS), ("", _OTHERS), ("```python\n", _TAGS), ("```python\n", _OTHERS)]),
)
def test_long_text_of_anything_is_read_in_one_go(start: str, units: Sequence[str]):
    for unit in units:
        text = start + unit * (100_000 // len(unit)) + "</think>"
        said, thought = take_thoughts_off(text)
        assert len(said) + len(thought or "") <= 4 * len(text)
