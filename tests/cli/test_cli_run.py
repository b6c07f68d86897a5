"""``codeact-team run`` with the real client, over real HTTP, and code that really runs."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.command_line import (
    ACCEPT,
    CODE,
    COMMAND,
    FAILS,
    REJECT,
    RETRY,
    codeact_team,
    environment,
    lines,
    local_model,
    messages,
    run_team,
    set_all,
    talker,
)
from support.fork_server import start
from support.openai_server import Json, ScriptedServer, Slow, Text
from support.variations import mostly_long

WORKS, FAILED, ANSWER = "```python\n6 * 7\n```", "```python\n1 / 0\n```", "It is 42."
MAX_MESSAGES = "config.termination_condition.config.conditions.1.config.max_messages"


def test_a_run_shows_who_speaks_the_code_its_output_the_correction_and_the_verdict(tmp_path: Path):
    with ScriptedServer.in_thread([Text(FAILS), Json(RETRY), Text(CODE), Json(ACCEPT)]) as server:
        result = run_team(server.base_url, "What is 6 times 7?", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    told = [
        "── user\nWhat is 6 times 7?\n",
        "── coder\nHere:\n```python\nprint('before')\n",
        "── executor\nbefore\nTraceback",
        "ZeroDivisionError: division by zero\n✗ exit code 1\n",
        "↻ Proposed correction (attempt 1): Multiply instead.\n",
        "print('the answer is', 6 * 7)\n```\nthe answer is 42\n✓ exit code 0\n",
        "── reflection\n✓ Accepted.\n",
        "── accepted · 8 messages · 440 tokens (400 in, 40 out) · ",
        " s · reflection accepted the work\n",
    ]
    place = 0
    for part in told:
        assert part in result.stdout[place:], f"{part!r} is not in, or comes too early:\n{result.stdout}"
        place = result.stdout.index(part, place) + len(part)
    # the reviewer wrote none, so that it is what the code printed
    assert result.stdout.endswith("\n── answer\nthe answer is 42\n")
    assert "Error processing" not in result.stderr


def test_a_server_that_hangs_is_waited_for_no_longer_than_the_time_limit(tmp_path: Path):
    with ScriptedServer.in_thread([Slow(60, Text(CODE))]) as server:
        command = ["run", talker(tmp_path), "A task", "--timeout", "0.3"]
        result = codeact_team(*command, cwd=tmp_path, **local_model(server.base_url))
    assert result.returncode == 1, result.stderr
    assert " · the time limit of 0.3 seconds is reached · the work was broken off\n" in result.stdout
    # no change of the config gives it more time
    assert re.search(r": codeact-team resume \S+ --timeout 0.6$", result.stderr, re.MULTILINE)


@pytest.mark.long
def test_a_model_that_answers_nonsense_for_ever_is_not_accepted(tmp_path: Path):
    with ScriptedServer.in_thread([Text("Blah."), Text("{"), Text("Blah."), Text("no")]) as server:
        result = run_team(server.base_url, "A task", "-s", f"{MAX_MESSAGES}=6", cwd=tmp_path)
    assert result.returncode == 1, result.stderr
    assert "Traceback" not in result.stdout + result.stderr


def test_json_begins_with_its_version_and_ends_with_the_result(tmp_path: Path):
    with ScriptedServer.in_thread([Text(FAILS), Json(RETRY), Text(CODE), Json(ACCEPT)]) as server:
        result = run_team(server.base_url, "A task", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    first, opened, *events, last = lines(result.stdout)
    assert first == {"type": "format", "source": "codeact-team", "version": 4}
    assert (opened["type"], opened["relaxations"]) == ("opened", [])
    assert [(said["source"], said["type"]) for said in messages(events)] == [
        ("user", "TextMessage"),
        ("coder", "TextMessage"),
        ("executor", "CodeExecutionEvent"),
        ("executor", "CodeGenerationEvent"),
        ("executor", "CodeGenerationEvent"),
        ("executor", "CodeExecutionEvent"),
        ("executor", "TextMessage"),
        ("reflection", "TextMessage"),
    ]
    assert json.loads(messages(events)[-1]["metadata"]["codeact_team.verdict"])["accepted"] is True
    calls = [event for event in events if event["type"] == "model_call_ended"]
    assert [(call["agent"], call["usage"]["prompt_tokens"]) for call in calls] == [
        ("coder", 100),
        ("executor", 100),
        ("executor", 100),
        ("reflection", 100),
    ]
    output = "".join(event["text"] for event in events if event["type"] == "output")
    assert output.endswith("the answer is 42\n")
    blocks = [event for event in events if event["type"] == "block_ended"]
    assert [(block["exit_code"], block["outcome"]) for block in blocks] == [
        (1, "completed"),
        (0, "completed"),
    ]
    assert last.pop("seconds") > 0
    assert last == {
        "type": "result",
        "source": "codeact-team",
        "accepted": True,
        "reviewed": True,
        "ending": "accepted",
        "answer": "the answer is 42",
        "exit_code": 0,
        "usage": {"prompt_tokens": 400, "completion_tokens": 40},
        "is_estimated": False,
        "cost": None,
        "messages": 8,
        "steps": 2,
        "stop_reason": "reflection accepted the work",
        "objection": None,
        "cause": None,
        "error": None,
        "files": [],
        "file_notes": [],
        "tools": [],
        "missing_hosts": [],
    }


@pytest.mark.parametrize("how", mostly_long(["argument", "stdin", "file"], usual=2))
def test_the_task_comes_as_an_argument_on_stdin_or_in_a_file(tmp_path: Path, how: str):
    (tmp_path / "task.txt").write_text("Wörter\nzählen\n")
    arguments = {"argument": ["Wörter\nzählen"], "stdin": ["-"], "file": ["--file", "task.txt"]}[how]
    command = ["run", talker(tmp_path, ["So be it."]), *arguments, "--json"]
    result = codeact_team(*command, cwd=tmp_path, stdin="Wörter\nzählen\n" if how == "stdin" else "")
    assert messages(lines(result.stdout))[0]["content"] == "Wörter\nzählen"


@pytest.mark.long
def test_the_quickstart_runs_to_its_accepted_answer_without_anything(tmp_path: Path):
    result = codeact_team("run", "quickstart", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "── user\nWhich of our items earned the most" in result.stdout
    assert result.stdout.count('→ tools.orders {"month": ') == 3
    assert "TypeError" in result.stdout
    assert "\nscrews █████" in result.stdout
    assert "── reflection\n✓ Accepted.\n\n── accepted · " in result.stdout
    assert result.stdout.splitlines()[-2:] == [
        "── answer",
        "The screws earned the most: 1,564.75 of 3,097.25 euros. Order 201 of September is not billed yet, and not counted.",
    ]
    assert [file.name for file in tmp_path.iterdir()] == [".codeact-team"]
    assert result.stderr == ""
    asked = codeact_team("run", "quickstart", "What is 2 + 2?", cwd=tmp_path)
    assert asked.stderr == "warning: the models of this config are recorded: they do not read the task\n"


# what is shown of its run is compared with this
@pytest.mark.long
def test_the_agent_s_quickstart_repairs_an_error_and_answers_without_anything(tmp_path: Path):
    result = codeact_team("run", "quickstart-codeact", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    told = [
        "── user\nA bakery sold in one week:",
        "── coder\nI write the week down",
        "```\n('rye', 38.4)\n✓ exit code 0\nThat works.",
        "ValueError: not enough values to unpack (expected 4, got 1)\n✗ exit code 1\n",
        "\n{'Mon': 74.4, 'Tue': 143.55, 'Wed': 0, 'Thu': 78.0, 'Fri': 166.9}\n✓ exit code 0\n",
        "\ntarts 201.50, rye 155.60, buns 105.75\n✓ exit code 0\n\n── answered · 10 messages · ",
        "\n\n── answer\nThe tarts brought in the most: 201.50 of 462.85.",
    ]
    places = [result.stdout.find(part) for part in told]
    assert places == sorted(places), result.stdout
    assert -1 not in places, result.stdout
    assert [file.name for file in tmp_path.iterdir()] == [".codeact-team"]


@pytest.mark.parametrize(
    ("replies", "settings", "exit_code", "told"),
    [
        pytest.param(
            [FAILED, WORKS, ANSWER], [], 0, "── answered · 6 messages · 330 tokens", marks=pytest.mark.long
        ),
        pytest.param([WORKS, FAILED, ANSWER], [], 1, "── not accepted · ", marks=pytest.mark.long),
        ([WORKS, ANSWER], ["max_steps=1"], 1, " s · coder: the steps are used up\n"),
        pytest.param(
            [WORKS, ANSWER, REJECT, ANSWER, REJECT],
            ["max_reflections=1"],
            1,
            "── not accepted · ",
            marks=pytest.mark.long,
        ),
    ],
)
def test_an_agent_that_acts_by_code_has_to_come_to_an_answer(
    tmp_path: Path, replies: list[str | dict[str, Any]], settings: list[str], exit_code: int, told: str
):
    alone = "code_executor={provider: codeact_team.ConfinedSessionCodeExecutor, config: {confinement: best_effort}}"
    scripted = [Text(reply) if isinstance(reply, str) else Json(reply) for reply in replies]
    with ScriptedServer.in_thread(scripted) as server:
        result = codeact_team(
            "run",
            "codeact",
            "A task",
            *set_all([f"config.{setting}" for setting in (alone, *settings)]),
            cwd=tmp_path,
            OPENAI_API_KEY="a-key",
            OPENAI_BASE_URL=server.base_url,
        )
        assert server.unused == ()
    assert result.returncode == exit_code, result.stderr
    assert told in result.stdout
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_output_that_nobody_reads_any_more_ends_the_run_quietly(tmp_path: Path, options: list[str]):
    with ScriptedServer.in_thread([Slow(0.2, Text(CODE))]) as server:
        command = [*COMMAND[1:], "run", talker(tmp_path), "A task", *options]
        with start(command, cwd=tmp_path, environment=environment(**local_model(server.base_url))) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline()
            process.stdout.close()
            assert process.wait(60) == 141
            assert process.stderr.read() == b""


@pytest.mark.long
def test_streams_that_are_closed_lead_nowhere(tmp_path: Path):
    script = f"{shlex.join(COMMAND)} run quickstart --json >&- <&-"
    result = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr


def test_a_person_is_told_once_how_to_add_a_module_that_code_lacks(tmp_path: Path):
    lacks = Text("```python\nimport sklearnish\n```")
    replies = [lacks, Json(RETRY), lacks, Json({"reason": "No such module.", "retry": False}), Json(ACCEPT)]
    with ScriptedServer.in_thread(replies) as server:
        result = run_team(server.base_url, "Import it.", cwd=tmp_path)
    assert "The sandbox has no module 'sklearnish'" in result.stdout
    assert (
        result.stderr.count("the code lacks the module 'sklearnish'; to add it: `--package NAME` on the ")
        == 1
    )
    assert "The sandbox has no module" in str(server.requests[1]["messages"])


@pytest.mark.parametrize(
    ("task", "sent"), mostly_long([(["Why?"], "Why?\n\nline 1\nline 2"), ([], "line 1\nline 2")])
)
def test_what_is_piped_in_goes_with_the_task(tmp_path: Path, task: list[str], sent: str):
    with ScriptedServer.in_thread([Text("Because.")]) as server:
        piped = codeact_team(
            "run",
            talker(tmp_path),
            *task,
            cwd=tmp_path,
            stdin="line 1\nline 2\n",
            **local_model(server.base_url),
        )
    assert "Because." in piped.stdout
    assert server.requests[0]["messages"][-1]["content"] == sent


def test_a_pipe_in_which_nothing_comes_does_not_keep_a_run_waiting(tmp_path: Path):
    reading, writing = os.pipe()
    with ScriptedServer.in_thread([Text("Because.")]) as server:
        command = [*COMMAND[1:], "run", talker(tmp_path), "Why?"]
        with start(
            command, cwd=tmp_path, environment=environment(**local_model(server.base_url)), stdin=reading
        ) as process:
            _, stderr = process.communicate(timeout=50)
    os.close(reading)
    os.close(writing)
    assert "warning: nothing has come on standard input, so it is ignored" in stderr.decode()
    assert server.requests[0]["messages"][-1]["content"] == "Why?"


def test_the_sandbox_has_started_before_a_model_costs_anything(tmp_path: Path):
    with ScriptedServer.in_thread([Text(CODE), Json(ACCEPT)]) as server:
        result = run_team(server.base_url, "Go.", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    told = [event["type"] for event in lines(result.stdout)]
    assert told.index("sandbox_started") < told.index("model_call_began")


@pytest.mark.docker
def test_a_run_whose_sandbox_cannot_start_asks_no_model_and_says_nothing_else(tmp_path: Path):
    sandbox = "{provider: codeact_team.DockerSessionCodeExecutor, config: {runtime: no-such-runtime}}"
    changes = set_all([f"config.participants.executor.config.code_executor={sandbox}"])
    with ScriptedServer.in_thread([]) as server:
        result = codeact_team(
            "run", "local-model", "Go.", *changes, cwd=tmp_path, **local_model(server.base_url)
        )
        assert not server.requests
    assert (result.returncode, result.stdout) == (2, "")
    assert "no-such-runtime" in result.stderr
    assert "cancelled" not in result.stderr
