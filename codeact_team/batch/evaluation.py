"""Whether an answer is right: as it is expected, or as a checker says, which is code and runs in a sandbox."""

from __future__ import annotations

import copy
import json
import re
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from pydantic import JsonValue

from codeact_team.batch import exact_json
from codeact_team.batch.job_configs import WORKSPACES
from codeact_team.config.document import Document, at
from codeact_team.config.loading import CheckedConfig
from codeact_team.config.validation import check_components
from codeact_team.errors import SettingError
from codeact_team.executor_interface import StreamingCodeExecutor
from codeact_team.scope import Scope

_MAX_SAID = 2000
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_FILES = "task-files"
"""What a checker's sandbox calls the files of the task: as no module is called."""


def matches(answer: str, expected: JsonValue) -> bool:
    """Whether an answer is the expected one: the same text, number, or JSON. White space around it does not matter."""
    answer = answer.strip()
    if isinstance(expected, str):
        wanted = expected.strip()
        number = _number(wanted)
        return answer == wanted or (number is not None and _number(answer) == number)
    try:
        # true is not 1
        return _normal_text(exact_json.loads(answer)) == _normal_text(expected)
    except (ValueError, RecursionError):
        return False


def _number(text: str) -> Decimal | None:
    """The number that a text is, with all its digits; Python's float would take 1_000, other scripts and nan as well."""
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
            return exact_json.whole(value)
        case dict():
            return {key: _normal(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
        case list() | tuple():
            return [_normal(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value


async def objection_of(
    checker: str, config: CheckedConfig, *, answer: str, expected: JsonValue, files: Path
) -> str | None:
    """What a checker has against an answer; ``None`` if nothing.

    It runs in a new sandbox, as the first executor of the config makes them. It finds ``answer``, ``expected`` and ``files``,
    the path of a directory with what the task has made or changed, and raises where something is wrong.

    Args:
        checker: Python.
        config: That of the task.
        answer: What is to be checked; hostile.
        expected: What the task says of it.
        files: Where on this machine the files of the task are; there may be no such directory.

    Raises:
        SettingError: If the config has no executor for it.
        SandboxError: If its sandbox does not start.
    """
    async with Scope():
        executor = _executor(config, files)
        await executor.prepare()
        block = CodeBlock(code=f"{_given(answer, expected, files)}\n{checker}", language="python")
        result = await executor.execute_code_blocks([block], CancellationToken())
    return None if result.exit_code == 0 else result.output[-_MAX_SAID:].strip() or "the checker has failed"


def _given(answer: str, expected: JsonValue, files: Path) -> str:
    """Code that sets what a checker finds."""
    # in ASCII, and as literals: nothing that an answer says is taken for code, and no module is imported that files of the
    # task could stand in for
    given = f"answer, expected, files = {(answer, expected, _FILES)!a}"
    if not files.is_dir():
        return given
    # the directory has the name of the task, which may be that of a module; `os` is loaded before any code runs
    return f"__import__('os').rename({files.name!a}, {_FILES!r})\n{given}"


def _executor(config: CheckedConfig, files: Path) -> StreamingCodeExecutor:
    part = next((part for part in config.parts if issubclass(part.component, StreamingCodeExecutor)), None)
    if part is None:
        raise SettingError(
            "the checker has no sandbox to run in: the config has no code executor of codeact_team"
        )
    described = copy.deepcopy(at(config.document.data, part.path))
    settings = {**described["config"], "data": [str(files)] if files.is_dir() else []}
    # not in a workspace where the task has left anything
    described["config"] = {name: value for name, value in settings.items() if name not in WORKSPACES}
    document = Document(config.document.name, described)
    made = CheckedConfig(document, check_components(document, config.policy), config.policy).make()
    assert isinstance(made, StreamingCodeExecutor)
    return made
