"""``run_batch``: what comes of tasks, and what is kept."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from batch.batches import at_once, coder, doubling, numbers, of_type, results, said
from support.openai_server import AnyReply, Body, HttpError, ScriptedServer, Slow, Text
from support.small_disk import leave_free, small_disk
from support.waiting import until

from codeact_team.batch.batch import Batch, run_batch
from codeact_team.batch.engines import LocalEngine
from codeact_team.batch.evaluation import judged
from codeact_team.batch.results import BatchNoted
from codeact_team.batch.settings import BatchSettings, WorkerSettings
from codeact_team.batch.throttle import BatchLimits, DriverInterface
from codeact_team.batch.worker import Worker
from codeact_team.config.loading import read_config
from codeact_team.core.aio import to_the_end
from codeact_team.core.effects import Event
from codeact_team.errors import ConfigError, SettingError
from codeact_team.journal.run_directory import RunDirectory
from codeact_team.runs.kept_runs import KeptRun, RunState


async def test_each_task_is_a_run_of_its_own_whose_answer_is_judged(tmp_path: Path) -> None:
    async with ScriptedServer(doubling) as server:
        batch = await run_batch(coder(server.base_url), numbers(2), out=tmp_path / "out", workers=1)
    assert (batch.exit_code, batch.outcomes, batch.left) == (0, {"answered": 2}, 0)
    assert [(one["id"], one["answer"], one["correct"]) for one in results(tmp_path / "out")] == [
        ("n1", "2", True),
        ("n2", "4", True),
    ]
    for n in (1, 2):
        # not in the directory that all would share
        assert (tmp_path / "out" / "files" / f"n{n}" / "made.txt").read_text() == str(n)
        assert KeptRun.read(RunDirectory(tmp_path / "out" / "runs" / f"n{n}")).state is RunState.ANSWERED
    assert batch.accuracy is not None
    assert batch.accuracy.value == 1
    assert batch.tokens == sum(
        one["prompt_tokens"] + one["completion_tokens"] for one in results(tmp_path / "out")
    )


async def test_what_is_done_is_skipped_and_results_are_the_same(tmp_path: Path) -> None:
    out = tmp_path / "out"
    async with ScriptedServer(at_once) as server:
        config = coder(server.base_url)
        await run_batch(config, numbers(2), out=out, workers=1)
        before, asked = (out / "results.jsonl").read_bytes(), len(server.requests)
        await run_batch(config, numbers(2), out=out, workers=1)
        assert (out / "results.jsonl").read_bytes() == before
        assert len(server.requests) == asked
        # one more task
        again = await run_batch(config, numbers(3), out=out, workers=1)
        assert len(server.requests) == asked + 1
    assert (out / "results.jsonl").read_bytes().startswith(before)
    assert again.outcomes == {"answered": 3}


@pytest.mark.long
async def test_what_is_expected_may_change_and_no_model_is_asked_again(tmp_path: Path) -> None:
    async with ScriptedServer(at_once) as server:
        config = coder(server.base_url)
        [task] = numbers(1)
        first = await run_batch(config, [{**task, "expected": "3"}], out=tmp_path, workers=1)
        assert (first.wrong, first.exit_code) == (1, 1)
        second = await run_batch(config, [{**task, "expected": "2"}], out=tmp_path, workers=1)
        assert (second.wrong, second.exit_code) == (0, 0)
        assert len(server.requests) == 1


async def test_another_task_or_config_does_not_get_the_results_of_this_one(tmp_path: Path) -> None:
    async with ScriptedServer(at_once) as server:
        config = coder(server.base_url)
        await run_batch(config, numbers(1), out=tmp_path, workers=1)
        with pytest.raises(SettingError, match="under these ids: 'n1'"):
            await run_batch(config, [{"id": "n1", "text": "Double 7 please."}], out=tmp_path, workers=1)
        with pytest.raises(SettingError, match="another config"):
            await run_batch(coder(server.base_url, max_steps=3), numbers(1), out=tmp_path, workers=1)


async def test_a_checker_judges_answer_and_files_in_a_sandbox(tmp_path: Path) -> None:
    checker = (
        "assert answer == expected\n"
        "assert open(files + '/made.txt').read() == '1'\n"
        "open('left-behind', 'w')\n"
    )
    tasks: list[dict[str, Any]] = [
        {"id": "right", "text": "Double 1 please.", "expected": "2", "checker": checker},
        {"id": "wrong", "text": "Double 2 please.", "expected": "4", "checker": checker},
    ]
    async with ScriptedServer(doubling) as server:
        batch = await run_batch(coder(server.base_url), tasks, out=tmp_path / "out", workers=1)
    right, wrong = results(tmp_path / "out")
    assert (right["correct"], wrong["correct"], batch.wrong) == (True, False, 1)
    assert "AssertionError" in wrong["check"]
    assert not [name for _, _, names in os.walk(tmp_path) for name in names if name == "left-behind"]


async def test_files_of_a_task_are_there_for_its_code_alone(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("of a")
    (tmp_path / "b.txt").write_text("of b")
    (tmp_path / "tasks.jsonl").write_text(
        '{"id": "a", "text": "Read.", "files": ["a.txt"]}\n{"id": "b", "text": "Read.", "files": ["b.txt"]}\n'
    )

    def reading(body: Any) -> AnyReply:
        if len(body["messages"]) < 4:
            code = "import os\nfor name in sorted(os.listdir()): print('found', open(name).read())"
            return Text(f"```python\n{code}\n```")
        return Text(" and ".join(line for line in said(body)[-1].splitlines() if "found" in line))

    async with ScriptedServer(reading) as server:
        await run_batch(coder(server.base_url), tmp_path / "tasks.jsonl", out=tmp_path / "out", workers=1)
    assert [one["answer"] for one in results(tmp_path / "out")] == ["found of a", "found of b"]


async def test_overrides_say_what_a_task_says(tmp_path: Path) -> None:
    tasks = [
        {"id": "a", "text": "Go.", "prompt": 'Be "brief": {no}, # and: kind'},
        {"id": "b", "text": "Go.", "prompt": "Be long."},
        {"id": "c", "text": "Go."},
    ]
    events: list[Event] = []

    def repeating(body: Any) -> AnyReply:
        return Text(said(body)[0][:40])

    async with ScriptedServer(repeating) as server:
        batch = await run_batch(
            coder(server.base_url),
            tasks,
            out=tmp_path,
            overrides=["config.system_message={prompt}"],
            workers=1,
            listeners=[events.append],
        )
    assert [one["answer"][:30] for one in results(tmp_path)] == [
        'Be "brief": {no}, # and: kind',
        "Be long.",
    ] or [one["answer"].splitlines()[0] for one in results(tmp_path)] == [
        'Be "brief": {no}, # and: kind',
        "Be long.",
    ]
    [broken] = of_type(events, "line_broken")
    assert (broken.line, batch.broken, batch.exit_code) == (3, 1, 2)
    assert "asks for the field 'prompt'" in broken.problem


@pytest.mark.parametrize(
    "value", [pytest.param("${OPENAI_API_KEY}", marks=pytest.mark.long), "a, b] # ${OPENAI_API_KEY:-x}"]
)
async def test_what_a_task_says_is_no_reference_to_the_environment(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "the-key-of-the-person")

    def reading(body: Any) -> AnyReply:
        if len(body["messages"]) < 4:
            return Text("```python\nimport os\nprint('found', os.environ['GIVEN'])\n```")
        return Text(said(body)[-1].split("found ")[1].splitlines()[0])

    async with ScriptedServer(reading) as server:
        await run_batch(
            coder(server.base_url),
            [{"id": "a", "text": "Read.", "given": {"GIVEN": value}, "expected": value}],
            out=tmp_path,
            overrides=["config.code_executor.config.environment={given}"],
            workers=1,
        )
    [result] = results(tmp_path)
    assert (result["answer"], result["correct"]) == (value, True)


@pytest.mark.parametrize(
    "setting", ["work_dir={base}/{id}", pytest.param("timeout={seconds}", marks=pytest.mark.long)]
)
async def test_files_of_a_task_are_no_modules_for_its_checker(setting: str, tmp_path: Path) -> None:
    def making(body: Any) -> AnyReply:
        if len(body["messages"]) < 4:
            code = "for name in ('__init__.py', 'made.txt'): open(name, 'w').write('mean = lambda values: 0')"
            return Text(f"```python\n{code}\n```")
        return Text("done")

    checker = (
        "import os, statistics\n"
        "assert statistics.mean([1, 3]) == 2\n"
        "assert sorted(os.listdir(files)) == ['__init__.py', 'made.txt']\n"
    )
    task = {"id": "statistics", "text": "Make.", "checker": checker, "base": str(tmp_path), "seconds": 60}
    async with ScriptedServer(making) as server:
        await run_batch(
            coder(server.base_url),
            [task],
            out=tmp_path / "out",
            overrides=[f"config.code_executor.config.{setting}"],
            workers=1,
        )
    [result] = results(tmp_path / "out")
    assert (result["correct"], result["check"]) == (True, None)


@pytest.mark.long
async def test_files_of_a_task_are_no_modules_for_a_checker_in_a_process_of_its_own(tmp_path: Path) -> None:
    files = tmp_path / "statistics"
    files.mkdir()
    (files / "__init__.py").write_text("")
    config = read_config(
        {
            "provider": "codeact_team.ConfinedCommandLineCodeExecutor",
            "config": {"confinement": "best_effort"},
        }
    )
    checker = (
        "import os, statistics\nassert statistics.mean([1, 3]) == 2 and os.listdir(files) == ['__init__.py']"
    )
    judgement = await judged(checker, config, answer="", expected=None, files=files)
    assert judgement.is_right, judgement.output


async def test_several_epochs_are_runs_of_their_own(tmp_path: Path) -> None:
    turns = iter(range(100))

    def sometimes(body: Any) -> AnyReply:
        return Text("right" if next(turns) % 2 else "wrong")

    async with ScriptedServer(sometimes) as server:
        batch = await run_batch(
            coder(server.base_url),
            [{"id": "a", "text": "Guess.", "expected": "right"}],
            out=tmp_path,
            epochs=4,
            workers=1,
            concurrency=1,
        )
    assert [(one["id"], one["epoch"]) for one in results(tmp_path)] == [
        ("a", 1),
        ("a", 2),
        ("a", 3),
        ("a", 4),
    ]
    assert batch.accuracy is not None
    assert (batch.accuracy.value, batch.accuracy.tasks) == (0.5, 1)
    assert batch.pass_at == {1: 0.5, 2: pytest.approx(5 / 6), 4: 1.0}


async def test_infrastructure_is_tried_again_and_told_and_a_wrong_answer_is_not(tmp_path: Path) -> None:
    failures = [
        HttpError(429, headers={"Retry-After": "0.01"}),
        HttpError(503),
        HttpError(429, headers={"retry-after-ms": "10"}),
    ]

    def failing(body: Any) -> AnyReply:
        return failures.pop(0) if failures else Text("wrong")

    events: list[Event] = []
    async with ScriptedServer(failing) as server:
        batch = await run_batch(
            coder(server.base_url),
            [{"id": "a", "text": "Guess.", "expected": "right"}],
            out=tmp_path,
            workers=1,
            listeners=[events.append],
        )
        assert len(server.requests) == 4
    assert (batch.outcomes, batch.wrong) == ({"answered": 1}, 1)
    told = [event.reason for event in of_type(events, "task_retried")]
    assert ["429" in reason for reason in told] == [True, False, True]


async def test_retries_end_and_a_later_start_tries_again(tmp_path: Path) -> None:
    reply: AnyReply = HttpError(503)

    def replying(body: Any) -> AnyReply:
        return reply

    async with ScriptedServer(replying) as server:
        config = coder(server.base_url)
        batch = await run_batch(config, [{"id": "a", "text": "Go."}], out=tmp_path, workers=1, retries=1)
        assert len(server.requests) == 2
        assert (batch.outcomes, batch.exit_code) == ({"failed": 1}, 75)
        reply = Text("There.")
        batch = await run_batch(config, [{"id": "a", "text": "Go."}], out=tmp_path, workers=1, retries=1)
    assert (batch.outcomes, batch.exit_code) == ({"answered": 1}, 0)
    assert [one["answer"] for one in results(tmp_path)] == ["There."]


async def test_what_the_server_refuses_for_good_is_not_tried_again(tmp_path: Path) -> None:
    async with ScriptedServer([HttpError(401)]) as server:
        batch = await run_batch(coder(server.base_url), numbers(1), out=tmp_path, workers=1)
        assert len(server.requests) == 1
    assert batch.exit_code == 2


async def test_a_budget_ends_all_and_a_higher_one_goes_on(tmp_path: Path) -> None:
    async with ScriptedServer(doubling) as server:
        config = coder(server.base_url)
        limits = BatchLimits(max_tokens=330)
        first = await run_batch(config, numbers(3), out=tmp_path, workers=1, concurrency=1, limits=limits)
        # three calls of 110 tokens: one task and a half
        assert (len(server.requests), first.outcomes, first.left, first.exit_code) == (
            3,
            {"answered": 1},
            2,
            1,
        )
        assert "330 of 330 tokens" in (first.stop_reason or "")
        second = await run_batch(config, numbers(3), out=tmp_path, workers=1, concurrency=1)
        assert len(server.requests) == 6
    assert (second.outcomes, second.wrong, second.exit_code) == ({"answered": 3}, 0, 0)


async def test_money_is_limited_by_the_prices_of_the_config(tmp_path: Path) -> None:
    async with ScriptedServer(doubling) as server:
        with pytest.raises(SettingError, match="BudgetTermination"):
            await run_batch(
                coder(server.base_url), numbers(1), out=tmp_path, limits=BatchLimits(max_cost=1.0)
            )


async def test_no_tasks_at_all_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="there are no tasks"):
        await run_batch(coder("http://127.0.0.1:9"), [], out=tmp_path)


async def test_what_no_task_could_run_without_is_told_before_any_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    config = coder("http://127.0.0.1:9")
    del config["config"]["model_client"]["config"]["api_key"]
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        await run_batch(config, numbers(2), out=tmp_path / "out")
    assert not os.listdir(tmp_path)


@pytest.mark.long
async def test_a_batch_that_is_stopped_while_it_starts_begins_no_task(tmp_path: Path) -> None:
    def stop(event: Event) -> None:
        # it tells that each task has a workspace of its own before anything else
        if isinstance(event, BatchNoted) and "work_dir" in event.text:
            assert batch.stop(signal.SIGTERM)

    async with ScriptedServer(at_once) as server:
        config = coder(server.base_url)
        config["config"]["code_executor"]["config"]["work_dir"] = "work"
        batch = Batch(config, numbers(2), tmp_path / "out", BatchSettings(workers=1), listeners=[stop])
        result = await batch.run()
        assert (result.left, result.exit_code, result.signal) == (2, 143, signal.SIGTERM)
        assert not server.requests
        again = await run_batch(config, numbers(2), out=tmp_path / "out", workers=1)
    assert (again.outcomes, again.exit_code) == ({"answered": 2}, 0)


@pytest.mark.long
async def test_a_checker_that_takes_long_does_not_keep_a_batch_from_stopping(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "runs" / "a")
    task = {"id": "a", "text": "Go.", "checker": "import time\ntime.sleep(60 if answer else 0)"}
    async with ScriptedServer([Text("There.")]) as server:
        batch = Batch(coder(server.base_url), [task], tmp_path, BatchSettings(workers=1))
        running = asyncio.create_task(batch.run())
        await until(lambda: run.is_begun and KeptRun.read(run).state is RunState.ANSWERED)
        assert batch.stop(signal.SIGINT)
        result = await running
        assert (result.left, result.exit_code) == (1, 130)
        # the run is kept, and no model is asked again
        again = await run_batch(
            coder(server.base_url), [{**task, "checker": "assert answer"}], out=tmp_path, workers=1
        )
    assert (again.outcomes, again.wrong) == ({"answered": 1}, 0)


@pytest.mark.long
async def test_calls_of_models_that_a_stop_has_cut_off_are_made_anew(tmp_path: Path) -> None:
    seconds = [60.0]

    def reply(body: Body) -> AnyReply:
        return Slow(seconds[0], doubling(body))

    async with ScriptedServer(reply) as server:
        batch = Batch(coder(server.base_url), numbers(2), tmp_path, BatchSettings(workers=1))
        running = asyncio.create_task(batch.run())
        await until(lambda: len(server.requests) == 2)
        assert batch.stop(signal.SIGTERM)
        assert ((await running).left, results(tmp_path)) == (2, [])
        seconds[0] = 0
        again = await run_batch(coder(server.base_url), numbers(2), out=tmp_path, workers=1)
        # two calls for each, and the first of each was made twice
        assert len(server.requests) == 6
    assert (again.outcomes, again.wrong, again.exit_code) == ({"answered": 2}, 0, 0)


@pytest.mark.long
async def test_a_worker_that_never_starts_and_takes_a_while_to_give_up_does_not_keep_a_batch_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others end meanwhile, each of which looks whether work is left."""
    started: list[str] = []

    @asynccontextmanager
    async def worker(
        self: LocalEngine, settings: WorkerSettings, driver: DriverInterface, *, is_only: bool
    ) -> AsyncGenerator[Worker]:
        if not started:
            started.append("one")
            async with Worker(settings, driver) as one:
                yield one
            return
        started.append("another")
        try:
            await asyncio.sleep(60)
        finally:
            await to_the_end(asyncio.sleep(1))
        raise AssertionError

    monkeypatch.setattr(LocalEngine, "worker", worker)

    def reply(body: Body) -> AnyReply:
        return Slow(60, doubling(body))

    async with ScriptedServer(reply) as server:
        settings = BatchSettings(workers=2, concurrency=4)
        batch = Batch(coder(server.base_url), numbers(4), tmp_path, settings)
        running = asyncio.create_task(batch.run())
        await until(lambda: len(server.requests) == 2)
        assert batch.stop(signal.SIGTERM)
        async with asyncio.timeout(30):
            result = await running
    assert (result.left, result.exit_code, started) == (4, 143, ["one", "another"])


@pytest.mark.long
async def test_files_for_which_there_is_no_room_are_copied_by_the_same_batch_later(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with small_disk(out / "files", "64k"):
        leave_free(out / "files", 0)
        async with ScriptedServer(doubling) as server:
            config = coder(server.base_url)
            full = await run_batch(config, numbers(1), out=out, workers=1)
            assert (full.outcomes, full.exit_code) == ({"failed": 1}, 2)
            [told] = results(out)
            assert "its files could not be copied: No space left on device" in told["error"]
            leave_free(out / "files", 4)
            again = await run_batch(config, numbers(1), out=out, workers=1)
            assert len(server.requests) == 2
        assert (again.outcomes, again.wrong, again.exit_code) == ({"answered": 1}, 0, 0)
        assert (out / "files" / "n1" / "made.txt").read_text() == "1"
