"""The files of each workspace, as a journal has them."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from codeact_team.journal.blobs import Blobs
from codeact_team.journal.log import Entry, entry_at


class RecordedFiles:
    """The files of each workspace after each block. Its entries stay in the journal, and are read when they are asked for.

    Args:
        lines: The journal.
        blobs: Its blobs.

    Attributes:
        rebuilding: The names of workspaces that were being restored when the run ended once more.
    """

    def __init__(self, lines: Path, blobs: Blobs) -> None:
        self._lines = lines
        self._blobs = blobs
        self.rebuilding: set[str] = set()
        self._entries: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        """The entries of each workspace: the number of the block, and where in the journal it is."""
        self._undone: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        """The entries of undone blocks, which have left files in a workspace until code runs there again."""
        self._last: dict[str, tuple[int, dict[str, Any]]] = {}
        """The files of each workspace after so many of its entries, as returned last."""

    def __iter__(self) -> Iterator[str]:
        """The workspaces of which files are recorded."""
        return iter(self._entries)

    def __contains__(self, workspace: str) -> bool:
        return workspace in self._entries

    def read(self, offset: int, entry: Entry) -> None:
        """Read an entry of files, or of the begin or the end of restoring some."""
        if (workspace := entry.get("rebuilding")) is not None:
            self.rebuilding.add(workspace)
        elif (workspace := entry.get("rebuilt")) is not None:
            self.rebuilding.discard(workspace)
        elif (files := entry.get("files")) is not None:
            self._undone[files["workspace"]].clear()
            kept = self._entries[files["workspace"]]
            if kept and kept[-1][0] == files["block"]:
                # it was interrupted, and has run again from where it began
                kept.pop()
            kept.append((files["block"], offset))

    def undo(self, numbers: range) -> None:
        """Leave out the entries of blocks with these numbers."""
        for workspace, entries in self._entries.items():
            self._undone[workspace] += [entry for entry in entries if entry[0] in numbers]
            entries[:] = [entry for entry in entries if entry[0] not in numbers]

    def before(self, workspace: str, block: int) -> dict[str, Any]:
        """The files of a workspace when a block began: by path, their digest, size and whether they are executable.

        Args:
            workspace: Its name.
            block: The number of the block.
        """
        entries = self._entries.get(workspace, [])
        read, found = self._last.get(workspace, (0, {}))
        if read and entries[read - 1][0] >= block:
            read, found = 0, {}
        while read < len(entries) and entries[read][0] < block:
            found = self._changed(found, entries[read][1])
            read += 1
        # the next caller asks for a later time, as a rule
        self._last[workspace] = read, found
        return found

    def left(self, workspace: str) -> dict[str, Any]:
        """The files that code has left in a workspace, be it undone or not; as of :meth:`before`."""
        found = self.before(workspace, sys.maxsize)
        for _, offset in self._undone.get(workspace, ()):
            found = self._changed(found, offset)
        return found

    def has_changed(self, workspace: str, effect: int) -> bool:
        """Whether an effect has made, changed or removed files of a workspace."""
        return any(n == effect for n, _ in self._entries.get(workspace, ()))

    def _changed(self, files: Mapping[str, Any], offset: int) -> dict[str, Any]:
        """Files after the changes of an entry."""
        entry: Any = self._blobs.unpack(entry_at(self._lines, offset)["files"])
        gone = set(entry["gone"])
        return {path: file for path, file in {**files, **entry["changed"]}.items() if path not in gone}
