"""Recorded runs as one file to give away: what ``show``, ``replay`` and tests read, without the paths of this user's home."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import IO
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from pydantic import JsonValue

from codeact_team.errors import JournalError
from codeact_team.journal.blobs import Blobs, as_json, parse, reading
from codeact_team.journal.log import Entry, encode, read_log
from codeact_team.journal.recorded_run import RecordedRun
from codeact_team.journal.run_directory import About, digest_of
from codeact_team.text.redaction import map_texts

_CODES = ("mac", "crc")
_OWNER_ONLY = 0o600 << 16
_YEAR = 1980
"""The first that a zip file can have."""


def write_archive(runs: Sequence[RecordedRun], file: IO[bytes]) -> None:
    """Write the directories of runs into a zip file, each under its name. Blocks.

    Paths below the home of this user begin with ``~`` in it. So its runs are no longer sealed: who replays or resumes one, confirms it.

    Args:
        runs: The runs. Two may not have the same name.
        file: What to write to, at its beginning.

    Raises:
        JournalError: If a run cannot be read as a whole, goes on, or has the name of another one.
    """
    names = [run.directory.path.resolve().name for run in runs]
    if doubled := next((name for name in names if names.count(name) > 1), None):
        raise JournalError(f"two of the runs are named {doubled}: write a file for each")
    with ZipFile(file, "w", ZIP_DEFLATED) as archive:
        for name, run in zip(names, runs, strict=True):
            if run.is_running:
                raise JournalError(f"the run {name} still goes on: wait until it has ended")
            _Packing(archive, name, run).write()


class _Packing:
    """Writes one run.

    Args:
        archive: What to write to.
        name: The directory of the run in it.
        run: The run.
    """

    def __init__(self, archive: ZipFile, name: str, run: RecordedRun) -> None:
        self._archive = archive
        self._name = name
        self._directory = run.directory
        self._about = run.about
        self._blobs = Blobs(run.directory.blobs)
        self._changed: dict[str, dict[str, JsonValue]] = {}
        """The references to blobs that had paths of the home, by their digests, and those that stand for them."""
        self._unchanged: set[str] = set()
        self._added: set[str] = set()
        """The digests of blobs that the archive has."""
        self._home = _home()

    def write(self) -> None:
        """Write all files of the run."""
        config = self._without_home(self._directory.config())
        told = self._about.model_dump(exclude={"answer_file", "files_directory", "seal", "sealed_by"})
        about = About.model_validate(map_texts(told, self._without_home))
        about = about.model_copy(update={"config_digest": digest_of(config)})
        self._add("run.json", f"{about.model_dump_json(indent=2)}\n".encode(errors="backslashreplace"))
        self._add("config.yaml", config.encode(errors="backslashreplace"))
        self._add("journal.jsonl", b"".join(map(self._line, read_log(self._directory.lines))))
        for digest in self._kept():
            self._add_blob(digest, self._blobs.read(digest))

    def _kept(self) -> Iterator[str]:
        with reading(self._directory.blobs):
            found = sorted(self._directory.blobs.glob("??/*"))
        return (digest for path in found if (digest := path.parent.name + path.name) not in self._changed)

    def _line(self, entry: Entry) -> bytes:
        unsealed = {key: self._rewritten(value) for key, value in entry.items() if key not in _CODES}
        return encode(unsealed)

    def _rewritten(self, value: JsonValue) -> JsonValue:
        """A value of a line, or in a blob, without the home."""
        match value:
            case str():
                return self._without_home(value)
            case list():
                return [self._rewritten(item) for item in value]
            case {"$blob": str() as digest}:
                return self._reference(digest, value)
            case dict():
                return {self._without_home(key): self._rewritten(item) for key, item in value.items()}
            case _:
                return value

    def _reference(self, digest: str, reference: dict[str, JsonValue]) -> dict[str, JsonValue]:
        if digest in self._changed or digest in self._unchanged:
            return self._changed.get(digest, reference)
        value = parse(self._blobs.read(digest))
        if (rewritten := self._rewritten(value)) == value:
            self._unchanged.add(digest)
            return reference
        data = as_json(rewritten)
        new = sha256(data).hexdigest()
        self._changed[digest] = {"$blob": new, "size": len(data)}
        self._add_blob(new, data)
        return self._changed[digest]

    def _without_home(self, text: str) -> str:
        return self._home.sub("~", text)

    def _add_blob(self, digest: str, data: bytes) -> None:
        if digest not in self._added:
            self._added.add(digest)
            self._add(f"blobs/{digest[:2]}/{digest[2:]}", data)

    def _add(self, name: str, data: bytes) -> None:
        self._archive.writestr(self._info(name), data)

    def _info(self, name: str) -> ZipInfo:
        when = time.gmtime(self._about.began)[:6]
        info = ZipInfo(f"{self._name}/{name}", when if when[0] >= _YEAR else (_YEAR, 1, 1, 0, 0, 0))
        info.compress_type, info.external_attr = ZIP_DEFLATED, _OWNER_ONLY
        return info


def _home() -> re.Pattern[str]:
    """The path of the home of this user, as it is and as it is written."""
    written = os.path.expanduser("~")
    homes = {written, os.path.realpath(written)} - {"/", "~"}
    return re.compile(rf"(?<![\w.~/-])(?:{'|'.join(map(re.escape, homes)) or '(?!)'})(?![\w-]|\.\w)")
