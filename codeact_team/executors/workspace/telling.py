"""What a model is told of the data: a line for each file, and one for each directory that has many."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from codeact_team.core.sandbox_description import DataEntry
from codeact_team.executors.workspace.given import Given
from codeact_team.executors.workspace.inside.text_start import first_lines

TEXT_TABLES = (".csv", ".tsv", ".tab", ".jsonl", ".ndjson")
PACKED = (".gz", ".bz2", ".xz")
_MAX_LINES = 20
"""Files beyond which directories are summed up, the fullest first."""
_MAX_HEADS = 20
"""Tables whose first lines are read."""
_MAX_COMPARED = 500
"""Tables of a directory whose first line is read."""
_MAX_KINDS = 4
_MAX_BEGINNINGS = 3
_HEAD_BYTES = 8192
_HEAD_LINES = 5
_MAX_LINE = 200
"""Characters of a first line."""


@dataclass(frozen=True)
class Told:
    """What is told of one file, or of a directory.

    Attributes:
        entry: What can be told without reading more than text.
        files: The files that it stands for.
    """

    entry: DataEntry
    files: Sequence[Given]

    def with_preview(self, path: str, lines: Sequence[str]) -> DataEntry:
        """The entry with lines that were read in a sandbox from the file of this path, if there are any."""
        if not lines:
            return self.entry
        if self.entry.files is None:
            return replace(self.entry, head=lines)
        first = f"{path.removeprefix(self.entry.path)}: {lines[0]}"
        return replace(self.entry, head=[*self.entry.head, first, *lines[1:]])


def tell(given: Sequence[Given]) -> Sequence[Told]:
    """Tell of each file or directory that a person has named. Reads the beginnings of tables that are text. Blocks."""
    named: dict[str, list[Given]] = {one.path: [] for one in given if "/" not in one.path}
    for one in given:
        if one.is_file:
            named[one.path.partition("/")[0]].append(one)
    directories = {one.path for one in given if "/" not in one.path and not one.is_file}
    summed = _summed_up({name: len(files) for name, files in named.items()}, directories)
    told: list[Told] = []
    heads = _MAX_HEADS
    for name, files in named.items():
        if name in summed:
            told.append(Told(_of_directory(name, files), files))
            continue
        for one in files:
            is_table = heads > 0 and one.path.lower().endswith(TEXT_TABLES)
            heads -= is_table
            told.append(
                Told(DataEntry(one.path, one.size, _head(one, _HEAD_LINES) if is_table else ()), [one])
            )
    return told


def _summed_up(counts: Mapping[str, int], directories: set[str]) -> set[str]:
    """The directories that are summed up, by the numbers of files: the empty ones, and as many as it takes for few lines."""
    summed = {name for name in directories if not counts[name]}
    lines = sum(counts.values())
    for name in sorted(directories, key=lambda name: -counts[name]):
        if lines <= _MAX_LINES or counts[name] < 2:
            break
        summed.add(name)
        lines -= counts[name] - 1
    return summed


def _of_directory(name: str, files: Sequence[Given]) -> DataEntry:
    kinds: defaultdict[str, list[Given]] = defaultdict(list)
    for one in sorted(files, key=lambda one: one.path):
        kinds[_ending(one.path)].append(one)
    ranked = sorted(kinds.items(), key=lambda kind: -len(kind[1]))
    lines = [_of_kind(ending, of_kind, len(name) + 1) for ending, of_kind in ranked[:_MAX_KINDS]]
    if others := sum(len(of_kind) for _, of_kind in ranked[_MAX_KINDS:]):
        lines.append(f"{others:,} other files")
    return DataEntry(f"{name}/", sum(one.size for one in files), lines, files=len(files))


def _of_kind(ending: str, files: Sequence[Given], start: int) -> str:
    """A line about the files of one ending; their paths are told from ``start`` on."""
    kind = ending or "without an ending"
    if len(files) == 1:
        line = f"1 {kind}: {files[0].path[start:]}"
    else:
        line = f"{len(files):,} {kind}: {files[0].path[start:]} to {files[-1].path[start:]}"
    return "; ".join([line, *_beginnings(files)]) if ending in TEXT_TABLES else line


def _beginnings(files: Sequence[Given]) -> Iterator[str]:
    """The first lines that tables have in common, the most frequent first."""
    read = files[:_MAX_COMPARED]
    found = Counter(" ".join(_head(one, 1)) for one in read)
    for first, count in found.most_common(_MAX_BEGINNINGS):
        if first:
            who = "all begin" if count == len(files) else f"{count:,} of the first {len(read):,} begin"
            yield f"{who} with {first}"


def _ending(path: str) -> str:
    """The ending of a name, in lower case; of a packed file with the one before."""
    name = path.rpartition("/")[2].lower()
    packed = next((ending for ending in PACKED if name.endswith(ending)), "")
    bare, dot, last = name.removesuffix(packed).rpartition(".")
    return (f".{last}" if bare and dot else "") + packed


def _head(one: Given, count: int) -> Sequence[str]:
    """The first lines of a table; none if it is not text."""
    try:
        with one.open() as file:
            start = file.read(_HEAD_BYTES)
    except OSError:
        # copying it will show the error
        return ()
    lines = first_lines(start, _HEAD_BYTES, count)
    return [line if len(line) <= _MAX_LINE else f"{line[: _MAX_LINE - 1]}…" for line in lines]
