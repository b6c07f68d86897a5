"""An evaluation that is interrupted again and again has the lines of one that was left alone."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGKILL, SIGTERM
from typing import Any

import pytest
from batch.batches import coder, said, task_of
from support.command_line import environment
from support.fork_server import Forked, start
from support.openai_server import AnyReply, Body, HttpError, ScriptedServer, Slow, Text
from support.processes import is_worker, processes_below
from support.small_disk import leave_free, small_disk
from support.waiting import until

_TASKS = 16
_TOKENS = 330
"""Of the three calls for a task."""
_CHECKER = "open({gate!r}).read()\nassert int(answer) == 2 * {number}\n"


@dataclass
class Evaluation:
    """An evaluation whose tasks can be held where they are to be interrupted; they run one after the other.

    The second block of each task, or its checker, reads its gate: a FIFO holds it, and a file lets it pass.
    """

    folder: Path
    server: ScriptedServer
    replies: dict[int, Callable[[], AnyReply | None]] = field(
        default_factory=dict[int, Callable[[], AnyReply | None]]
    )
    """What happens at the second call for a task, and what it gets instead of its answer."""

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def gate(self, number: int) -> Path:
        return self.folder / "gates" / str(number)

    def prepare(self) -> None:
        (self.folder / "gates").mkdir()
        tasks: list[dict[str, Any]] = []
        for number in range(1, _TASKS + 1):
            self.gate(number).write_text("open")
            task: dict[str, Any] = {"id": f"n{number}", "text": f"Double {number} please."}
            if number % 3:
                # some are wrong
                task["expected"] = 2 * number + (number % 5 == 0)
            else:
                task["checker"] = _CHECKER.format(gate=str(self.gate(number)), number=number)
            tasks.append(task)
        (self.folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
        config = coder(self.server.base_url)
        config["config"]["code_executor"]["config"]["readable"] = [str(self.folder / "gates")]
        (self.folder / "coder.json").write_text(json.dumps(config))

    def reply(self, body: Body) -> AnyReply:
        number = int(task_of(body).split()[1])
        turns = sum(message["role"] == "assistant" for message in body["messages"])
        if turns == 0:
            return Text(f"```python\nx = {number}\nprint('kept')\n```")
        if turns > 1:
            return Text(said(body)[-1].split("twice:")[1].split()[0])
        if (instead := self.replies.get(number, lambda: None)()) is not None:
            return instead
        # the gate of a task with a checker is for that
        passes = "" if number % 3 == 0 else f"open({str(self.gate(number))!r}).read()\n"
        return Text(f"```python\n{passes}open('made.txt', 'w').write(str(x))\nprint('twice:', 2 * x)\n```")

    def begin(self, *arguments: str, out: str = "out") -> Forked:
        command = ["-m", "codeact_team", "batch", "coder.json", "tasks.jsonl", "--out", out]
        arguments = arguments or ("--workers", "1", "--concurrency", "1")
        return start(
            [*command, *arguments],
            cwd=self.folder,
            environment=environment(),
            stdin=subprocess.DEVNULL,
        )

    async def held_in_code(self, number: int, act: Callable[[], object]) -> None:
        """Hold a task, or its checker, within its code, and do something meanwhile; then it may pass the next time."""
        writer = -1

        def is_read() -> bool:
            nonlocal writer
            with suppress(OSError):
                # only while somebody reads it
                writer = os.open(self.gate(number), os.O_WRONLY | os.O_NONBLOCK)
            return writer >= 0

        await until(is_read, seconds=60)
        try:
            act()
            opened = self.folder / "opened"
            opened.write_text("open")
            opened.replace(self.gate(number))
        finally:
            os.close(writer)

    def hold_in_code(self, number: int) -> None:
        self.gate(number).unlink()
        os.mkfifo(self.gate(number))

    def lines(self, out: str = "out") -> list[str]:
        file = self.folder / out / "results.jsonl"
        return file.read_text().splitlines() if file.exists() else []


async def interrupt_in_code(evaluation: Evaluation, number: int, signal: int) -> int | None:
    evaluation.hold_in_code(number)
    with evaluation.begin() as process:
        await evaluation.held_in_code(number, lambda: (process.send_signal(signal), process.wait(60)))
    return process.returncode


async def interrupt_in_call(evaluation: Evaluation, number: int, signal: int) -> int | None:
    asked: list[int] = []
    evaluation.replies[number] = lambda: (asked.append(number), Slow(60, Text("never")))[1]
    with evaluation.begin() as process:
        await until(lambda: asked, seconds=60)
        process.send_signal(signal)
        process.wait(60)
    return process.returncode


async def with_answers(evaluation: Evaluation, number: int, status: int) -> int | None:
    """The server is down, or wants no such key, from a task on."""
    for later in range(number, _TASKS + 1):
        evaluation.replies[later] = lambda: HttpError(status)
    with evaluation.begin("--workers", "1", "--concurrency", "1", "--retries", "0") as process:
        process.communicate(timeout=100)
    return process.returncode


async def with_a_full_disk(evaluation: Evaluation, number: int) -> int | None:
    evaluation.replies[number] = lambda: leave_free(evaluation.out, 0)
    with evaluation.begin() as process:
        process.communicate(timeout=100)
    (evaluation.out / "filler").unlink()
    return process.returncode


async def with_a_reader_that_is_gone(evaluation: Evaluation, number: int) -> int | None:
    with evaluation.begin() as process:
        assert process.stdout is not None
        process.stdout.close()
        process.wait(60)
    return process.returncode


async def with_a_budget(evaluation: Evaluation, number: int) -> int | None:
    most = str(_TOKENS * (number - 1) + _TOKENS // 3)
    with evaluation.begin("--workers", "1", "--concurrency", "1", "--max-tokens", most) as process:
        process.communicate(timeout=100)
    return process.returncode


async def with_workers_that_are_killed(evaluation: Evaluation, number: int) -> int | None:
    evaluation.hold_in_code(number)
    with evaluation.begin("--workers", "2", "--concurrency", "2") as process:

        def kill() -> None:
            for worker in filter(is_worker, processes_below(process.pid)):
                os.kill(worker, SIGKILL)

        await evaluation.held_in_code(number, kill)
        process.communicate(timeout=100)
    return process.returncode


@pytest.mark.long
async def test_an_evaluation_that_is_interrupted_in_every_way_has_the_lines_of_one_left_alone(
    tmp_path: Path,
) -> None:
    ways: list[tuple[Callable[[int], Awaitable[int | None]], int]] = []
    evaluation: Evaluation

    def reply(body: Body) -> AnyReply:
        return evaluation.reply(body)

    with ScriptedServer.in_thread(reply) as server, small_disk(tmp_path / "out", "16m"):
        evaluation = Evaluation(tmp_path, server)
        evaluation.prepare()
        ways = [
            (lambda n: interrupt_in_code(evaluation, n, SIGINT), 130),
            (lambda n: interrupt_in_call(evaluation, n, SIGINT), 130),
            # in its checker, as that of each third task
            (lambda n: interrupt_in_code(evaluation, n, SIGINT), 130),
            (lambda n: interrupt_in_code(evaluation, n, SIGTERM), 143),
            (lambda n: interrupt_in_call(evaluation, n, SIGTERM), 143),
            (lambda n: interrupt_in_code(evaluation, n, SIGKILL), -9),
            (lambda n: interrupt_in_code(evaluation, n, SIGKILL), -9),
            (lambda n: interrupt_in_call(evaluation, n, SIGKILL), -9),
            (lambda n: interrupt_in_call(evaluation, n, SIGHUP), 129),
            (lambda n: interrupt_in_code(evaluation, n, SIGHUP), 129),
            (lambda n: with_answers(evaluation, n, 401), 2),
            (lambda n: with_a_budget(evaluation, n), 1),
            (lambda n: with_a_reader_that_is_gone(evaluation, n), 141),
            (lambda n: with_a_full_disk(evaluation, n), 2),
            (lambda n: with_answers(evaluation, n, 503), 75),
            # goes on by itself, to the end
            (lambda n: with_workers_that_are_killed(evaluation, n), 1),
        ]
        assert len(ways) == _TASKS
        for number, (interrupt, code) in enumerate(ways, 1):
            assert await interrupt(number) == code, f"way {number}"
            evaluation.replies.clear()
            whole = [json.loads(line) for line in evaluation.lines()]
            assert {one["outcome"] for one in whole} <= {"answered", "failed"}, f"way {number}"
        with evaluation.begin("--workers", "1", out="alone") as process:
            process.communicate(timeout=100)
        assert evaluation.lines() == evaluation.lines("alone")
        found = [json.loads(line) for line in evaluation.lines("alone")]
    assert [one["id"] for one in found if not one["correct"]] == ["n5", "n10"]
    assert {one["outcome"] for one in found} == {"answered"}
    assert not (tmp_path / "out" / "filler").exists()
