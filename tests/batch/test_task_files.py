"""Reading the tasks of a batch."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from codeact_team import SettingError
from codeact_team.batch.tasks import BatchTask, jobs_of, read_tasks
from codeact_team.batch.templates import fill
from codeact_team.config import yaml12


def names(ids: list[str]) -> list[str]:
    return [
        job.name
        for each in ids
        for job in jobs_of(BatchTask(each, "x"), epochs=2, overrides=[], checker=None)
    ]


def test_a_broken_line_is_told_with_its_number_and_the_others_stand(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_bytes(
        b'\xef\xbb\xbf{"id": "a", "text": "Do."}\n'
        b"\n"
        b"{\n"
        b'["no", "object"]\n'
        b'{"id": "b"}\n'
        b'{"id": "c", "text": 3}\n'
        b'{"id": true, "text": "Do."}\n'
        b'{"id": "a", "text": "Do it again."}\n'
        b'{"id": "d", "text": "Do.", "files": ["missing.csv"]}\n'
        b'{"id": "e", "text": "Do.", "expected": NaN}\n'
        b'{"text": "\xff"}\n'
        b'{"text": "No id."}'
    )
    tasks, broken = read_tasks(file)
    assert [(task.id, task.text, task.line) for task in tasks] == [("a", "Do.", 1), ("12", "No id.", 12)]
    assert [line.number for line in broken] == [3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert "that of line 1" in broken[5].problem
    assert "there is no file" in broken[6].problem


def test_csv_has_the_same_fields(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("")
    file = tmp_path / "tasks.csv"
    file.write_text(
        'id,text,expected,files,level\n1,"Do\nthis",42,a.csv;a.csv,3\n2,too few\n\n3,And that,,,\n'
    )
    tasks, broken = read_tasks(file)
    assert [(task.id, task.text, task.expected, len(task.files), task.fields["level"]) for task in tasks] == [
        ("1", "Do\nthis", "42", 2, "3"),
        ("3", "And that", None, 0, ""),
    ]
    assert [(line.number, "2 fields" in line.problem) for line in broken] == [(4, True)]


def test_tasks_come_from_standard_input() -> None:
    tasks, broken = read_tasks("-", io.BytesIO(b'{"id": 7, "text": "Do."}\n'))
    assert ([task.id for task in tasks], broken) == (["7"], [])


@pytest.mark.parametrize(("name", "content"), [("no.jsonl", None), ("no.csv", "id,task\n1,x\n")])
def test_what_has_no_tasks_at_all_is_an_error(name: str, content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(SettingError):
        read_tasks(tmp_path / name)


def test_no_two_tasks_share_a_directory() -> None:
    ids = ["a", "A", "a b", "a-b", "../a", ".", "", " ", "a@2", "é", "CON", "x" * 200, "x" * 199]
    assert len({name.lower() for name in names(ids)}) == 2 * len(ids)
    assert all("/" not in name and not name.startswith(".") for name in names(ids))


def test_more_epochs_keep_the_names_of_the_first() -> None:
    assert names(["a"]) == ["a", "a@2"]


@given(
    st.one_of(
        st.text(st.characters(exclude_categories=["Cs"])),
        st.integers(),
        st.booleans(),
        st.lists(st.text("ab:, ")),
    )
)
def test_a_field_sets_its_value_and_nothing_else(value: JsonValue) -> None:
    path, _, text = fill("config.x={field}", {"field": value}).partition("=")
    assert path == "config.x"
    assert yaml12.parse_value(text) == value
    _, _, text = fill("config.x=[{field}, 1]", {"field": value}).partition("=")
    assert yaml12.parse_value(text) == [value, 1]


def test_a_field_within_text_is_text() -> None:
    assert fill("a.b=out/{id}.txt", {"id": "x: [y"}) == 'a.b="out/x: [y.txt"'
    assert fill("a={provider: x, config: {}}", {}) == "a={provider: x, config: {}}"
