"""A batch that goes on: what is the same batch, which tasks of it run, and what its results say without the tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from batch.batches import at_once, coder, doubling, numbers, results
from support.openai_server import AnyReply, Body, HttpError, ScriptedServer

from codeact_team.batch.batch import run_batch
from codeact_team.batch.serving import digest_of_text
from codeact_team.batch.settings import own_directories
from codeact_team.config.loading import read_config
from codeact_team.errors import SettingError
from codeact_team.journal.log import Log


def failing_second_calls(body: Body) -> AnyReply:
    return HttpError(503) if len(body["messages"]) > 3 else doubling(body)


@pytest.mark.long
async def test_a_server_may_move_and_get_another_key(tmp_path: Path) -> None:
    """Also for runs that have begun, whose journals have the first address."""
    async with ScriptedServer(failing_second_calls) as server:
        config = coder(server.base_url)
        first = await run_batch(config, numbers(1), out=tmp_path, workers=1, retries=0)
    assert first.outcomes == {"failed": 1}
    async with ScriptedServer(doubling) as server:
        config = coder(server.base_url)
        config["config"]["model_client"]["config"] |= {"api_key": "another", "timeout": 20}
        second = await run_batch(config, numbers(2), out=tmp_path, workers=1)
        # the first call of the one was answered there
        assert len(server.requests) == 1 + 2
        assert second.outcomes == {"answered": 2}
        config["config"]["model_client"]["config"]["model"] = "another-model"
        with pytest.raises(SettingError, match="another config"):
            await run_batch(config, numbers(2), out=tmp_path)


@pytest.mark.long
async def test_an_address_from_the_environment_may_change_where_a_run_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = coder("${SERVER}")
    async with ScriptedServer(failing_second_calls) as server:
        monkeypatch.setenv("SERVER", server.base_url)
        await run_batch(config, numbers(1), out=tmp_path, workers=1, retries=0)
    async with ScriptedServer(doubling) as server:
        monkeypatch.setenv("SERVER", server.base_url)
        assert (await run_batch(config, numbers(1), out=tmp_path, workers=1)).outcomes == {"answered": 1}
        first = server.base_url
    async with ScriptedServer(doubling) as server:
        monkeypatch.setenv("ELSEWHERE", server.base_url)
        moved = coder("${ELSEWHERE:-http://127.0.0.1:9}")
        batch = await run_batch(moved, numbers(2), out=tmp_path, workers=1)
        assert (batch.outcomes, len(server.requests)) == ({"answered": 2}, 2)
        assert server.base_url != first


async def test_a_directory_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    async with ScriptedServer(at_once) as server:
        config = coder(server.base_url)
        checked, _ = own_directories(read_config(config))
        log = Log(tmp_path / "batch.jsonl")
        log.append({"batch": digest_of_text(checked.written)})
        log.close()
        await run_batch(config, numbers(1), out=tmp_path, workers=1)
        batch = await run_batch(config, numbers(2), out=tmp_path, workers=1)
        assert len(server.requests) == 2
    assert batch.outcomes == {"answered": 2}


@pytest.mark.long
async def test_a_result_says_what_was_asked_and_expected(tmp_path: Path) -> None:
    tasks: list[dict[str, Any]] = [
        {**numbers(1)[0], "expected": {"n": 7}},
        {"id": "open", "text": "Double 2."},
    ]
    async with ScriptedServer(at_once) as server:
        batch = await run_batch(coder(server.base_url), tasks, out=tmp_path, workers=1)
        wrong, unknown = results(tmp_path)
        assert (wrong["text"], wrong["expected"], wrong["answer"], wrong["correct"]) == (
            "Double 1 please.",
            {"n": 7},
            "2",
            False,
        )
        assert (unknown["text"], unknown["expected"], unknown["correct"]) == ("Double 2.", None, None)
        [shown] = batch.wrong_answers
        assert (shown.id, shown.expected, shown.answer) == ("n1", '{"n": 7}', "2")
        # another expected answer is not what the old judgement was about
        tasks[0]["expected"] = 2
        stale = await run_batch(coder(server.base_url), tasks, out=tmp_path, workers=1, only=["open"])
        assert stale.outcomes == {"answered": 1}
        assert (results(tmp_path)[0]["expected"], results(tmp_path)[0]["correct"]) == (2, None)
        await run_batch(coder(server.base_url), tasks, out=tmp_path, workers=1)
        assert results(tmp_path)[0]["correct"] is True
        assert len(server.requests) == 2


async def test_some_tasks_run_and_the_same_directory_goes_on_with_the_others(tmp_path: Path) -> None:
    tasks, selected, whole = numbers(4), tmp_path / "selected", tmp_path / "whole"
    async with ScriptedServer(at_once) as server:
        config = coder(server.base_url)
        first = await run_batch(config, tasks, out=selected, workers=1, limit=1)
        assert (first.jobs, first.outcomes, first.left, first.exit_code) == (1, {"answered": 1}, 0, 0)
        assert [one["id"] for one in results(selected)] == ["n1"]
        second = await run_batch(config, tasks, out=selected, workers=1, only=["n4", "n3"], limit=1)
        assert (second.jobs, [one["id"] for one in results(selected)]) == (1, ["n1", "n3"])
        with pytest.raises(SettingError, match="no task has the id 'n9'"):
            await run_batch(config, tasks, out=selected, only=["n9"])
        await run_batch(config, tasks, out=selected, workers=1)
        assert len(server.requests) == 4
        await run_batch(config, tasks, out=whole, workers=1)
    assert (selected / "results.jsonl").read_bytes() == (whole / "results.jsonl").read_bytes()


async def test_only_what_has_failed_runs_again_and_wrong_answers_stay(tmp_path: Path) -> None:
    broken = True

    def reply(body: Body) -> AnyReply:
        if broken and "Double 2 " in str(body["messages"]):
            return HttpError(404)
        return at_once(body)

    tasks: list[dict[str, Any]] = [*numbers(3), {"id": "later", "text": "Double 9 please."}]
    tasks[0]["expected"] = 7
    tasks[2] |= {"checker": "unknown"}
    async with ScriptedServer(reply) as server:
        config = coder(server.base_url)
        first = await run_batch(config, tasks[:3], out=tmp_path, workers=1)
        assert first.outcomes == {"answered": 1, "checker failed": 1, "failed": 1}
        broken, asked = False, len(server.requests)
        tasks[2]["checker"] = "assert answer == '6'"
        second = await run_batch(config, tasks, out=tmp_path, workers=1, failed=True)
        assert len(server.requests) == asked + 1
        assert (second.jobs, second.outcomes, second.exit_code) == (2, {"answered": 2}, 0)
        none = await run_batch(config, tasks, out=tmp_path, workers=1, failed=True)
    assert (none.jobs, none.outcomes, none.exit_code) == (0, {}, 0)
    assert [(one["id"], one["correct"]) for one in results(tmp_path)] == [
        ("n1", False),
        ("n2", True),
        ("n3", True),
    ]


@pytest.mark.long
async def test_what_one_task_may_not_ask_does_not_end_the_others(tmp_path: Path) -> None:
    """Some servers answer 403 to a wrong key, others to what they take for harmful."""

    def reply(body: Body) -> AnyReply:
        return HttpError(403) if "Double 1 " in str(body["messages"]) else at_once(body)

    async with ScriptedServer(reply) as server:
        batch = await run_batch(
            coder(server.base_url), numbers(3), out=tmp_path / "one", workers=1, concurrency=1
        )
    assert (batch.outcomes, batch.left, batch.exit_code) == ({"answered": 2, "failed": 1}, 0, 2)
    async with ScriptedServer(lambda _: HttpError(403)) as server:
        config = coder(server.base_url)
        batch = await run_batch(config, numbers(9), out=tmp_path / "all", workers=1, concurrency=1)
        assert len(server.requests) == 3
    assert (batch.outcomes, batch.left, batch.is_refused) == ({"failed": 1}, 8, True)
    assert "(403)" in (batch.stop_reason or "")


@pytest.mark.long
async def test_a_key_that_is_refused_later_loses_no_work(tmp_path: Path) -> None:
    alone, out = tmp_path / "alone", tmp_path / "out"
    calls = 0

    def reply(body: Body) -> AnyReply:
        nonlocal calls
        calls += 1
        return HttpError(401) if calls == 4 else doubling(body)

    async with ScriptedServer(reply) as server:
        config = coder(server.base_url)
        refused = await run_batch(config, numbers(2), out=out, workers=1, concurrency=1)
        assert (refused.outcomes, refused.left, refused.exit_code) == ({"answered": 1}, 1, 2)
        again = await run_batch(config, numbers(2), out=out, workers=1)
        # the refused one was made twice
        assert calls == 5
        await run_batch(config, numbers(2), out=alone, workers=1)
    assert again.outcomes == {"answered": 2}
    assert (out / "results.jsonl").read_bytes() == (alone / "results.jsonl").read_bytes()
