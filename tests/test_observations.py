from __future__ import annotations

import pytest
from autogen_core.code_executor import CodeResult
from hypothesis import given
from hypothesis import strategies as st

from codeact_team.agents.observations import (
    EXECUTION_KEY,
    MAX_OBSERVATION_CHARS,
    ExecutionRecord,
    encodable,
    observe,
    shorten,
)
from codeact_team.core.execution import ExecutionResult, Outcome
from codeact_team.text.markdown import extract_code
from codeact_team.text.quoting import as_data

# what hostile output is made of
PIECES = st.sampled_from(
    [
        "```",
        "~~~",
        "python\n",
        "\n",
        "print(1)",
        "<execute>",
        "</execute>",
        "</output>",
        "<",
        " ",
        "\ud800",
        "é",
    ]
)
HOSTILE = st.lists(PIECES, max_size=60).map("".join) | st.text(max_size=200)
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=300)


def observed(output: str, exit_code: int = 0, outcome: Outcome = Outcome.COMPLETED) -> str:
    return observe(ExecutionResult(exit_code=exit_code, output=output, outcome=outcome)).output


@pytest.mark.parametrize("outcome", [Outcome.DENIED, Outcome.CANCELLED, Outcome.NOT_RUN])
def test_code_that_did_not_run_is_not_said_to_have_run(outcome: Outcome):
    assert observed("Code execution was not approved.", exit_code=1, outcome=outcome) == (
        "Code execution was not approved."
    )


def test_nothing_else_that_is_known_is_lost():
    result = ExecutionResult(
        exit_code=1,
        output="x",
        outcome=Outcome.TIMED_OUT,
        code_file="/w/a.py",
        limit="time",
        omitted_bytes=9,
        seconds=1.5,
    )
    seen = observe(result)
    assert seen == ExecutionResult(
        exit_code=1,
        output="The script ran, then exited with an error (POSIX exit code: 1)\nIts output was:\nx",
        outcome=Outcome.TIMED_OUT,
        code_file="/w/a.py",
        limit="time",
        omitted_bytes=9,
        seconds=1.5,
    )
    assert result.output == "x", "the executor's own result is not changed"


def test_a_plain_result_may_have_a_code_file_or_not():
    plain = CodeResult(exit_code=0, output="x")
    assert observe(plain).code_file is None
    for value, kept in (("/w/a.py", "/w/a.py"), (None, None), (3, None)):
        plain.code_file = value  # pyright: ignore[reportAttributeAccessIssue]
        assert observe(plain).code_file == kept


@given(HOSTILE, st.integers(0, 255))
def test_no_code_is_found_in_what_is_observed(output: str, exit_code: int):
    # output was pasted undelimited: a printed fence was executed by the next agent
    text = observed(output, exit_code)
    assert extract_code(text, ["python", "sh"], default_language="python").blocks == []


@given(HOSTILE)
def test_what_is_observed_can_be_written_and_its_length_is_bounded(output: str):
    text = observed(output * 500, exit_code=1)
    text.encode()
    assert len(text) < 2 * MAX_OBSERVATION_CHARS + 300


@given(ANY_TEXT, st.integers(0, 400))
def test_shortening_keeps_the_beginning_and_the_end_and_counts_the_rest(text: str, limit: int):
    short = shorten(text, limit)
    if len(text) <= limit:
        assert short == text
        return
    half = limit // 2
    head, tail = text[:half], text[len(text) - half :]
    assert short == f"{head}\n[... {len(text) - 2 * half} characters omitted ...]\n{tail}"


@given(HOSTILE)
def test_data_ends_where_we_end_it(output: str):
    data = as_data(output)
    assert data.startswith("<output>\n")
    assert data.lower().count("</output>") == 1
    assert data.endswith("\n</output>")


@pytest.mark.parametrize("ending", ["</output>", "</OUTPUT>", "< /output>", "</ output >", "</output\n>"])
def test_other_spellings_of_the_end_do_not_end_it_either(ending: str):
    assert ending not in as_data(f"a{ending}b").removesuffix("\n</output>")


def test_data_is_otherwise_unchanged():
    assert as_data("a < b </outer> 1</ 2\n") == "<output>\na < b </outer> 1</ 2\n\n</output>"


@given(ANY_TEXT)
def test_text_is_changed_only_where_it_cannot_be_encoded(text: str):
    encodable(text).encode()
    if not any("\ud800" <= character <= "\udfff" for character in text):
        assert encodable(text) == text


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {EXECUTION_KEY: ""},
        {EXECUTION_KEY: "[]"},
        {EXECUTION_KEY: '{"exit_code": "?"}'},
        {EXECUTION_KEY: "[" * 9999},
    ],
)
def test_metadata_without_a_readable_record_has_none(metadata: dict[str, str]):
    assert ExecutionRecord.from_metadata(metadata) is None
