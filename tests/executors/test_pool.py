"""Sandboxes that are started ahead: who gets them, once, and what becomes of those that nobody gets."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import signal
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from support.executing import (
    Kind,
    each_part_once,
    in_containers,
    one_interpreter,
    one_part,
    run,
    usually,
    wait_until,
)
from support.fork_server import start
from support.waiting import until
from support.wheels import make_wheel, use_index

from codeact_team.core.effects import Dispatcher, Event
from codeact_team.errors import SettingError
from codeact_team.executors import warm_sandboxes
from codeact_team.executors import warm_sandboxes as memory
from codeact_team.executors.base import SandboxedCodeExecutor
from codeact_team.executors.packages.layers import Layers
from codeact_team.executors.pool import SandboxPool
from codeact_team.sandbox.docker.engine import at_engine

Forbid = Callable[[], None]
any_kind = pytest.mark.parametrize("kind", ["confined"], indirect=True)
"""For what a pool does whatever waits there: this starts fastest."""
MARK = """
import os, subprocess
for directory in (".", os.environ["HOME"]):
    open(f"{directory}/mark", "w").close()
mark = 1
subprocess.Popen(["sleep", "600"], start_new_session=True)
"""
LOOK = """
import glob, os
seen = [name for directory in (".", os.environ["HOME"]) for name in os.listdir(directory)]
seen += [name for name in globals() if name == "mark"]
for program in glob.glob("/proc/[0-9]*/cmdline"):
    try: seen += open(program).read().split("\\0")[:1]
    except OSError: pass
print("seen:", [name for name in seen if name in ("mark", "sleep")])
"""
HOST = """
import asyncio
from codeact_team import SandboxPool, {name}

async def main():
    async with SandboxPool({name}(), size=2) as pool:
        await pool.filled()
        print("up", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.fixture
def no_more(monkeypatch: pytest.MonkeyPatch) -> Forbid:
    """From when it is called on, no sandbox is started ahead."""
    return lambda: monkeypatch.setattr(memory, "available", lambda: 0)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take its time."""
    monkeypatch.setattr(warm_sandboxes, "ANSWER_SECONDS", 60)


async def gets_one(pool: SandboxPool, executor: SandboxedCodeExecutor) -> bool:
    """Whether the executor starts by what waits in a pool of one, which gets no other."""
    waiting = pool.ready
    await executor.start()
    return (waiting, pool.ready) == (1, 0)


@usually("confined-session")
async def test_a_sandbox_is_used_once_and_nothing_is_left_for_the_next(kind: Kind) -> None:
    before = kind.held()
    async with SandboxPool(kind.make(), size=2) as pool:
        await pool.filled()
        waited = kind.held() - before
        assert pool.ready == len(waited) == 2
        for _ in waited:
            executor = kind.make()
            assert (await run(executor, LOOK)).output == "seen: []\n"
            assert (await run(executor, MARK)).exit_code == 0
            await executor.stop()
        assert not waited & kind.held()
    assert kind.held() == before


@each_part_once
async def test_who_starts_gets_what_waits(kind: Kind, no_more: Forbid) -> None:
    async with SandboxPool(kind.make(), size=1) as pool:
        await pool.filled()
        no_more()
        executor = kind.make()
        assert await gets_one(pool, executor)
        assert (await run(executor, "print('here')")).output == "here\n"
        await executor.stop()


@one_interpreter
async def test_what_was_handed_out_outlives_the_pool(kind: Kind) -> None:
    before = kind.held()
    async with SandboxPool(kind.make(), size=1) as pool:
        await pool.filled()
        executor = kind.make()
        await executor.start()
    assert len(kind.held() - before) == 1
    assert (await run(executor, "print('here')")).output == "here\n"
    await executor.stop()
    assert kind.held() == before


@one_part
async def test_one_that_died_while_it_waited_is_not_handed_out(kind: Kind, no_more: Forbid) -> None:
    before = kind.held()
    async with SandboxPool(kind.make(), size=1) as pool:
        await pool.filled()
        kind.lose(kind.held() - before)
        no_more()
        executor = kind.make()
        assert (await run(executor, "print('here')")).output == "here\n"
        assert pool.ready == 0
        await executor.stop()
    assert kind.held() == before


@pytest.mark.long
@in_containers
async def test_one_that_does_not_answer_is_not_handed_out(
    kind: Kind, no_more: Forbid, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_sandboxes, "ANSWER_SECONDS", 0.3)
    before = kind.held()
    async with SandboxPool(kind.make(), size=1) as pool:
        await pool.filled()
        (waiting,) = kind.held() - before
        at_engine(lambda client, _: client.pause(waiting))
        no_more()
        executor = kind.make()
        assert (await run(executor, "print('here')")).output == "here\n"
        await executor.stop()
    assert kind.held() == before


@one_interpreter
async def test_one_whose_interpreter_died_is_not_handed_out(kind: Kind, no_more: Forbid) -> None:
    # the supervisor starts another interpreter, without the setup
    setup = "made = 1"
    before = kind.held()
    async with SandboxPool(kind.make(setup=setup), size=1) as pool:
        await pool.filled()
        (supervising,) = kind.held() - before
        os.kill(_last_descendant(supervising), signal.SIGKILL)
        no_more()
        executor = kind.make(setup=setup)
        assert (await run(executor, "print(made)")).output == "1\n"
        await executor.stop()


def _last_descendant(pid: str) -> int:
    while children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        pid = children[-1]
    return int(pid)


@one_interpreter
async def test_the_setup_is_done_ahead_and_tracebacks_are_as_ever(kind: Kind, no_more: Forbid) -> None:
    settings: dict[str, Any] = {"modules": {"js": "json"}, "setup": "print('once')\nready = js.dumps({})"}
    fails = "1 / 0"
    alone = kind.make(**settings)
    expected = (await run(alone, "print(ready)")).output, (await run(alone, fails)).output
    await alone.stop()
    async with SandboxPool(kind.make(**settings), size=1) as pool:
        await pool.filled()
        no_more()
        executor = kind.make(**settings)
        assert await gets_one(pool, executor)
        found = (await run(executor, "print(ready)")).output, (await run(executor, fails)).output
        assert found == expected == ("{}\n", found[1])
        await executor.stop()


@one_interpreter
async def test_the_same_is_told_as_without_a_pool(kind: Kind, tmp_path: Path) -> None:
    async def told() -> list[dict[str, Any]]:
        events: list[Event] = []
        with Dispatcher() as dispatcher:
            dispatcher.listen(events.append)
            executor = kind.make()
            await run(executor, "print('here')")
            await executor.stop()
        return [{**vars(event), "at": 0} for event in events]

    alone = await told()
    async with SandboxPool(kind.make(), size=1) as pool:
        await pool.filled()
        assert await told() == alone
        await pool.filled()


@any_kind
async def test_only_one_with_the_same_settings_will_do(kind: Kind, no_more: Forbid) -> None:
    async with SandboxPool(kind.make(environment={"WHO": "one"}), size=1) as pool:
        await pool.filled()
        no_more()
        other = kind.make(environment={"WHO": "another"})
        assert not await gets_one(pool, other)
        assert (await run(other, "import os; print(os.environ['WHO'])")).output == "another\n"
        await other.stop()


@pytest.mark.long
@any_kind
async def test_packages_are_those_that_are_asked_for_now(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = use_index(tmp_path, monkeypatch)
    make_wheel(index, "before")
    make_wheel(index, "now")
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("before\n")
    settings = {"packages_file": requirements}
    async with SandboxPool(kind.make(**settings), size=2) as pool:
        for name, other in (("before", "now"), ("now", "before")):
            await pool.filled()
            requirements.write_text(f"{name}\n")
            executor = kind.make(**settings)
            assert (await run(executor, f"import {name}; print('here')")).output == "here\n"
            assert f"No module named '{other}'" in (await run(executor, f"import {other}")).output
            await executor.stop()


@pytest.mark.long
@any_kind
async def test_packages_that_were_changed_while_it_waited_are_made_anew(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(use_index(tmp_path, monkeypatch), "shapes")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    async with SandboxPool(kind.make(packages=["shapes"]), size=2) as pool:
        await pool.filled()
        [layer] = Layers().all()
        module = layer.path / "site-packages" / "shapes.py"
        module.chmod(0o644)
        module.write_text("version = 'forged'\n")
        for _ in range(3):
            executor = kind.make(packages=["shapes"])
            assert (await run(executor, "import shapes; print(shapes.version)")).output == "1.0\n"
            await executor.stop()
            await pool.filled()


@one_part
async def test_data_are_put_into_it_when_it_is_handed_out(
    kind: Kind, no_more: Forbid, tmp_path: Path
) -> None:
    (tmp_path / "one.txt").write_text("first")
    (tmp_path / "two.txt").write_text("second")
    async with SandboxPool(kind.make(data=[tmp_path / "one.txt"]), size=1) as pool:
        await pool.filled()
        no_more()
        executor = kind.make(data=[tmp_path / "two.txt"])
        assert await gets_one(pool, executor)
        assert (await run(executor, "print(open('two.txt').read())")).output == "second\n"
        assert (await executor.workspace.changed()).files == []
        await run(executor, "open('made', 'w').close()")
        assert [file.path for file in (await executor.workspace.changed()).files] == ["made"]
        await executor.stop()


@pytest.mark.long
@one_interpreter
async def test_a_setup_sees_the_data_and_modules_are_there_before(
    kind: Kind, no_more: Forbid, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"modules": {"j": "json"}, "setup": "table = j.load(open('table.json'))"}
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "table.json").write_text(f'["{name}"]')
    async with SandboxPool(kind.make(data=[tmp_path / "one/table.json"], **settings), size=1) as pool:
        await pool.filled()
        no_more()
        executor = kind.make(data=[tmp_path / "two/table.json"], **settings)
        assert await gets_one(pool, executor)
        assert (await run(executor, "print(table)")).output == "['two']\n"
        await executor.stop()


@pytest.mark.long
@one_interpreter
async def test_modules_may_come_with_the_data(kind: Kind, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("name = 'mine'")
    settings: dict[str, Any] = {"modules": {"helper": "helper"}, "data": [tmp_path / "helper.py"]}
    async with SandboxPool(kind.make(**settings), size=1) as pool:
        await pool.filled()
        executor = kind.make(**settings)
        assert (await run(executor, "print(helper.name)")).output == "mine\n"
        await executor.stop()


@any_kind
async def test_what_cannot_be_started_ahead_starts_as_ever(kind: Kind, tmp_path: Path) -> None:
    executor = kind.make(work_dir=tmp_path)
    reason = f"with `work_dir: {tmp_path}`, sandboxes cannot be started ahead"
    with pytest.raises(SettingError, match="work_dir"):
        SandboxPool(executor)
    async with SandboxPool() as pool:
        assert pool.why_not(executor) == reason
        assert pool.why_not(kind.make()) is None
        await run(executor, "open('here', 'w').close()")
        await executor.stop()
    assert (tmp_path / "here").exists()


@in_containers
def test_a_name_and_a_life_of_its_own_are_nobody_elses(kind: Kind) -> None:
    pool = SandboxPool()
    for setting in ({"container_name": "mine"}, {"auto_remove": False}, {"stop_container": False}):
        assert f"{next(iter(setting))}: " in (pool.why_not(kind.make(**setting)) or "")


@any_kind
async def test_kept_ready_is_what_was_asked_for_last_but_not_once(kind: Kind) -> None:
    async def ask(who: str) -> None:
        executor = kind.make(environment={"WHO": who})
        await executor.start()
        await executor.stop()

    async with SandboxPool(size=2) as pool:
        await ask("one")
        await ask("two")
        await pool.filled()
        assert pool.ready == 0
        await ask("one")
        await pool.filled()
        assert pool.ready == 1
        await ask("two")
        await ask("two")
        await pool.filled()
        # the two of the last two wishes
        assert pool.ready == 2


@any_kind
async def test_what_is_old_is_replaced(kind: Kind) -> None:
    before = kind.held()
    async with SandboxPool(kind.make(), size=1, max_age=0.2) as pool:
        await pool.filled()
        first = kind.held() - before
        await until(lambda: not first & kind.held() and pool.ready)
    assert kind.held() == before


@any_kind
async def test_what_nobody_asks_for_is_ended(kind: Kind) -> None:
    before = kind.held()
    async with SandboxPool(kind.make(), size=1, max_idle=0.2) as pool:
        await until(lambda: kind.held() != before)
        await until(lambda: kind.held() == before)
        assert pool.ready == 0


@one_interpreter
async def test_a_failure_is_told_once_and_tried_again_when_it_is_asked_for(
    kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    broken = {"setup": "1 / 0"}
    async with SandboxPool(kind.make(**broken), size=3) as pool:
        for _ in range(2):
            with pytest.raises(SettingError, match="the setup of the interpreter failed"):
                await pool.filled()
            executor = kind.make(**broken)
            with pytest.raises(SettingError, match="ZeroDivisionError"):
                await run(executor, "print()")
            await executor.stop()
    assert [record.name for record in caplog.records].count("codeact_team.executors.warm_sandboxes") == 1


@any_kind
async def test_where_memory_is_short_none_is_started_ahead(
    kind: Kind, no_more: Forbid, caplog: pytest.LogCaptureFixture
) -> None:
    no_more()
    async with SandboxPool(kind.make(), size=3) as pool:
        await pool.filled()
        assert pool.ready == 0
        executor = kind.make()
        assert (await run(executor, "print('here')")).output == "here\n"
        await executor.stop()
        await pool.filled()
    said = [record.getMessage() for record in caplog.records if "kept ready" in record.getMessage()]
    assert said == [
        "fewer sandboxes are kept ready: 0 MiB of memory are left, and the code of one may use 1024"
    ]


@any_kind
async def test_where_memory_gets_short_what_waits_is_ended_first(kind: Kind, no_more: Forbid) -> None:
    async with SandboxPool(kind.make(), size=3) as pool:
        await pool.filled()
        no_more()
        for _ in range(2):
            executor = kind.make()
            await executor.start()
            await executor.stop()
            await pool.filled()
        assert pool.ready == 0


@one_part
async def test_an_executor_that_is_cancelled_while_it_starts_leaves_nothing(kind: Kind) -> None:
    before = kind.held()
    async with SandboxPool(kind.make(), size=1) as pool:
        await pool.filled()
        for turns in (2, 5):
            executor = kind.make()
            starting = asyncio.ensure_future(executor.start())
            for _ in range(turns):
                await asyncio.sleep(0)
            starting.cancel()
            await asyncio.wait({starting})
            await executor.stop()
            await pool.filled()
    assert kind.held() == before


@one_part
@pytest.mark.parametrize("turns", [0, 2])
async def test_nothing_outlives_a_pool_whose_end_is_cancelled(kind: Kind, turns: int) -> None:
    before, tasks = kind.held(), asyncio.all_tasks()
    pool = SandboxPool(kind.make(), size=2)
    await pool.__aenter__()
    await until(lambda: pool.ready)
    closing = asyncio.ensure_future(pool.aclose())
    for _ in range(turns):
        await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait({closing})
    if turns:
        assert closing.cancelled()
        assert kind.held() == before
    await pool.__aexit__(None, None, None)
    assert (kind.held(), asyncio.all_tasks()) == (before, tasks)
    assert pool.ready == 0


@pytest.mark.long
@one_interpreter
async def test_no_descriptor_is_left(kind: Kind) -> None:
    async def use() -> None:
        async with SandboxPool(kind.make(), size=1) as pool:
            for _ in range(2):
                await pool.filled()
                executor = kind.make()
                await run(executor, "print()")
                await executor.stop()

    await use()
    before = len(os.listdir("/proc/self/fd"))
    await use()
    assert len(os.listdir("/proc/self/fd")) == before


@one_part
def test_nothing_outlives_a_host_that_is_killed(kind: Kind, tmp_path: Path) -> None:
    program = tmp_path / "host.py"
    program.write_text(HOST.format(name=kind.make.__name__))
    with start([str(program)], cwd=tmp_path, environment=os.environ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        held = kind.inside(process.pid)
        process.kill()
    wait_until(lambda: not any(map(kind.exists, held)), seconds=20)


@one_interpreter
async def test_shared_on_request_the_next_gets_what_the_one_before_has_left(
    kind: Kind, no_more: Forbid
) -> None:
    before = kind.held()
    async with SandboxPool(kind.make(), size=1, shared=True) as pool:
        await pool.filled()
        no_more()
        for left in ("[]", "['mark']"):
            executor = kind.make()
            assert await gets_one(pool, executor)
            assert f"seen: {left[:-1]}" in (await run(executor, LOOK)).output
            await run(executor, "mark = open('mark', 'w')")
            await executor.stop()
            await pool.filled()
        assert len(kind.held() - before) == 1
    assert kind.held() == before


@pytest.mark.long
@any_kind
async def test_other_tasks_use_it_where_they_say_so(kind: Kind, no_more: Forbid) -> None:
    elsewhere = contextvars.copy_context()

    async def start(pool: SandboxPool, *, used: bool) -> bool:
        with pool.used() if used else nullcontext():
            executor = kind.make()
        try:
            return await gets_one(pool, executor)
        finally:
            await executor.stop()

    async with SandboxPool(kind.make(), size=1) as pool:
        await pool.filled()
        no_more()
        found = [
            await asyncio.get_running_loop().create_task(start(pool, used=used), context=elsewhere)
            for used in (False, True)
        ]
    assert found == [False, True]


@any_kind
async def test_an_executor_of_another_event_loop_starts_its_own(kind: Kind) -> None:
    async def elsewhere() -> str:
        async with kind.make() as executor:
            return (await run(executor, "print('there')")).output

    async with SandboxPool(kind.make(), size=1) as pool:
        await pool.filled()
        assert await asyncio.to_thread(asyncio.run, elsewhere()) == "there\n"
        assert pool.ready == 1


def test_numbers_out_of_range_are_refused() -> None:
    settings: list[dict[str, Any]] = [{"size": 0}, {"max_age": 0}, {"max_idle": 0}]
    for setting in settings:
        with pytest.raises(SettingError, match=f"{next(iter(setting))}: 0 is not above 0"):
            SandboxPool(**setting)
