"""Runs inside a sandbox: describes the table on stdin, in one line of JSON: a list of lines for a model.

The arguments are the kind of the file, its size, and how many bytes of stdin are its beginning; the rest of stdin is its end.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import itertools
import json
import lzma
import sqlite3
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any, cast

from codeact_team.executors.workspace.inside.text_start import first_lines

_LINES = 8
_LINE_CHARS = 200
_TABLES = 3
_ROWS = (4, 2, 1)
"""Rows shown of each table, for one, two, or more tables."""
_COLUMNS = 20
_NAMES = 10
_TYPED_ROWS = 100
"""Rows by which the types of columns are known."""
_TEXT_BYTES = 8192
_TEXT_LINES = 5
_QUERY_SECONDS = 1.0
_TEXTS = (".csv", ".tsv", ".tab", ".jsonl", ".ndjson", ".txt")
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_OPENERS: dict[str, Any] = {"gz": gzip.open, "bz2": bz2.open, "xz": lzma.open}


@dataclass
class _Table:
    """A table in a file; ``size`` says how many rows it has, if that is known, and ``above`` what is written over it."""

    title: str
    columns: Sequence[tuple[object, str]]
    rows: Sequence[Sequence[object]]
    size: str = field(default="", kw_only=True)
    above: str = field(default="", kw_only=True)


def _describe(kind: str, file: Any) -> list[str]:
    if kind in _OPENERS:
        with _OPENERS[kind](file) as unpacked:
            return _text(unpacked.read(_TEXT_BYTES))
    if kind == "zip":
        return _archive(file)
    if kind == "json":
        return _json(file)
    if kind == "database":
        return _database(file.name)
    return _parquet(file) if kind == "parquet" else _workbook(file)


def _text(start: bytes) -> list[str]:
    return first_lines(start, _TEXT_BYTES, _TEXT_LINES)


def _archive(file: Any) -> list[str]:
    with zipfile.ZipFile(file) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        lines = [f"an archive of {_some(names)}"]
        table = next((name for name in names if name.lower().endswith(_TEXTS)), None)
        if table is not None:
            with archive.open(table) as unpacked:
                lines += [f"{table} begins:", *_text(unpacked.read(_TEXT_BYTES))]
    return lines


def _json(file: Any) -> list[str]:
    try:
        value: Any = json.load(file)
    except ValueError:
        # of a long one, not all is here
        file.seek(0)
        return _text(file.read(_TEXT_BYTES))
    match value:
        case dict():
            items = cast("dict[str, Any]", value)
            columns = [(key, _form(item)) for key, item in items.items()]
            return [f"an object; {_columns(columns)}", _as_json(items)]
        case [dict(), *_]:
            return _objects(cast("list[Any]", value))
        case _:
            return [_form(value), _as_json(value)]


def _objects(values: list[Any]) -> list[str]:
    rows: list[dict[str, Any]] = [row for row in values[:_TYPED_ROWS] if isinstance(row, dict)]
    keys = dict.fromkeys(itertools.chain.from_iterable(rows))
    columns = [(key, _type(row.get(key) for row in rows)) for key in keys]
    return [f"a list of {len(values):,} objects; {_columns(columns)}", *map(_as_json, values[: _ROWS[0]])]


def _workbook(file: Any) -> list[str]:
    book: Any = import_module("openpyxl").load_workbook(file, read_only=True, data_only=True)
    tables: list[_Table] = []
    for sheet in book.worksheets[:_TABLES]:
        height = sheet.max_row
        # some programs write a wrong one, and nothing beyond it would be read
        sheet.reset_dimensions()
        cells = [*itertools.islice(sheet.iter_rows(values_only=True), 1 + _TYPED_ROWS)]
        above, left = _corner(cells)
        header, *rows = [row[left:] for row in cells[above:]] or [()]
        columns = [(name, _type(row[at] for row in rows if at < len(row))) for at, name in enumerate(header)]
        size = f", {height:,} rows with the header" if height else ""
        if above or left:
            size += f", which is in row {above + 1} from column {left + 1} on"
        tables.append(_Table(f"sheet {sheet.title!r}", columns, rows, size=size, above=_said(cells[:above])))
    return _tables(tables, book.sheetnames)


def _corner(cells: Sequence[Sequence[object]]) -> tuple[int, int]:
    """Return the numbers of rows and columns before a table: titles and remarks, which fill few cells, and empty ones."""
    filled = [[at for at, value in enumerate(row) if value is not None] for row in cells]
    widest = max(map(len, filled), default=0)
    above = next((at for at, row in enumerate(filled) if 2 * len(row) > widest), 0)
    left = min((row[0] for row in filled[above:] if row), default=0)
    return above, left


def _said(cells: Sequence[Sequence[object]]) -> str:
    """Return the text of the rows above a table."""
    return " ".join(str(value) for row in cells for value in row if value is not None)


def _parquet(file: Any) -> list[str]:
    opened: Any = import_module("pyarrow.parquet").ParquetFile(file)
    columns = [(one.name, str(one.type)) for one in opened.schema_arrow]
    batch = next(opened.iter_batches(batch_size=_ROWS[0]), None)
    rows = [] if batch is None else [list(row.values()) for row in batch.to_pylist()]
    return _tables(
        [_Table("a table", columns, rows, size=f", {opened.metadata.num_rows:,} rows")], ["a table"]
    )


def _database(path: str) -> list[str]:
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    # a column may hold something else than it says
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    names: list[str] = [name for (name,) in connection.execute(query)]
    tables: list[_Table] = []
    for name in names[:_TABLES]:
        quoted = '"' + name.replace('"', '""') + '"'
        columns = [(column[1], column[2]) for column in connection.execute(f"PRAGMA table_info({quoted})")]
        rows = _queried(connection, f"SELECT * FROM {quoted} LIMIT {_ROWS[0]}")
        count = _queried(connection, f"SELECT count(*) FROM {quoted}")
        size = f", {count[0][0]:,} rows" if count else ""
        tables.append(_Table(f"table {name!r}", columns, rows, size=size))
    return _tables(tables, names)


def _queried(connection: sqlite3.Connection, query: str) -> list[Any]:
    """The rows; none if that takes too long, or they are in a part of the file that is damaged, or not here."""
    end = time.monotonic() + _QUERY_SECONDS
    connection.set_progress_handler(lambda: time.monotonic() > end, 10_000)
    try:
        return connection.execute(query).fetchall()
    except sqlite3.Error:
        return []


def _tables(tables: Sequence[_Table], names: Sequence[str]) -> list[str]:
    """The lines about the first tables of a file, and the names of the others."""
    shown = _ROWS[min(max(len(names), 1), len(_ROWS)) - 1]
    lines: list[str] = []
    for table in tables:
        lines.append(f"{table.title}{table.size}; {_columns(table.columns)}")
        lines += [f"above it: {table.above}"] if table.above else []
        lines += map(_row, table.rows[:shown])
    if more := names[len(tables) :]:
        lines.append(f"and {len(more):,} more: {_some(more)}")
    return lines


def _columns(columns: Sequence[tuple[object, str]]) -> str:
    named = [f"{name} ({kind})" if kind else str(name) for name, kind in columns[:_COLUMNS]]
    if more := len(columns) - len(named):
        named.append(f"and {more:,} more")
    return f"columns: {', '.join(named)}"


def _some(names: Sequence[str]) -> str:
    return ", ".join([*names[:_NAMES], *(["…"] if len(names) > _NAMES else [])])


def _row(values: Sequence[object]) -> str:
    line = io.StringIO()
    shown = ["" if value is None else str(value)[:_LINE_CHARS] for value in values[:_COLUMNS]]
    csv.writer(line, lineterminator="").writerow(shown)
    return line.getvalue()


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _type(values: Iterable[object]) -> str:
    return "|".join(sorted({type(value).__name__ for value in values if value is not None}))


def _form(value: Any) -> str:
    kind = type(value).__name__
    return f"{kind} of {len(value):,}" if kind in ("dict", "list") else kind


def _why(error: Exception, file: Any) -> str:
    """Return the reason for which a file cannot be read, for a model."""
    file.seek(0)
    # Office keeps a workbook with a password in a container of its old format
    if file.read(len(_OLE)) == _OLE:
        return "(It is encrypted, or in an older format than its name says: it cannot be read without a password.)"
    said = " ".join(str(error).split()) or type(error).__name__
    return f"(It cannot be read: {said})"


def _main(kind: str, size: int, beginning: int) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(sys.stdin.buffer.read(beginning))
        end = sys.stdin.buffer.read()
        # the bytes between were not sent, and are read as zeros
        file.seek(size - len(end))
        file.write(end)
        file.seek(0)
        try:
            lines = _describe(kind, file)
        except ModuleNotFoundError:
            # what reads it is missing, which is said of the packages
            raise
        except Exception as error:  # any: the file may be hostile to its reader
            lines = [_why(error, file)]
    sys.stdout.write(json.dumps([line[:_LINE_CHARS] for line in lines[:_LINES]]) + "\n")


_main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
