from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from codeact_team.cli.highlighting import highlighted_prose


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
