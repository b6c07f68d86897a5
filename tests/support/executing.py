"""The executors that must pass the conformance suite, what tests need to know of each, and how tests run code."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock

from codeact_team.core.execution import ExecutionResult, Outcome
from codeact_team.core.executor_interface import StreamingCodeExecutor
from codeact_team.executors.base import SandboxedCodeExecutor
from codeact_team.executors.confined import ConfinedCommandLineCodeExecutor, ConfinedSessionCodeExecutor
from codeact_team.executors.docker import DockerCommandLineCodeExecutor, DockerSessionCodeExecutor
from codeact_team.sandbox.docker.address import engine_url
from codeact_team.sandbox.docker.container import LABEL, owner_label
from codeact_team.sandbox.docker.engine import connect


async def run(
    executor: StreamingCodeExecutor,
    *code: str,
    language: str = "python",
    token: CancellationToken | None = None,
) -> ExecutionResult:
    """The result of running each ``code`` as a block of its own, in one call."""
    blocks = [CodeBlock(code=text, language=language) for text in code]
    return await executor.execute_code_blocks(blocks, token or CancellationToken())


async def goes_on(executor: SandboxedCodeExecutor) -> bool:
    """Whether the next block runs; it has time to start an interpreter, however little time a block has."""
    while (result := await run(executor, "print('next')")).outcome is Outcome.TIMED_OUT:
        # a busy machine needs longer to start one; the test's own time limit ends this
        pass
    return result.output.endswith("next\n")


def wait_until(condition: Callable[[], bool], *, seconds: float) -> None:
    """Block until ``condition`` holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.005)


@dataclass(frozen=True)
class Kind:
    """An executor under test.

    Attributes:
        name: What it is called in parameters.
        make: Its class.
        inside: What a process, by its id, keeps running for its sandboxes: containers, or supervising processes.
        exists: Whether one of them still exists.
        kill: Kills one of them, as a user or the machine may.
        small: Settings with limits that a test reaches fast.
        fields: For each limit, what a result must name: the config field with its value in ``small``.
    """

    name: str
    make: Callable[..., SandboxedCodeExecutor]
    inside: Callable[[int], set[str]]
    exists: Callable[[str], bool]
    kill: Callable[[str], None]
    small: dict[str, Any]
    fields: dict[str, str]

    def held(self) -> set[str]:
        """What this process keeps running."""
        return self.inside(os.getpid())

    def lose(self, which: set[str]) -> None:
        """Kill ``which``, and see them gone."""
        for one in which:
            self.kill(one)
        wait_until(lambda: not any(self.exists(one) for one in which), seconds=10)


def _containers(pid: int) -> set[str]:
    owner = f"{owner_label().rpartition(':')[0]}:{pid}"
    with closing(connect(engine_url())) as client:
        return {c["Id"] for c in client.containers(all=True, filters={"label": f"{LABEL}={owner}"})}


def _container_exists(container: str) -> bool:
    with closing(connect(engine_url())) as client:
        return bool(client.containers(all=True, filters={"id": container}))


def _kill_container(container: str) -> None:
    with closing(connect(engine_url())) as client:
        client.kill(container)


def _supervisors(pid: int) -> set[str]:
    return {one for zygote in _supervising(str(pid)) for one in _supervising(zygote)}


def _supervising(pid: str) -> set[str]:
    found: set[str] = set()
    # threads and processes come and go
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                for child in (task / "children").read_text().split():
                    with suppress(OSError):
                        if "confined/supervisor" in Path(f"/proc/{child}/cmdline").read_text():
                            found.add(child)
    return found


def _process_runs(pid: str) -> bool:
    """Whether there is such a process, with all that it holds until its last thread has ended."""
    return Path(f"/proc/{pid}").exists()


_SMALL = {"memory_mib": 64, "pids": 32, "tmpfs_mib": 16}
_COMMAND_LINE = {
    "docker": Kind(
        name="docker",
        make=DockerCommandLineCodeExecutor,
        inside=_containers,
        exists=_container_exists,
        kill=_kill_container,
        small={**_SMALL, "max_file_mib": 16},
        fields={
            "memory": "memory_mib: 64",
            "processes": "pids: 32",
            "network": "network: none",
            "read-only": "read_only: true",
        },
    ),
    "confined": Kind(
        name="confined",
        make=ConfinedCommandLineCodeExecutor,
        inside=_supervisors,
        exists=_process_runs,
        kill=lambda pid: os.kill(int(pid), signal.SIGKILL),
        small=_SMALL,
        fields={
            "memory": "memory_mib: 64",
            "processes": "pids: 32",
            "network": "network: none",
            "read-only": "work_dir: ",
        },
    ),
}
_SESSION_CLASSES = {"docker": DockerSessionCodeExecutor, "confined": ConfinedSessionCodeExecutor}
KINDS = _COMMAND_LINE | {
    f"{name}-session": replace(_COMMAND_LINE[name], name=f"{name}-session", make=make)
    for name, make in _SESSION_CLASSES.items()
}

FRESH = ("docker", "confined")
"""Executors that start a process for each block."""
LIVING = ("docker-session", "confined-session")
"""Executors whose blocks share an interpreter."""


def _kind(name: str, *, is_long: bool = False) -> Any:
    marks = [pytest.mark.docker] * name.startswith("docker") + [pytest.mark.long] * is_long
    return pytest.param(name, marks=marks)


def usually(*names: str, among: Sequence[str] = tuple(KINDS)) -> pytest.MarkDecorator:
    """For what is usually tried with executors of the kinds ``names``, and with all ``among`` these where long tests run."""
    kinds = [_kind(name, is_long=name not in names) for name in among]
    return pytest.mark.parametrize("kind", kinds, indirect=True)


_LONG_WHERE = "long_where"
Test = TypeVar("Test", bound=Callable[..., object])


def long_where(is_long: Callable[[str, str], bool]) -> Callable[[Test], Test]:
    """For a test that is long with each ``kind`` and ``code`` among its parameters for which ``is_long`` holds."""

    def remember(test: Test) -> Test:
        setattr(test, _LONG_WHERE, is_long)
        return test

    return remember


def is_long_there(test: object, parameters: Mapping[str, Any]) -> bool:
    """Whether that says so of these parameters."""
    is_long = getattr(test, _LONG_WHERE, None)
    return is_long is not None and is_long(parameters["kind"], parameters["code"])


ALL_KINDS = [_kind(name) for name in KINDS]
fresh_processes = usually(*FRESH, among=FRESH)
"""For what holds of executors that start a process for each block."""
living_interpreters = usually(*LIVING, among=LIVING)
"""For what holds of executors whose blocks share an interpreter."""
in_containers = usually("docker", among=["docker", "docker-session"])
"""For what can only be tried in a container."""
each_part_once = usually("docker", "confined-session", among=["docker", "confined-session"])
"""For what a sandbox and a way of running code do whatever the other is."""
one_part = usually("confined-session", among=["docker", "confined-session"])
"""The same, where containers are nothing special."""
one_interpreter = usually("confined-session", among=["confined-session"])
"""For what sessions do alike in every sandbox."""


@pytest.fixture(scope="session", autouse=True)
def zygote() -> Generator[None]:
    """The process that confined sandboxes are forks of, for a ``conftest`` to import: it takes longer to start, and ends with the last."""
    if why_not_confined() is not None:
        yield
        return
    # one of sessions serves others, too
    executor = KINDS["confined-session"].make()
    asyncio.run(executor.start())
    yield
    asyncio.run(executor.stop())


_LANDLOCK_ABI = 2
"""What Linux 6.1 has, as the README asks for."""


@cache
def why_not_confined() -> str | None:
    """What the kernel itself lacks for code to be confined; a refusal of our own is no reason to skip a test."""
    if sys.platform != "linux":
        return f"code is confined on Linux, and this is {sys.platform}"
    # landlock_create_ruleset, asked for its version
    if ctypes.CDLL(None).syscall(444, None, 0, 1) < _LANDLOCK_ABI:
        return f"this kernel has no Landlock of ABI {_LANDLOCK_ABI}"
    return None
