"""Who may go on with a run: one worker at a time, also where another one only seems to be lost.

A node that its cluster has given up may still be alive, and so may the workers of a driver that has died. So each job that is
handed out gets a lease, whose number grows, and the newest one of a job is in a small file of the batch, ``leases/NAME``, on
the storage where the run is. These things happen in this order:

1. The driver writes the new lease, and then gives the job to a worker.
2. Where the lease before was not given back, that worker takes the journal over: it goes on in a copy under the same name.
   What the worker before may still write goes to the old file, which nobody finds any more.
3. It opens the journal, and resumes the run.

Whoever holds a lease reads the file before it opens the journal, before each effect, after the journal has noted that it begins and as the last thing before
it is done, and once more when it has ended, before its outcome is noted. Once the lease is not the newest, a worker process ends
on the spot, with its sandboxes. So of what an older holder does, only the one effect can overlap with the newer one that was
under way when the lease was granted. The newer one treats it as after any crash: its outcome is unknown.

The driver takes a result only with the newest lease. Without shared storage there is no file to read: then the worker asks its
driver each time, and waits as long as that does not answer.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from codeact_team.batch.throttle import DriverInterface
from codeact_team.core.effects import Effect, Perform
from codeact_team.errors import JournalError
from codeact_team.executors.files.directories import opened, whole_file
from codeact_team.runs.journal.run_directory import RunDirectory
from codeact_team.runs.journal.seal import SealKey
from codeact_team.sandbox.system.named_paths import made_named, remove_named
from codeact_team.sandbox.system.regular_files import open_regular, read_regular

_MOST = 1024
"""Bytes of a lease."""
_PIECE = 1 << 20
_LEASES = "leases"
# no job has a name that begins with a dot
_TOKEN = ".driver"


@dataclass(frozen=True)
class Lease:
    """The right to go on with a run; plain data.

    Attributes:
        job: The name of the job.
        number: Higher than that of all leases of the job before that were not given back.
        nonce: What no other lease has.
        takes_over: Whether the lease before was not given back: somebody may still hold it.
    """

    job: str
    number: int
    nonce: str
    takes_over: bool

    @property
    def written(self) -> str:
        """What is in the file as long as it is the newest."""
        return f"{self.number} {self.nonce}\n"

    def dump(self) -> dict[str, Any]:
        """It as JSON."""
        return asdict(self)


class LeaseFiles:
    """The newest lease of each job of a batch. All of it blocks.

    Args:
        directory: That of the batch.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory / _LEASES

    def begin(self) -> str:
        """A token by which a worker finds out if it sees this directory.

        Raises:
            JournalError: If it cannot be written.
        """
        token = secrets.token_hex(16)
        self._write(_TOKEN, token)
        return token

    def is_seen(self, token: str) -> bool:
        """Whether this is the directory in which a driver has begun, and not only one of the same name."""
        return self._read(_TOKEN) == token

    def grant(self, job: str) -> Lease:
        """A new lease, after which none before is the newest.

        Raises:
            JournalError: If it cannot be written.
        """
        before = self._read(job).partition(" ")[0]
        number = int(before) + 1 if before.isdecimal() else 1
        lease = Lease(job, number, secrets.token_hex(8), takes_over=bool(before))
        self._write(job, lease.written)
        return lease

    def is_newest(self, lease: Lease) -> bool:
        """Whether no other was granted since, nor was this one given back."""
        return self._read(lease.job) == lease.written

    def give_back(self, lease: Lease) -> None:
        """Whoever has held it has ended in order."""
        with suppress(OSError), opened(self._directory) as directory:
            os.unlink(lease.job, dir_fd=directory)

    def _read(self, name: str) -> str:
        try:
            return read_regular(self._directory / name, _MOST).decode("ascii", errors="replace")
        except OSError:
            # whoever cannot read it does not know that it is the newest
            return ""

    def _write(self, name: str, text: str) -> None:
        passing = f".{name}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with made_named(self._directory, 0o700) as directory:
                with open(os.open(passing, flags, 0o600, dir_fd=directory), "w") as file:
                    file.write(text)
                # never half written
                os.replace(passing, name, src_dir_fd=directory, dst_dir_fd=directory)
        except OSError as error:
            raise JournalError(
                f"the lease of a task cannot be written to {self._directory}: {error.strerror}"
            ) from error


class HeldLease:
    """A handler: lets an effect be done, and its outcome be known, only as long as a lease is the newest.

    Args:
        lease: It.
        files: Those of the batch; ``None`` where its directory is not seen.
        driver: Answers where there are no files.
        end: Ends the process of the worker where it is not the newest; if that returns, the run ends.
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
        """Begin to work on a run, and let nobody else do so who has held it before.

        Raises:
            JournalError: If that is not possible.
        """
        await self._check()
        if self._takes_over:
            run.take_over()
            self._takes_over = False

    async def stand(self, effect: Effect[Any], do: Perform) -> Any:
        """Let an effect pass.

        Raises:
            JournalError: If another worker goes on with the run; it ends here.
        """
        await self._check()
        try:
            return await do()
        finally:
            self.check_file()

    def check_file(self) -> None:
        """Find out if the lease is the newest, as far as there is a file that tells. Blocks.

        Raises:
            JournalError: If it is not.
        """
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
    """The directory of a run, whose journal is found only by whoever holds its lease.

    Args:
        path: The directory.
        held: The lease.
        key: As of :class:`RunDirectory`.
    """

    def __init__(self, path: Path, held: HeldLease, key: SealKey | None = None) -> None:
        super().__init__(path, key)
        self._held = held

    @property
    def lines(self) -> Path:
        # as it is opened next: whoever was stopped before that must not open that of another
        self._held.check_file()
        return super().lines

    def take_over(self) -> None:
        """Let whoever has written the journal until now not write it any more. Blocks.

        Raises:
            JournalError: If that is not possible.
        """
        try:
            if not self.is_begun:
                # nothing was done yet
                with suppress(FileNotFoundError):
                    remove_named(self.path)
                return
            with open(open_regular(self.lines), "rb") as old, whole_file(self.lines, mode=0o600) as new:
                while piece := old.read(_PIECE):
                    new.write(piece)
                self._held.check_file()
        except OSError as error:
            raise JournalError(f"the run in {self.path} cannot be taken over: {error.strerror}") from error
