"""JSON that is nested too deeply is refused wherever it is read, however deep the Python that reads it could go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from codeact_team.batch.tasks import parse_exact_json, read_tasks
from codeact_team.journal.blobs import parse
from codeact_team.models.structured import UnreadableAnswer, read_value
from codeact_team.text.nesting import MAX_NESTING, check_nesting


def nested(levels: int) -> str:
    return '[{"a": ' * (levels // 2) + "1" + "}]" * (levels // 2)


def test_as_many_levels_are_read() -> None:
    text = nested(MAX_NESTING)
    value = json.loads(text)
    check_nesting(value)
    assert parse(text.encode()) == parse_exact_json(text) == read_value(text) == value


@pytest.mark.parametrize("levels", [MAX_NESTING + 2, 2_000, 40_000])
def test_more_levels_are_refused(levels: int) -> None:
    text = nested(levels)
    for read in (lambda: parse(text.encode()), lambda: parse_exact_json(text)):
        with pytest.raises(ValueError, match="it is nested too deeply"):
            read()
    with pytest.raises(UnreadableAnswer, match="nested too deeply"):
        read_value(text)


def test_a_line_of_a_task_file_that_is_too_deep_is_told(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text(f'{{"text": "a", "expected": {nested(2_000)}}}\n{{"text": "b"}}\n')
    tasks, broken = read_tasks(tmp_path / "tasks.jsonl")
    assert [task.text for task in tasks] == ["b"]
    assert [line.problem for line in broken] == ["it is not JSON: it is nested too deeply"]


@pytest.mark.parametrize("value", [None, 1, "[[[", [], {}, {"a": [1, {"b": ()}]}], ids=repr)
def test_a_value_that_is_not_deep_may_be_any(value: Any) -> None:
    check_nesting(value)
