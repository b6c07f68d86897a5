from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeact_team.cli.rendering import highlighted, highlighted_prose


@given(st.text(alphabet="`~a \n\tpython", max_size=60))
def test_nothing_is_left_out(text: str):
    assert highlighted_prose(text).plain == text


def test_code_with_tabs_is_shown_to_its_end():
    code = "```python\ndef f():\n\treturn 1\t# one\n```\n"
    assert highlighted_prose(code).plain == code


def test_only_code_has_colours():
    text = "import a\n````py\nimport b\n```\nimport c\n````\nimport d\n~~~py\nimport e\n"
    told = highlighted_prose(text)
    coloured = {told.plain[span.start : span.end] for span in told.spans if "blue" in str(span.style)}
    imports = [text.index(f"import {name}") for name in "bce"]
    assert coloured == {"import"}
    assert sorted(span.start for span in told.spans if "blue" in str(span.style)) == imports


@pytest.mark.parametrize(
    ("language", "code"), [("python", " \n" * 5_000), ("diff", "@" * 10_000), ("yaml", "`" * 10_000)]
)
def test_code_that_takes_a_lexer_long_has_no_colours(language: str, code: str):
    told = highlighted(f"1{code}1", language)
    assert (told.plain, told.spans) == (f"1{code}1", [])
