"""Distinguishes the runs that this user has recorded from other users' runs, and from runs that were changed since.

A key of the user's, which no run directory has, seals the description of a run, and authenticates each line of its journal
together with all before it. So nobody else can make or change a run that is taken for the user's own, or move lines to another.
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs

from codeact_team.errors import JournalError
from codeact_team.files.opening import read_regular

_FILE = "run-key"
_BYTES = 32
_MAC = b',"mac":"'
_DIGITS = 32
"""Hexadecimal digits of the code of a line: 128 bits."""


@dataclass(frozen=True)
class SealKey:
    """A key that seals runs.

    Attributes:
        name: Names the key in each run that it seals: empty for the user's own, else the purpose of a derived one.
        secret: The key.
    """

    name: str
    secret: bytes = field(repr=False)

    def derived(self, name: str) -> SealKey:
        """A key for one purpose, from which the user's own does not follow, so that workers may have it."""
        return SealKey(name, self._digest(b"key", name.encode()))

    def seal(self, described: bytes) -> str:
        """The seal of the description of a run."""
        return self._digest(b"run", described).hex()

    def chain(self, seal: str) -> Chain:
        """Authenticates the journal of the run with a seal."""
        return Chain(self._digest(b"journal", seal.encode()))

    def _digest(self, purpose: bytes, data: bytes) -> bytes:
        return hmac.digest(self.secret, purpose + b"\0" + data, "sha256")


class Chain:
    """Authenticates the lines of a journal, each together with all before it."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._last = b""

    def digest(self, data: bytes) -> str:
        """A digest of data that is not to be guessed from it, as it may be short. Wherever the journal is, it is the same."""
        return hmac.digest(self._secret, b"digest\0" + data, "sha256").hex()[:_DIGITS]

    def signed(self, body: bytes) -> bytes:
        """The body of the next line, with its code."""
        return body + _MAC + self._code(body) + b'"'

    def accept(self, body: bytes) -> bool:
        """Advance to a line if it is the next one; returns whether it is."""
        unsigned, found = body[: -len(_MAC) - _DIGITS - 1], body[-_DIGITS - 1 : -1]
        if not hmac.compare_digest(body, self.signed(unsigned)):
            return False
        self._last = found
        return True

    def _code(self, body: bytes) -> bytes:
        return hmac.digest(self._secret, self._last + body, "sha256").hex()[:_DIGITS].encode()


def key_file() -> Path:
    """The file of this user's key; raises :class:`JournalError` if the user has no directory for it."""
    directory = platformdirs.user_state_path("codeact-team")
    if not directory.is_absolute():
        raise JournalError("there is no home directory, nor an XDG_STATE_HOME that is an absolute path")
    return directory / _FILE


def user_key() -> SealKey:
    """The key of this user, made when it is needed first. Blocks.

    Raises:
        JournalError: If it can neither be read nor made, or others can read it.
    """
    file = key_file()
    try:
        try:
            return _read(file)
        except FileNotFoundError:
            _make(file)
            return _read(file)
    except OSError as error:
        raise JournalError(f"the key {file}, by which your runs are recognized: {error.strerror}") from error


def _read(file: Path) -> SealKey:
    # links above it are the user's own: where code could reach them, nothing is recorded
    secret = read_regular(file.parent.resolve() / file.name, _BYTES)
    status = file.stat(follow_symlinks=False)
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077 or len(secret) != _BYTES:
        raise OSError(
            None,
            "it is not a key that only you can read: remove it; you will be asked to confirm the runs that were made before",
        )
    return SealKey("", secret)


def _make(file: Path) -> None:
    """Make the key, unless another process is faster."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    passing = file.with_name(f".{_FILE}-{secrets.token_hex(8)}")
    try:
        descriptor = os.open(
            passing, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        with open(descriptor, "wb") as new:
            new.write(secrets.token_bytes(_BYTES))
            new.flush()
            os.fsync(descriptor)
        with suppress(FileExistsError):
            # fails where there is one, and is there as a whole
            os.link(passing, file)
    finally:
        passing.unlink(missing_ok=True)
