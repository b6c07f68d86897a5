"""What differs between two results is told as a diff, whatever code has written."""

from __future__ import annotations

import pytest
from support.variations import mostly_long

from codeact_team.core.execution import ExecutionResult, Outcome, SessionResult
from codeact_team.journal.differences import difference


def result(output: str, exit_code: int = 0) -> ExecutionResult:
    return ExecutionResult(exit_code=exit_code, output=output)


def lines(count: int) -> list[str]:
    return [f"line {n}" for n in range(count)]


def test_the_lines_that_differ_stand_among_their_neighbours() -> None:
    before, after = lines(100), lines(100)
    after[50] = "another"
    assert difference(result("\n".join(before)), result("\n".join(after))) == (
        "--- recorded\n+++ now\n@@ -48,7 +48,7 @@\n line 47\n line 48\n line 49\n-line 50\n+another\n line 51\n line 52\n line 53"
    )


def test_results_that_are_alike_have_no_difference() -> None:
    assert difference(result("a\nb\n"), result("a\nb\n")) is None


def test_an_exit_code_or_how_the_code_came_to_its_end_makes_a_difference() -> None:
    timed_out = ExecutionResult(exit_code=124, output="a", outcome=Outcome.TIMED_OUT)
    assert difference(result("a"), timed_out) == (
        "--- recorded\n+++ now\n@@ -1,1 +1,1 @@\n-exit code 0\n+exit code 124 (timed out)"
    )


def test_the_answer_of_the_code_makes_a_difference() -> None:
    then, now = (SessionResult(exit_code=0, output="", answer=answer) for answer in ("6", "7"))
    assert "-final answer: 6\n+final answer: 7" in (difference(then, now) or "")


@pytest.mark.parametrize(
    "text",
    [
        "<__main__.Node object at 0x{}>",
        "<built-in method f of type object at 0x{:.6}>",
        "Thread 0x0000{} (most recent call first):",
    ],
)
def test_addresses_in_memory_make_none(text: str) -> None:
    assert difference(result(text.format("7f3c1c0b2d90")), result(text.format("7e1aa2c4f010"))) is None


def test_the_names_of_temporary_directories_make_none() -> None:
    then, now = (
        result(f"/tmp/codeact-team-{name}/workspace/a.txt") for name in ("12-abcdefgh", "345-_x1y2z34")
    )
    assert difference(then, now) is None


def test_short_hexadecimal_numbers_are_numbers() -> None:
    assert difference(result(hex(30)), result(hex(31))) is not None


def test_directories_are_known_by_their_names() -> None:
    then, now = result("in /tmp/old/a.txt and /tmp/older"), result("in /tmp/new/a.txt and /tmp/older")
    assert difference(then, now, paths={"/tmp/old": "«work»", "/tmp/new": "«work»", "": "never"}) is None


def test_an_inserted_line_does_not_make_others_differ_where_the_rest_is_cut_off() -> None:
    before = lines(1000)
    after = ["new", *before[:-1], "the last differs, too"]
    told = (difference(result("\n".join(before)), result("\n".join(after))) or "").splitlines()
    assert [line for line in told[3:] if line.startswith(("-", "+"))] == ["+new"]
    assert told[-1] == "[… the rest is not compared]"


@pytest.mark.long
def test_what_differs_deep_in_a_long_line_is_shown() -> None:
    told = difference(result("a" * 3_000_050 + "b"), result("a" * 3_000_050 + "c")) or ""
    assert "a" * 10 + "b\n" in told
    assert len(told) < 1000


@pytest.mark.parametrize(
    ("before", "after"),
    mostly_long(
        [
            ("a\n" * 400_000, "b\n" * 400_000),
            ("a\nb\n" * 200_000, "b\na\n" * 200_000),
            ("x" * 1_000_000, "y" * 1_000_000),
            ("0x" * 500_000, "0xa" * 500_000),
            ("at " * 500_000, "at 0x" * 300_000),
            ("/tmp/" * 200_000, "/tmp" * 200_000),
        ]
    ),
)
def test_hostile_outputs_take_no_more_time_and_space_than_others(before: str, after: str) -> None:
    # quadratic time would be days
    told = difference(result(before), result(after), paths={"/tmp/work": "«work»"})
    assert told is not None
    assert len(told) < 25_000
