"""Measures of evaluation, against values that were worked out by others."""

from __future__ import annotations

import io
from itertools import combinations

import pytest
from pydantic import JsonValue

from codeact_team.batch.evaluation import matches, mean_pass_at, pass_at, wilson_interval
from codeact_team.batch.tasks import read_tasks


@pytest.mark.parametrize(
    ("passed", "trials", "low", "high"),
    # from Newcombe (1998), and R's binom.confint(method="wilson")
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (29, 29, 0.8830, 1.0),
    ],
)
def test_wilsons_interval(passed: int, trials: int, low: float, high: float) -> None:
    assert wilson_interval(passed / trials, trials) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize("samples", [1, 4, 7])
def test_pass_at_k_is_the_share_of_choices_with_one_that_passes(samples: int) -> None:
    for passed in range(samples + 1):
        for k in range(1, samples + 1):
            choices = list(combinations([True] * passed + [False] * (samples - passed), k))
            assert pass_at(k, samples, passed) == pytest.approx(sum(map(any, choices)) / len(choices))


def test_tasks_with_too_few_runs_do_not_count() -> None:
    assert mean_pass_at(2, [(2, 1), (2, 0), (1, 1)]) == 0.5
    assert mean_pass_at(2, [(1, 1)]) is None


@pytest.mark.parametrize(
    ("answer", "expected", "same"),
    [
        (" Paris\n", "Paris", True),
        ("paris", "Paris", False),
        ("42.0", "42", True),
        ("42", 42, True),
        ("The answer is 42", 42, False),
        ('{"b": [1, 2.0], "a": null}', {"a": None, "b": [1.0, 2]}, True),
        ("true", 1, False),
        ("1", True, False),
        ("nan", "nan", True),
        ("[" * 100_000, [], False),
        ("x", ["x"], False),
    ],
)
def test_an_answer_is_compared_as_what_is_expected(answer: str, expected: JsonValue, same: bool) -> None:
    assert matches(answer, expected) is same


@pytest.mark.parametrize(
    ("answer", "written", "is_right"),
    [
        ("9007199254740992", "9007199254740993", False),
        (" 9007199254740993\n", "9007199254740993", True),
        ("9007199254740993.0", "9007199254740993", True),
        ("9007199254740992", "9007199254740993.0", False),
        ("9007199254740992.5", "9007199254740992", False),
        ("0.99999999999999999999", "1", False),
        ("9007199254740992", '"9007199254740993"', False),
        ("0.10000000000000000001", '"0.1"', False),
        ("100000000000000000000000", "1e23", True),
        ("1e400", "1e308", False),
        ("0.10", "0.1", True),
        ("5.0", "5", True),
        ("5.0", '"5"', True),
        ("+5", '"5"', True),
        ("1", "true", False),
        ('{"b": [1.0], "a": 2}', '{"a": 2, "b": [1]}', True),
        ('{"a": 1, "a": 2}', '{"a": 2}', False),
        ("1_000", '"1000"', False),
        ("1_000", '"1_000"', True),
        ("\uff11\uff12", '"12"', False),
        ("\uff11\uff12", '"\uff11\uff12"', True),
        ("NaN", '"nan"', False),
        ("nan", '"nan"', True),
        ("inf", '"Infinity"', False),
        ("[" * 900 + "]" * 900, "[1]", False),
        ("1e99999999999999999999", '"1"', False),
    ],
)
def test_an_answer_is_right_if_it_is_exactly_the_expected_one(
    answer: str, written: str, is_right: bool
) -> None:
    [task], _ = read_tasks("-", io.BytesIO(f'{{"text": "Do.", "expected": {written}}}'.encode()))
    assert matches(answer, task.expected) is is_right
