"""What holds for any chat message: code is found as AutoGen and CommonMark find it, and inert text holds none."""

from __future__ import annotations

import re

from autogen_agentchat.agents import CodeExecutorAgent
from hypothesis import assume, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from codeact_team.text.markdown import extract_code
from codeact_team.text.quoting import make_inert

ZERO_WIDTH = "\u200b"
AUTOGEN_LANGUAGES = CodeExecutorAgent.DEFAULT_SUPPORTED_LANGUAGES
# The pattern of AutoGen 0.7.5; its method can be called on an agent only, which needs an executor.
AUTOGEN = re.compile(r"```(?:\s*(python|sh))\n([\s\S]*?)```", re.IGNORECASE)

# Pieces that matter to a reader of fences, and some that should not.
pieces = st.sampled_from(
    [
        *"`~ \n\t>-'\"\\#x",
        *(
            "```",
            "~~~",
            "````",
            "python",
            "sh",
            "text",
            "```python\n",
            "\n```\n",
            "```\n",
            "~~~sh\n",
            "\n~~~\n",
        ),
        *(
            "> ",
            "- ",
            "1. ",
            "    ",
            "<execute>",
            "</execute>",
            "<execute>\n",
            "<code>\n",
            "\n</code>\n",
            "[PYTHON]",
            "<|python_tag|>",
            "\n</execute>\n",
            '"""',
            "'''",
        ),
        *("cat <<E\n", "\nE\n", "````python\n", "python3.11", "# "),
        *("\r\n", "\r", ZERO_WIDTH, "\u2028", "\x0c", "{.", "^"),
    ]
)
messages = st.lists(pieces | st.text(max_size=3), max_size=40).map("".join)
any_case = st.sampled_from(["python", "Python", "PYTHON", "sh", "SH"])

plain_lines = st.text(st.characters(exclude_characters="`~<>'\"\r\n", codec="utf-8"), max_size=20)
prose = st.lists(plain_lines.map(lambda line: line.strip() + "\n"), max_size=3).map("".join)
code = st.lists(plain_lines | st.sampled_from(["x = 'a'", 'print("b")', "if x:\n    y"]), max_size=4).map(
    "\n".join
)


@st.composite
def well_formed_blocks(draw: st.DrawFn) -> str:
    body = draw(code)
    last = body.rpartition("\n")[2]
    # one fence may be glued to what stands before it; in a comment, the closing one would be part of the code
    opening, closing = draw(st.sampled_from([("```", "\n```\n"), ("Here: ```", "\n```\n"), ("```", "```\n")]))
    if not last.strip() or "#" in last:
        closing = "\n```\n"
    return f"{opening}{draw(any_case)}\n{body}{closing}"


@given(st.lists(st.tuples(prose, well_formed_blocks()), max_size=4), prose)
def test_well_formed_blocks_are_those_that_autogen_finds(parts: list[tuple[str, str]], rest: str) -> None:
    text = "".join(before + block for before, block in parts) + rest
    blocks = extract_code(text, AUTOGEN_LANGUAGES).blocks
    expected = [(label.lower(), body) for label, body in AUTOGEN.findall(text)]
    assert [(block.language, block.code) for block in blocks] == expected


fence_lines = st.sampled_from(
    [
        *(
            "```ours",
            "```",
            "````",
            "`````ours x",
            "~~~ours",
            "~~~",
            "~~~~",
            "```text",
            "~~~ text",
            "``` `ours",
        ),
        *(
            "> ```ours",
            "> ```",
            ">",
            "> x",
            "> > ~~~ours",
            ">>~~~",
            " ```ours",
            "  ```",
            "   ~~~",
            "    ```ours",
        ),
        *("", "x", "  x", "    x", "\tx", "      ```", "> \tx", "*x*", "# x", "```x```", "x ~~~"),
    ]
)


LABELLED_IN_BARE = re.compile(r"(```|~~~)[ \t]*\n[> \t]*\1ours")


@given(st.lists(fence_lines, max_size=20))
def test_fences_are_those_of_commonmark(lines: list[str]) -> None:
    text = "\n".join([*lines, ""])
    # where CommonMark shows the inner fence of the two, models mean it
    assume(LABELLED_IN_BARE.search(text) is None)
    fences = [token for token in MarkdownIt().parse(text) if token.type == "fence"]
    expected = [token.content for token in fences if token.info.split()[:1] == ["ours"]]
    found = [block.code for block in extract_code(text, ["ours"]).blocks]
    # the indentation of the fence is left alone where the code does not share it; a blank end is no code
    assert [squeeze(block) for block in found if block.strip()] == [
        squeeze(block) for block in expected if block.strip()
    ]


def squeeze(code: str) -> str:
    return re.sub(r"^[ \t]+", "", code, flags=re.MULTILINE)


@given(messages)
def test_inert_text_holds_no_code_for_anybody(text: str) -> None:
    inert = make_inert(text)
    assert extract_code(inert, ["python", "sh", "bash"], default_language="python").blocks == []
    assert AUTOGEN.search(inert) is None
    assert inert.replace(ZERO_WIDTH, "") == text.replace(ZERO_WIDTH, "")
    assert make_inert(inert) == inert


@given(messages)
def test_text_that_is_not_made_inert_holds_no_code(text: str) -> None:
    if make_inert(text) == text:
        assert extract_code(text, ["python", "sh", "bash"], default_language="python").blocks == []


@given(messages)
def test_code_is_part_of_the_message_and_no_code_is_found_twice(text: str) -> None:
    blocks = extract_code(text, ["python", "sh", "bash"], default_language="python").blocks
    assert sum(len(squeeze(block.code)) for block in blocks) <= len(text)
    for block in blocks:
        assert block.language in {"python", "sh", "bash"}
        for line in block.code.split("\n"):
            assert line.strip() in text


@given(messages)
def test_nothing_quoted_in_a_longer_fence_is_run(text: str) -> None:
    fence = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 3)
    assert extract_code(f"{fence}text\n{text}\n{fence}\n", ["python", "sh"]).blocks == []
