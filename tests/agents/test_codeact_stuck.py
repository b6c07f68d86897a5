from __future__ import annotations

from autogen_core.code_executor import CodeBlock

from codeact_team.agents.codeact.run import Repetition
from codeact_team.core.execution import ExecutionResult


def counted(*steps: tuple[str, str]) -> list[int]:
    """How many steps in a row had brought nothing new, after each."""
    repetition = Repetition()
    counts: list[int] = []
    for code, output in steps:
        block = CodeBlock(code=code, language="python")
        repetition.note([block], ExecutionResult(exit_code=0, output=output))
        counts.append(repetition.steps)
    return counts


def test_the_same_again_is_counted():
    assert counted(("a", "1"), ("a", "1"), ("a", "1"), ("a", "1")) == [0, 1, 2, 3]


def test_blanks_around_the_code_make_no_difference():
    assert counted(("a", "1"), ("\na  \n", "1")) == [0, 1]


def test_another_result_is_new():
    assert counted(("a", "1"), ("a", "2"), ("a", "3")) == [0, 0, 0]


def test_what_changes_by_itself_is_not_new():
    def result(number: int) -> str:
        return (
            f'  File "<block {number}>", line 1, in <module>\n'
            f"<Job object at 0x7f{number:06x}a0> in /tmp/tmp{number:x}abcde_1\n"
            f"2026-11-{number:02} 12:00:{number:02},123 12:{number}:00 took {number}.5 seconds, {number} ms\n"
            f"1 failed in 0.{number}s"
        )

    assert counted(*[("a", result(number)) for number in range(10, 14)]) == [0, 1, 2, 3]


def test_what_counts_on_or_down_is_new():
    def result(number: int) -> str:
        return f"{number} of 20 done, {20 - number} s left, v1.{number}, 2026-11-{number + 10}, line {number}:{number}"

    assert counted(*[("a", result(number)) for number in range(4)]) == [0, 0, 0, 0]


def test_a_test_between_changes_that_are_new_is_no_circle():
    assert counted(("edit 1", ""), ("test", "no"), ("edit 2", ""), ("test", "no"), ("edit 3", "")) == [
        0,
        0,
        0,
        1,
        0,
    ]


def test_going_round_in_a_circle_of_several_steps_is_counted():
    assert counted(("a", "1"), ("b", "2"), ("a", "1"), ("b", "2"), ("a", "1")) == [0, 0, 1, 2, 3]


def test_an_error_with_the_same_output_is_another_result():
    repetition = Repetition()
    block = CodeBlock(code="a", language="python")
    repetition.note([block], ExecutionResult(exit_code=0, output="x"))
    repetition.note([block], ExecutionResult(exit_code=1, output="x"))
    assert repetition.steps == 0
