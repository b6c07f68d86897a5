"""Leases: only one worker at a time may run a job, also where another one only seems to be lost.

A node that its cluster has given up may still be alive, and so may the workers of a dead driver. So each job is handed out
with a lease, whose number grows. The newest lease of a job is in a small file, ``leases/NAME`` in the directory of the batch:

1. The driver writes the new lease, and then gives the job to a worker.
2. If the previous lease was not given back, the worker replaces the journal by a copy of itself. Whatever the previous worker
   still writes goes to the old file, which has no name any more.
3. The worker opens the journal, and resumes the run.

A worker reads the file before it opens the journal, before each effect, after the journal has recorded its begin, and once more
when the effect has ended, before its outcome is recorded. If its lease is not the newest, its process ends at once, with its
sandboxes. So only the one effect that was running when the new lease was granted can overlap with the newer worker, which treats
it as after any crash: its outcome is unknown.

The driver takes a result only with the newest lease. Without shared storage there is no file to read. Then the worker asks its
driver each time, and waits while that does not answer.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from codeact_team.batch.throttle import DriverInterface
from codeact_team.core.effects import Effect, Perform
from codeact_team.errors import JournalError
from codeact_team.files.atomic import whole_file, write_whole
from codeact_team.files.opening import made_named, open_regular, opened, read_regular, remove_named
from codeact_team.journal.run_directory import RunDirectory
from codeact_team.journal.seal import SealKey

_MOST = 1024
"""Bytes of a lease."""
_LEASES = "leases"
# no job has a name that begins with a dot
_TOKEN = ".driver"


@dataclass(frozen=True)
class Lease:
    """The right to run a job.

    Attributes:
        job: The name of the job.
        number: Higher than the numbers of all earlier leases of the job that were not given back.
        nonce: Random; no other lease has the same.
        takes_over: Whether the previous lease was not given back, so that another worker may still hold it.
    """

    job: str
    number: int
    nonce: str
    takes_over: bool

    @property
    def written(self) -> str:
        """The content of the file while this lease is the newest."""
        return f"{self.number} {self.nonce}\n"


class LeaseFiles:
    """The files with the newest lease of each job in the directory of a batch. All methods block.

    Raises:
        JournalError: If a file cannot be written.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory / _LEASES

    def begin(self) -> str:
        """Write a token, by which workers find out if they see this directory, and return it."""
        token = secrets.token_hex(16)
        self._write(_TOKEN, token)
        return token

    def is_seen(self, token: str) -> bool:
        """Whether this is the directory of the driver with this token, and not another one of the same name."""
        return self._read(_TOKEN) == token

    def grant(self, job: str) -> Lease:
        """Grant a new lease for a job, which replaces all earlier ones."""
        before = self._read(job).partition(" ")[0]
        number = int(before) + 1 if before.isdecimal() else 1
        lease = Lease(job, number, secrets.token_hex(8), takes_over=bool(before))
        self._write(job, lease.written)
        return lease

    def is_newest(self, lease: Lease) -> bool:
        """Whether no other lease was granted since, and this one was not given back."""
        return self._read(lease.job) == lease.written

    def give_back(self, lease: Lease) -> None:
        """Remove a lease whose holder has ended in order."""
        with suppress(OSError), opened(self._directory) as directory:
            os.unlink(lease.job, dir_fd=directory)

    def _read(self, name: str) -> str:
        try:
            return read_regular(self._directory / name, _MOST).decode("ascii", errors="replace")
        except OSError:
            # a worker that cannot read it must not take its own for the newest
            return ""

    def _write(self, name: str, text: str) -> None:
        try:
            with made_named(self._directory, 0o700) as directory:
                write_whole(directory, name, text.encode())
        except OSError as error:
            raise JournalError(
                f"the lease of a task cannot be written to {self._directory}: {error.strerror}"
            ) from error


class HeldLease:
    """An interceptor that performs an effect, and returns its outcome, only while a lease is the newest.

    Args:
        lease: The lease.
        files: The leases of the batch; ``None`` where this machine does not see its directory.
        driver: Is asked where there are no files.
        end: Ends the process of the worker if the lease is not the newest. If it returns, only the run ends.

    Raises:
        JournalError: By all methods, if another worker has the run now.
    """

    def __init__(
        self, lease: Lease, files: LeaseFiles | None, driver: DriverInterface, end: Callable[[], None]
    ) -> None:
        self._lease = lease
        self._files = files
        self._driver = driver
        self._end = end
        self._takes_over = lease.takes_over

    async def enter(self, run: LeasedRun) -> None:
        """Start working on a run, and keep its previous worker from writing to its journal."""
        await self._check()
        if self._takes_over:
            run.take_over()
            self._takes_over = False

    async def intercept(self, effect: Effect[Any], do: Perform) -> Any:
        await self._check()
        try:
            return await do()
        finally:
            self.check_file()

    def check_file(self) -> None:
        """Check that the lease is the newest, where there is a file to read. Blocks."""
        if self._files is not None and not self._files.is_newest(self._lease):
            self._give_up()

    async def _check(self) -> None:
        self.check_file()
        if self._files is None and not await self._driver.holds(self._lease.job, self._lease.written):
            self._give_up()

    def _give_up(self) -> NoReturn:
        self._end()
        raise JournalError("the run was given to another worker, which goes on with it")


class LeasedRun(RunDirectory):
    """The directory of a run, whose journal only the holder of its lease can open."""

    def __init__(self, path: Path, held: HeldLease, key: SealKey | None = None) -> None:
        super().__init__(path, key)
        self._held = held

    @property
    def lines(self) -> Path:
        # the caller opens it next, which a worker must not do that was suspended for long before this
        self._held.check_file()
        return super().lines

    def take_over(self) -> None:
        """Replace the journal by a copy, so that its previous writer writes to a file without a name. Blocks."""
        try:
            if not self.is_begun:
                # the previous worker has done nothing yet
                with suppress(FileNotFoundError):
                    remove_named(self.path)
                return
            with open(open_regular(self.lines), "rb") as old, whole_file(self.lines, mode=0o600) as new:
                shutil.copyfileobj(old, new)
                self._held.check_file()
        except OSError as error:
            raise JournalError(f"the run in {self.path} cannot be taken over: {error.strerror}") from error
