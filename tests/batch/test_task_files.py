"""Reading the tasks of a batch."""

from __future__ import annotations

import importlib
import io
import json
import math
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import JsonValue

from codeact_team.batch.tasks import BatchTask, EachFile, TaskError, jobs_of, read_tasks
from codeact_team.config.document import Document, read_document
from codeact_team.config.dumping import write_config
from codeact_team.config.overrides import apply_overrides, field_names, resolve_references
from codeact_team.errors import ConfigError, SettingError


def names(ids: list[str]) -> list[str]:
    return [
        job.name
        for each in ids
        for job in jobs_of(BatchTask(each, "x"), epochs=2, overrides=[], checker=None)
    ]


def nested(depth: int) -> JsonValue:
    value: JsonValue = []
    for _ in range(depth):
        value = [value]
    return value


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
    assert [line.line for line in broken] == [3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert "also the id of line 1" in broken[5].problem
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
    assert [(line.line, "2 fields" in line.problem) for line in broken] == [(4, True)]


def test_tasks_come_from_standard_input() -> None:
    tasks, broken = read_tasks("-", io.BytesIO(b'{"id": 7, "text": "Do."}\n'))
    assert ([task.id for task in tasks], broken) == (["7"], [])


def test_a_pipe_has_the_text_of_a_task_on_each_line_unless_it_begins_with_json() -> None:
    tasks, broken = read_tasks("-", io.BytesIO(b"\nSum it.\n\n{Double} it.\n"))
    assert ([(task.id, task.text) for task in tasks], broken) == (
        [("2", "Sum it."), ("4", "{Double} it.")],
        [],
    )
    tasks, broken = read_tasks("-", io.BytesIO(b'\n{"text": "Sum it."}\nDouble it.\n'))
    assert ([(task.id, task.text) for task in tasks], [line.line for line in broken]) == (
        [("2", "Sum it.")],
        [3],
    )
    tasks, broken = read_tasks("-", io.BytesIO(b"Sum it.\n\xff\n"))
    assert ([task.id for task in tasks], [line.line for line in broken]) == (["1"], [2])


def test_each_file_of_a_pattern_is_the_data_of_a_task(tmp_path: Path) -> None:
    (tmp_path / "sales" / "old").mkdir(parents=True)
    (tmp_path / "outside.csv").write_text("4")
    for name in ("b.csv", "a.csv", ".hidden.csv", "a.txt", "old/a.csv"):
        (tmp_path / "sales" / name).write_text("1")
    (tmp_path / "sales" / "link.csv").symlink_to("../outside.csv")
    source = EachFile(f"{tmp_path}/sales/*.csv", "Sum it.")
    tasks, broken = read_tasks(source)
    assert [(task.id, task.text, task.files) for task in tasks] == [
        (name, "Sum it.", [f"{tmp_path}/sales/{name}"]) for name in ("a.csv", "b.csv")
    ]
    assert [(line.line, "is outside" in line.problem) for line in broken] == [(3, True)]
    tasks, _ = read_tasks(source, allow_outside_files=True)
    assert [task.id for task in tasks] == ["a.csv", "b.csv", "link.csv"]
    tasks, _ = read_tasks(EachFile(f"{tmp_path}/**/a.csv", "Sum it."))
    assert [task.id for task in tasks] == ["sales/a.csv", "sales/old/a.csv"]
    tasks, _ = read_tasks(EachFile(f"{tmp_path}/outside.csv", "Sum it."))
    assert [task.id for task in tasks] == ["outside.csv"]


def test_a_pattern_without_files_says_how_those_of_a_directory_are_meant(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=rf"{tmp_path}/\*, in quotation marks"):
        read_tasks(EachFile(str(tmp_path), "Sum it."))
    with pytest.raises(SettingError, match=r"no\.csv matches no file$"):
        read_tasks(EachFile(f"{tmp_path}/no.csv", "Sum it."))


@pytest.mark.long
def test_parquet_has_the_same_fields(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    # not among the packages of all tests: what code in a session finds here would be another thing than on most machines
    packages = tmp_path_factory.mktemp("packages")
    install = [sys.executable, "-m", "pip", "install", "-q", "--target", str(packages), "pyarrow"]
    subprocess.run(install, check=True)
    monkeypatch.setattr(sys, "path", [str(packages), *sys.path])
    table: Any = importlib.import_module("pyarrow").table
    parquet: Any = importlib.import_module("pyarrow.parquet")
    (tmp_path / "a.csv").write_text("")
    columns = {
        "id": [7, None, None],
        "text": ["Do.", "And that.", None],
        "expected": [42.0, math.nan, None],
        "files": [["a.csv", "a.csv"], [], None],
        "day": [datetime(2024, 1, 2), None, None],
    }
    parquet.write_table(table(columns), tmp_path / "tasks.parquet")
    tasks, broken = read_tasks(tmp_path / "tasks.parquet")
    assert [(task.id, task.text, task.expected, len(task.files), task.fields["day"]) for task in tasks] == [
        ("7", "Do.", 42.0, 2, "2024-01-02T00:00:00"),
        ("2", "And that.", None, 0, None),
    ]
    assert [line.line for line in broken] == [3]
    for name, content in (("no.parquet", b"no"), ("other.parquet", None)):
        if content is None:
            parquet.write_table(table({"task": ["Do."]}), tmp_path / name)
        else:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(SettingError, match="Parquet"):
            read_tasks(tmp_path / name)


def test_parquet_without_its_package_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tasks.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(SettingError, match="pip install pyarrow"):
        read_tasks(tmp_path / "tasks.parquet")


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


def set_by(override: str, **fields: JsonValue) -> Any:
    """What an override sets for a task, also when the config is kept and read again."""
    document = Document("t.yaml", {"provider": "p", "config": {"other": "stays"}})
    environ = {"OPENAI_API_KEY": "the-key", "BASE": "/base"}
    document = resolve_references(apply_overrides(document, [override], fields), environ)
    assert not document.unresolved
    kept = resolve_references(read_document(write_config(document)), environ)
    assert not kept.unresolved
    assert kept.data == document.data
    assert document.data["config"].pop("other") == "stays"
    assert "p" == document.data["provider"]
    [(_, value)] = document.data["config"].items()
    return value


texts = st.text(st.characters(exclude_categories=["Cs"])) | st.lists(
    st.sampled_from(
        ["$", "{", "}", "${", "$${", "${OPENAI_API_KEY}", "{field}", ", ", "]", '"', "'", "#", "\n", "a"]
    )
).map("".join)


@given(
    st.recursive(texts | st.integers() | st.booleans() | st.none(), lambda each: st.lists(each, max_size=3))
)
def test_a_field_sets_its_value_and_nothing_else(value: JsonValue) -> None:
    assert set_by("config.x={field}", field=value) == value
    assert set_by("config.x=[{field}, 1]", field=value) == [value, 1]
    assert set_by("config.x={a: {field}, b: '{field}'}", field=value) == {"a": value, "b": value}


@example("0000000000000000000000000000\x1f\x1f\x1f\x1f\x1f\x1f0 0")
@given(texts)
def test_a_field_within_longer_text_is_text(value: str) -> None:
    assert set_by("config.x=out/{field}.txt: [y", field=value) == f"out/{value}.txt: [y"
    assert set_by('config.x=["inputs/{field}.csv"]', field=value) == [f"inputs/{value}.csv"]
    assert set_by("config.x={field}{field}", field=value) == value * 2
    assert set_by("config.x=${BASE}/{field}", field=value) == f"/base/{value}"


def test_a_field_injects_nothing_into_a_list() -> None:
    assert set_by('config.x=["inputs/{name}.csv"]', name=", /etc/shadow] #") == [
        "inputs/, /etc/shadow] #.csv"
    ]
    assert set_by("config.x=[inputs/{name}]", name="a, /etc/shadow, b") == ["inputs/a, /etc/shadow, b"]
    assert set_by("config.x=[{name}]", name='", /etc/shadow, "') == ['", /etc/shadow, "']


def test_two_fields_make_no_reference_together() -> None:
    assert set_by("config.x={a}{b}", a="$", b="{OPENAI_API_KEY}") == "${OPENAI_API_KEY}"


def test_numbers_and_lists_are_written_out_within_text() -> None:
    assert set_by("config.x=a{n} of {many}", n=1, many=[1, "b"]) == 'a1 of [1, "b"]'


def test_what_is_no_field_is_left_to_yaml_and_the_environment() -> None:
    assert field_names("a={provider: x, config: {}}") == set()
    assert field_names("a=${HOME} and $${id}") == set()


@pytest.mark.parametrize(
    ("override", "fields", "said"),
    [
        ("config.x={ {name}: 1 }", {"name": "a"}, "cannot stand for a key"),
        ("config.x=[{name}", {"name": "a"}, "cannot be read as YAML"),
        ("config.x={name}", {"name": nested(200)}, "nested more than 100 deep"),
    ],
)
def test_an_override_that_cannot_be_filled_is_an_error(
    override: str, fields: dict[str, JsonValue], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        apply_overrides(Document("t.yaml", {"config": {}}), [override], fields)


def test_a_field_that_says_a_dollar_stands_beside_no_reference() -> None:
    document = Document("t.yaml", {"config": {}})
    document = apply_overrides(document, ["config.x={price}${UNIT}"], {"price": "5$"})
    [reason] = resolve_references(document, {"UNIT": "EUR"}).unresolved.values()
    assert "cannot stand beside a reference" in reason


def test_a_name_that_a_task_does_not_have_is_told_with_the_nearest() -> None:
    task = BatchTask("a", "x", fields={"steps": 3})
    with pytest.raises(TaskError, match="did you mean 'steps'"):
        jobs_of(task, epochs=1, overrides=["config.max_steps={stepz}"], checker=None)


@pytest.mark.parametrize("name", ["../outside.csv", "{outside}", "link", "folder/link"])
def test_files_outside_the_directory_of_the_tasks_need_a_permission(name: str, tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside.csv", tmp_path / "tasks"
    outside.write_text("")
    (folder / "folder").mkdir(parents=True)
    (folder / "link").symlink_to(outside)
    (folder / "folder" / "link").symlink_to("../..")
    (folder / "inside.csv").write_text("")
    (folder / "inner").symlink_to("inside.csv")
    name = name.format(outside=outside)
    file = folder / "tasks.jsonl"
    file.write_text(
        json.dumps({"text": "Do.", "files": [name]})
        + '\n{"text": "Do.", "files": ["inside.csv", "inner", "."]}'
    )
    tasks, [broken] = read_tasks(file)
    assert [task.line for task in tasks] == [2]
    assert "--allow-outside-files" in broken.problem
    tasks, broken = read_tasks(file, allow_outside_files=True)
    assert (len(tasks), broken) == (2, [])


def test_a_name_that_no_file_can_have_is_a_broken_line(tmp_path: Path) -> None:
    _, broken = read_tasks([{"text": "Do.", "files": ["x" * 5000]}, {"text": "Do.", "files": ["\ud800"]}])
    assert ["there is no file" in line.problem for line in broken] == [True, True]


def test_what_is_said_twice_is_refused(tmp_path: Path) -> None:
    _, [broken] = read_tasks("-", io.BytesIO(b'{"text": "Do.", "o": {"a": 1, "a": 2}}\n'))
    assert "it has the key 'a' twice" in broken.problem
    (tmp_path / "tasks.csv").write_text("text,level,level,,\nDo.,1,2,,\n")
    with pytest.raises(SettingError, match="two columns of the tasks are named 'level'"):
        read_tasks(tmp_path / "tasks.csv")
