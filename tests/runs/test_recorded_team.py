"""A program that keeps what its team does, and goes on from there."""

from __future__ import annotations

import asyncio
import json
import os
import platform
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from autogen_agentchat.base import ChatAgent, TaskResult, Team
from autogen_agentchat.messages import ModelClientStreamingChunkEvent
from recording import CONFINED, NO_HTTP_RETRIES, use_model_at
from support.command_line import codeact_team, talker
from support.openai_server import Body, Json, ScriptedServer, Text

from codeact_team.core.effects import Dispatcher, Event
from codeact_team.core.events import BlockEnded, MessageSent, ModelCallEnded, RunBegan
from codeact_team.errors import JournalError
from codeact_team.journal.recorded_run import RecordedRun
from codeact_team.journal.result import RunEnding, RunResult
from codeact_team.journal.run_directory import RunDirectory
from codeact_team.runs.kept_runs import KeptRun, RunState
from codeact_team.runs.opening import open_team

CODE = Text("```python\nprint('the answer is', 6 * 7)\n```")
MOST = "config.termination_condition.config.conditions.1.config.max_messages"
ACCEPT = Json({"problems": [], "accepted": True, "next_step": ""})


@asynccontextmanager
async def kept(record: Path, **settings: Any) -> AsyncGenerator[Team | ChatAgent]:
    overrides = [CONFINED, NO_HTTP_RETRIES, *settings.pop("overrides", ())]
    async with open_team("local-model", overrides=overrides, record=record, **settings) as team:
        yield team


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[ScriptedServer]:
    def reply(body: Body) -> Text | Json:
        return ACCEPT if "response_format" in body else CODE

    async with ScriptedServer(reply) as server:
        use_model_at(server.base_url, monkeypatch)
        yield server


def events_of(record: Path) -> list[Event]:
    return list(RecordedRun(RunDirectory(record)).events())


async def test_all_tasks_of_a_team_are_one_run(tmp_path: Path, server: ScriptedServer) -> None:
    record = tmp_path / "kept" / "it"
    async with kept(record) as team:
        assert isinstance(team, Team)
        for task in ("First.", "Second."):
            result = await team.run(task=task)
            assert isinstance(result, TaskResult)
    events = events_of(record)
    assert [event.task for event in events if isinstance(event, RunBegan)] == ["First.", "Second."]
    [result] = [event for event in events if isinstance(event, RunResult)]
    assert (result.ending, result.steps, result is events[-1]) == (RunEnding.ACCEPTED, 2, True)
    run = KeptRun.read(RunDirectory(record))
    assert (run.state, run.task) == (RunState.ACCEPTED, "First.")
    assert [path.stat().st_mode & 0o777 for path in (record, record / "journal.jsonl")] == [0o700, 0o600]


async def test_a_program_that_does_the_same_again_is_answered_from_the_journal(
    tmp_path: Path, server: ScriptedServer
) -> None:
    async with kept(tmp_path / "it") as team:
        first = await team.run(task="First.")
    asked = len(server.requests)
    async with kept(tmp_path / "it") as team:
        again = await team.run(task="First.")
        assert len(server.requests) == asked
        await team.run(task="Second.")
    assert len(server.requests) == 2 * asked
    # of both lives
    started = list(RecordedRun(RunDirectory(tmp_path / "it")).sandboxes())
    assert [event.python for event in started] == [platform.python_version()] * 2
    said = [[message.to_text() for message in result.messages] for result in (first, again)]  # pyright: ignore[reportAttributeAccessIssue]
    assert said[0] == said[1]


@pytest.mark.long
async def test_another_first_task_is_refused_and_leaves_the_run_as_it_was(
    tmp_path: Path, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_API_KEY", "a secret of the shop")
    async with kept(tmp_path / "it") as team:
        await team.run(task="First, with a secret of the shop.")
    before, asked = KeptRun.read(RunDirectory(tmp_path / "it")), len(server.requests)
    async with kept(tmp_path / "it") as team:
        for _ in range(2):
            with pytest.raises(
                JournalError, match=r"began with the task 'First.*choose another dir"
            ) as refused:
                await team.run(task="Another.")
            assert "a secret of the shop" not in str(refused.value)
    after = KeptRun.read(RunDirectory(tmp_path / "it"))
    assert (after.task, after.state, after.result) == (before.task, before.state, before.result)
    async with kept(tmp_path / "it") as team:
        await team.run(task="First, with a secret of the shop.")
    assert len(server.requests) == asked


async def test_a_client_that_replays_answers_goes_on_after_those_that_the_journal_has(tmp_path: Path) -> None:
    config = tmp_path / talker(tmp_path, ["First.", "Second.", "Third."])
    for tasks in (1, 2, 3):
        async with open_team(config, record=tmp_path / "it") as agent:
            results = [await agent.run(task="Go on.") for _ in range(tasks)]
    said = [result.messages[-1].to_text() for result in results]  # pyright: ignore[reportAttributeAccessIssue]
    assert said == ["First.", "Second.", "Third."]


async def test_a_config_that_has_changed_since_is_told(
    tmp_path: Path, server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    for overrides in ([], [], [f"{MOST}=4"]):
        assert "the config has changed" not in caplog.text
        async with kept(tmp_path / "it", overrides=overrides):
            pass
    assert "the config has changed since this run began" in caplog.text


@pytest.mark.long
async def test_a_stream_of_messages_is_kept_and_passed_on(tmp_path: Path, server: ScriptedServer) -> None:
    async with kept(tmp_path / "it") as team:
        items = [item async for item in team.run_stream(task="First.")]
    assert isinstance(items[-1], TaskResult)
    whole = [item for item in items[:-1] if not isinstance(item, ModelClientStreamingChunkEvent)]
    told = [event.message for event in events_of(tmp_path / "it") if isinstance(event, MessageSent)]
    assert [type(message) for message in told] == [type(item) for item in whole]


@pytest.mark.long
async def test_whoever_listens_at_a_dispatcher_is_told_as_well(
    tmp_path: Path, server: ScriptedServer
) -> None:
    heard: list[Event] = []
    with Dispatcher() as dispatcher:
        dispatcher.listen(heard.append)
        async with kept(tmp_path / "it") as team:
            await team.run(task="First.")
    kept_too = events_of(tmp_path / "it")
    for kind in (ModelCallEnded, BlockEnded, RunResult):
        count = sum(isinstance(event, kind) for event in heard)
        assert count == sum(isinstance(event, kind) for event in kept_too) > 0


@pytest.mark.long
async def test_teams_that_are_open_side_by_side_are_kept_apart(
    tmp_path: Path, server: ScriptedServer
) -> None:
    async with kept(tmp_path / "one") as one, kept(tmp_path / "other") as other:
        await asyncio.gather(one.run(task="One."), other.run(task="Other."))
    for name in ("one", "other"):
        events = events_of(tmp_path / name)
        assert [event.task for event in events if isinstance(event, RunBegan)] == [f"{name.title()}."]
        assert sum(isinstance(event, BlockEnded) for event in events) == 1


async def test_what_the_program_fails_at_is_the_end_of_the_run(
    tmp_path: Path, server: ScriptedServer
) -> None:
    async def work() -> None:
        async with kept(tmp_path / "it") as team:
            await team.run(task="First.")
            print(1 / 0)

    with pytest.raises(ZeroDivisionError):
        await work()
    last = KeptRun.read(RunDirectory(tmp_path / "it")).result
    assert last is not None
    assert (last.ending, (last.error or "").partition(";")[0]) == (
        RunEnding.FAILED,
        "ZeroDivisionError: division by zero",
    )


async def test_a_directory_that_code_reaches_is_refused(tmp_path: Path, server: ScriptedServer) -> None:
    work_dir = f"config.participants.executor.config.code_executor.config.work_dir={tmp_path}"
    with pytest.raises(JournalError, match="its code can reach"):
        async with kept(tmp_path / "it", overrides=[work_dir]):
            pass
    assert not (tmp_path / "it").exists()


async def test_what_acts_past_the_journal_is_told_and_is_not_gone_on_with(
    tmp_path: Path, server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    timeout = (
        "config.termination_condition.config.conditions.1="
        "{provider: autogen_agentchat.conditions.TimeoutTermination, config: {timeout_seconds: 60}}"
    )
    async with kept(tmp_path / "it", overrides=[timeout]):
        assert "this run cannot be resumed, as these bypass its journal: TimeoutTermination" in caplog.text
    with pytest.raises(JournalError, match=r"these bypass its journal.*: TimeoutTermination"):
        async with kept(tmp_path / "it", overrides=[timeout]):
            pass


async def test_a_directory_of_something_else_is_refused(tmp_path: Path, server: ScriptedServer) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(JournalError, match="exists already, and is not the directory of a run"):
        async with kept(tmp_path):
            pass
    assert os.listdir(tmp_path) == ["file"]


async def test_a_place_where_no_directory_can_be_made_is_named(
    tmp_path: Path, server: ScriptedServer
) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(JournalError, match=r"cannot be recorded in .*/file: Not a directory"):
        async with kept(tmp_path / "file"):
            pass


async def test_one_process_at_a_time_has_a_run(tmp_path: Path, server: ScriptedServer) -> None:
    async with kept(tmp_path / "it"):
        with pytest.raises(JournalError, match="another process is writing the journal"):
            async with kept(tmp_path / "it"):
                pass


@pytest.mark.long
async def test_what_was_left_by_a_process_that_was_killed_before_it_began_is_no_obstacle(
    tmp_path: Path, server: ScriptedServer
) -> None:
    record = tmp_path / "it"
    record.mkdir(0o755)
    (record / "config.yaml").write_text("provi")
    (record / ".put-0123456789abcdef").write_text("{")
    (record / "journal.jsonl").touch()
    async with kept(record) as team:
        await team.run(task="First.")
    assert KeptRun.read(RunDirectory(record)).state is RunState.ACCEPTED
    assert record.stat().st_mode & 0o777 == 0o700


async def test_the_command_shows_it_and_leaves_it_to_the_program_to_go_on(
    tmp_path: Path, server: ScriptedServer
) -> None:
    async with kept(tmp_path / "runs" / "it") as team:
        await team.run(task="First.")
    shown = await asyncio.to_thread(codeact_team, "show", "it", "--run-dir", "runs", cwd=tmp_path)
    assert (shown.returncode, "the answer is 42" in shown.stdout) == (0, True)
    listed = await asyncio.to_thread(
        codeact_team, "runs", "--task", "first", "--json", "--run-dir", "runs", cwd=tmp_path
    )
    assert json.loads(listed.stdout)["task"] == "First."
    resumed = await asyncio.to_thread(codeact_team, "resume", "it", "--run-dir", "runs", cwd=tmp_path)
    assert resumed.returncode == 2
    assert "was made by a program: to go on, " in resumed.stderr
    replayed = await asyncio.to_thread(codeact_team, "replay", "it", "--run-dir", "runs", cwd=tmp_path)
    assert (replayed.returncode, "── as recorded" in replayed.stdout) == (0, True), replayed.stderr


async def test_a_question_that_nobody_is_there_to_answer_parks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config: dict[str, Any] = {
        "provider": "codeact_team.CodeActAgent",
        "config": {
            "name": "coder",
            "model_client": {
                "provider": "autogen_ext.models.openai.OpenAIChatCompletionClient",
                "config": {"model": "gpt-4o-2024-08-06", "max_retries": 0, "api_key": "${KEY}"},
            },
            "approval": [{"code": "*", "decision": "ask"}],
            "approval_timeout": "park",
            "code_executor": {
                "provider": "codeact_team.ConfinedSessionCodeExecutor",
                "config": {"confinement": "best_effort", "packages": []},
            },
        },
    }
    monkeypatch.setenv("KEY", "sk-of-the-test-0123456789")

    async def ask() -> str:
        async with open_team(config, record=tmp_path / "it") as agent:
            return (await agent.run(task="Go.")).messages[-1].to_text()  # pyright: ignore[reportAttributeAccessIssue]

    async with ScriptedServer([Text("```python\nfinal_answer(6 * 7)\n```")]) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        with pytest.raises(
            JournalError, match=r"codeact-team answer .*/it; then run it again by `python .*`"
        ):
            await asyncio.wait_for(ask(), 60)
        assert KeptRun.read(RunDirectory(tmp_path / "it")).state is RunState.PARKED
        answered = await asyncio.to_thread(codeact_team, "answer", str(tmp_path / "it"), "yes", cwd=tmp_path)
        assert answered.returncode == 0, answered.stderr
        assert "run it again by `python" in answered.stderr
        assert "42" in await ask()
