"""The conformance suite of maf-sandbox, unmodified, over the sandbox that the variable ``WHERE`` names.

It runs in the environment of that suite; see ``test_maf_sandbox.py``.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from maf_backend import CAPABILITIES, AcquiredSandbox, FaceBackend, Where
from maf_sandbox import Egress, EgressRule, SandboxKey, SandboxSpec
from maf_sandbox.conformance import (
    ExecEgressMethodsSubject,
    PosixGuestSubject,
    ProbeResult,
    assert_call_scope_conformance,
    assert_egress_conformance,
    assert_egress_methods_conformance,
    assert_exec_conformance,
    assert_files_delete_conformance,
    assert_files_in_conformance,
    assert_files_out_conformance,
    assert_fresh_acquire_conformance,
    assert_instance_disposal_conformance,
    assert_reach_conformance,
    assert_reclaim_conformance,
    assert_storage_base_conformance,
)

WHERE = cast("Where", os.environ.get("WHERE", "docker"))

KEY = SandboxKey("person", "thread", "agent", "first")
OTHER_CALL = SandboxKey("person", "thread", "agent", "second")
SPEC = SandboxSpec("test", work_dir=None, requires=CAPABILITIES - {"reclaim"})
IN_TMP = SandboxSpec("in-tmp", work_dir="/tmp/maf-sandbox/work", requires=SPEC.requires)


def _subject(sandbox: AcquiredSandbox) -> PosixGuestSubject:
    return PosixGuestSubject(sandbox, sandbox.base, CAPABILITIES)


@asynccontextmanager
async def _acquired(spec: SandboxSpec) -> AsyncGenerator[tuple[FaceBackend, AcquiredSandbox]]:
    async with FaceBackend(WHERE) as backend:
        yield backend, await backend.acquire(KEY, spec)


_Suite = Callable[[PosixGuestSubject], Awaitable[Sequence[ProbeResult]]]


@pytest.mark.parametrize("spec", [SPEC, IN_TMP], ids=lambda spec: spec.kind)
@pytest.mark.parametrize(
    "suite",
    [
        assert_files_in_conformance,
        assert_files_out_conformance,
        assert_files_delete_conformance,
        assert_reclaim_conformance,
        assert_reach_conformance,
        assert_exec_conformance,
    ],
    ids=lambda suite: suite.__name__,
)
def test_suite(suite: _Suite, spec: SandboxSpec) -> None:
    async def run() -> None:
        async with _acquired(spec) as (_, sandbox):
            results = await suite(_subject(sandbox))
        # a skipped probe would have attacked nothing
        assert results
        assert all(result.passed for result in results)

    asyncio.run(run())


@pytest.mark.parametrize("spec", [SPEC, IN_TMP], ids=lambda spec: spec.kind)
def test_storage_base(spec: SandboxSpec) -> None:
    async def run() -> None:
        async with _acquired(spec) as (_, sandbox):
            await assert_storage_base_conformance(sandbox, CAPABILITIES)

    asyncio.run(run())


def test_fresh_acquire() -> None:
    async def run() -> None:
        async with _acquired(SPEC) as (backend, sandbox):
            await assert_fresh_acquire_conformance(sandbox, lambda: backend.acquire(KEY, SPEC))

    asyncio.run(run())


def test_instance_disposal() -> None:
    async def run() -> None:
        async with _acquired(SPEC) as (backend, sandbox):
            sibling = await backend.acquire(OTHER_CALL, SPEC)

            async def exists(identity: str) -> bool:
                return identity in backend.instances

            await assert_instance_disposal_conformance(
                backend, KEY, SPEC.kind, sandbox.instance_id, [sibling.instance_id], exists
            )

    asyncio.run(run())


def test_call_scope() -> None:
    async def run() -> None:
        # the same paths in both sandboxes, which workspaces need not have
        async with _acquired(IN_TMP) as (backend, sandbox):

            async def acquire_another() -> PosixGuestSubject:
                return _subject(await backend.acquire(OTHER_CALL, IN_TMP))

            async def dispose(key: SandboxKey) -> None:
                assert await backend.dispose(key) is None

            results = await assert_call_scope_conformance(
                _subject(sandbox),
                acquire_another,
                lambda: dispose(KEY),
                lambda: dispose(OTHER_CALL),
            )
        assert all(result.passed for result in results)

    asyncio.run(run())


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    writer.close()


@asynccontextmanager
async def _reaching(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[tuple[FaceBackend, str]]:
    """A backend, and the end of the addresses of a server that has all names below ``.test``."""
    look_up = socket.getaddrinfo

    def on_this_machine(host: str, *more: Any, **named: Any) -> Any:
        return look_up("127.0.0.1" if str(host).endswith(".test") else host, *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", on_this_machine)
    server = await asyncio.start_server(_answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, FaceBackend(WHERE, reached={"ports": [port], "networks": ["127.0.0.1/32"]}) as backend:
        yield backend, f".test:{port}/"


def _reaches(kind: str, *rules: EgressRule) -> SandboxSpec:
    return SandboxSpec(
        kind, work_dir=None, requires=SPEC.requires, egress=Egress.ALLOWLIST, egress_allow=rules
    )


def test_egress(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with _reaching(monkeypatch) as (backend, end):
            sandbox = await backend.acquire(KEY, _reaches("allowed", EgressRule("allowed.test")))
            results = await assert_egress_conformance(
                _subject(sandbox), allowed_url=f"http://allowed{end}", denied_url=f"http://denied{end}"
            )
        assert results
        assert all(result.passed for result in results)

    asyncio.run(run())


def test_egress_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with _reaching(monkeypatch) as (backend, end):
            scoped, control = [
                ExecEgressMethodsSubject(
                    await backend.acquire(KEY, _reaches(kind, EgressRule("allowed.test", methods))),
                    CAPABILITIES,
                )
                for kind, methods in (("scoped", ("GET",)), ("control", None))
            ]
            results = await assert_egress_methods_conformance(
                scoped, control, allowed_url=f"http://allowed{end}"
            )
        assert results
        assert all(result.passed for result in results)

    asyncio.run(run())
