# ruff: noqa: ASYNC109 - maf-sandbox has time-outs as parameters
"""A backend of maf-sandbox over our sandboxes, for its conformance suite.

Files go through ``put`` and ``get``, all else is a process. Both have the rights of the code in the sandbox, so that a path
which is checked and exchanged before it is used leads nowhere that the code could not go itself. What is at a path is
answered by ``stat`` in the sandbox, which says the truth in these tests.
"""

from __future__ import annotations

import asyncio
import posixpath
import stat
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Literal, Self
from uuid import uuid4

from maf_sandbox import (
    BackendDeclarations,
    Capability,
    DisposalFailure,
    Egress,
    EntryKind,
    ExecResult,
    Isolation,
    IsolationScope,
    OsFamily,
    SandboxEntry,
    SandboxKey,
    SandboxSpec,
    SandboxTransferCapExceeded,
    ScopePurge,
)
from maf_sandbox import EgressRule as MafRule
from maf_sandbox.paths import (
    confine_resolve_guest_delete_path,
    confine_resolve_guest_list_path,
    confine_resolve_guest_path,
    confine_resolve_guest_read_path,
    confine_resolve_guest_write_path,
    ensure_guest_work_dir,
    posix_work_dir_ancestors,
    resolve_guest_working_directory,
)

from codeact_team import AsyncSandbox, open_sandbox
from codeact_team.network.rules import EgressRule

Where = Literal["docker", "confined"]

CAPABILITIES = frozenset(
    {
        Capability.EXEC,
        Capability.FILES_IN,
        Capability.FILES_OUT,
        Capability.FILES_LIST,
        Capability.FILES_DELETE,
        Capability.RECLAIM,
        Capability.EGRESS_METHODS,
    }
)
_KINDS = {stat.S_IFREG: EntryKind.FILE, stat.S_IFDIR: EntryKind.DIRECTORY, stat.S_IFLNK: EntryKind.SYMLINK}
_NOT_RUN = 127
"""The exit code of a shell that finds no such program."""
_FILE_TIMEOUT = 30
"""Seconds for a process that looks at files or removes some."""


@dataclass(frozen=True)
class AcquiredSandbox:
    """A sandbox as maf-sandbox sees it.

    Attributes:
        instance_id: Names it.
        freshly_created: Whether it was made by this very ``acquire``.
    """

    instance_id: str
    freshly_created: bool
    sandbox: AsyncSandbox
    base: str

    def _directory(self, working_directory: str) -> str:
        return resolve_guest_working_directory(working_directory, self.base)

    async def write_file(self, path: str, content: str | bytes, *, working_directory: str) -> None:
        resolved = await confine_resolve_guest_write_path(
            self._stat, path, self._directory(working_directory)
        )
        await self.sandbox.put(resolved, content)

    async def exec(
        self, command: str | Sequence[str], *, working_directory: str, timeout: float
    ) -> ExecResult:
        argv = ["sh", "-c", command] if isinstance(command, str) else command
        try:
            ended = await self.sandbox.run(argv, cwd=self._directory(working_directory), timeout=timeout)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(str(error)) from error
        except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
            return ExecResult(stderr=f"{error}\n", exit_code=_NOT_RUN)
        return ExecResult(
            stdout_bytes=ended.stdout,
            stderr_bytes=ended.stderr,
            exit_code=ended.returncode if ended.returncode >= 0 else 128 - ended.returncode,
        )

    async def stat_file(self, path: str, *, working_directory: str) -> SandboxEntry | None:
        directory = self._directory(working_directory)
        entry = await self._stat(await confine_resolve_guest_read_path(self._stat, path, directory))
        return None if entry is None else replace(entry, path=path)

    async def read_file(self, path: str, *, working_directory: str, max_bytes: int) -> bytes:
        directory = self._directory(working_directory)
        resolved = await confine_resolve_guest_read_path(self._stat, path, directory)
        entry = await self._stat(resolved)
        if entry is None:
            raise FileNotFoundError(path)
        if entry.kind is not EntryKind.FILE:
            raise OSError(f"{path!r} is not a regular file")
        if entry.size_bytes is None or entry.size_bytes > max_bytes:
            raise SandboxTransferCapExceeded(f"{path!r} has more than {max_bytes} bytes")
        return await self.sandbox.get(resolved)

    async def list_dir(self, path: str, *, working_directory: str) -> tuple[SandboxEntry, ...]:
        directory = self._directory(working_directory)
        resolved = await confine_resolve_guest_list_path(self._stat, path, directory)
        listed = await self._run(["find", resolved, "-mindepth", "1", "-maxdepth", "1", "-printf", "%f\\0"])
        names = [name.decode(errors="surrogateescape") for name in listed.stdout.split(b"\0")[:-1]]
        entries = [(name, await self._stat(posixpath.join(resolved, name))) for name in names]
        return tuple(
            replace(entry, path=posixpath.normpath(posixpath.join(path, name)))
            for name, entry in entries
            if entry is not None
        )

    async def remove(self, path: str, *, working_directory: str, recursive: bool = False) -> None:
        directory = self._directory(working_directory)
        resolved = await confine_resolve_guest_delete_path(self._stat, path, directory)
        entry = await self._stat(resolved)
        if entry is not None and entry.kind is EntryKind.DIRECTORY and not recursive:
            raise IsADirectoryError(path)
        await self._remove(resolved, _FILE_TIMEOUT)

    async def reclaim(self, directory: str, *, working_directory: str, timeout: float) -> None:
        above = self._directory(working_directory)
        resolved = confine_resolve_guest_path(directory, above)
        if resolved == posixpath.normpath(above):
            raise ValueError("the working directory itself is not reclaimed")
        await self._remove(resolved, timeout)

    async def run_code(self, code: str, *, timeout: float) -> ExecResult:
        raise NotImplementedError

    async def reset(self, *, timeout: float) -> None:
        raise NotImplementedError

    async def prepare(self, spec: SandboxSpec) -> None:
        """Make the directory in which everything begins."""

        async def create(directories: tuple[str, ...]) -> None:
            await self._run(["mkdir", *directories])

        await ensure_guest_work_dir(
            spec, self._stat, create, resolve=posix_work_dir_ancestors, base=self.base
        )

    async def _stat(self, path: str) -> SandboxEntry | None:
        # of links it tells what they are
        ended = await self.sandbox.run(
            ["stat", "--format=%f %s", "--", path], env={"LC_ALL": "C"}, timeout=_FILE_TIMEOUT
        )
        if ended.returncode:
            message = ended.stderr.decode(errors="replace")
            if "No such file or directory" in message:
                return None
            raise OSError(message)
        mode, size = ended.stdout.split()
        kind = _KINDS.get(stat.S_IFMT(int(mode, 16)), EntryKind.OTHER)
        return SandboxEntry(path, kind, int(size) if kind is EntryKind.FILE else None)

    async def _remove(self, path: str, timeout: float) -> None:
        try:
            await self._run(["rm", "-rf", "--", path], timeout)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(str(error)) from error

    async def _run(
        self, argv: Sequence[str], timeout: float = _FILE_TIMEOUT
    ) -> subprocess.CompletedProcess[bytes]:
        ended = await self.sandbox.run(argv, timeout=timeout)
        if ended.returncode:
            raise OSError(ended.stderr.decode(errors="replace"))
        return ended


@dataclass
class _Opened:
    key: SandboxKey
    kind: str
    acquired: AcquiredSandbox
    opened: AsyncExitStack


class FaceBackend:
    """Opens a sandbox for each key and kind. What is open is closed at the end of ``async with``."""

    name = "codeact-team"

    def __init__(self, where: Where, *, reached: Mapping[str, Any] | None = None) -> None:
        """``reached`` says of all hosts of a specification how they are reached: on this machine, and at another port."""
        self._reached = reached or {}
        self.isolation = Isolation.CONTAINER if where == "docker" else Isolation.PROCESS
        self.declarations = BackendDeclarations(
            capabilities=CAPABILITIES,
            egress_modes=frozenset({Egress.CLOSED, Egress.ALLOWLIST}),
            os_families=frozenset({OsFamily.POSIX}),
            isolation_scopes=frozenset({IsolationScope.CONVERSATION, IsolationScope.CALL}),
        )
        self._where: Where = where
        self._open: dict[tuple[SandboxKey, str], _Opened] = {}
        self._turn = asyncio.Lock()

    @property
    def instances(self) -> Mapping[str, AcquiredSandbox]:
        """What is open, by its id."""
        return {each.acquired.instance_id: each.acquired for each in self._open.values()}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(list(self._open.values()))

    async def acquire(self, key: SandboxKey, spec: SandboxSpec) -> AcquiredSandbox:
        async with self._turn:
            if (there := self._open.get((key, spec.kind))) is not None:
                return replace(there.acquired, freshly_created=False)
            async with AsyncExitStack() as stack:
                opened = open_sandbox(self._where, egress=self._rules(spec))
                sandbox = await stack.enter_async_context(opened)
                base = spec.work_dir or posixpath.join(sandbox.workspace_path, "work")
                acquired = AcquiredSandbox(uuid4().hex, True, sandbox, base)
                await acquired.prepare(spec)
                self._open[key, spec.kind] = _Opened(key, spec.kind, acquired, stack.pop_all())
            return acquired

    def _rules(self, spec: SandboxSpec) -> list[EgressRule | str] | None:
        if spec.egress is Egress.CLOSED:
            return None
        rules: list[EgressRule | str] = []
        for entry in spec.egress_allow:
            rule = MafRule(entry) if isinstance(entry, str) else entry
            methods = None if rule.methods is None else [str(method) for method in rule.methods]
            paths = None if rule.paths is None else [*rule.paths]
            rules.append(
                EgressRule(host=rule.host, methods=methods, paths=paths, decision="allow", **self._reached)
            )
        return rules

    async def dispose(
        self, key: SandboxKey, *, kind: str | None = None, instance_id: str | None = None
    ) -> DisposalFailure | None:
        chosen = [
            each
            for each in self._open.values()
            if each.key == key
            and kind in (None, each.kind)
            and instance_id in (None, each.acquired.instance_id)
        ]
        await self._close(chosen)
        return None

    async def dispose_scope(self, scope: str, thread_id: str) -> ScopePurge:
        chosen = [
            each for each in self._open.values() if (each.key.scope, each.key.thread_id) == (scope, thread_id)
        ]
        await self._close(chosen)
        return ScopePurge(len(chosen))

    async def _close(self, chosen: Sequence[_Opened]) -> None:
        async with self._turn:
            for each in chosen:
                del self._open[each.key, each.kind]
                await each.opened.aclose()
