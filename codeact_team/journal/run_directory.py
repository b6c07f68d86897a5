"""The directory in which a run is kept: ``run.json``, ``config.yaml``, ``journal.jsonl`` and ``blobs/``. For its owner only."""

from __future__ import annotations

import json
import logging
import os
import pwd
import secrets
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from codeact_team.errors import JournalError
from codeact_team.files.atomic import is_temporary, write_whole
from codeact_team.files.opening import made_named, opened, read_regular
from codeact_team.journal.blobs import parse, reading, sync
from codeact_team.journal.seal import Chain, SealKey, user_key

logger = logging.getLogger(__name__)

_FORMAT = 3
"""The version of the format of run directories."""
_ADVICE_ON_FORMATS = "codeact-team reads the formats of its earlier versions, from 3 on; update it"
_ABOUT = "run.json"
_CONFIG = "config.yaml"
_LINES = "journal.jsonl"
_BLOBS = "blobs"
_WORKSPACES = "workspaces"
_MOST = 4 << 20
"""Bytes of ``run.json``, and of ``config.yaml``."""
_BEFORE = {_CONFIG, _LINES}
"""Files that a process may have left that was killed before it described its run."""
ADVICE = "Choose another directory by --run-dir, or run it with --no-record; in Python, by `record`"
"""Advice if a run cannot be recorded."""
_OF_SOMEBODY_ELSE = (
    "{} belongs to {}, and only its owner can use it. Keep your runs in a directory of your own, by --run-dir or "
    "CODEACT_TEAM_RUN_DIR, or keep none by --no-record"
)


class About(BaseModel):
    """Describes a run, from its beginning.

    Attributes:
        format: The format of the directory.
        id: Its name; the names of later runs come after it.
        task: The task; hostile data where somebody else wrote it. ``None`` where a program, or a person in a chat, gives a team its tasks.
        config: The name of the config.
        working_directory: The directory that relative paths in the config start from.
        began: The time of its begin, in seconds since the epoch.
        versions: The versions of this package, of AutoGen and of Python.
        nonce: The end of the placeholders of credentials.
        config_digest: The SHA-256 of ``config.yaml``.
        seal: Authenticates all this; ``None`` where nothing does.
        sealed_by: The name of the key; empty for the user's key.
        is_chat: Whether a person gives the tasks, in a chat.
        answer_file: The absolute path of the file that the answer is written to, if it is.
        files_directory: The absolute path of the directory that the files are copied to, if they are.
        program: The command that starts the program that gives the tasks, without its arguments, if that is known.
        is_built: Whether what runs was built by that program, and no config describes it.
    """

    # what another version describes is under the seal, too
    model_config = ConfigDict(frozen=True, extra="allow")

    format: int = _FORMAT
    id: str
    task: str | None
    config: str
    working_directory: str
    # a year that a calendar has
    began: float = Field(default_factory=time.time, ge=0, le=1e11)
    versions: dict[str, str]
    nonce: str = Field(default_factory=lambda: secrets.token_hex(4))
    config_digest: str | None = None
    seal: str | None = None
    sealed_by: str = ""
    is_chat: bool = False
    answer_file: str | None = None
    files_directory: str | None = None
    program: str | None = None
    is_built: bool = False

    @property
    def is_of_program(self) -> bool:
        """Whether a program gives the tasks."""
        return self.task is None and not self.is_chat

    @property
    def starting_again(self) -> str:
        """The advice to a person who wants to resume the run of a program."""
        return "run its program again" if self.program is None else f"run it again by `{self.program}`"

    def sealed(self, key: SealKey) -> About:
        """The same, with a seal."""
        named = self.model_copy(update={"sealed_by": key.name})
        return named.model_copy(update={"seal": key.seal(named._described())})

    def is_sealed(self, key: SealKey) -> bool:
        """Whether the seal was made with a key."""
        return self.seal is not None and secrets.compare_digest(
            self.seal.encode(errors="replace"), key.seal(self._described()).encode()
        )

    def _described(self) -> bytes:
        # the seals of earlier versions do not know these fields
        later = ("is_chat", "answer_file", "files_directory", "program", "is_built")
        left_out = {"seal", *(name for name in later if not getattr(self, name))}
        return json.dumps(self.model_dump(mode="json", exclude=left_out), sort_keys=True).encode()


class RunDirectory:
    """The directory of a run. Its methods block, and raise :class:`JournalError` where that fails.

    Args:
        path: The directory.
        key: Seals the run; ``None`` for the key of this user, or one that is derived from it.
    """

    def __init__(self, path: Path, key: SealKey | None = None) -> None:
        self.path = path
        self.blobs: Path = path / _BLOBS
        self.key = key

    @property
    def lines(self) -> Path:
        """The journal."""
        return self.path / _LINES

    @property
    def workspace(self) -> Path:
        """The directory for the workspace of the run: apart from all this, which no code reaches."""
        return self.path.parent / _WORKSPACES / self.path.name

    def workspaces(self) -> list[Path]:
        """The directories of the workspaces that the run has for itself, those that exist."""
        first = self.workspace
        try:
            names = sorted(os.listdir(first.parent))
        except OSError:
            return []
        return [first.with_name(name) for name in names if f"{name}-".startswith(f"{first.name}-")]

    @property
    def config_file(self) -> Path:
        """The config of the run."""
        return self.path / _CONFIG

    @property
    def is_begun(self) -> bool:
        """Whether it has a run."""
        with _allowed(self.path):
            return (self.path / _ABOUT).is_file()

    def make(self) -> None:
        """Make the directory for a new run; one that exists has to be empty."""
        runs = self.path.parent
        with _refused(runs):
            is_first = not runs.is_dir()
            with made_named(runs, 0o700) as directory:
                if is_first:
                    _keep_out_of_git(directory)
        with _refused(self.path), made_named(self.path, 0o700) as directory:
            there = {name for name in os.listdir(directory) if not is_temporary(name)}
            if there - _BEFORE or _has_lines(directory):
                raise JournalError(f"{self.path} exists already, and is not the directory of a run")
            os.fchmod(directory, 0o700)

    def describe(self, about: About, config: str) -> None:
        """Write ``run.json`` and the config: from then on, it has a run."""
        if self.is_begun:
            raise JournalError(f"{self.path} has just been taken by the run of another process")
        about = about.model_copy(update={"config_digest": digest_of(config)})
        try:
            about = about.sealed(self.key or user_key())
        except JournalError as error:
            logger.warning("%s: to resume or replay this run, a person will have to confirm it", error)
        with _refused(self.path):
            self._write(_CONFIG, config)
            self._write(_ABOUT, about.model_dump_json(indent=2) + "\n")

    def chain(self) -> Chain | None:
        """Authenticates the journal; ``None`` where this user has not described the run so."""
        about = self.about()
        if about.seal is None or about.config_digest != digest_of(self.config()):
            return None
        try:
            key = self.key or user_key()
        except JournalError as error:
            logger.warning("%s", error)
            return None
        if about.sealed_by != key.name:
            key = key.derived(about.sealed_by)
        return key.chain(about.seal) if about.is_sealed(key) else None

    def sync(self) -> None:
        """Put the description of the run, and the names of its directory and its journal, on the disk."""
        with _refused(self.path):
            for path in (self.path / _CONFIG, self.path / _ABOUT, self.path):
                sync(path)
            for directory in self.path.parents:
                # those that were made for it are ours
                with suppress(PermissionError):
                    sync(directory)

    def about(self) -> About:
        """Return the description of the run."""
        file = self.path / _ABOUT
        try:
            data = parse(read_regular(file, _MOST))
            if isinstance(data, dict) and data.get("format") not in (_FORMAT, None):
                raise JournalError(
                    f"{self.path} has the format {data['format']!r}, and this version of codeact-team reads {_FORMAT}: "
                    f"{_ADVICE_ON_FORMATS}"
                )
            return About.model_validate(data)
        except FileNotFoundError:
            raise JournalError(f"{self.path} is not the directory of a run: it has no {_ABOUT}") from None
        except OSError as error:
            raise JournalError(f"{file} cannot be read: {error.strerror}") from error
        except (ValueError, ValidationError) as error:
            raise JournalError(f"{file} is damaged, or was not written by codeact-team") from error

    def config(self) -> str:
        """The config of the run, in YAML."""
        file = self.config_file
        try:
            with reading(file):
                return read_regular(file, _MOST).decode()
        except ValueError as error:
            raise JournalError(f"{file} is damaged: {error}") from error

    def _write(self, name: str, text: str) -> None:
        data = text.encode(errors="backslashreplace")
        if len(data) > _MOST:
            raise JournalError(f"the run cannot be recorded: its {name} has more than {_MOST:,} bytes")
        with opened(self.path) as directory:
            write_whole(directory, name, data)


@contextmanager
def _allowed(path: Path) -> Generator[None]:
    """Within it, a path is used that may belong to another user of this machine; raises :class:`JournalError` where it does."""
    try:
        yield
    except PermissionError as error:
        for directory in (path, *path.absolute().parents):
            # what is below a closed directory cannot be looked at
            with suppress(OSError):
                if (owner := directory.stat().st_uid) != os.geteuid():
                    raise JournalError(_OF_SOMEBODY_ELSE.format(directory, _user(owner))) from error
                break
        raise


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"the user {number}"


@contextmanager
def _refused(where: Path) -> Generator[None]:
    try:
        with _allowed(where):
            yield
    except OSError as error:
        raise JournalError(f"the run cannot be recorded in {where}: {error.strerror}. {ADVICE}") from error


def digest_of(config: str) -> str:
    """The SHA-256 of a config."""
    return sha256(config.encode(errors="backslashreplace")).hexdigest()


def new_id() -> str:
    """Return the id of a run that begins now; the ids of later runs sort after it."""
    now = time.time()
    return (
        f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}.{int(now % 1 * 1000):03}-{secrets.token_hex(2)}"
    )


def runs_in(directory: Path) -> Iterator[RunDirectory]:
    """The runs in a directory, the last first; none where it does not exist. Blocks."""
    try:
        with _allowed(directory), opened(directory) as descriptor:
            names = sorted(os.listdir(descriptor), reverse=True)
    except FileNotFoundError:
        return
    except OSError as error:
        raise JournalError(f"the runs in {directory} cannot be listed: {error.strerror}") from error
    for name in names:
        run = RunDirectory(directory / name)
        if run.is_begun:
            yield run


def find_run(name: str, directory: Path) -> RunDirectory:
    """The run with an id, a unique beginning of one, ``last``, or the path of its directory. Blocks.

    Raises:
        JournalError: If no run, or more than one, has it.
    """
    if (given := RunDirectory(Path(name))).is_begun:
        return given
    runs = list(runs_in(directory))
    if not runs:
        raise JournalError(f"there is no run {name!r}: {directory} has none at all")
    if name == "last":
        return runs[0]
    found = [run for run in runs if run.path.name.startswith(name)]
    if len(found) > 1 and name not in (run.path.name for run in found):
        named = ", ".join(run.path.name for run in found[:3])
        raise JournalError(
            f"{name!r} is the beginning of the ids of {len(found)} runs: {named}{', …' if found[3:] else ''}"
        )
    if not found:
        raise JournalError(f"there is no run {name!r} in {directory}; `codeact-team runs` lists all")
    return min(found, key=lambda run: len(run.path.name))


def _has_lines(directory: int) -> bool:
    try:
        return os.stat(_LINES, dir_fd=directory, follow_symlinks=False).st_size > 0
    except FileNotFoundError:
        return False


def _keep_out_of_git(runs: int) -> None:
    # as caches of tools do it; a run may hold the person's data
    with suppress(FileExistsError):
        descriptor = os.open(".gitignore", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=runs)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write("*\n")
