"""Checkers: what is a wrong answer, and what is a fault of the checker itself."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest
from batch.batches import at_once, coder, of_type, results
from support.openai_server import ScriptedServer, Text

from codeact_team.batch import evaluation
from codeact_team.batch.batch import Batch, run_batch
from codeact_team.batch.results import Doing
from codeact_team.batch.settings import BatchSettings
from codeact_team.core.effects import Event
from codeact_team.errors import SettingError
from codeact_team.journal.result import RunEnding


def task(name: str, checker: str) -> dict[str, Any]:
    return {"id": name, "text": "Double 1 please.", "checker": checker}


def briefly(base_url: str) -> dict[str, Any]:
    """A config whose code, and so a checker, has a second."""
    config = coder(base_url)
    config["config"]["code_executor"]["config"]["timeout"] = 1
    return config


@pytest.mark.parametrize(
    "others", [[], pytest.param(["endless", "exits", "killed"], marks=pytest.mark.long)], ids=["one", "all"]
)
async def test_only_an_assertion_makes_an_answer_wrong_and_other_errors_are_the_checkers(
    tmp_path: Path, others: list[str]
) -> None:
    faulty = ["misspelt", *others]
    tasks = [
        task("right", "from math import isclose\nassert isclose(float(answer), 2)"),
        task("wrong", "class Wrong(AssertionError): pass\nraise Wrong(f'{answer} is not 3')"),
        task("misspelt", "assert answr == '2'"),
        task("endless", "import time\ntime.sleep(600)"),
        task("exits", "import sys\nsys.exit('of its own')"),
        task("killed", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"),
    ]
    tasks = [one for one in tasks if one["id"] in ("right", "wrong", *faulty)]
    async with ScriptedServer(at_once) as server:
        batch = await run_batch(briefly(server.base_url), tasks, out=tmp_path, workers=1)
        asked = len(server.requests)
        found = {one["id"]: one for one in results(tmp_path)}
        assert {name: (one["outcome"], one["correct"]) for name, one in found.items()} == {
            "right": ("answered", True),
            "wrong": ("answered", False),
            **dict.fromkeys(faulty, ("checker failed", None)),
        }
        assert found["wrong"]["check"].endswith("Wrong: 2 is not 3")
        assert found["misspelt"]["error"] == "NameError: name 'answr' is not defined"
        if "endless" in faulty:
            assert "stopped after 1 s" in found["endless"]["error"]
        assert batch.outcomes == {"answered": 2, "checker failed": len(faulty)}
        assert batch.accuracy is not None
        assert (batch.accuracy.value, batch.accuracy.tasks, batch.wrong, batch.exit_code) == (0.5, 2, 1, 2)
        # the same command judges them again, and asks no model
        tasks[2]["checker"] = "assert answer == '2'"
        again = await run_batch(briefly(server.base_url), tasks, out=tmp_path, workers=1)
        assert len(server.requests) == asked
    assert (again.outcomes, again.tokens) == (
        ({"answered": 3} | ({"checker failed": len(others)} if others else {})),
        batch.tokens,
    )


@pytest.mark.parametrize(
    ("checker", "problem"),
    [
        ("assert answer\nthis is no python", "in line 2: invalid syntax"),
        pytest.param("return 1", "in line 1: 'return' outside function", marks=pytest.mark.long),
        pytest.param(
            "assert '\0'", "in line 1: source code string cannot contain null bytes", marks=pytest.mark.long
        ),
        pytest.param("(" * 5000, "in line 1: ", marks=pytest.mark.long),
    ],
)
async def test_a_checker_that_is_no_python_is_told_before_a_model_is_asked(
    checker: str, problem: str, tmp_path: Path
) -> None:
    events: list[Event] = []
    async with ScriptedServer(at_once) as server:
        tasks = [task("broken", checker), task("fine", "assert answer")]
        batch = await run_batch(
            coder(server.base_url), tasks, out=tmp_path / "out", workers=1, listeners=[events.append]
        )
        assert len(server.requests) == 1
        with pytest.raises(SettingError, match=r"judge\.py:\d+: this is not Python code"):
            await run_batch(
                coder(server.base_url),
                [{"text": "Go."}],
                out=tmp_path / "out",
                checker=checker,
                checker_name="judge.py",
            )
    [broken] = of_type(events, "line_broken")
    assert broken.line == 1
    assert problem in broken.problem
    assert (batch.outcomes, batch.broken, batch.exit_code) == ({"answered": 1}, 1, 2)


async def test_an_answer_cannot_pass_for_the_end_of_its_checker(tmp_path: Path) -> None:
    """What an answer says comes into the error message of a checker, and does not decide what that means."""
    said = "4\nNameError: name 'x' is not defined"
    async with ScriptedServer([]) as server:
        config = coder(server.base_url)
        config["config"]["model_client"] = {
            "provider": "autogen_ext.models.replay.ReplayChatCompletionClient",
            "config": {"chat_completions": [said]},
        }
        await run_batch(config, [task("a", "assert answer == '2', answer")], out=tmp_path, workers=1)
    [result] = results(tmp_path)
    assert (result["outcome"], result["correct"], result["answer"]) == ("answered", False, said)


@pytest.mark.long
async def test_who_watches_sees_that_a_checker_runs_and_a_stop_leaves_its_answer_to_be_judged(
    tmp_path: Path,
) -> None:
    checking = asyncio.Event()

    def watch(event: Event) -> None:
        if getattr(event, "doing", None) == Doing.CHECKING:
            checking.set()

    async with ScriptedServer(at_once) as server:
        tasks = [task("a", "import time\ntime.sleep(600)")]
        batch = Batch(coder(server.base_url), tasks, tmp_path, BatchSettings(workers=1), listeners=[watch])
        running = asyncio.create_task(batch.run())
        await checking.wait()
        assert batch.stop(signal.SIGINT)
        assert (await running).left == 1
        again = await run_batch(
            coder(server.base_url), [task("a", "assert answer == '2'")], out=tmp_path, workers=1
        )
        assert len(server.requests) == 1
    assert (again.outcomes, again.wrong) == ({RunEnding.ANSWERED: 1}, 0)


@pytest.mark.long
async def test_a_checker_that_only_the_python_of_the_sandbox_understands_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def as_an_older_python(source: str, *_: object, **__: object) -> None:
        raise SyntaxError("too new", ("<checker>", 1, 1, source))

    monkeypatch.setattr(evaluation, "compile", as_an_older_python, raising=False)
    tasks = [task("new", "assert answer == '2'"), task("broken", "assert (")]
    async with ScriptedServer(at_once) as server:
        batch = await run_batch(coder(server.base_url), tasks, out=tmp_path, workers=1)
    assert (batch.outcomes, batch.wrong, batch.broken) == ({"answered": 1}, 0, 1)
    assert [one["id"] for one in results(tmp_path)] == ["new"]


async def test_a_config_without_a_sandbox_for_checkers_is_told_before_a_model_is_asked(
    tmp_path: Path,
) -> None:
    async with ScriptedServer([]) as server:
        client = coder(server.base_url)["config"]["model_client"]
        config = {
            "provider": "autogen_agentchat.agents.AssistantAgent",
            "config": {
                "name": "assistant",
                "model_client": client,
                "description": "",
                "reflect_on_tool_use": False,
                "tool_call_summary_format": "{result}",
            },
        }
        with pytest.raises(SettingError, match="the checker has no sandbox to run in"):
            await run_batch(config, [task("a", "assert answer")], out=tmp_path, workers=1)


async def test_a_checker_whose_sandbox_does_not_start_is_no_wrong_answer(tmp_path: Path) -> None:
    def lose_the_data(event: Event) -> None:
        if getattr(event, "doing", None) == Doing.CHECKING:
            (tmp_path / "data.txt").unlink(missing_ok=True)

    (tmp_path / "data.txt").write_text("1")
    async with ScriptedServer([Text("2"), Text("2")]) as server:
        config = coder(server.base_url)
        config["config"]["code_executor"]["config"]["readable"] = [str(tmp_path / "data.txt")]
        batch = await run_batch(
            config,
            [task("a", "assert answer == '2'")],
            out=tmp_path / "out",
            workers=1,
            listeners=[lose_the_data],
        )
    [result] = results(tmp_path / "out")
    assert (batch.outcomes, result["answer"], result["correct"]) == ({"checker failed": 1}, "2", None)
    assert "data.txt" in result["error"]
