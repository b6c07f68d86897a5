"""Forks of a session, and checkpoints that it is set back to."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from support.executing import Kind, one_interpreter, run
from support.host_tools import Offered, echo
from support.in_sessions import output, said
from support.small_disk import small_disk
from support.variations import mostly_long

from codeact_team.core.execution import ExecutionResult, SessionResult
from codeact_team.errors import ForkError, SandboxError, SettingError
from codeact_team.executors.session import InterpreterCodeExecutor

pytestmark = one_interpreter


@pytest.fixture
async def session(executor: InterpreterCodeExecutor) -> InterpreterCodeExecutor:
    await executor.restart()
    return executor


BARE_THREAD = """
import _thread, time
begun = _thread.allocate_lock()
begun.acquire()
def stay():
    begun.release()
    time.sleep(60)
_thread.start_new_thread(stay, ())
begun.acquire()
"""


async def run_for(user: object, session: InterpreterCodeExecutor, code: str) -> ExecutionResult:
    return await session.run_code_blocks([CodeBlock(code, "python")], CancellationToken(), user=user)


async def test_forks_have_the_variables_and_go_ways_of_their_own(session: InterpreterCodeExecutor) -> None:
    await output(session, "x = [1]")
    forks = await session.fork(3)
    said_there = await asyncio.gather(
        *(run(fork, f"x.append({number}); print(x)") for number, fork in enumerate(forks, 2))
    )
    assert [one.output for one in said_there] == ["[1, 2]\n", "[1, 3]\n", "[1, 4]\n"]
    assert await output(session, "x") == "[1]\n"
    # each goes on where it was, and so does what it was forked from
    assert (await run(forks[1], "print(x)")).output == "[1, 3]\n"
    for fork in forks:
        await fork.stop()
    assert await output(session, "x") == "[1]\n"


async def test_forks_have_files_of_their_own_by_relative_paths(session: InterpreterCodeExecutor) -> None:
    await output(
        session,
        "import os; os.makedirs('a/b'); os.symlink('a', 'link')\nwith open('a/b/f', 'w') as f: f.write('1')",
    )
    await output(session, "os.chmod('a/b/f', 0o750)")
    [fork] = await session.fork()
    code = "print(open('link/b/f').read(), os.stat('a/b/f').st_mode & 0o777, os.readlink('link'))"
    assert (await run(fork, code)).output == f"1 {0o750} a\n"
    await run(fork, "open('a/b/f', 'w').write('2'); open('new', 'w').close()")
    assert await output(session, "open('a/b/f').read(), os.path.exists('new')") == "('1', False)\n"
    assert set(await fork.workspace.list()) == {"a/b/f", "new"}
    assert set(await session.workspace.list()) == {"a/b/f"}
    assert await fork.workspace.get("a/b/f") == b"2"
    await fork.workspace.put("given", b"x")
    # a shell block goes on in the fork's directory, too
    assert (await run(fork, "cat given; ls", language="sh")).output == "xa\ngiven\nlink\nnew\n"
    await fork.stop()
    [directory] = (session.work_dir / ".codeact-team").glob("forks-*")
    assert os.listdir(directory) == []


async def test_a_fork_is_where_the_code_was_in_the_workspace(
    session: InterpreterCodeExecutor, work_dir: Path
) -> None:
    await output(session, "import os; os.mkdir('deep'); os.chdir('deep')")
    await output(session, "mkdir shells; cd shells; export WORD=here", language="sh")
    [fork] = await session.fork()
    assert (await run(fork, "print(os.path.basename(os.getcwd()))")).output == "deep\n"
    assert (await run(fork, "basename $PWD; echo $WORD", language="sh")).output == "shells\nhere\n"
    await session.promote(fork)
    assert await output(session, "os.getcwd().endswith('/deep') and 'forks' not in os.getcwd()") == "True\n"
    assert (
        await output(session, "basename $PWD; basename $(dirname $PWD)", language="sh")
        == f"shells\n{work_dir.name}\n"
    )


async def test_a_fork_takes_the_place_of_its_session(
    session: InterpreterCodeExecutor, work_dir: Path
) -> None:
    await output(session, "x = 1\nopen('old', 'w').close()")
    first, second = await session.fork(2)
    await run(first, "import os; os.remove('old'); open('made', 'w').write('by the first'); x = 'first'")
    await run(second, "x = 'second'")
    await session.promote(first)
    assert await output(session, "x, open('made').read(), os.listdir('.') and os.path.exists('old')") == (
        "('first', 'by the first', False)\n"
    )
    assert (work_dir / "made").read_text() == "by the first"
    with pytest.raises(SandboxError, match="has ended"):
        await run(first, "x")
    # the other one lives on, and can be forked itself
    [third] = await second.fork()
    assert (await run(third, "print(x)")).output == "second\n"
    with pytest.raises(SettingError, match="only a fork of this executor"):
        await session.promote(third)
    await second.promote(third)
    await second.stop()


async def test_a_loss_right_after_a_fork_has_taken_its_place_is_told(
    session: InterpreterCodeExecutor,
) -> None:
    await output(session, "x = 1")
    [fork] = await session.fork()
    # between two blocks
    dying = (
        "import os, threading, time\nthreading.Thread(target=lambda: (time.sleep(0.2), os._exit(1))).start()"
    )
    await run(fork, dying)
    await session.promote(fork)
    await asyncio.sleep(1)
    result = await said(session, "print('x' in globals())")
    assert result.output.endswith("False\n")
    assert result.state_lost


async def test_what_is_kept_for_the_code_to_read_is_there_in_a_fork_and_after_it(
    session: InterpreterCodeExecutor,
) -> None:
    before = await session.workspace.put("before.txt", "1", temporary=True)
    first, second = await session.fork(2)
    made = await first.workspace.put("made.txt", "2", temporary=True)
    assert await first.workspace.get(before) == b"1"
    await session.promote(first)
    assert await output(session, f"open({before!r}).read(), open({made!r}).read()") == "('1', '2')\n"
    # the directory has those of the forks, too
    await run(second, "import shutil; shutil.rmtree('.codeact-team'); x = 'second'")
    await session.promote(second)
    assert await output(session, "x") == "'second'\n"
    assert (await run((await session.fork())[0], "print(x)")).output == "second\n"


async def test_a_session_is_set_back_to_a_checkpoint_as_often_as_one_likes(
    session: InterpreterCodeExecutor, work_dir: Path
) -> None:
    await output(session, "x = [1]\nwith open('f', 'w') as f: f.write('before')")
    checkpoint = await session.checkpoint()
    for spoil in (
        "x.clear(); open('f', 'w').write('after'); open('g', 'w').close()",
        "import os; os._exit(3)",
    ):
        await run(session, spoil)
        await session.rollback(checkpoint, user=session)
        result = await said(session, "print(x, open('f').read())\nimport os; os.path.exists('g')")
        assert (result.output, result.state_lost) == ("[1] before\nFalse\n", False)
    assert sorted(os.listdir(work_dir)) == [".codeact-team", "f"]
    await checkpoint.aclose()
    with pytest.raises(SandboxError):
        await session.rollback(checkpoint)
    assert await output(session, "x") == "[1]\n"


async def test_others_are_told_that_their_variables_are_other_ones_now(
    session: InterpreterCodeExecutor,
) -> None:
    class User:
        pass

    one, other = User(), User()
    await run_for(one, session, "x = 1")
    await run_for(other, session, "x = 2")
    checkpoint = await session.checkpoint()
    await run_for(one, session, "x = 3")
    await session.rollback(checkpoint, user=one)
    assert (await run_for(one, session, "print(x)")).output == "2\n"
    told = await run_for(other, session, "print(x)")
    assert "set back to an earlier state" in told.output
    assert told.output.endswith("2\n")
    await checkpoint.aclose()


@pytest.mark.parametrize(
    ("code", "obstacle"),
    mostly_long([
        ("import threading, time\nt = threading.Thread(target=time.sleep, args=(60,), daemon=True); t.start()", "Thread-"),
        (BARE_THREAD, "Python thread"),
        ("f = open('written', 'w')", "written is open for writing"),
        ("import sqlite3; c = sqlite3.connect('db'); c.execute('create table t(a)'); None", "db is open for writing"),
        ("import os; p = os.pipe()", "cannot be copied"),
        ("import subprocess; p = subprocess.Popen(['sleep', '60'])", "a process that the code has started"),
        ("import os, time\nif not os.fork():\n  os.setsid()\n  if not os.fork(): time.sleep(60)\n  os._exit(0)\nos.wait(); None", "a process"),
        ("import mmap; m = mmap.mmap(-1, 4096)", "memory is shared"),
        ("import asyncio; t = asyncio.create_task(asyncio.sleep(60)); await asyncio.sleep(0)", "task(s) of the event loop"),
    ], usual=2),
    ids=["thread", "bare thread", "file", "database", "pipe", "process", "daemon", "shared memory", "task"],
)  # fmt: skip
async def test_what_a_copy_could_not_have_is_named(
    session: InterpreterCodeExecutor, code: str, obstacle: str
) -> None:
    await output(session, code)
    with pytest.raises(ForkError, match=f"cannot be forked now: .*{re.escape(obstacle)}"):
        await session.fork()
    # nothing is left of the attempt
    assert await output(session, "1") == "1\n"
    await session.restart()
    [fork] = await session.fork()
    await fork.stop()


CONNECTIONS = """
import asyncio, socket
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname(), timeout=20); accepted, _ = server.accept()
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); datagrams.bind(("127.0.0.1", 0))
class Echo(asyncio.Protocol):
    def connection_made(self, transport): self.transport = transport
    def data_received(self, data): self.transport.write(data)
served = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0)
reader, writer = await asyncio.open_connection(*served.sockets[0].getsockname())
"""
IN_THE_COPY = """
import time
def attempt(action):
    try: print(action())
    except OSError as error: print(type(error).__name__)
for action in (lambda: client.recv(1), lambda: client.recv(1), lambda: client.send(b"x"), lambda: accepted.recv(1), server.accept, lambda: datagrams.recv(1)):
    attempt(action)
for one in (client, accepted, server, datagrams): one.close()
try: await reader.read()
except OSError as error: print(type(error).__name__)
# a server is not told without end that it takes nobody
begun = time.process_time(); await asyncio.sleep(0.1); print(time.process_time() - begun < 0.05)
server = socket.create_server(("127.0.0.1", 0)); socket.create_connection(server.getsockname()).close()
"""
IN_THE_ORIGINAL = """
client.send(b"to it"); print(accepted.recv(9))
writer.write(b"to the loop\\n"); print(await reader.readline())
again, late = await asyncio.open_connection(*served.sockets[0].getsockname())
late.write(b"new\\n"); print(await again.readline())
for one in (writer, late): one.close(); await one.wait_closed()
for one in (client, accepted, server, datagrams, served): one.close()
"""


async def test_connections_read_as_reset_in_a_copy_and_go_on_in_the_original(
    session: InterpreterCodeExecutor,
) -> None:
    await output(session, CONNECTIONS)
    [fork] = await session.fork()
    reset = ["ConnectionResetError", "b''", "BrokenPipeError", "ConnectionResetError", "OSError"]
    assert (await run(fork, IN_THE_COPY)).output.split("\n") == [
        *reset,
        "ConnectionResetError",
        "ConnectionResetError",
        "True",
        "",
    ]
    assert await output(session, IN_THE_ORIGINAL) == "b'to it'\nb'to the loop\\n'\nb'new\\n'\n"
    await fork.stop()


async def test_a_rollback_gives_connections_back_as_closed(session: InterpreterCodeExecutor) -> None:
    await output(session, "import socket; one, other = socket.socketpair(); one.setblocking(False)")
    checkpoint = await session.checkpoint()
    await session.rollback(checkpoint)
    assert "ConnectionResetError" in (await run(session, "one.recv(1)")).output
    assert await output(session, "one.getblocking(), one.recv(1)") == "(False, b'')\n"
    await checkpoint.aclose()


@pytest.mark.parametrize("count", [0, -1, 64, 200, 10**12, 1.5, "2", True])
async def test_a_number_of_forks_that_cannot_be_is_refused_in_words(
    session: InterpreterCodeExecutor, count: Any
) -> None:
    await output(session, "kept = 1")
    with pytest.raises((ForkError, SettingError), match=r"forks|`count`"):
        await session.fork(count)
    assert await output(session, "kept") == "1\n"


async def test_the_limit_of_the_workspace_holds_for_all_its_copies(kind: Kind, tmp_path: Path) -> None:
    executor = kind.make(work_dir=tmp_path, workspace_mib=64)
    assert isinstance(executor, InterpreterCodeExecutor)
    await output(executor, "with open('large', 'wb') as file: file.write(bytes([1]) * (20 << 20))")
    with pytest.raises(ForkError, match=r"copies of its workspace would exceed workspace_mib: 64"):
        await executor.fork(8)
    assert allocated(tmp_path) < 64 << 20
    [fork] = await executor.fork(1)
    with pytest.raises(ForkError, match=r"would exceed workspace_mib: 64"):
        await fork.fork(2)
    checkpoint = await executor.checkpoint()
    with pytest.raises(ForkError, match=r"would exceed workspace_mib: 64"):
        await executor.checkpoint()
    await checkpoint.aclose()
    await fork.stop()
    # what takes no room does not count, nor does its copy take any
    await output(executor, "import os; os.truncate('large', 0); os.truncate('large', 60 << 20)")
    forks = await executor.fork(8)
    assert (await run(forks[7], "print(os.path.getsize('large'))")).output == f"{60 << 20}\n"
    assert allocated(tmp_path) < 16 << 20
    await executor.stop()


@pytest.mark.parametrize(
    "code",
    mostly_long(
        [
            "with open('f0', 'wb') as f: f.write(b'x' * (5 << 20))\nfor n in range(40): os.link('f0', f'g{n}')",
            """
os.makedirs('.codeact-team')
with open('.codeact-team/f', 'wb') as f: f.write(b'x' * (20 << 20))
""",
            """
os.makedirs('.codeact-team')
with open('f', 'wb') as f: f.write(b'x' * (20 << 20))
os.link('f', '.codeact-team/f')
""",
        ]
    ),
    ids=["many names", "kept apart", "named there, too"],
)
async def test_what_copies_take_is_counted_whatever_the_names_of_the_files(
    kind: Kind, tmp_path: Path, code: str
) -> None:
    executor = kind.make(work_dir=tmp_path, workspace_mib=64)
    assert isinstance(executor, InterpreterCodeExecutor)
    await output(executor, f"import os\n{code}")
    with suppress(ForkError):
        await executor.fork(4)
    assert allocated(tmp_path) < 66 << 20
    await executor.stop()


async def test_names_of_one_file_are_so_in_a_fork_and_where_it_is_promoted(
    session: InterpreterCodeExecutor,
) -> None:
    await output(
        session, "import os; os.mkdir('d'); open('a', 'w').write('1'); os.link('a', 'b'); os.link('a', 'd/c')"
    )
    same = "len({os.stat(name).st_ino for name in ('a', 'b', 'd/c')}), open('b').read()"
    [fork] = await session.fork()
    assert (await run(fork, f"print({same})")).output == "1 1\n"
    await run(fork, "open('b', 'w').write('2'); os.link('a', 'e')")
    assert await output(session, same) == "(1, '1')\n"
    await session.promote(fork)
    assert await output(session, f"{same}, os.path.samefile('a', 'e')") == "(1, '2', True)\n"
    # one that only gets another name
    await output(session, "open('f', 'w').close()")
    [fork] = await session.fork()
    await run(fork, "os.link('f', 'g')")
    await session.promote(fork)
    assert await output(session, "os.path.samefile('f', 'g')") == "True\n"


@pytest.mark.long
async def test_the_limit_of_the_workspace_holds_for_copies_made_at_once(kind: Kind, tmp_path: Path) -> None:
    executor = kind.make(work_dir=tmp_path, workspace_mib=64)
    assert isinstance(executor, InterpreterCodeExecutor)
    await output(executor, "with open('large', 'wb') as file: file.write(bytes([1]) * (10 << 20))")
    forks: Sequence[Any] = await executor.fork(3)
    nested = (one.fork(2) for one in (executor, *forks))
    made = await asyncio.gather(*nested, return_exceptions=True)
    assert sum(isinstance(one, ForkError) for one in made) == 3
    assert allocated(tmp_path) < 64 << 20
    await executor.stop()


@pytest.mark.long
async def test_nothing_is_left_of_a_fork_for_which_the_disk_is_too_small(kind: Kind, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "100m"):
        executor = kind.make(work_dir=tmp_path / "disk", workspace_mib=None)
        assert isinstance(executor, InterpreterCodeExecutor)
        await output(executor, "for n in range(2000): open(str(n), 'wb').write(b'x' * (16 << 10))")
        for _ in range(4):
            with pytest.raises(ForkError, match="No space left"):
                await executor.fork(6)
            assert not [*(tmp_path / "disk").glob(".codeact-team/forks-*/*")]
            [fork] = await executor.fork()
            await fork.stop()
        await executor.stop()


async def test_a_session_is_set_back_where_what_is_there_afterwards_is_within_the_limit(
    kind: Kind, tmp_path: Path
) -> None:
    executor = kind.make(work_dir=tmp_path, workspace_mib=64)
    assert isinstance(executor, InterpreterCodeExecutor)
    code = "with open('large', 'wb') as file: file.write(bytes([{}]) * (28 << 20))"
    await output(executor, code.format(1))
    checkpoint = await executor.checkpoint()
    for _ in range(3):
        await output(executor, code.format(2))
        await executor.rollback(checkpoint)
        assert await output(executor, "open('large', 'rb').read(1)") == "b'\\x01'\n"
    assert allocated(tmp_path) < 64 << 20
    # what has another name elsewhere is not gone by that
    await output(executor, "import os, glob\nos.link('large', glob.glob('.codeact-team/forks-*')[0] + '/x')")
    with pytest.raises(ForkError, match=r"exceed workspace_mib: 64; stop forks, close checkpoints, or"):
        await executor.rollback(checkpoint)
    await executor.stop()


def allocated(directory: Path) -> int:
    """Bytes of the disk that are used below a directory."""
    status = {path: path.lstat() for path in directory.rglob("*")}
    return sum({one.st_ino: one.st_blocks * 512 for one in status.values()}.values())


async def test_what_is_of_another_session_or_over_is_refused_in_words(
    session: InterpreterCodeExecutor, kind: Kind, tmp_path: Path
) -> None:
    other = kind.make(work_dir=tmp_path)
    assert isinstance(other, InterpreterCodeExecutor)
    await output(session, "kept = 1")
    foreign, over, before = await other.checkpoint(), await session.checkpoint(), await session.checkpoint()
    await over.aclose()
    for checkpoint in (foreign, over):
        with pytest.raises((SandboxError, SettingError), match="checkpoint"):
            await session.rollback(checkpoint)
        assert await output(session, "kept") == "1\n"
    [fork] = await session.fork()
    await fork.stop()
    with pytest.raises(SandboxError, match="the fork has ended"):
        await session.promote(fork)
    with pytest.raises(SettingError, match="only a fork of this executor"):
        await session.promote((await other.fork())[0])
    assert await output(session, "kept") == "1\n"
    await session.restart()
    with pytest.raises((SandboxError, SettingError), match="checkpoint"):
        await session.rollback(before)
    assert await output(session, "1") == "1\n"
    await other.stop()


async def test_what_is_only_read_can_be_copied(session: InterpreterCodeExecutor) -> None:
    await output(session, "with open('f', 'w') as f: f.write('abcdef')")
    await output(session, "f = open('f'); g = open('f', 'rb', buffering=0); f.read(1), g.read(2)\n")
    [fork] = await session.fork()
    assert (await run(fork, "print(f.read(2), g.read(1))")).output == "bc b'c'\n"
    # its position is its own
    assert await output(session, "g.read()") == "b'cdef'\n"
    await fork.stop()
    await output(session, "f.close(); g.close()")


async def test_random_numbers_differ(session: InterpreterCodeExecutor) -> None:
    await output(session, "import random; random.seed(1)")
    forks = await session.fork(2)
    numbers = {(await run(fork, "print(random.random())")).output for fork in forks}
    numbers.add(await output(session, "print(random.random())"))
    assert len(numbers) == 3
    for fork in forks:
        await fork.stop()


async def test_awaiting_blocks_and_tools_go_on_in_forks(session: InterpreterCodeExecutor) -> None:
    await output(session, "import asyncio; await asyncio.sleep(0)")
    [fork] = await session.fork()
    for one in (session, fork):
        assert (await run(one, "await asyncio.sleep(0, 5)")).output == "5\n"
    await fork.stop()


async def test_a_fork_of_one_that_has_called_tools_can_be_forked(session: InterpreterCodeExecutor) -> None:
    # the thread that waits for answers is not in the fork, and Python counts it all the same
    tools = Offered(echo=echo)
    await output(session, "x = tools.echo(value=1)", tools=tools)
    checkpoint = await session.checkpoint()
    await output(session, "x = tools.echo(value=2)", tools=tools)
    await session.rollback(checkpoint)
    assert await output(session, "x, tools.echo(value=1)", tools=tools) == "(1, 1)\n"
    await checkpoint.aclose()


async def test_a_fork_that_ends_itself_is_over_and_hurts_nobody(session: InterpreterCodeExecutor) -> None:
    await output(session, "x = 1")
    first, second = await session.fork(2)
    result = await run(first, "import os, time\nif os.fork() == 0: time.sleep(60)\nos._exit(7)")
    assert "This fork of the session has ended" in result.output
    assert isinstance(result, SessionResult)
    assert result.state_lost
    with pytest.raises(SandboxError, match=r"this fork of a session has ended: it ended"):
        await run(first, "1")
    assert (await run(second, "print(x)")).output == "1\n"
    assert await output(session, "x") == "1\n"
    await first.stop()
    await second.stop()
    # what the first had started is gone, or this would be refused
    [again] = await session.fork()
    await again.stop()


async def test_blocks_of_forks_are_stopped_one_by_one(hasty: InterpreterCodeExecutor) -> None:
    await output(hasty, "import time; x = 1")
    slow, quick = await hasty.fork(2)
    stopped, fine = await asyncio.gather(
        run(slow, "x = 2\ntime.sleep(60)"), run(quick, "time.sleep(0.3); print(x)")
    )
    assert (stopped.exit_code, fine.output) == (124, "1\n")
    # the interrupt has left it alive
    assert (await run(slow, "print(x)")).output == "2\n"
    await slow.stop()
    await quick.stop()


async def test_forks_end_with_a_restart(session: InterpreterCodeExecutor) -> None:
    await output(session, "x = 1")
    [fork] = await session.fork()
    checkpoint = await session.checkpoint()
    await session.restart()
    with pytest.raises(SandboxError):
        await run(fork, "x")
    with pytest.raises(SandboxError):
        await session.rollback(checkpoint)
    with pytest.raises(SettingError, match="cannot be restarted"):
        await fork.restart()
    await fork.stop()
    assert "NameError" in (await run(session, "x")).output


async def test_a_fork_has_no_config(session: InterpreterCodeExecutor) -> None:
    [fork] = await session.fork()
    assert isinstance(fork, InterpreterCodeExecutor)
    with pytest.raises(SettingError, match="cannot be dumped"):
        fork.dump_component()
    await fork.stop()


async def test_an_interpreter_after_a_restart_has_what_the_setup_has_made_and_nothing_else(
    kind: Kind, tmp_path: Path
) -> None:
    setup = "import random; random.seed(1)\nmade = [0]\nprint('set up')"
    async with kind.make(work_dir=tmp_path, timeout=30, setup=setup, modules={"js": "json"}) as executor:
        assert isinstance(executor, InterpreterCodeExecutor)
        said_first = await output(executor, "made.append(1); print(made, random.random(), js.dumps([1]))")
        await output(executor, "leaked = 1")
        for _ in range(3):
            await executor.restart()
            assert (
                await output(executor, "made.append(1); print(made, random.random(), js.dumps([1]))")
                == said_first
            )
            assert "NameError" in (await run(executor, "leaked")).output
        # an interpreter that has died is followed by one like it
        assert (await said(executor, "import os; os._exit(1)")).state_lost
        assert (await run(executor, "print(made)")).output.endswith("[0]\n")
        # what is added later is in all that come
        executor.add_setup("late = made")
        assert await output(executor, "late") == "[0]\n"
        await executor.restart()
        assert await output(executor, "late is made") == "True\n"
