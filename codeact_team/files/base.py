"""The files of a workspace, wherever it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

from codeact_team.files.given import Given
from codeact_team.files.snapshots import Snapshot


class Files(ABC):
    """What the host reads and writes in a workspace. What is there is hostile, and may change at any time.

    Attributes:
        outlasts_sandbox: Whether it is there without its sandbox.
        is_empty: Whether it is known that nothing was there when the sandbox had started.
    """

    outlasts_sandbox: bool
    is_empty: bool

    @abstractmethod
    async def check(self, given: Sequence[Given]) -> None:
        """Find out whether there is room for what is given, as far as can be known before the sandbox has started.

        Raises:
            SettingError: If something else is in its place.
        """

    @abstractmethod
    async def put(self, given: Sequence[Given], *, replace: bool = False) -> None:
        """Copy what is given into the workspace.

        Args:
            given: What.
            replace: Whether files are written whatever is in their place, and the directories above them made.

        Raises:
            SettingError: If something else is in its place.
            SandboxError: If it cannot be copied.
        """

    @abstractmethod
    async def remove(self, paths: Sequence[str]) -> None:
        """Remove files; one that is not there is no matter.

        Args:
            paths: As in a snapshot.

        Raises:
            SandboxError: If one cannot be removed.
        """

    @abstractmethod
    async def snapshot(self) -> Snapshot:
        """What is there now.

        Raises:
            SandboxError: If that cannot be found out.
        """

    @abstractmethod
    def read(self, path: str, size: int) -> AsyncGenerator[bytes]:
        """The content of a regular file, as much as it had when it was of this ``size``.

        Args:
            path: As in a snapshot.
            size: In bytes.

        Raises:
            OSError: If it cannot be read.
        """

    @abstractmethod
    async def read_all(self, wanted: Mapping[str, int], take: Callable[[str, bytes], None]) -> None:
        """Read many files as a whole; one that cannot be read is left out.

        Args:
            wanted: The sizes by path, as in a snapshot; no more than that is read.
            take: Gets each path with its content, in a thread.
        """

    @abstractmethod
    async def add(self, name: str, data: bytes) -> str:
        """Add a file; see :meth:`codeact_team.StreamingCodeExecutor.add_file`."""
