"""The tasks of a batch: read from JSON lines or CSV, where a line that is broken is told, and the others stand."""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, cast

from pydantic import JsonValue

from codeact_team.batch import exact_json
from codeact_team.config.overrides import field_names
from codeact_team.core.files import open_regular
from codeact_team.core.providers import did_you_mean
from codeact_team.errors import SettingError

_PLAIN_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}")
_MAX_ID = 200
_MIB = 1 << 20
_MAX_LINE = 64 * _MIB
_OURS = ("id", "text", "files", "expected", "checker")


class TaskError(Exception):
    """A task that cannot be run; the text says why."""


@dataclass(frozen=True)
class BatchTask:
    """A task of a batch.

    Attributes:
        id: What it is known by.
        text: What to do.
        files: Files and directories of this machine, of which the code gets copies.
        expected: The answer that is right, where that is known: text, or JSON where agents answer with that.
        checker: Python that raises where the answer is wrong; it runs in a sandbox.
        fields: All that is said of it, by which ``{field}`` in an override is replaced.
        line: Where it was in its file, counted from 1.
    """

    id: str
    text: str
    files: Sequence[str] = ()
    expected: JsonValue = None
    checker: str | None = None
    fields: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    line: int = 0


@dataclass(frozen=True)
class BrokenLine:
    """A line that is no task.

    Attributes:
        number: Of the line, counted from 1.
        problem: What is wrong with it.
    """

    number: int
    problem: str


@dataclass(frozen=True)
class Job:
    """One run of a task. As JSON it is what a worker is given.

    Attributes:
        task_id: Of which task.
        epoch: The how-manieth of its runs, counted from 1.
        name: What it is called in paths.
        overrides: Changes to the config for it alone, with ``{field}`` in them.
        fields: What each of these fields stands for.
    """

    task_id: str
    epoch: int
    name: str
    text: str
    files: Sequence[str]
    overrides: Sequence[str]
    fields: Mapping[str, JsonValue]
    expected: JsonValue
    checker: str | None

    @property
    def digest(self) -> str:
        """What tells it from a job that would run otherwise."""
        return _digest([self.text, [*self.files], [*self.overrides], {**self.fields}])

    @property
    def check_digest(self) -> str:
        """What tells it from a job whose answer would be judged otherwise."""
        return _digest([self.expected, self.checker])


def _digest(value: Any) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


def jobs_of(task: BatchTask, *, epochs: int, overrides: Sequence[str], checker: str | None) -> list[Job]:
    """The runs of a task.

    Args:
        task: The task.
        epochs: How many.
        overrides: Changes to the config, with ``{field}`` in them.
        checker: For a task that brings none, nor an expected answer.

    Raises:
        TaskError: If one names a field that the task does not have.
    """
    name = _name(task.id)
    jobs: list[Job] = []
    for epoch in range(1, epochs + 1):
        jobs.append(
            Job(
                task_id=task.id,
                epoch=epoch,
                # as without epochs, so that more of them can be asked for later
                name=name if epoch == 1 else f"{name}@{epoch}",
                text=task.text,
                files=task.files,
                overrides=overrides,
                fields=_used({**task.fields, "id": task.id, "epoch": epoch}, overrides),
                expected=task.expected,
                checker=task.checker or (checker if task.expected is None else None),
            )
        )
    return jobs


def _used(fields: Mapping[str, JsonValue], overrides: Sequence[str]) -> dict[str, JsonValue]:
    """Those of the fields that overrides name: what else a task says does not change how it runs."""
    used: dict[str, JsonValue] = {}
    for override in overrides:
        for name in sorted(field_names(override)):
            if name not in fields:
                near = did_you_mean(name, fields) or f", and the task has {', '.join(fields)}"
                raise TaskError(f"-s {override.partition('=')[0]} asks for the field {name!r}{near}")
            used[name] = fields[name]
    return used


def _name(task_id: str) -> str:
    """What paths call a task: no two tasks share it, also where letters of both cases are the same."""
    if _PLAIN_NAME.fullmatch(task_id):
        return task_id
    readable = re.sub(r"[^a-z0-9._-]+", "-", task_id.lower()).strip("-.")[:40]
    return f"{readable}~{sha256(task_id.encode(errors='backslashreplace')).hexdigest()[:12]}"


def read_tasks(
    source: str | os.PathLike[str] | Iterable[Mapping[str, Any]],
    stdin: BinaryIO | None = None,
    *,
    allow_outside_files: bool = False,
) -> tuple[list[BatchTask], list[BrokenLine]]:
    """Read tasks. Blocks.

    Args:
        source: The path of a file, which is CSV if its name ends so, and else has a JSON object on each line; ``-`` for
            JSON lines from standard input; or the tasks themselves, as JSON has them.
        stdin: Standard input.
        allow_outside_files: Let tasks have files that are outside the directory of the tasks file. Where there is no such
            file, that is the working directory.

    Returns:
        The tasks, and the lines that are none.

    Raises:
        SettingError: If they cannot be read at all.
    """
    tasks: dict[str, BatchTask] = {}
    broken: list[BrokenLine] = []
    for number, record, folder in _records(source, stdin):
        try:
            if isinstance(record, TaskError):
                raise record
            task = _task(record, number, folder, allow_outside_files)
            if (other := tasks.get(task.id)) is not None:
                raise TaskError(f"its id {task.id!r} is that of line {other.line}")
        except TaskError as error:
            broken.append(BrokenLine(number, str(error)))
        else:
            tasks[task.id] = task
    return list(tasks.values()), broken


def _records(
    source: str | os.PathLike[str] | Iterable[Mapping[str, Any]], stdin: BinaryIO | None
) -> Iterator[tuple[int, object, Path]]:
    if not isinstance(source, str | os.PathLike):
        for number, record in enumerate(source, 1):
            yield number, record, Path()
        return
    path = Path(source)
    try:
        if str(source) == "-":
            assert stdin is not None, "there is standard input"
            yield from ((*each, Path()) for each in _json_lines(stdin))
            return
        with open(open_regular(path), "rb") as file:
            read = _csv_lines if path.suffix.lower() == ".csv" else _json_lines
            yield from ((*each, path.parent) for each in read(file))
    except FileNotFoundError:
        raise SettingError(f"there is no file {path} with tasks") from None
    except OSError as error:
        raise SettingError(f"the tasks cannot be read from {path}: {error.strerror}") from error


def _lines(file: Any) -> Iterator[bytes]:
    number = 0
    while line := cast(bytes, file.readline(_MAX_LINE + 1)):
        number += 1
        if len(line) > _MAX_LINE:
            raise SettingError(f"line {number} is longer than a task may be ({_MAX_LINE // _MIB} MiB)")
        yield line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line


def _json_lines(file: Any) -> Iterator[tuple[int, object]]:
    for number, line in enumerate(_lines(file), 1):
        if not line.strip():
            continue
        try:
            yield number, exact_json.loads(line.decode())
        except UnicodeDecodeError:
            yield number, TaskError("it is not in UTF-8")
        except (ValueError, RecursionError) as error:
            yield number, TaskError(f"it is no JSON: {error}")


def _csv_lines(file: Any) -> Iterator[tuple[int, object]]:
    reader = csv.reader((line.decode() for line in _lines(file)), strict=True)
    header: list[str] | None = None
    began = 1
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except UnicodeDecodeError:
            raise SettingError(f"line {began} of the tasks is not in UTF-8") from None
        except csv.Error as error:
            # what a quote that is not closed has swallowed is lost with it
            yield began, TaskError(f"it is no CSV: {error}")
            began = reader.line_num + 1
            continue
        if header is None:
            header = [name.strip() for name in row]
            if "text" not in header:
                raise SettingError(
                    "the first line of a CSV file names its columns, and one of these is `text`"
                )
            if doubled := next((name for name in header if name and header.count(name) > 1), None):
                raise SettingError(f"two columns of the tasks are named {doubled!r}")
        elif len(row) != len(header):
            if row:
                yield began, TaskError(f"it has {len(row)} fields, and the first line has {len(header)}")
        else:
            yield began, _record(header, row)
        began = reader.line_num + 1


def _record(header: Sequence[str], row: Sequence[str]) -> dict[str, object]:
    record: dict[str, object] = dict(zip(header, row, strict=True))
    for name in ("id", "expected", "checker"):
        # an empty field says nothing
        if record.get(name) == "":
            del record[name]
    record["files"] = [name.strip() for name in str(record.get("files") or "").split(";") if name.strip()]
    return record


def _task(record: object, number: int, folder: Path, allow_outside_files: bool) -> BatchTask:
    if not isinstance(record, Mapping):
        raise TaskError('a task is a JSON object, such as {"id": "a", "text": "What to do"}')
    fields = cast(Mapping[str, Any], record)
    text, checker = fields.get("text"), fields.get("checker")
    if not isinstance(text, str) or not text.strip():
        raise TaskError("it has no `text`, which says what to do")
    if checker is not None and (not isinstance(checker, str) or not checker.strip()):
        raise TaskError("its `checker` is no Python code")
    task_id = fields.get("id", number)
    if isinstance(task_id, bool) or not isinstance(task_id, str | int) or not str(task_id).strip():
        raise TaskError("its `id` is neither text nor a whole number")
    if len(task_id := str(task_id)) > _MAX_ID:
        raise TaskError(f"its `id` is longer than {_MAX_ID} characters")
    expected = fields.get("expected")
    files = _files(fields.get("files"), folder, allow_outside_files)
    own = {name: value for name, value in fields.items() if name not in _OURS}
    told: dict[str, JsonValue] = {**own, "text": text, "expected": expected, "files": [*files]}
    return BatchTask(task_id, text.strip(), files, expected, checker, told, number)


def _files(given: object, folder: Path, allow_outside: bool) -> Sequence[str]:
    if given is None:
        return ()
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise TaskError("its `files` are no list of paths")
    files: list[str] = []
    for each in cast(Sequence[object], given):
        if not isinstance(each, str) or "\0" in each:
            raise TaskError("its `files` are no list of paths")
        path = folder / each
        if not os.path.exists(path):
            raise TaskError(f"there is no file {path}")
        # where links lead counts: they may have come with the tasks
        if not allow_outside and not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
            raise TaskError(
                f"{path} is outside {folder.absolute()}, the directory of the tasks; --allow-outside-files, or "
                "allow_outside_files=True, lets tasks have such files"
            )
        files.append(str(path))
    return files
