"""What is, and what is not, taken for code in a chat message."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import pytest
from autogen_core.code_executor import CodeBlock
from support.variations import mostly_long

from codeact_team.text.fences import language_of
from codeact_team.text.markdown import extract_code, extract_from_reply
from codeact_team.text.quoting import make_inert

LANGUAGES = ("python", "sh")
ZERO_WIDTH = "\u200b"


def found(
    text: str, languages: Sequence[str] = LANGUAGES, default_language: str | None = None
) -> list[tuple[str, str]]:
    blocks = extract_code(text, languages, default_language=default_language).blocks
    assert all(type(block) is CodeBlock for block in blocks)
    return [(block.language, block.code) for block in blocks]


def python(*codes: str) -> list[tuple[str, str]]:
    return [("python", code) for code in codes]


# --- labels


# "nothing extracted from: `py`, `python3`, `Python`, `bash`, `shell`, trailing blanks, attributes after the label"
@pytest.mark.parametrize(
    ("info", "language"),
    [
        ("python", "python"),
        ("py", "python"),
        ("py3", "python"),
        ("python3", "python"),
        ("python3.11", "python"),
        ("Python-3.12.1", "python"),
        ("py311", "python"),
        ("Python", "python"),
        ("PYTHON", "python"),
        ("ipython", "python"),
        ("sh", "sh"),
        ("shell", "sh"),
        ("bash", "bash"),
        ("Bash", "bash"),
        ("  python", "python"),
        ("python \t ", "python"),
        ('python title="x.py"', "python"),
        ("python {.line-numbers}", "python"),
        ("{.python .numberLines}", "python"),
        ("{python}", "python"),
        ("python{1,3-4}", "python"),
        ("python:main.py", "python"),
        ("python,norun", "python"),
    ],
)
@pytest.mark.parametrize("fence", ["```", "~~~"])
def test_a_label_names_its_language_however_it_is_spelled(info: str, language: str, fence: str) -> None:
    assert found(f"{fence}{info}\nx\n{fence}") == [(language, "x\n")]


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("Python3", "python"),
        ("shellscript", "sh"),
        ("bash", "bash"),
        ("zsh", "zsh"),
        ("python2", "python2"),
        ("python3.x", "python3.x"),
        ("C++", "c++"),
        ("c#", "c#"),
        ("objective-c", "objective-c"),
        ("", ""),
        ("  ", ""),
        ("^~~~", ""),
        ("{}", ""),
        ("питон", ""),
        ("x" * 41, ""),
        ("python" + ZERO_WIDTH, ""),
    ],
)
def test_a_label_has_a_canonical_name(label: str, name: str) -> None:
    assert language_of(label) == name


@pytest.mark.parametrize("languages", [["sh"], ["bash"], ["shell"], ["Bash"]])
def test_one_supported_shell_covers_the_labels_of_both(languages: list[str]) -> None:
    text = "```sh\na\n```\n```bash\nb\n```\n```shell\nc\n```"
    assert found(text, languages) == [("sh", "a\n"), ("bash", "b\n"), ("sh", "c\n")]


def test_a_language_of_the_users_own_matches_in_any_case_and_keeps_its_spelling() -> None:
    text = "```NODE\na\n```\n```Q#2 dev\nb\n```\n```json\nc\n```\n```node2\nd\n```"
    extraction = extract_code(text, ["Node", "q#2 dev", "json"])
    assert [(block.language, block.code) for block in extraction.blocks] == [
        ("Node", "a\n"),
        ("q#2 dev", "b\n"),
        ("json", "c\n"),
    ]
    assert extraction.unsupported == ["node2"]


# "an unsupported language is dropped silently beside a supported one"
def test_unsupported_languages_are_reported_once_and_in_order() -> None:
    text = "```js\na\n```\n```python\nb\n```\n```C\nc\n```\n```js\nd\n```\n~~~rust,ignore\ne\n~~~"
    extraction = extract_code(text, LANGUAGES)
    assert extraction.unsupported == ["js", "c", "rust"]
    assert extraction.blocks == [CodeBlock(code="b\n", language="python")]


def test_python_and_shells_are_reported_where_they_are_not_supported() -> None:
    assert extract_code("```py\na\n```\n```bash\nb\n```", ["node"]).unsupported == ["python", "bash"]


def test_reported_languages_are_few_whatever_the_message_says() -> None:
    text = "".join(f"```lang{number}\n```\n" for number in range(1000))
    assert len(extract_code(text, LANGUAGES).unsupported) == 20


@pytest.mark.parametrize(
    "label",
    ["text", "TXT", "output", "json", "yaml", "toml", "xml", "csv", "markdown", "diff", "log", "console", ""],
)
def test_data_and_prose_are_neither_run_nor_reported(label: str) -> None:
    extraction = extract_code(f"```{label}\nx\n```", LANGUAGES)
    assert (extraction.blocks, extraction.unsupported) == ([], [])


# --- fences


def test_blocks_come_in_the_order_of_the_message() -> None:
    text = "One:\n```python\na\n```\ntwo\n<execute>\nb\n</execute>\n~~~sh\nc\n~~~\n<execute>d</execute>"
    assert found(text) == [("python", "a\n"), ("python", "b\n"), ("sh", "c\n"), ("python", "d")]


def test_text_without_fences_has_no_code() -> None:
    assert found("Use `x` and ``y``, or ```z``` inline. a ~~~ b\n\n    indented()\n") == []


# "nothing extracted from: CRLF, trailing blanks"
def test_line_ends_and_trailing_blanks_do_not_matter() -> None:
    assert found("Hi\r\n```python  \r\nx = 1\r\ny = 2\r\n``` \t\r\nBye\r\n```sh\r\nls\r\n```\r\n") == [
        ("python", "x = 1\ny = 2\n"),
        ("sh", "ls\n"),
    ]


# "nothing extracted from: `~~~`"
def test_a_tilde_fence_is_closed_by_tildes_only() -> None:
    assert found("~~~python\ns = '''\n```\n'''\n~~~\n") == python("s = '''\n```\n'''\n")


# "cut short by: four-backtick fences"
@pytest.mark.parametrize("fence", ["````", "~~~~", "``````````"])
@pytest.mark.parametrize("label", ["python", "sh"])
def test_a_longer_fence_is_closed_by_one_as_long(fence: str, label: str) -> None:
    code = "cat <<'END'\n```\nquoted\n```\nEND\n" if label == "sh" else "'''\n```\nquoted\n```\n'''\n"
    assert found(f"{fence}{label}\n{code}{fence}`~\n{fence}") != []
    assert found(f"{fence}{label}\n{code}{fence}{fence[0]}\ntext") == [(label, code)]


# "nothing extracted from: an indented block in a list"
@pytest.mark.parametrize(
    ("before", "indent"),
    [
        ("- item\n", "  "),
        ("1. item\n\n", "   "),
        ("1. item\n   more\nlazy continuation\n", "    "),
        ("- item\n\n  - inner\n\n", "    "),
        ("- item\n    - inner\n", "      "),
        ("- item\n    - inner\n", "        "),
        ("100) item\n", "      "),
        ("* item\n", "\t"),
        ("- item\n  ```sh\n  ls\n  ```\n\n", "     "),
        ("text\n", " "),
    ],
)
def test_the_indentation_of_a_fence_is_taken_off_the_code(before: str, indent: str) -> None:
    block = textwrap.indent("```python\nif x:\n    y\n\n    z\n```\n", indent)
    assert python("if x:\n    y\n\n    z\n")[0] in found(f"{before}{block}\nafter")


@pytest.mark.parametrize("marker", ["- ", "1. ", "+   ", "- 1. ", "  * "])
def test_a_fence_may_follow_a_list_marker(marker: str) -> None:
    indent = " " * len(marker)
    assert found(f"{marker}```python\n{indent}if x:\n{indent}    y\n{indent}```\n") == python(
        "if x:\n    y\n"
    )


@pytest.mark.parametrize(
    "text",
    [
        "Text:\n\n    ```python\n    x\n    ```\n",
        "- item\n\n      ```python\n      x\n      ```\n",
        "- item\n\nno list any more\n\n     ```python\n     x\n     ```\n",
        "-     ```python\n      x\n      ```\n",
        "> quote\n>\n>     ```python\n>     x\n>     ```\n",
        "\t```python\n\tx\n\t```\n",
        "Text:\n\n    <execute>\n    x\n    </execute>\n",
    ],
)
def test_a_fence_in_indented_code_is_only_quoted(text: str) -> None:
    assert found(text, default_language="python") == []


def test_code_that_is_not_indented_along_with_its_fence_keeps_its_indentation() -> None:
    assert found("1. Run\n   ```python\nif x:\n    y\n   ```\n") == python("if x:\n    y\n")
    assert found(" ```python\nif x:\n  y\n```") == python("if x:\n  y\n")


def test_a_closing_fence_may_be_indented_less_than_its_list_item() -> None:
    assert found("1. Run\n\n   ```python\n   x\n```\n\n2. Run\n\n   ```sh\n   y\n```\n") == [
        ("python", "x\n"),
        ("sh", "y\n"),
    ]


# "nothing extracted from: a block quote"
@pytest.mark.parametrize(
    "text",
    [
        "> ```python\n> if x:\n>     y\n>\n> ```\n",
        ">```python\n>if x:\n>     y\n>\n>```\n",
        "  > Look:\n > ```python\n> if x:\n >     y\n>\n> ```\nafter",
        "> > ```python\n> > if x:\n>>     y\n> >\n> > ```\n> after",
        "- > ```python\n  > if x:\n  >     y\n  >\n  > ```\n",
        "> - item\n>\n>     ```python\n>     if x:\n>         y\n>\n>     ```\n",
        "> ```python\n> if x:\n>     y\n>\nThe quote ends, and with it the fence.",
    ],
)
def test_the_marks_of_a_block_quote_are_taken_off_the_code(text: str) -> None:
    assert found(text) == python("if x:\n    y\n\n")


def test_a_block_quote_ends_a_fence_that_it_holds() -> None:
    assert found("> ```text\n> x\n\n```python\ny\n```") == python("y\n")


# "executed though only quoted: a python fence inside a text fence"
@pytest.mark.parametrize(
    "text",
    [
        "```text\n```python\nx\n```\n",
        "````text\n```python\nx\n```\n````\n",
        "~~~\n```python\nx\n```\n~~~\n",
        "````\n```python\nx\n```\n````\n",
        "~~~~markdown\n~~~python\nx\n~~~\n~~~~\n",
        "```text\n~~~python\nx\n~~~\n```\n",
        "```text\n<execute>\nx\n</execute>\n```\n",
        "```js\n```python\nx\n```\n",
        "````markdown\n> ```python\n> x\n> ```\n````",
        "- ```text\n  ```python\n  x\n  ```\n",
        "> ~~~\n> ```python\n> x\n> ```\n> ~~~",
    ],
)
def test_what_is_quoted_in_a_fence_that_is_not_run_is_not_run(text: str) -> None:
    assert found(text) == []


def test_a_backtick_fence_has_no_backtick_in_its_info_string() -> None:
    assert found("``` python ``` is a label\n```python\nx\n```") == python("x\n")


# --- fences without a label


# "nothing extracted from: no label"; "a bare fence loses its first code line"
def test_a_bare_fence_is_in_the_default_language_and_keeps_its_first_line() -> None:
    assert found("```\nimport os\nx\n```") == []
    assert found("```\nimport os\nx\n```", default_language="python") == python("import os\nx\n")
    assert found("~~~  \nls\n~~~", default_language="shell") == [("sh", "ls\n")]


def test_the_label_may_stand_below_the_fence_as_in_autogen() -> None:
    assert found("```\npython\ncode```") == python("code")
    assert found("```\n\n Python \ncode\n```") == python("code\n")
    assert found("```\nsh\nls\n```", default_language="python") == [("sh", "ls\n")]
    assert found("```\npython code\n```") == []


def test_prose_behind_a_stray_bare_fence_is_not_code() -> None:
    assert found("```python\nx\n```\n```\nAnd so on.\n", default_language="python") == python("x\n")
    assert found("```\n\n```", default_language="python") == []


# --- what models really write


@pytest.mark.parametrize("label", LANGUAGES)
def test_a_closing_fence_may_be_glued_to_the_last_line(label: str) -> None:
    assert found(f"```{label}\nx\ny```") == [(label, "x\ny")]
    assert found(f"```{label}\nx``` \n\nText\n\n```{label}\ny\n```\n") == [(label, "x"), (label, "y\n")]
    assert found(f"```{label}\nx```\n\n```\noutput\n```\n") == [(label, "x")]


def test_python_ends_at_backticks_in_the_middle_of_a_line() -> None:
    assert found("```python\nx = 1``` That is all.\n```sh\nls\n```") == [("python", "x = 1"), ("sh", "ls\n")]


# "nothing extracted from: a missing closing fence"
@pytest.mark.parametrize("label", LANGUAGES)
def test_a_missing_closing_fence_is_supplied_at_the_end(label: str) -> None:
    assert found(f"Text\n```{label}\nx\ny") == [(label, "x\ny")]
    assert found(f"Text\n```{label}\n") == []
    assert found(f"Text\n```{label}") == []


@pytest.mark.parametrize(
    ("text", "unclosed"),
    [
        ("```python\nx", True),
        ("```python\n", True),
        ("~~~~sh\nx\n```\n", True),
        ("> ```python\n> x", True),
        ("<execute>\nx\n", True),
        ("<execute>\n```python\nx\n", True),
        ("```python\nx\n```", False),
        ("```python\nx```", False),
        ("```python\nx = '''\n```\nText", False),
        ("> ```python\n> x\n\nThe quote ends.", False),
        ("<execute>\n```python\nx\n</execute>", False),
        ("```text\nx", False),
        ("```\nx", False),
        ("Write it behind <execute>", False),
        ("", False),
    ],
)
def test_a_message_that_ends_within_a_block_is_told(text: str, unclosed: bool) -> None:
    extraction = extract_code(text, LANGUAGES, default_language="python")
    assert extraction.unclosed is unclosed


def test_a_missing_closing_fence_is_supplied_where_the_next_fence_opens() -> None:
    text = "```python\nx\n```python\ny\n```text\n```python\nz\n```\n```bash\nls\n```"
    assert found("```python\nx\n```sh\nls\n```") == [("python", "x\n"), ("sh", "ls\n")]
    assert found(text)[:2] == python("x\n", "y\n")
    assert "z\n" not in [code for _, code in found(text)]


# "cut short by: a fence inside a string or docstring"
@pytest.mark.parametrize(
    "code",
    [
        'def f():\n    """Say:\n```\nx\n```\n    """\n',
        'README = """\n```python\nprint(1)\n```\n\n```\nx\n```"""\n',
        "s = r'''\n```\n\\'''\n```\n'''\n",
        "s = '''\"\"\"\n```\n'''\nt = \"'''\"\n",
        "# it's \"\"\" a comment\ns = '''\n```\n'''\n",
        "print('```')\nprint(\"it's ```\", '\\'```')\n",
        "s = 'a' # wrap it in ```\nt = f\"```{s}```\"\n",
        'prompt = f"""\n```{lang}\n{code}\n```\n"""\nprint(prompt)\n',
    ],
)
@pytest.mark.parametrize("after", ["", "\nText\n```\noutput\n```\n", "```text\nx\n```\n"])
def test_a_fence_in_a_python_string_or_comment_does_not_end_the_block(code: str, after: str) -> None:
    assert found(f"```python\n{code}```\n{after}") == python(code)
    assert found(f"```\n{code}```\n{after}", default_language="python")[0] == python(code)[0]


def test_a_fence_in_an_indented_docstring_does_not_end_the_block() -> None:
    code = 'def f():\n    """\n    ```\n    x\n    ```\n    """\n'
    assert found(f"```python\n{code}```") == python(code)
    assert found(textwrap.indent(f"```python\n{code}```", "   ")) == python(code)


def test_a_string_that_is_never_closed_does_not_swallow_the_rest() -> None:
    assert found('```python\nx = """oops\n```\nText\n```sh\nls\n```\n') == [
        ("python", 'x = """oops\n'),
        ("sh", "ls\n"),
    ]
    assert found("```python\nx = 'oops\n```\nIt's fine.\n```sh\nls\n```\n") == [
        ("python", "x = 'oops\n"),
        ("sh", "ls\n"),
    ]
    assert found("```python\nx  # done```\nText") == python("x  # done")


# the program was cut to its first lines, which then succeeded
def test_a_real_closing_line_is_preferred_to_a_fence_in_a_comment() -> None:
    for code in (
        "print(1)\n# Usage: ```\ns = '''never closed\nprint(2)\n",
        "print(1)\nx = 1  # Usage: ```\ns = '''never closed\nprint(2)\n",
        "print(1)\n# ```\nprint(2)\n",
    ):
        assert found(f"```python\n{code}```\nText\n```sh\nls\n```") == [("python", code), ("sh", "ls\n")]
    for code in ("echo 1 # see ```\necho 2\n", "# ```\necho 2 '```'\n"):
        assert found(f"```sh\n{code}```\nOutput:\n```\n2\n```\n") == [("sh", code)]
    code = "one() // see ```\ntwo()\n"
    assert found(f"```node\n{code}```\nText", ["node"]) == [("node", code)]


def test_without_a_closing_line_code_does_not_end_in_a_string_or_a_line_of_comment() -> None:
    for label, code in (
        ("python", "s = '''\n```\nx\n```\n'''\nprint(s)\n"),
        ("python", "print(1)\n# see ```\nprint(2)\n"),
        ("sh", "cat <<E\n```\nx\n```\nE\nls\n"),
    ):
        assert found(f"```{label}\n{code}") == [(label, code)]


@pytest.mark.parametrize("label", ["sh", "bash"])
@pytest.mark.parametrize(
    "code",
    [
        "cat > a.md <<'EOF'\n# T\n```python\nprint(1)\n```\nEOF\ncat a.md\n",
        'cat <<-EOF >a <<"B"\n```\nB\n\tEOF\n```\nB\nls\n',
        "echo $((1<<n)) # <<E\ncat <<<E '<<E'\n",
        "python3 - <<E\nprint('''\n```\n''')\nE\n",
    ],
)
def test_a_fence_in_a_here_document_does_not_end_the_block(code: str, label: str) -> None:
    assert found(f"```{label}\n{code}```\nText\nE\n") == [(label, code)]


def test_a_here_document_that_never_ends_does_not_swallow_the_rest() -> None:
    text = "```sh\ncat > a <<EOF\nx\n```\nText\n```python\ny\n```\n"
    assert found(text) == [("sh", "cat > a <<EOF\nx\n"), ("python", "y\n")]
    assert extract_code(text, LANGUAGES).unclosed


def test_a_quotation_mark_too_many_in_a_shell_swallows_nothing() -> None:
    text = "```sh\necho it's\n```\nText isn't.\n```sh\nls\n```"
    assert found(text) == [("sh", "echo it's\n"), ("sh", "ls\n")]


def test_backticks_within_shell_code_are_code() -> None:
    code = "# in ```\necho ```x```\necho `date`\n"
    assert found(f"```sh\n{code}```\n") == [("sh", code)]


# AutoGen runs a fence that is glued to the prose before it
def test_an_opening_fence_may_be_glued_to_prose() -> None:
    assert found("Here it is: ```python\nx\n```\nDone.") == python("x\n")
    assert found("- Run ```sh\n  ls\n  ```\n- ok") == [("sh", "ls\n")]
    assert found("> Run: ````py\n> x\n> ````\n") == python("x\n")


@pytest.mark.parametrize("label", LANGUAGES)
def test_a_fence_may_be_glued_to_words_on_both_ends(label: str) -> None:
    assert found(f"Run ```{label}\nx``` and see.") == [(label, "x")]
    assert found(f"Run ```{label}\nx\n```and you will see.\n```sh\ny\n```") == [(label, "x\n"), ("sh", "y\n")]
    assert found(f"```{label}\nx``` and so on\nText") == [(label, "x")]


@pytest.mark.parametrize("label", LANGUAGES)
def test_a_longer_fence_may_be_closed_by_a_shorter_one(label: str) -> None:
    assert found(f"````{label}\nx\n```\nText\n") == [(label, "x\n")]
    assert found(f"````{label}\nx\n```\ny\n````\nText\n") == [(label, "x\n```\ny\n")]


def test_a_bare_fence_around_one_with_a_label_is_noise() -> None:
    assert found("```\n```python\nx\n```\n```\nText\n```sh\nls\n```") == [("python", "x\n"), ("sh", "ls\n")]
    assert found("- Run\n  ```\n\n  ```python\n  if x:\n    y\n  ```\n\n  ```\n") == python("if x:\n  y\n")
    assert found("```\n```python\nx\n```\nText\n") == []
    assert found("```\nText:\n```python\nx\n```\n```\n") == []


@pytest.mark.parametrize(
    "text",
    [
        "Begin with ```python\nand end with ``` alone.\n",
        "Begin with ```python\nand so on.\n",
        "The label `` ```python\nis one.\n```\n",
        "Use ```python code\nas it is.\n```\n",
        "Use ```javascript\nas it is.\n",
    ],
)
def test_prose_that_mentions_a_fence_is_not_code(text: str) -> None:
    assert found(text) == []


# --- <execute>


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("<execute>\nx\ny\n</execute>", "x\ny\n"),
        ("<execute>x = 1</execute>", "x = 1"),
        ("Let me see. <execute> x = 1 </execute>\nDone.", "x = 1"),
        ("Let me see: <execute>\nx\n</execute> Done.", "x\n"),
        ("<execute>\r\nif x:\r\n    y\r\n</execute>\r\n", "if x:\n    y\n"),
        ("- <execute>\n  if x:\n      y\n  </execute>", "if x:\n    y\n"),
        ("> <execute>\n> if x:\n>     y\n> </execute>", "if x:\n    y\n"),
        ("<execute>\n```python\nx\n```\n</execute>", "x\n"),
        ("<execute>\n\n~~~\nx\n~~~\n</execute>", "x\n"),
        ("<execute>\nx # </execute>", "x # "),
        ("<execute>\nx\n", "x\n"),
        ("<execute>\n```python\nx\n```\n", "x\n"),
        ("<execute>\nx = '''\n</execute>\nText\n", "x = '''\n"),
    ],
)
def test_the_content_of_an_execute_block_is_python(text: str, code: str) -> None:
    assert [block.strip() for _, block in found(text, default_language="python")] == [code.strip()]
    assert found(text, default_language="python")[0][0] == "python"


def test_a_fence_in_an_execute_block_names_its_language() -> None:
    assert found("<execute>\n```bash\nls\n```\n</execute>\n```sh\nls\n```") == [
        ("bash", "ls\n"),
        ("sh", "ls\n"),
    ]


# "cut short by: `</execute>` inside a string"
@pytest.mark.parametrize(
    "code",
    [
        "print('</execute>')\n",
        'print("""\n</execute>\n""")\n',
        'print("it\'s </execute>")  # the </execute> tag\n',
        "s = '''\n```python\nx\n```\n'''\n",
    ],
)
def test_an_end_tag_in_a_python_string_does_not_end_the_block(code: str) -> None:
    assert found(f"<execute>\n{code}</execute>\n```sh\nls\n```") == [("python", code), ("sh", "ls\n")]


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("<execute_ipython>\nx\n</execute_ipython>", "python"),
        ("Let me see. <execute_ipython>\nx\n</execute_ipython>", "python"),
        ("<execute_bash> x </execute_bash>", "bash"),
        ("[PYTHON]\nx\n[/PYTHON]\nDone.", "python"),
        ("Thought: so.\n<code>\nx\n</code>\n", "python"),
        ("<code>\n```py\nx\n```\n</code>", "python"),
        ("<|python_tag|>x", "python"),
        ("<|python_tag|>x<|eom_id|>", "python"),
    ],
)
def test_code_between_the_tags_of_others_is_run(text: str, language: str) -> None:
    # it was silently taken for the answer
    assert [(name, code.strip()) for name, code in found(text)] == [(language, "x")]
    assert found(make_inert(text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "<code>x</code> is a variable.",
        "Use <code>\nx\n</code> for it.",
        "<code>\nx",
        "```html\n<code>\nx\n</code>\n```",
        "`[PYTHON]` and `[/PYTHON]`",
        "The tag <|python_tag|> is Llama's.",
    ],
)
def test_a_mention_of_the_tags_of_others_is_not_code(text: str) -> None:
    assert found(text) == []


JSON_REPLIES = {
    '{"language": "python", "code": "x"}': python("x"),
    '```json\n{"thought": "So.", "code": "x"}\n```': python("x"),
    'Let me see.\n<tool_call>\n{"name": "python", "arguments": {"code": "x"}}\n</tool_call>': python("x"),
    '{"name": "execute_code", "parameters": {"code": "ls", "language": "bash"}}': [("bash", "ls")],
}


@pytest.mark.parametrize("text", JSON_REPLIES)
def test_code_in_a_reply_in_json_is_found_where_it_is_unmistakable(text: str) -> None:
    extraction = extract_from_reply(text, LANGUAGES)
    assert [(block.language, block.code) for block in extraction.blocks] == JSON_REPLIES[text]
    assert found(text) == [], "a program may print the same"


@pytest.mark.parametrize(
    ("text", "notation"),
    [
        ('{"code": "A12"}', "JSON with a field 'code'"),
        ('{"code": "A12", "price": 3}', "JSON with a field 'code'"),
        (
            '<tool_call>{"name": "search", "arguments": {"code": "A12"}}</tool_call>',
            "JSON with a field 'code'",
        ),
        ("<code>x</code>", "<code>"),
        ("<tool_call>\n<function=python>\n", "<tool_call>"),
        ('{"language": "python", "code": 1}', None),
        ('{"answer": 42}', None),
        ("It is 42.", None),
    ],
)
def test_other_notations_of_a_reply_are_told_and_not_run(text: str, notation: str | None) -> None:
    extraction = extract_from_reply(text, LANGUAGES)
    assert (extraction.blocks, extraction.unsupported) == ([], [notation] if notation else [])


def test_execute_blocks_need_python() -> None:
    assert found("<execute>\nls\n</execute>", ["sh"]) == []


@pytest.mark.parametrize(
    "text",
    [
        "Use <execute> and </execute> for code.",
        "Use `<execute>`\nand `</execute>`\n",
        "<execute> is a tag.",
        "</execute>\nx",
        "<execute></execute>",
        "<execute>\n\n</execute>",
        "Write it behind <execute>",
    ],
)
def test_a_mention_of_the_tag_is_not_code(text: str) -> None:
    assert found(text) == []


def test_a_tag_in_code_is_code() -> None:
    code = "print('''\n<execute>\nx\n</execute>\n''')\n"
    assert found(f"```python\n{code}```") == python(code)


# --- making text inert


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain\n\n    text",
        "`a` ``b``",
        "a ~~~ b",
        "    f(x)\n    ~~~^~~~\n",
        "a < b",
        "</execute>",
        "<code>x</code>",
    ],
)
def test_harmless_text_stays_as_it_is(text: str) -> None:
    assert make_inert(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "```python\nx\n```",
        "a ```python\nx```",
        "~~~python\nx\n~~~",
        "> - ~~~~~\n>   x",
        "<execute>x</execute>",
        "`" * 100,
        "\t~~~\nx\n\t~~~",
    ],
)
def test_inert_text_holds_no_code_and_reads_the_same(text: str) -> None:
    inert = make_inert(text)
    assert inert != text
    assert inert.replace(ZERO_WIDTH, "") == text
    assert "```" not in inert
    assert found(inert, default_language="python") == []


# --- hostile text


MEGABYTE = 1_000_000


@pytest.mark.timeout(20)
@pytest.mark.parametrize("start", ["", '```python\n"""\n'])
@pytest.mark.parametrize("unit", mostly_long(["`", "> - ", " ", "\\", "<execute>"]))
def test_a_megabyte_of_anything_is_read_in_one_go(start: str, unit: str) -> None:
    text = start + unit * (MEGABYTE // len(unit))
    blocks = extract_code(text, LANGUAGES, default_language="python").blocks
    assert sum(len(block.code) for block in blocks) <= len(text)
    make_inert(text)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "unit",
    mostly_long(
        [
            "```\n",
            "- a\n",
            "- ```\n",
            "> ```\n",
            "    ```\n",
            "```python\n",
            "a ```python\n",
            '```python\n\\"""\n```\n',
            "```python\n'''\n```\n",
            "<execute>\n",
            "<execute>x</execute>",
            '<execute>\\"""</execute>\n',
            "a <execute> b\n",
        ]
    ),
)
def test_many_kilobytes_of_unfinished_blocks_are_read_without_reading_them_again_and_again(
    unit: str,
) -> None:
    text = unit * (50_000 // len(unit)) + "    ```\n"
    blocks = extract_code(text, LANGUAGES, default_language="python").blocks
    assert sum(len(block.code) for block in blocks) <= len(text)


def quoted(depth: int) -> str:
    return "".join("> " * depth + line for line in ("```python\n", f"at({depth})\n", "```\n"))


def test_code_is_found_in_sixteen_nested_quotes_and_not_in_more() -> None:
    assert found(quoted(16)) == python("at(16)\n")
    assert found(quoted(17)) == []
    # each within the one before
    assert found("".join(quoted(depth) for depth in range(1, 40))) == python(
        *(f"at({depth})\n" for depth in range(1, 17))
    )


_PIECES_OF_CODE = (
    "<<A ",
    "<<A\n",
    "cat <<A\n```\n",
    "((",
    "((\n",
    "'\n",
    '"',
    "# ```\n",
    "x # ```\n",
    "x``` y\n",
    "A\n",
)
_PIECES_OF_BLOCKS = (
    '"""\n```\n',
    "'''",
    "\\'''",
    "```sh\ncat <<A\n```\n",
    "````sh\nx\n```\n",
    "```\n```sh\nx\n",
    "<code>\n",
    "<code>\nx</code>\n",
    "[PYTHON]\n",
    "<execute_bash>\n",
    "a ```sh\nb``` ",
)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("label", "units"),
    mostly_long(
        [
            ("sh", _PIECES_OF_CODE),
            ("python", _PIECES_OF_CODE),
            ("sh", _PIECES_OF_BLOCKS),
            ("python", _PIECES_OF_BLOCKS),
        ]
    ),
)
def test_much_code_is_read_in_one_go(label: str, units: Sequence[str]) -> None:
    for unit in units:
        text = f"```{label}\n" + unit * (30_000 // len(unit))
        blocks = extract_code(text, LANGUAGES).blocks
        assert sum(len(block.code) for block in blocks) <= len(text)


@pytest.mark.timeout(20)
def test_deeply_nested_containers_do_not_exhaust_the_stack() -> None:
    quotes = "".join("> " * depth + "```python\n" for depth in range(1, 600))
    lists = "- " * 50_000 + "\n" + "    ```python\n" * 3_000
    assert len(found(quotes)) <= 600
    assert len(found(lists)) <= 3_000
