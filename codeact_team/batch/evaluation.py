"""Judges the answers of tasks, and measures how many are right."""

from __future__ import annotations

import json
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from math import comb, sqrt
from pathlib import Path
from typing import Any

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from pydantic import JsonValue

from codeact_team.batch.results import BatchResult, JobResult, Share, WrongAnswer
from codeact_team.batch.tasks import parse_exact_json, whole_number
from codeact_team.config.components import DIRECTORY_FIELDS, PlacedComponent
from codeact_team.config.loading import CheckedConfig
from codeact_team.core.executor_interface import StreamingCodeExecutor
from codeact_team.core.scope import Scope
from codeact_team.errors import SettingError
from codeact_team.text.visibility import one_line

_MAX_OUTPUT = 2000
"""Characters."""
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_FILES = "task-files"
"""The directory of the task's files in the sandbox of a checker: no module can have this name."""
_MOST_SHOWN = 10
"""Wrong answers that a result of a batch shows."""
_MAX_SHOWN = 100
"""Characters of each text."""
_REJECTED = 65
"""The exit code of a checker that rejects the answer; one that fails has another one."""
_JUDGE = f"""
def _judge(source):
    import linecache, sys, traceback
    linecache.cache["<checker>"] = (len(source), None, source.splitlines(True), "<checker>")
    try:
        exec(compile(source, "<checker>", "exec"), globals())
    except Exception as error:
        traceback.print_exception(type(error), error, error.__traceback__.tb_next)
        sys.exit({_REJECTED} if isinstance(error, AssertionError) else 1)
"""
_COMPILE = """
def _fails(source):
    try:
        compile(source, "<checker>", "exec", dont_inherit=True)
    except Exception:
        return True
print(*[number for number, source in enumerate({checkers}) if _fails(source)])
"""


def matches(answer: str, expected: JsonValue) -> bool:
    """Whether an answer equals the expected one, as the same text, number, or JSON. White space around it does not matter."""
    answer = answer.strip()
    if isinstance(expected, str):
        wanted = expected.strip()
        number = _number(wanted)
        return answer == wanted or (number is not None and _number(answer) == number)
    try:
        # true is not 1
        return _normal_text(parse_exact_json(answer)) == _normal_text(expected)
    except (ValueError, RecursionError):
        return False


def _number(text: str) -> Decimal | None:
    """The number in a text, with all its digits. Python's float would also take 1_000, digits of other scripts, and nan."""
    try:
        return Decimal(text) if _NUMBER.fullmatch(text) else None
    except InvalidOperation:
        # an exponent of twenty digits
        return None


def _normal_text(value: JsonValue) -> str:
    return json.dumps(_normal(value), sort_keys=True)


def _normal(value: Any) -> Any:
    match value:
        case float():
            return whole_number(value)
        case dict():
            return {key: _normal(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
        case list() | tuple():
            return [_normal(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value


@dataclass(frozen=True)
class Judgement:
    """A checker's judgement of an answer.

    Attributes:
        is_right: Whether the answer is right; ``None`` if the checker has failed.
        output: The error message of a checker that rejected the answer, or failed; hostile data.
        failure: The failure of the checker, in a line; hostile data.
    """

    is_right: bool | None
    output: str | None = None
    failure: str | None = None


async def judged(
    checker: str, config: CheckedConfig, *, answer: str, expected: JsonValue, files: Path
) -> Judgement:
    """Run a checker, which judges an answer.

    The checker runs in a new sandbox of the first executor of the config, and rejects the answer by an ``AssertionError``. It
    fails by any other exception, and if it does not end in the time that the executor has for code. It has the
    variables ``answer``, ``expected`` and ``files``, the path of a directory with the files that the task made or changed.
    The directory ``files`` of this machine may be missing.

    Raises:
        SandboxError: If the sandbox does not start.
    """
    async with Scope():
        executor = _executor(config, files)
        await executor.prepare()
        program = f"{_given(answer, expected, files)}\n{_JUDGE}\n_judge({checker!a})"
        block = CodeBlock(code=program, language="python")
        result = await executor.execute_code_blocks([block], CancellationToken())
    if result.exit_code == 0:
        return Judgement(is_right=True)
    output = result.output[-_MAX_OUTPUT:].strip() or f"exit code {result.exit_code}"
    if result.exit_code == _REJECTED:
        return Judgement(is_right=False, output=output)
    return Judgement(is_right=None, output=output, failure=output.splitlines()[-1])


async def syntax_problems(checkers: Iterable[str], config: CheckedConfig) -> Mapping[str, tuple[int, str]]:
    """Those of the ``checkers`` that are no Python: each with the line, counted from 1, and why.

    The Python of a sandbox may be newer than this one, and is asked about code that this one does not understand.

    Raises:
        SettingError: If the config has no executor for checkers.
        SandboxError: If the sandbox does not start.
    """
    found = {checker: problem for checker in checkers if (problem := _syntax_problem(checker)) is not None}
    _executor_part(config)
    if not found:
        return found
    async with Scope():
        executor = _executor(config, None)
        await executor.prepare()
        block = CodeBlock(code=_COMPILE.format(checkers=ascii([*found])), language="python")
        result = await executor.execute_code_blocks([block], CancellationToken())
    if result.exit_code != 0:
        return found
    failing = result.output.split()
    return {
        checker: problem for number, (checker, problem) in enumerate(found.items()) if str(number) in failing
    }


def _syntax_problem(code: str) -> tuple[int, str] | None:
    try:
        with warnings.catch_warnings(action="ignore"):
            compile(code, "<checker>", "exec", dont_inherit=True)
    except SyntaxError as error:
        return error.lineno or 1, error.msg
    except (ValueError, MemoryError, RecursionError) as error:
        # a null character, or brackets that are nested too deeply
        return 1, str(error) or "it is nested too deeply"
    return None


def _given(answer: str, expected: JsonValue, files: Path) -> str:
    """Code that sets the variables of a checker."""
    # as literals in ASCII, so that an answer cannot become code, and without an import, which files of the task could shadow
    given = f"answer, expected, files = {(answer, expected, _FILES)!a}"
    if not files.is_dir():
        return given
    # the directory has the name of the task, which may be a module's; `os` is loaded already
    return f"__import__('os').rename({files.name!a}, {_FILES!r})\n{given}"


def _executor_part(config: CheckedConfig) -> PlacedComponent:
    part = next((part for part in config.parts if issubclass(part.component, StreamingCodeExecutor)), None)
    if part is None:
        raise SettingError(
            "the checker has no sandbox to run in: the config has no code executor of codeact_team"
        )
    return part


def _executor(config: CheckedConfig, files: Path | None) -> StreamingCodeExecutor:
    def change(_: type, settings: dict[str, Any]) -> None:
        settings["data"] = [str(files)] if files is not None and files.is_dir() else []
        # not in a workspace where the task may have left files
        for name in DIRECTORY_FIELDS:
            settings.pop(name, None)

    made = config.only(_executor_part(config)).with_settings(change).make()
    assert isinstance(made, StreamingCodeExecutor)
    return made


_Z = 1.959963984540054
"""The number of standard deviations on both sides within which 95 % of a normal distribution lie."""


def wilson_interval(share: float, trials: float) -> tuple[float, float]:
    """Wilson's interval for a share of successes, with a confidence of 95 %."""
    spread = _Z * _Z / trials
    middle = (share + spread / 2) / (1 + spread)
    half = _Z * sqrt(share * (1 - share) / trials + spread / (4 * trials)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


def pass_at(k: int, samples: int, passed: int) -> float:
    """The chance that at least one of ``k`` runs passes, by the unbiased estimator of Chen et al. (2021)."""
    return 1.0 - comb(samples - passed, k) / comb(samples, k)


def mean_pass_at(k: int, counts: Iterable[tuple[int, int]]) -> float | None:
    """The mean of :func:`pass_at` over the tasks with at least ``k`` runs; ``None`` if no task has.

    Args:
        k: A number of runs.
        counts: For each task, the number of its runs, and how many of them passed.
    """
    each = [pass_at(k, samples, passed) for samples, passed in counts if samples >= k]
    return sum(each) / len(each) if each else None


def summarize(results: Iterable[JobResult], epochs: int) -> BatchResult:
    """The outcomes and measures of a batch, from the results of its runs; the other fields are left empty."""
    outcomes: Counter[str] = Counter()
    accepted, passed, right = (defaultdict[str, list[bool]](list) for _ in range(3))
    transient = reviewed = 0
    is_estimated = False
    wrong: list[WrongAnswer] = []
    for result in results:
        outcomes[str(result.outcome)] += 1
        transient += result.is_transient
        reviewed += result.is_reviewed
        is_estimated |= result.is_estimated
        if result.is_final:
            accepted[result.id].append(result.counts)
            passed[result.id].append(result.passes)
            if result.correct is not None:
                right[result.id].append(result.correct)
            if result.correct is False and len(wrong) < _MOST_SHOWN:
                wrong.append(wrong_answer(result))
    counts = [(len(each), sum(each)) for each in passed.values()]
    # the powers of two, and all runs
    ks = sorted({*(1 << power for power in range(epochs.bit_length())), epochs}) if epochs > 1 else []
    chances = {k: mean_pass_at(k, counts) for k in ks}
    return BatchResult(
        directory="",
        jobs=0,
        outcomes=dict(outcomes),
        reviewed=reviewed,
        transient=transient,
        is_estimated=is_estimated,
        wrong=sum(each.count(False) for each in right.values()),
        wrong_answers=wrong,
        accuracy=_share(right),
        acceptance=_share(accepted),
        pass_at={k: round(chance, 6) for k, chance in chances.items() if chance is not None},
    )


def wrong_answer(result: JobResult) -> WrongAnswer:
    """Return the wrong answer of a result with the expected one and the checker's last line, cut short."""
    expected = result.expected
    if expected is not None and not isinstance(expected, str):
        expected = json.dumps(expected, ensure_ascii=False)
    last = (result.check or "").splitlines()[-1:]
    given = (expected, result.answer, *(last or [None]))
    return WrongAnswer(
        result.id, result.epoch, *(None if text is None else one_line(text, _MAX_SHOWN) for text in given)
    )


def _share(found: Mapping[str, Sequence[bool]]) -> Share | None:
    if not found:
        return None
    # runs of the same task are not independent, so each task counts as one trial
    value = sum(sum(each) / len(each) for each in found.values()) / len(found)
    low, high = wilson_interval(value, len(found))
    return Share(round(value, 6), round(low, 6), round(high, 6), len(found))
