"""Effects of a program on its sandbox. A resumed run performs them again, as its program does."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from autogen_core import CancellationToken
from pydantic import JsonValue, TypeAdapter

from codeact_team.core.component_effects import CodeEffect, T
from codeact_team.executors.session import InterpreterCodeExecutor


class _SandboxEffect(CodeEffect[T]):
    """Something other than code or a process, done with the sandbox by its program.

    Args:
        executor: The executor of the sandbox.
        **request: What is asked.
    """

    form: TypeAdapter[Any] = TypeAdapter(None)

    def __init__(self, executor: InterpreterCodeExecutor, **request: JsonValue) -> None:
        super().__init__(executor, lambda blocks: executor.run_code_blocks(blocks, CancellationToken()))
        self._request = request

    def request(self) -> JsonValue:
        return dict(self._request)


class SandboxFork(_SandboxEffect[None]):
    """The sandbox is forked."""

    kind = "sandbox_fork"


class SandboxCheckpoint(_SandboxEffect[None]):
    """The state of the sandbox is kept as a checkpoint."""

    kind = "sandbox_checkpoint"


class SandboxRollback(_SandboxEffect[None]):
    """The sandbox is set back to a checkpoint."""

    kind = "sandbox_rollback"


class FilePut(_SandboxEffect[None]):
    """A file is written into the sandbox. Its request has the digest of the content."""

    kind = "file_put"

    def __init__(self, executor: InterpreterCodeExecutor, path: str, data: bytes) -> None:
        super().__init__(executor, path=path, size=len(data), sha256=_digest(data))


class FileGet(_SandboxEffect[bytes]):
    """A file of the sandbox is read. The journal has the digest of the content, which the workspace has itself."""

    kind = "file_get"

    def __init__(self, executor: InterpreterCodeExecutor, path: str, limit: int) -> None:
        super().__init__(executor, path=path, limit=limit)

    def dump(self, outcome: bytes) -> JsonValue:
        return {"size": len(outcome), "sha256": _digest(outcome)}


class FileList(_SandboxEffect[Mapping[str, int]]):
    """The files of the workspace are listed, with their sizes in bytes."""

    kind = "file_list"
    form = TypeAdapter[Any](Mapping[str, int])


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
