"""The list of the files in a container is read, whatever hostile code there makes of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from io import BytesIO

import pytest
from support.cost import LINEAR, SHORT, growth, longest_turn
from support.variations import mostly_long

from codeact_team.errors import SandboxError
from codeact_team.executors.workspace.container_files import ContainerFiles
from codeact_team.executors.workspace.files import Snapshot
from codeact_team.sandbox.base import Exit, Process

LISTED = b"1|81a4|7 a b|./"
"""How a regular file of one byte is listed, up to its path."""


class Said(Process):
    """A program that says what it is told to say, a MiB at a time."""

    def __init__(self, said: bytes) -> None:
        self._said = BytesIO(said)

    async def read(self) -> bytes:
        return self._said.read(1 << 20)

    async def write(self, data: bytes) -> None: ...

    async def close_stdin(self) -> None: ...

    async def wait(self) -> Exit:
        return Exit(0)

    async def aclose(self) -> None: ...


async def seen(said: bytes) -> Snapshot:
    async def spawn(_: Sequence[str]) -> Process:
        return Said(said + b"\0")

    return await ContainerFiles(spawn, is_empty=True).snapshot()


def many(path: Callable[[int], bytes]) -> Callable[[int], bytes]:
    return lambda count: b"".join(LISTED + path(number) + b"\n" for number in range(count))


HOSTILE: dict[str, tuple[Callable[[int], bytes], int]] = {
    "one path of newlines": (lambda size: LISTED + b"a\n" + b"\n" * size, 1 << 15),
    "paths of newlines": (many(lambda number: b"%d" % number + b"\n" * 100), 1_000),
    "one path of slashes": (lambda size: LISTED + b"a/" * size + b"a\n", 1 << 19),
    "one long line": (lambda size: LISTED + b"a" * size + b"\n", 1 << 23),
    "one line without a path": (lambda size: b"1|1|" + b"|." * size + b"\n", 1 << 22),
    "deep paths": (many(lambda number: b"d/" * 60 + b"%d" % number), 3_000),
    "empty lines": (lambda size: b"\n" * size, 1 << 15),
}


@pytest.mark.parametrize("hostile", mostly_long(HOSTILE))
def test_a_list_is_read_in_linear_time(hostile: str) -> None:
    make, size = HOSTILE[hostile]

    def read(said: bytes) -> None:
        # in this thread, whose time is measured
        with asyncio.Runner() as runner:
            runner.run(read_here(said))

    assert growth(make, read, size) < LINEAR


async def read_here(said: bytes) -> None:
    async with threads_here():
        await seen(said)


@asynccontextmanager
async def threads_here() -> AsyncGenerator[None]:
    """Within it, what is given to a thread is done at once."""

    async def at_once(work: Callable[..., object], *arguments: object) -> object:
        return work(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "to_thread", at_once)
        yield


@pytest.mark.long
@pytest.mark.parametrize("hostile", HOSTILE)
async def test_the_loop_goes_on_while_a_long_list_is_read(hostile: str) -> None:
    make, size = HOSTILE[hostile]
    said = make(max(size, size * (4 << 20) // len(make(size))))
    assert await longest_turn(seen(said)) < SHORT


async def test_a_path_has_as_many_lines_as_it_has() -> None:
    said = LISTED + b"a\n\nb\n" + LISTED + b"c/d\xff\n" + b"0|81ed|7|./\n\n.\n" + b"5|a1ff|7|./link\n"
    snapshot = await seen(said)
    assert [*snapshot.files] == ["a\n\nb", "c/d" + os.fsdecode(b"\xff"), "\n\n."]
    assert [file.is_executable for file in snapshot.files.values()] == [False, False, True]
    assert snapshot.others == 1


async def test_what_leads_elsewhere_or_is_of_no_use_is_left_out() -> None:
    paths = (b"", b"../x", b"a//b", b"a/./b", b"/etc/passwd", b".codeact-team/x", b"d/__pycache__/x", b"d/x")
    assert [*(await seen(b"".join(LISTED + path + b"\n" for path in paths))).files] == ["d/x"]


async def test_what_is_too_deep_or_too_long_is_only_counted() -> None:
    deep, lines = LISTED + b"d/" * 65 + b"x\n", LISTED + b"\n" * 40_000
    snapshot = await seen(deep + LISTED + b"x" * 40_000 + b"\n" + lines)
    assert (snapshot.files, snapshot.unseen) == ({}, 3)


async def test_a_list_that_is_cut_is_no_list() -> None:
    async def spawn(_: Sequence[str]) -> Process:
        return Said(LISTED + b"a\n")

    with pytest.raises(SandboxError, match="cannot be listed"):
        await ContainerFiles(spawn, is_empty=True).snapshot()
