"""Batches whose sandboxes are containers: the engine is away or dies, and containers are killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from batch.batches import coder, numbers, of_type, results, said, task_of
from support.openai_server import AnyReply, ScriptedServer, Text
from support.private_engine import PrivateEngine

from codeact_team.batch.batch import run_batch
from codeact_team.core.effects import Event, Listener
from codeact_team.sandbox.docker.address import engine_url
from codeact_team.sandbox.docker.container import LABEL, owner_label
from codeact_team.sandbox.docker.engine import connect

pytestmark = pytest.mark.docker


def in_containers(base_url: str) -> dict[str, Any]:
    config = coder(base_url)
    config["config"]["code_executor"] = {
        "provider": "codeact_team.DockerSessionCodeExecutor",
        "config": {"packages": []},
    }
    return config


async def test_an_engine_that_is_away_is_tried_again_and_what_it_kept_from_running_runs_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[Event] = []
    task = {"id": "a", "text": "Say it."}

    def model(body: Any) -> AnyReply:
        return Text("```python\nprint('it')\n```") if len(body["messages"]) < 4 else Text("it")

    async with ScriptedServer(model) as server:
        config = in_containers(server.base_url)
        with monkeypatch.context() as away:
            away.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
            batch = await run_batch(
                config, [task], out=tmp_path / "out", workers=1, retries=1, listeners=[events.append]
            )
        assert (batch.outcomes, batch.exit_code) == ({"failed": 1}, 75)
        assert len(of_type(events, "task_retried")) == 1
        batch = await run_batch(config, [task], out=tmp_path / "out", workers=1)
    assert (batch.outcomes, batch.exit_code) == ({"answered": 1}, 0)


@pytest.mark.long
async def test_an_engine_that_goes_in_the_middle_of_a_task_lets_it_go_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the code was doing then is done again when there is an engine."""
    away = monkeypatch.context()
    gone = False

    def model(body: Any) -> AnyReply:
        nonlocal gone
        if "twice:" in said(body)[-1]:
            return Text(said(body)[-1].split("twice:")[1].split()[0])
        if len(body["messages"]) > 3 and not gone:
            gone = True
            with closing(connect(engine_url())) as client:
                for container in client.containers(filters={"label": f"{LABEL}={owner_label()}"}):
                    client.kill(container["Id"])
            away.__enter__().setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
        return Text(f"```python\nprint('{'twice' if gone else 'once'}:', 42)\n```")

    task = {"id": "a", "text": "Say it."}
    async with ScriptedServer(model) as server:
        config = in_containers(server.base_url)
        batch = await run_batch(config, [task], out=tmp_path / "out", workers=1, retries=1)
        assert (batch.outcomes, batch.exit_code) == ({"failed": 1}, 75)
        away.__exit__(None, None, None)
        batch = await run_batch(config, [task], out=tmp_path / "out", workers=1)
    assert (batch.outcomes, batch.exit_code) == ({"answered": 1}, 0)
    assert [one["answer"] for one in results(tmp_path / "out")] == ["42"]


@pytest.mark.long
async def test_a_container_that_is_killed_takes_no_other_task_with_it(tmp_path: Path) -> None:
    """The model is told that its sandbox was lost, and has the code run again."""
    killed: list[str] = []

    def model(body: Any) -> AnyReply:
        number = task_of(body).split()[1]
        if "twice:" in said(body)[-1]:
            return Text(said(body)[-1].split("twice:")[1].split()[0])
        if len(body["messages"]) > 3 and not killed:
            # at work on another task, or waiting for one
            with closing(connect(engine_url())) as client:
                for container in client.containers(filters={"label": f"{LABEL}={owner_label()}"}):
                    killed.append(container["Id"])
                    client.kill(container["Id"])
        code = (
            f"x = {number}\nprint('once:', x)"
            if len(body["messages"]) < 4
            else f"print('twice:', 2 * {number})"
        )
        return Text(f"```python\n{code}\n```")

    tasks = [{"id": f"n{n}", "text": f"Double {n} please.", "expected": 2 * n} for n in range(1, 5)]
    async with ScriptedServer(model) as server:
        batch = await run_batch(in_containers(server.base_url), tasks, out=tmp_path, workers=1, concurrency=2)
    assert killed
    assert (batch.outcomes, batch.wrong) == ({"answered": 4}, 0)
    assert [one["answer"] for one in results(tmp_path)] == ["2", "4", "6", "8"]


def persistent(body: Any) -> AnyReply:
    """A model that has the number of its task doubled by code, again where that came to nothing."""
    last = said(body)[-1]
    if "twice:" in last:
        return Text(last.split("twice:")[1].split()[0])
    return Text(f"```python\nprint('twice:', 2 * {task_of(body).split()[1]})\n```")


def then(
    count: int, do: Callable[[], Coroutine[Any, Any, None]], doing: list[asyncio.Task[None]]
) -> Listener:
    """What does something once so many tasks have ended."""
    ended = 0

    def listen(event: Event) -> None:
        nonlocal ended
        ended += event.type == "task_ended"
        if ended == count and not doing:
            doing.append(asyncio.ensure_future(do()))

    return listen


@pytest.mark.long
async def test_an_engine_that_is_killed_in_the_middle_takes_no_finished_result_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes back while the batch still tries."""
    events, doing = list[Event](), list[asyncio.Task[None]]()
    async with ScriptedServer(persistent) as server, PrivateEngine() as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.url)

        async def die() -> None:
            await engine.kill()
            await engine.start()

        batch = await run_batch(
            in_containers(server.base_url),
            numbers(10),
            out=tmp_path,
            workers=2,
            concurrency=4,
            listeners=[events.append, then(3, die, doing)],
        )
        await asyncio.gather(*doing)
    assert doing
    assert (batch.outcomes, batch.wrong) == ({"answered": 10}, 0)
    assert [one["answer"] for one in results(tmp_path)] == [str(2 * n) for n in range(1, 11)]
    assert of_type(events, "task_retried")


@pytest.mark.long
async def test_what_an_engine_that_stays_away_has_stopped_is_done_when_there_is_one_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    doing = list[asyncio.Task[None]]()
    async with ScriptedServer(persistent) as server, PrivateEngine() as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.url)
        config = in_containers(server.base_url)
        first = await run_batch(
            config,
            numbers(10),
            out=tmp_path,
            workers=2,
            concurrency=4,
            retries=1,
            listeners=[then(3, engine.kill, doing)],
        )
        await asyncio.gather(*doing)
        assert first.exit_code == 75
        finished = results(tmp_path)
        assert len([one for one in finished if one["outcome"] == "answered"]) >= 3
        await engine.start()
        batch = await run_batch(config, numbers(10), out=tmp_path, workers=2)
    assert (batch.outcomes, batch.wrong) == ({"answered": 10}, 0)
    assert [one["answer"] for one in results(tmp_path)] == [str(2 * n) for n in range(1, 11)]
