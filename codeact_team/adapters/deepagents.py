"""Deep agents whose files and shell commands are in a sandbox."""

from __future__ import annotations

from subprocess import TimeoutExpired
from typing import TYPE_CHECKING
from uuid import uuid4

from deepagents.backends.protocol import (
    ExecuteResponse,
    FileDownloadResponse,
    FileUploadResponse,
)
from deepagents.backends.sandbox import BaseSandbox

from codeact_team.errors import SandboxError

if TYPE_CHECKING:
    from codeact_team.standalone.synchronous import SyncSandbox

_TIMED_OUT = 124
"""The exit code of ``timeout(1)`` for a command that took too long."""
_NOT_STARTED = 126
"""A shell's exit code for a command that cannot be run."""

_CODES: dict[type[Exception], str] = {
    FileNotFoundError: "file_not_found",
    IsADirectoryError: "is_directory",
    NotADirectoryError: "invalid_path",
    PermissionError: "permission_denied",
    ValueError: "invalid_path",
}
"""The error codes of deepagents; other errors are their own text."""


class CodeactSandbox(BaseSandbox):
    """A backend for ``create_deep_agent(backend=...)``: shell commands, searches and files of the agent are in the sandbox.

    Args:
        sandbox: An open sandbox, which is not closed here.
        timeout: Seconds that a command may take, unless the agent asks for another time.
    """

    def __init__(self, sandbox: SyncSandbox, *, timeout: int = 120) -> None:
        self._sandbox = sandbox
        self._timeout = timeout
        self._id = f"codeact-{uuid4().hex[:12]}"

    @property
    def id(self) -> str:
        """A name for this backend, unlike all others."""
        return self._id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a command of the shell in the workspace.

        Args:
            command: For ``sh -c``.
            timeout: Seconds; 0 for as long as it takes.

        Returns:
            Both streams in one, the newest MiB of them. The exit code is 124 if the command took too long.

        Raises:
            SandboxError: If the sandbox is gone.
        """
        seconds = self._timeout if timeout is None else timeout or None
        try:
            ran = self._sandbox.run(["sh", "-c", command], stderr="together", timeout=seconds)
        except TimeoutExpired as expired:
            output = f"{_text(expired.output or b'')}\nThe command was stopped after {seconds} s.\n"
            return ExecuteResponse(output, _TIMED_OUT)
        except (OSError, ValueError) as error:
            return ExecuteResponse(f"The command could not be run: {error}\n", _NOT_STARTED)
        output = _text(ran.stdout) + (f"\n{ran.limit}\n" if ran.limit else "")
        # as a shell has it, a signal is a code above 128
        code = ran.returncode if ran.returncode >= 0 else 128 - ran.returncode
        return ExecuteResponse(output, code, truncated=ran.stdout_omitted > 0)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files at absolute paths, and make the directories above them."""
        return [FileUploadResponse(path, self._upload(path, content)) for path, content in files]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files at absolute paths."""
        return [self._download(path) for path in paths]

    def _upload(self, path: str, content: bytes) -> str | None:
        try:
            self._sandbox.put(_absolute(path), content)
        except (OSError, ValueError, SandboxError) as error:
            return _code(error)
        return None

    def _download(self, path: str) -> FileDownloadResponse:
        try:
            return FileDownloadResponse(path, self._sandbox.get(_absolute(path)))
        except (OSError, ValueError, SandboxError) as error:
            return FileDownloadResponse(path, error=_code(error))


def _absolute(path: str) -> str:
    if not path.startswith("/"):
        raise ValueError(f"{path!r} is not absolute")
    return path


def _code(error: Exception) -> str:
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), str(error))


def _text(output: bytes) -> str:
    return output.decode(errors="replace")
