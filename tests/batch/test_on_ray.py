"""Batches on a Ray cluster: the same tasks come to the same results as on one machine, also where nodes and drivers die."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from batch.batches import coder, doubling, numbers, of_type, results, task_of
from batch.test_kills import asked_more, begun, ended, lines_of
from support.openai_server import AnyReply, ScriptedServer
from support.processes import process_lives, processes_below
from support.ray_cluster import RayCluster, RayNode, authenticated
from support.waiting import until

from codeact_team.batch.batch import run_batch
from codeact_team.batch.throttle import BatchLimits
from codeact_team.core.effects import Event
from codeact_team.errors import CodeActTeamError, SettingError
from codeact_team.journal.log import read_log
from codeact_team.journal.run_directory import RunDirectory
from codeact_team.runs.kept_runs import KeptRun, RunState

of_cluster = [pytest.mark.long, pytest.mark.timeout(400)]


@pytest.fixture(autouse=True)
def token(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in authenticated(tmp_path_factory.mktemp("token")).items():
        monkeypatch.setenv(name, value)


async def alone(server: ScriptedServer, count: int, out: Path) -> list[str]:
    """What the same tasks come to on this machine."""
    await run_batch(coder(server.base_url), numbers(count), out=out, workers=1)
    return lines_of(out)


def states(out: Path, count: int) -> set[RunState]:
    return {KeptRun.read(RunDirectory(out / "runs" / f"n{n}")).state for n in range(1, count + 1)}


@pytest.mark.long
async def test_tasks_come_to_the_same_on_a_cluster(tmp_path: Path) -> None:
    events: list[Event] = []
    before = {*processes_below(os.getpid())}
    async with ScriptedServer(doubling) as server:
        batch = await run_batch(
            coder(server.base_url),
            numbers(3),
            out=tmp_path / "out",
            engine="ray",
            address="local",
            listeners=[events.append],
        )
        assert (batch.outcomes, batch.wrong) == ({"answered": 3}, 0)
        assert len(server.requests) == 6
        assert lines_of(tmp_path / "out") == await alone(server, 3, tmp_path / "alone")
    [began] = of_type(events, "batch_began")
    assert began.workers == 1
    assert (tmp_path / "out" / "files" / "n2" / "made.txt").read_text() == "2"
    assert states(tmp_path / "out", 3) == {RunState.ANSWERED}
    assert {*processes_below(os.getpid())} <= before


@pytest.mark.long
@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("127.0.0.1:9", r"no Ray cluster at 127\.0\.0\.1:9 .*ray start --head"),
        ("ray://127.0.0.1:10001", "run this on a node of the cluster"),
        ("somewhere", "is not the address of a Ray cluster"),
    ],
)
async def test_where_there_is_no_cluster_that_is_told(tmp_path: Path, address: str, problem: str) -> None:
    with pytest.raises(SettingError, match=problem):
        await run_batch(coder("http://127.0.0.1:9"), numbers(1), out=tmp_path, engine="ray", address=address)


async def test_an_address_is_for_a_cluster_only(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="--engine ray"):
        await run_batch(coder("http://127.0.0.1:9"), numbers(1), out=tmp_path, address="127.0.0.1:6379")


async def test_the_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SettingError, match=r"pip install '\.\[ray\]'"):
        await run_batch(coder("http://127.0.0.1:9"), numbers(1), out=tmp_path, engine="ray")


class TestNodes:
    pytestmark = of_cluster

    async def test_a_node_that_is_lost_in_the_middle_changes_no_result(self, tmp_path: Path) -> None:
        events: list[Event] = []
        out = tmp_path / "out"
        async with ScriptedServer(doubling) as server, RayCluster(nodes=2) as cluster:
            killing: list[asyncio.Task[None]] = []

            def kill(event: Event) -> None:
                events.append(event)
                if event.type == "task_ended" and len(of_type(events, "task_ended")) == 5:
                    killing.append(asyncio.ensure_future(cluster.nodes[0].kill()))

            batch = await run_batch(
                coder(server.base_url),
                numbers(24),
                out=out,
                engine="ray",
                address=cluster.address,
                concurrency=8,
                listeners=[kill],
            )
            await asyncio.gather(*killing)
            assert (batch.outcomes, batch.wrong) == ({"answered": 24}, 0)
            assert len(of_type(events, "task_ended")) == 24
            assert of_type(events, "batch_began")[0].workers == 2
            assert any("lost" in event.reason for event in of_type(events, "task_retried"))
            # each task asks twice, and what was under way on the node once more
            assert len(server.requests) <= 48 + 4
            assert lines_of(out) == await alone(server, 24, tmp_path / "alone")
        assert states(out, 24) == {RunState.ANSWERED}

    async def test_without_shared_storage_runs_are_carried_home_and_those_of_a_lost_node_begin_anew(
        self, tmp_path: Path
    ) -> None:
        out, events = tmp_path / "hidden" / "out", list[Event]()
        out.parent.mkdir()
        hide = hiding(out.parent)
        async with ScriptedServer(doubling) as server, RayCluster() as cluster:
            for _ in range(2):
                await cluster.add_node(*hide)
            killing: list[asyncio.Task[None]] = []

            def kill(event: Event) -> None:
                events.append(event)
                if event.type == "task_ended" and len(of_type(events, "task_ended")) == 5:
                    killing.append(asyncio.ensure_future(cluster.nodes[0].kill()))

            batch = await run_batch(
                coder(server.base_url),
                numbers(16),
                out=out,
                engine="ray",
                address=cluster.address,
                concurrency=8,
                listeners=[kill],
            )
            await asyncio.gather(*killing)
            assert killing
            assert (batch.outcomes, batch.wrong) == ({"answered": 16}, 0)
            assert lines_of(out) == await alone(server, 16, tmp_path / "alone")
        assert states(out, 16) == {RunState.ANSWERED}
        assert [(out / "files" / f"n{n}" / "made.txt").read_text() for n in range(1, 17)] == [
            str(n) for n in range(1, 17)
        ]
        assert {each.name for each in out.iterdir()} == {
            "batch.jsonl",
            "files",
            "leases",
            "results.jsonl",
            "runs",
        }

    async def test_without_shared_storage_a_run_that_was_stopped_goes_on_wherever_it_is_carried(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nor need the node have the directory in which the command runs."""
        work = tmp_path / "hidden" / "work"
        work.mkdir(parents=True)
        monkeypatch.chdir(work)
        async with ScriptedServer(doubling) as server, RayCluster() as cluster:
            await cluster.add_node(*hiding(work.parent))
            config = coder(server.base_url)
            there: dict[str, Any] = {"engine": "ray", "address": cluster.address}
            limits = BatchLimits(max_tokens=330)
            first = await run_batch(config, numbers(3), out="out", concurrency=1, limits=limits, **there)
            # three calls of 110 tokens: one task and a half
            assert (len(server.requests), first.outcomes, first.left) == (3, {"answered": 1}, 2)
            second = await run_batch(config, numbers(2), out="out", concurrency=1, **there)
            assert (len(server.requests), second.outcomes) == (4, {"answered": 2})
            await run_batch(config, numbers(3), out="out", workers=1)
            assert len(server.requests) == 6
            assert lines_of(work / "out") == await alone(server, 3, tmp_path / "alone")

    async def test_a_node_that_only_seemed_to_be_lost_does_nothing_more(self, tmp_path: Path) -> None:
        """It is stopped while its model thinks, given up, and goes on when somebody else has done its work."""
        out, events = tmp_path / "out", list[Event]()
        async with RayCluster(nodes=2) as cluster:
            stopped: list[int] = []

            def model(body: Any) -> AnyReply:
                # once each node has work
                if not stopped and len(of_type(events, "task_ended")) > 3:
                    node, worker = with_open(cluster.nodes, out / "runs" / f"n{task_of(body).split()[1]}")
                    node.signal(signal.SIGSTOP)
                    stopped.append(worker)
                return doubling(body)

            async with ScriptedServer(model) as server:
                batch = await run_batch(
                    coder(server.base_url),
                    numbers(16),
                    out=out,
                    engine="ray",
                    address=cluster.address,
                    concurrency=4,
                    listeners=[events.append],
                )
                [worker] = stopped
                assert (batch.outcomes, batch.wrong) == ({"answered": 16}, 0)
                asked, before = len(server.requests), contents(out)
                for process in [worker, *processes_below(worker)]:
                    # the worker goes on at once, and may have ended what is below it
                    with suppress(ProcessLookupError):
                        os.kill(process, signal.SIGCONT)
                # it finds that it is not meant any more
                await until(lambda: not process_lives(worker), seconds=60)
                assert len(server.requests) == asked
                assert contents(out) == before
                assert lines_of(out) == await alone(server, 16, tmp_path / "alone")
        for n in range(1, 17):
            entries = [*read_log(RunDirectory(out / "runs" / f"n{n}").lines)]
            spans = [entry["span"] for entry in entries if "begin" in entry]
            assert len(set(spans)) == len(spans)

    async def test_a_driver_that_is_killed_takes_its_workers_along_and_another_goes_on(
        self, tmp_path: Path
    ) -> None:
        with ScriptedServer.in_thread(doubling) as server:
            async with RayCluster(nodes=2) as cluster:
                arguments = ["--engine", "ray", "--address", cluster.address, "--concurrency", "6"]
                seen: list[str] = []
                for more in (9, 25):
                    with begun(tmp_path, server.base_url, 40, *arguments) as process:
                        await asked_more(server, more, process)
                        started = [*processes_below(process.pid), *workers_on(cluster)]
                        process.kill()
                        process.wait(30)
                    await ended(started)
                    before, seen = seen, lines_of(tmp_path / "out")
                    assert {*before} <= {*seen}
                with begun(tmp_path, server.base_url, 40, *arguments) as process:
                    stdout, stderr = process.communicate(timeout=200)
                assert process.returncode == 0, stderr.decode()
                assert "40 answered" in stdout.decode()
                await ended(workers_on(cluster))
            assert lines_of(tmp_path / "out") == await alone(server, 40, tmp_path / "alone")

    async def test_when_the_cluster_is_gone_what_is_done_stays_and_one_machine_goes_on(
        self, tmp_path: Path
    ) -> None:
        out, events = tmp_path / "out", list[Event]()
        async with ScriptedServer(doubling) as server:
            async with RayCluster(nodes=1) as cluster:
                killing: list[asyncio.Task[None]] = []

                def kill(event: Event) -> None:
                    events.append(event)
                    if event.type == "task_ended" and len(of_type(events, "task_ended")) == 4:
                        for node in (cluster.head, *cluster.nodes):
                            killing.append(asyncio.ensure_future(node.kill()))

                with pytest.raises(CodeActTeamError, match="the connection to the Ray cluster"):
                    await run_batch(
                        coder(server.base_url),
                        numbers(12),
                        out=out,
                        engine="ray",
                        address=cluster.address,
                        listeners=[kill],
                    )
                await asyncio.gather(*killing)
            done = len(results(out))
            assert 4 <= done < 12
            batch = await run_batch(coder(server.base_url), numbers(12), out=out, workers=1)
            assert (batch.outcomes, batch.wrong) == ({"answered": 12}, 0)
            assert lines_of(out) == await alone(server, 12, tmp_path / "alone")


def workers_on(cluster: RayCluster) -> list[int]:
    return [worker for node in cluster.nodes for worker in node.workers()]


def hiding(directory: Path) -> Sequence[str]:
    """What runs a node that does not see what is in a directory."""
    return ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(directory)]


def with_open(nodes: Sequence[RayNode], run: Path) -> tuple[RayNode, int]:
    """The node and the process of the worker that has a journal open."""
    journal = str(run / "journal.jsonl")
    for node in nodes:
        for worker in node.workers():
            for descriptor in Path(f"/proc/{worker}/fd").iterdir():
                with suppress(OSError):
                    if os.readlink(descriptor) == journal:
                        return node, worker
    raise AssertionError(f"nobody has {journal} open")


def contents(top: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in top.rglob("*") if path.is_file()}
