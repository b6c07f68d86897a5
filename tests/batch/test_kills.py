"""Workers and drivers that are killed: no finished result is lost, and all is as if nobody had been killed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from batch.batches import coder, doubling, numbers, of_type, results
from support.command_line import environment
from support.fork_server import Forked, start
from support.openai_server import AnyReply, ScriptedServer, Slow
from support.processes import is_worker, process_lives, processes_below
from support.waiting import until

from codeact_team.batch.batch import run_batch
from codeact_team.core.effects import Event


def workers_of(parent: int) -> list[int]:
    return [process for process in processes_below(parent) if is_worker(process)]


def begun(folder: Path, base_url: str, count: int, *arguments: str) -> Forked:
    """A batch at work in two processes."""
    (folder / "coder.json").write_text(json.dumps(coder(base_url)))
    (folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in numbers(count)))
    command = ["-m", "codeact_team", "batch", "coder.json", "tasks.jsonl", "--out", "out", *arguments]
    return start(command, cwd=folder, environment=environment(), stdin=subprocess.DEVNULL)


@pytest.mark.long
async def test_workers_that_are_killed_are_replaced_and_nothing_is_lost_or_done_twice(tmp_path: Path) -> None:
    events: list[Event] = []
    killed: set[int] = set()

    def kill(event: Event) -> None:
        events.append(event)
        ended = len(of_type(events, "task_ended"))
        if event.type == "task_ended" and ended in (3, 9):
            worker = next(worker for worker in workers_of(os.getpid()) if worker not in killed)
            killed.add(worker)
            os.kill(worker, signal.SIGKILL)

    async with ScriptedServer(doubling) as server:
        batch = await run_batch(
            coder(server.base_url),
            numbers(24),
            out=tmp_path,
            workers=2,
            concurrency=6,
            listeners=[kill],
        )
    assert (len(killed), batch.outcomes, batch.wrong) == (2, {"answered": 24}, 0)
    assert [(one["id"], one["answer"]) for one in results(tmp_path)] == [
        (f"n{n}", str(2 * n)) for n in range(1, 25)
    ]
    assert len(of_type(events, "task_ended")) == 24
    assert any("died" in event.reason for event in of_type(events, "task_retried"))
    assert not workers_of(os.getpid())


@pytest.mark.long
async def test_all_ends_with_its_driver_and_the_same_command_goes_on_until_all_is_done(
    tmp_path: Path,
) -> None:
    """At any moment the results are whole lines, of different tasks, and those that are there stay."""
    randomness, seen = random.Random(12), list[str]()
    with ScriptedServer.in_thread(doubling) as server:
        for _ in range(5):
            with begun(tmp_path, server.base_url, 60, "--workers", "2", "--concurrency", "6") as process:
                # a quick machine may have done all by now
                await until(lambda: workers_of(process.pid) or not process_lives(process.pid), seconds=60)
                await asked_more(server, randomness.randrange(1, 30), process)
                started = processes_below(process.pid)
                process.kill()
                process.wait(30)
            await ended(started)
            before, seen = seen, lines_of(tmp_path / "out")
            assert len({json.loads(line)["id"] for line in seen}) == len(seen)
            assert {*before} <= {*seen}
        with begun(tmp_path, server.base_url, 60, "--workers", "2") as process:
            stdout, stderr = process.communicate(timeout=100)
        assert process.returncode == 0, stderr.decode()
        assert "60 answered" in stdout.decode()
        alone = tmp_path / "alone"
        await run_batch(coder(server.base_url), numbers(60), out=alone, workers=1)
    assert lines_of(tmp_path / "out") == lines_of(alone)


@pytest.mark.long
async def test_ctrl_c_stops_all_workers_in_order(tmp_path: Path) -> None:
    interrupted = threading.Event()

    def model(body: Any) -> AnyReply:
        # a quick machine would have done all before the signal arrives
        thinks = len(server.requests) > 20 and not interrupted.is_set()
        return Slow(600, doubling(body)) if thinks else doubling(body)

    with ScriptedServer.in_thread(model) as server:
        with begun(tmp_path, server.base_url, 30, "--workers", "2", "--concurrency", "6") as process:
            await until(lambda: len(server.requests) > 20, seconds=60)
            started = processes_below(process.pid)
            # a terminal tells the whole group
            os.killpg(process.pid, signal.SIGINT)
            stdout, stderr = process.communicate(timeout=60)
        interrupted.set()
        assert process.returncode == 130, stderr.decode()
        assert "not done" in stdout.decode()
        await ended(started)
        with begun(tmp_path, server.base_url, 30, "--workers", "2") as process:
            process.communicate(timeout=100)
        assert process.returncode == 0
        # two calls for each task, and none of them twice but those that were under way
        assert len(server.requests) <= 60 + 6


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_stops_a_batch_at_whatever_moment_of_its_start(
    tmp_path: Path, number: signal.Signals
) -> None:
    with ScriptedServer.in_thread(doubling) as server:
        for tenths in range(10):
            with begun(tmp_path, server.base_url, 200, "--workers", "1", "--concurrency", "1") as process:
                assert process.stderr is not None
                # it tells of workspaces when it has read its config
                await asyncio.to_thread(process.stderr.readline)
                await asyncio.sleep(tenths / 10)
                process.send_signal(number)
                _, stderr = process.communicate(timeout=60)
            assert process.returncode == 128 + number, (tenths, stderr.decode())
            assert b"Traceback" not in stderr


async def asked_more(server: ScriptedServer, times: int, process: Forked) -> None:
    asked = len(server.requests) + times
    await until(lambda: len(server.requests) >= asked or not process_lives(process.pid), seconds=60)


async def ended(processes: list[int]) -> None:
    await until(lambda: not any(map(process_lives, processes)))


def lines_of(out: Path) -> list[str]:
    file = out / "results.jsonl"
    return file.read_text().splitlines() if file.exists() else []
