"""Whether an answer is right: as it is expected, or as a checker says, which is code and runs in a sandbox."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from pydantic import JsonValue

from codeact_team.config.document import Document, at
from codeact_team.config.loading import CheckedConfig
from codeact_team.config.validation import check_components
from codeact_team.errors import SettingError
from codeact_team.executor_interface import StreamingCodeExecutor
from codeact_team.scope import Scope

_MAX_SAID = 2000


def matches(answer: str, expected: JsonValue) -> bool:
    """Whether an answer is the expected one: the same text, number, or JSON. White space around it does not matter."""
    answer = answer.strip()
    if isinstance(expected, str):
        wanted = expected.strip()
        number = _number(wanted)
        return answer == wanted or (number is not None and _number(answer) == number)
    try:
        found: JsonValue = json.loads(answer)
    except (ValueError, RecursionError):
        return False
    # true is not 1
    return json.dumps(_normal(found), sort_keys=True) == json.dumps(_normal(expected), sort_keys=True)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _normal(value: Any) -> Any:
    match value:
        case bool() | None | str():
            return value
        case int() | float():
            try:
                return float(value)
            except OverflowError:
                return value
        case dict():
            return {key: _normal(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
        case _:
            return [_normal(item) for item in value]


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
    values = {"answer": answer, "expected": expected, "files": files.name}
    # in ASCII, and as literals: nothing that an answer says is taken for code, and no module is imported that files of the
    # task could stand in for
    given = ", ".join(values) + " = " + ascii(tuple(values.values()))
    async with Scope():
        executor = _executor(config, files)
        await executor.prepare()
        block = CodeBlock(code=f"{given}\n{checker}", language="python")
        result = await executor.execute_code_blocks([block], CancellationToken())
    return None if result.exit_code == 0 else result.output[-_MAX_SAID:].strip() or "the checker has failed"


def _executor(config: CheckedConfig, files: Path) -> StreamingCodeExecutor:
    part = next((part for part in config.parts if issubclass(part.component, StreamingCodeExecutor)), None)
    if part is None:
        raise SettingError(
            "the checker has no sandbox to run in: the config has no code executor of codeact_team"
        )
    described = copy.deepcopy(at(config.document.data, part.path))
    described["config"] = {**described["config"], "data": [str(files)] if files.is_dir() else []}
    document = Document(config.document.name, described)
    made = CheckedConfig(document, check_components(document, config.policy), config.policy).make()
    assert isinstance(made, StreamingCodeExecutor)
    return made
