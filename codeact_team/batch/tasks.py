"""The tasks of a batch, read from JSON lines, CSV or Parquet, or one for each file. A broken line is reported, and does not affect the others."""

from __future__ import annotations

import csv
import importlib
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from glob import glob, has_magic
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, cast

from pydantic import JsonValue
from pydantic_core import to_jsonable_python

from codeact_team.batch.results import LineBroken
from codeact_team.config.overrides import field_names
from codeact_team.core.providers import did_you_mean
from codeact_team.errors import SettingError
from codeact_team.files.opening import open_regular
from codeact_team.text.nesting import parse_json

_PLAIN_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}")
_MAX_ID = 200
_MIB = 1 << 20
_MAX_LINE = 64 * _MIB
_OURS = ("id", "text", "files", "expected", "checker")


class TaskError(Exception):
    """A task cannot be run; the text says why."""


@dataclass(frozen=True)
class EachFile:
    """A task for each file.

    Attributes:
        pattern: The paths of the files, such as ``sales/*.csv``; ``**`` is any number of directories.
        text: What to do with each.
    """

    pattern: str
    text: str


@dataclass(frozen=True)
class BatchTask:
    """A task of a batch.

    Attributes:
        id: Its name in results and paths.
        text: What to do.
        files: Files and directories of this machine that are copied into the workspace.
        expected: The right answer, where it is known: text, or JSON where agents answer in JSON.
        checker: Python code that raises an ``AssertionError`` if the answer is wrong; it runs in a sandbox.
        fields: All fields of the task, which replace ``{field}`` in overrides.
        line: Its line in the tasks file, counted from 1.
    """

    id: str
    text: str
    files: Sequence[str] = ()
    expected: JsonValue = None
    checker: str | None = None
    fields: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    line: int = 0


@dataclass(frozen=True)
class Job:
    """One run of a task. A worker gets it as JSON.

    Attributes:
        task_id: The id of the task.
        epoch: The number of this run of the task, counted from 1.
        name: Its name in paths, unique in the batch.
        overrides: Changes to the config for this task, with ``{field}`` in them.
        fields: The values of these fields.
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
        """A digest of all that determines how the job runs."""
        return _digest([self.text, [*self.files], [*self.overrides], {**self.fields}])

    @property
    def check_digest(self) -> str:
        """A digest of all that determines how the answer is judged."""
        return _digest([self.expected, self.checker])


def _digest(value: Any) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


def jobs_of(task: BatchTask, *, epochs: int, overrides: Sequence[str], checker: str | None) -> list[Job]:
    """The runs of a task; ``checker`` judges the answer if the task has neither a checker nor an expected answer.

    Raises:
        TaskError: If an override names a field that the task does not have.
    """
    name = _name(task.id)
    return [
        Job(
            task_id=task.id,
            epoch=epoch,
            # the first has the same name whatever the number of epochs, so that more can be asked for later
            name=name if epoch == 1 else f"{name}@{epoch}",
            text=task.text,
            files=task.files,
            overrides=overrides,
            fields=_used({**task.fields, "id": task.id, "epoch": epoch}, overrides),
            expected=task.expected,
            checker=task.checker or (checker if task.expected is None else None),
        )
        for epoch in range(1, epochs + 1)
    ]


def _used(fields: Mapping[str, JsonValue], overrides: Sequence[str]) -> dict[str, JsonValue]:
    """The fields that overrides name. The other fields of a task do not change how it runs."""
    used: dict[str, JsonValue] = {}
    for override in overrides:
        for name in sorted(field_names(override)):
            if name not in fields:
                near = did_you_mean(name, fields) or f", and the task has {', '.join(fields)}"
                raise TaskError(f"-s {override.partition('=')[0]} asks for the field {name!r}{near}")
            used[name] = fields[name]
    return used


def refuse_unknown_fields(overrides: Sequence[str], tasks: Sequence[BatchTask]) -> None:
    """Raise a :class:`SettingError` if an override names a field that no task has."""
    fields = {"id", "epoch", *(name for task in tasks for name in task.fields)}
    for override in overrides if tasks else ():
        for name in sorted(field_names(override) - fields):
            near = did_you_mean(name, fields) or f"; they have {', '.join(sorted(fields))}"
            place = override.partition("=")[0]
            raise SettingError(f"-s {place} asks for the field {name!r}, which no task has{near}")


def _name(task_id: str) -> str:
    """Return a name for a task in paths. No other task has it, also if the file system ignores case."""
    if _PLAIN_NAME.fullmatch(task_id):
        return task_id
    readable = re.sub(r"[^a-z0-9._-]+", "-", task_id.lower()).strip("-.")[:40]
    return f"{readable}~{sha256(task_id.encode(errors='backslashreplace')).hexdigest()[:12]}"


def read_tasks(
    source: str | os.PathLike[str] | EachFile | Iterable[Mapping[str, Any]],
    stdin: BinaryIO | None = None,
    *,
    allow_outside_files: bool = False,
) -> tuple[list[BatchTask], list[LineBroken]]:
    """Read tasks. Blocks.

    Args:
        source: The path of a CSV or Parquet file, or of a file with a JSON object on each line; ``-`` for JSON lines, or
            lines of text, from standard input; what is to be done with each file; or the tasks themselves, as JSON data.
        stdin: Standard input.
        allow_outside_files: Whether tasks may have files outside the directory of the tasks file, or of the pattern; or outside
            the working directory if there is neither.

    Returns:
        The tasks, and the lines that are not tasks.

    Raises:
        SettingError: If the source cannot be read at all.
    """
    tasks: dict[str, BatchTask] = {}
    broken: list[LineBroken] = []
    for number, record, folder in _records(source, stdin):
        try:
            if isinstance(record, TaskError):
                raise record
            task = _task(record, number, folder, allow_outside_files)
            if (other := tasks.get(task.id)) is not None:
                raise TaskError(f"its id {task.id!r} is also the id of line {other.line}")
        except TaskError as error:
            broken.append(LineBroken(line=number, problem=str(error)))
        else:
            tasks[task.id] = task
    return list(tasks.values()), broken


def _records(
    source: str | os.PathLike[str] | EachFile | Iterable[Mapping[str, Any]], stdin: BinaryIO | None
) -> Iterator[tuple[int, object, Path]]:
    if isinstance(source, EachFile):
        yield from _each_file(source)
        return
    if not isinstance(source, str | os.PathLike):
        yield from ((number, record, Path()) for number, record in enumerate(source, 1))
        return
    path = Path(source)
    try:
        if str(source) == "-":
            assert stdin is not None, "there is standard input"
            yield from ((*each, Path()) for each in _piped_lines(stdin))
            return
        with open(open_regular(path), "rb") as file:
            read = _READERS.get(path.suffix.lower(), _json_lines)
            yield from ((*each, path.parent) for each in read(file))
    except FileNotFoundError:
        raise SettingError(f"there is no file {path} with tasks") from None
    except OSError as error:
        raise SettingError(f"the tasks cannot be read from {path}: {error.strerror or error}") from error


def _each_file(each: EachFile) -> Iterator[tuple[int, object, Path]]:
    """A record for each file, named by its path from the directory in which the pattern begins."""
    parts = Path(os.path.expanduser(each.pattern)).parts
    fixed = next((n for n, part in enumerate(parts) if has_magic(part)), len(parts) - 1)
    folder, pattern = Path(*parts[:fixed]), os.path.join(*parts[fixed:])
    found = sorted(glob(pattern, root_dir=folder, recursive=True))
    files = [path for path in found if (folder / path).is_file()]
    if not files:
        inside = f": those in a directory are {folder / found[0]!s}/*, in quotation marks" if found else ""
        raise SettingError(f"{each.pattern} matches no file{inside}")
    for number, path in enumerate(files, 1):
        yield number, {"id": path, "text": each.text, "files": [path]}, folder


def _lines(file: Any) -> Iterator[bytes]:
    number = 0
    while line := cast(bytes, file.readline(_MAX_LINE + 1)):
        number += 1
        if len(line) > _MAX_LINE:
            raise SettingError(f"line {number} is longer than a task may be ({_MAX_LINE // _MIB} MiB)")
        yield line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line


def _piped_lines(file: Any) -> Iterator[tuple[int, object]]:
    """Tasks as JSON lines or, if the first is no JSON object, the text of one on each line."""
    lines = _lines(file)
    before = list[bytes]()
    for line in lines:
        before.append(line)
        if line.strip():
            break
    if before and before[-1].lstrip().startswith(b"{"):
        yield from _tasks_in_json(chain(before, lines))
        return
    for number, line in enumerate(chain(before, lines), 1):
        if line.strip():
            try:
                yield number, {"text": line.decode()}
            except UnicodeDecodeError:
                yield number, TaskError("it is not in UTF-8")


def _json_lines(file: Any) -> Iterator[tuple[int, object]]:
    return _tasks_in_json(_lines(file))


def _tasks_in_json(lines: Iterable[bytes]) -> Iterator[tuple[int, object]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield number, parse_exact_json(line.decode())
        except UnicodeDecodeError:
            yield number, TaskError("it is not in UTF-8")
        except ValueError as error:
            yield number, TaskError(f"it is not JSON: {error}")


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
            # the lines after an unclosed quote are lost with it
            yield began, TaskError(f"it is not CSV: {error}")
            began = reader.line_num + 1
            continue
        if header is None:
            header = [name.strip() for name in row]
            _check_columns(
                header, "the first line of a CSV file must name its columns, of which one must be `text`"
            )
        elif len(row) != len(header):
            if row:
                yield began, TaskError(f"it has {len(row)} fields, and the first line has {len(header)}")
        else:
            yield began, _record(header, row)
        began = reader.line_num + 1


def _parquet_rows(file: Any) -> Iterator[tuple[int, object]]:
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise SettingError(
            "tasks in Parquet need a package: `pip install pyarrow`; or write them as CSV or JSON lines"
        ) from None
    try:
        table = parquet.ParquetFile(file)
        header = [str(name) for name in table.schema_arrow.names]
        _check_columns(header, "a Parquet file of tasks must have a column `text`")
        rows = (row for batch in table.iter_batches() for row in batch.to_pylist())
        for number, row in enumerate(rows, 1):
            values = [_plain(row[name]) for name in header]
            yield number, _record(header, values)
    except (ValueError, OSError) as error:
        # pyarrow has its errors from these
        raise SettingError(f"the tasks cannot be read as Parquet: {error}") from error


def _plain(value: Any) -> JsonValue:
    """A value of a column as JSON has it: a time is text, and what is no number is missing."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return to_jsonable_python(value, fallback=str)


def _check_columns(header: Sequence[str], text_is_missing: str) -> None:
    if "text" not in header:
        raise SettingError(text_is_missing)
    if doubled := next((name for name in header if name and header.count(name) > 1), None):
        raise SettingError(f"two columns of the tasks are named {doubled!r}")


def _record(header: Sequence[str], row: Sequence[object]) -> dict[str, object]:
    record: dict[str, object] = dict(zip(header, row, strict=True))
    for name in ("id", "expected", "checker"):
        # an empty field is a missing one
        if record.get(name) in ("", None):
            record.pop(name, None)
    files = record.get("files") or ""
    record["files"] = (
        files if isinstance(files, list) else [name.strip() for name in str(files).split(";") if name.strip()]
    )
    return record


_READERS: Mapping[str, Callable[[Any], Iterator[tuple[int, object]]]] = {
    ".csv": _csv_lines,
    ".parquet": _parquet_rows,
}
"""What reads a file of tasks, by its ending; any other has JSON lines."""


def _task(record: object, number: int, folder: Path, allow_outside_files: bool) -> BatchTask:
    if not isinstance(record, Mapping):
        raise TaskError('a task is a JSON object, such as {"id": "a", "text": "What to do"}')
    fields = cast(Mapping[str, Any], record)
    text, checker = fields.get("text"), fields.get("checker")
    if not isinstance(text, str) or not text.strip():
        raise TaskError("it has no `text`, which says what to do")
    if checker is not None and (not isinstance(checker, str) or not checker.strip()):
        raise TaskError("its `checker` is not Python code")
    task_id = fields.get("id", number)
    if isinstance(task_id, bool) or not isinstance(task_id, str | int) or not str(task_id).strip():
        raise TaskError("its `id` is neither text nor a whole number")
    if len(task_id := str(task_id)) > _MAX_ID:
        raise TaskError(f"its `id` is longer than {_MAX_ID} characters")
    expected = fields.get("expected")
    files = _files(fields.get("files"), folder, allow_outside_files)
    own = {name: value for name, value in fields.items() if name not in _OURS}
    shown: dict[str, JsonValue] = {**own, "text": text, "expected": expected, "files": [*files]}
    return BatchTask(task_id, text.strip(), files, expected, checker, shown, number)


def _files(given: object, folder: Path, allow_outside: bool) -> Sequence[str]:
    if given is None:
        return ()
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise TaskError("its `files` are not a list of paths")
    files: list[str] = []
    for each in cast(Sequence[object], given):
        if not isinstance(each, str) or "\0" in each:
            raise TaskError("its `files` are not a list of paths")
        path = folder / each
        if not os.path.exists(path):
            raise TaskError(f"there is no file {path}")
        # links are followed, as they may have come with the tasks
        if not allow_outside and not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
            raise TaskError(
                f"{path} is outside {folder.absolute()}, the directory of the tasks; --allow-outside-files, or "
                "allow_outside_files=True, lets tasks have such files"
            )
        files.append(str(path))
    return files


def parse_exact_json(text: str) -> Any:
    """Read JSON whose whole numbers keep all their digits, and whose objects have each key once.

    A whole number that a ``float`` would change becomes an ``int``, even if it is written with a fraction or an exponent.

    Raises:
        ValueError: If the text is not JSON, an object has a key twice, a ``float`` would make a number whole or infinite, or
            it is nested too deeply.
    """
    return parse_json(
        text, parse_float=_exact_number, parse_constant=_refuse_constant, object_pairs_hook=_without_doubles
    )


def whole_number(number: float) -> int | float:
    """An ``int`` for a ``float`` that is a whole number, with the digits that JSON shows: 1e23 becomes 10**23."""
    return int(Decimal(repr(number))) if number.is_integer() else number


def _exact_number(text: str) -> int | float:
    number = float(text)
    if math.isinf(number) or (number == 0 and text.lower().partition("e")[0].strip("-0.")):
        raise ValueError(f"the number {text[:40]} is out of range")
    if not number.is_integer() or number == 0 or (exact := Decimal(text)) == Decimal(repr(number)):
        return number
    if exact != exact.to_integral_value():
        raise ValueError(f"the number {text[:40]} has more digits than can be kept")
    return int(exact)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number in JSON")


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"it has the key {key[:40]!r} twice")
        found[key] = value
    return found
