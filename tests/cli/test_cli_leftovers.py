"""What killed runs leave on the machine is gone with the start of the next run, which nobody has asked to clean up."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import platform
import select
import socket
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support.command_line import CONFINED, run_code
from support.executing import wait_until
from support.fork_server import start
from support.forwarding import engine_that_can_hang
from support.openai_server import ScriptedServer
from test_cli_interrupts import end, running, sleepers, sleeps

from codeact_team.sandbox.docker.address import engine_url
from codeact_team.sandbox.docker.leftovers import list_orphans

LEAVING = Path(__file__).parents[1] / "sandboxes" / "docker" / "leaving_owner.py"


def run_something(tmp_path: Path, **variables: str) -> None:
    """A short run, which needs no engine."""
    result = run_code("print(1)", "-q", "--no-record", cwd=tmp_path, **variables)
    assert result.returncode == 0, result.stderr


def test_temporary_directories_of_processes_that_have_ended_are_gone_and_no_others(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with kept_of(temporary) as (kept, held):
        run_something(tmp_path, TMPDIR=str(temporary))
        assert {*temporary.iterdir()} == {held, *kept}


@pytest.mark.long
def test_temporary_directories_of_killed_runs_are_gone_and_no_others(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with ExitStack() as stack:
        with kept_of(temporary) as (kept, held):
            server = stack.enter_context(ScriptedServer.in_thread([sleeps("68.5"), sleeps("68.5")]))
            killed, alive = (
                stack.enter_context(
                    running(server.base_url, cwd=tmp_path, overrides=[CONFINED], TMPDIR=str(temporary))
                )
                for _ in range(2)
            )
            wait_until(lambda: len(sleepers("68.5")) == 2, seconds=60)
            killed.kill()
            killed.wait(60)
            run_something(tmp_path, TMPDIR=str(temporary))
            others = {path for path in temporary.iterdir() if path.name.split("-")[2] == str(alive.pid)}
            assert others
            assert {*temporary.iterdir()} == {held, *kept, *others}
            alive.terminate()
            end(alive)
        run_something(tmp_path, TMPDIR=str(temporary))
        assert {*temporary.iterdir()} == kept


@contextmanager
def kept_of(temporary: Path) -> Generator[tuple[set[Path], Path]]:
    """Directories as others have left them: those that stay whoever cleans, and one that stays as long as it is held: here."""
    # its number is that of another process by now
    (left := temporary / f"codeact-team-{os.getpid()}-abcdefgh").mkdir()
    (left / "file").touch()
    (mine := temporary / "codeact-team-examples").mkdir()
    (linked := temporary / f"codeact-team-{2**22}-abcdefgh").symlink_to(mine)
    kept = {mine, linked}
    if os.geteuid() == 0:
        (foreign := temporary / f"codeact-team-{2**22}-foreign_").mkdir()
        os.chown(foreign, 12345, 12345)
        kept.add(foreign)
    # as of a process of another namespace
    (held := temporary / f"codeact-team-{2**22}-heldheld").mkdir()
    descriptor = os.open(held, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    try:
        yield kept, held
    finally:
        os.close(descriptor)


@pytest.mark.long
@pytest.mark.docker
def test_a_container_that_was_made_and_never_started_is_gone_whatever_the_next_run_needs(
    tmp_path: Path,
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with engine_that_can_hang(tmp_path, hang_at="/start HTTP/1.1") as engine:
        places = {"DOCKER_HOST": engine.url, "TMPDIR": str(temporary)}
        with start(
            [str(LEAVING), json.dumps({})], cwd=LEAVING.parent, environment=os.environ | places
        ) as one:
            wait_until(lambda: engine.hangs, seconds=60)
            one.kill()
    owner = f"{platform.node()}:{one.pid}"
    socket = Path(engine.url.removeprefix("unix://"))
    socket.unlink()
    # while its engine does not answer, no run is kept from its work
    run_something(tmp_path, TMPDIR=str(temporary), DOCKER_HOST="unix:///nowhere")
    socket.symlink_to(engine_url().removeprefix("unix://"))
    run_something(tmp_path, TMPDIR=str(temporary), DOCKER_HOST="unix:///nowhere")
    assert owner not in {orphan.owner for orphan in asyncio.run(list_orphans())}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_where_another_user_says_that_a_container_was_made_nothing_connects(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with socket.create_server(("localhost", 0)) as server:
        note = temporary / f"codeact-team-{2**22}-{'0' * 16}.start"
        note.write_text(f"0123456789abcdef tcp://localhost:{server.getsockname()[1]}")
        os.chown(note, 12345, 12345)
        run_something(tmp_path, TMPDIR=str(temporary))
        assert not select.select([server], [], [], 0)[0]
    assert note.exists()
