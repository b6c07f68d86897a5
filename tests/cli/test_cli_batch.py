"""``codeact-team batch``, as a person and a program have it."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from batch.batches import at_once, coder, doubling, numbers, results
from support.command_line import codeact_team, environment, lines, local_model, talker
from support.fork_server import start
from support.openai_server import AnyReply, Body, HttpError, ScriptedServer, Slow, Text
from support.terminal import on_a_terminal


def prepare(folder: Path, base_url: str, tasks: list[dict[str, Any]], **settings: Any) -> list[str]:
    """The arguments of a batch in one process."""
    (folder / "coder.json").write_text(json.dumps(coder(base_url, **settings)))
    (folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    return ["batch", "coder.json", "tasks.jsonl", "--out", "out", "--workers", "1"]


def prepare_talk(folder: Path, tasks: list[dict[str, Any]]) -> list[str]:
    """The same for an agent that only talks: its answers are judged, too, and it needs no sandbox, which costs most of a task."""
    return ["batch", talker(folder), *prepare(folder, "", tasks)[2:]]


def test_a_batch_prints_a_line_for_each_task_and_what_came_of_all(tmp_path: Path) -> None:
    with ScriptedServer.in_thread(doubling) as server:
        tasks = [*numbers(1), {"id": "odd", "text": "Double 3 please.", "expected": 7}, {"id": "empty"}]
        arguments = prepare(tmp_path, server.base_url, tasks)
        result = codeact_team(*arguments, cwd=tmp_path)
        assert result.returncode == 2, result.stderr
        first, *summary = result.stdout.split("2 answered")
        assert sorted(line.partition(" ")[2] for line in first.splitlines()) == [
            "✓ n1 · answered · right · 1 step",
            "✗ odd · answered · wrong: expected 7, given 6 · 1 step",
        ]
        assert summary[0].splitlines() == [
            " · 0 reviewed · 1 broken line left out",
            "right answers: 50.0% (95 % interval 9.5% to 90.5%, 2 tasks)",
            "accepted or answered: 100.0% (95 % interval 34.2% to 100.0%, 2 tasks)",
            "wrong answers:",
            "  odd: expected 7, given 6",
            "440 tokens",
            "results: out/results.jsonl",
        ]
        assert "error: tasks.jsonl:3 is left out: it has no `text`" in result.stderr
        # what is done is not done again
        again = codeact_team(*arguments, cwd=tmp_path)
        assert "2 of 2 have a result already" in again.stderr
        assert len(server.requests) == 4


def test_programs_read_events(tmp_path: Path) -> None:
    with ScriptedServer.in_thread(doubling) as server:
        result = codeact_team(*prepare(tmp_path, server.base_url, numbers(1)), "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    events = lines(result.stdout)
    assert [event["type"] for event in events] == [
        "format",
        "batch_noted",
        "batch_began",
        "task_began",
        *["task_progressed"] * 4,
        "task_ended",
        "batch_result",
    ]
    assert [event["doing"] for event in events if "doing" in event] == ["asks the model", "runs code"] * 2
    ended, batch = events[-2:]
    assert ended["result"] == results(tmp_path / "out")[0]
    assert (batch["outcomes"], batch["left"], batch["exit_code"]) == ({"answered": 1}, 0, 0)


@pytest.mark.long
def test_the_wrong_answers_are_listed_up_to_a_number(tmp_path: Path) -> None:
    with ScriptedServer.in_thread(at_once) as server:
        tasks = [{**task, "expected": "two\nlines" if task["id"] == "n1" else 0} for task in numbers(12)]
        arguments, variables = prepare_talk(tmp_path, tasks), local_model(server.base_url)
        result = codeact_team(*arguments, cwd=tmp_path, **variables)
        again = codeact_team(*arguments, cwd=tmp_path, **variables)
    for stdout in (result.stdout, again.stdout):
        _, _, listed = stdout.partition("wrong answers:\n")
        assert listed.splitlines()[:11] == [
            "  n1: expected two lines, given 2",
            *(f"  n{n}: expected 0, given {2 * n}" for n in range(2, 11)),
            '  and 2 more, with "correct": false in the results',
        ]


def test_one_mistake_is_told_once_before_a_model_is_asked(tmp_path: Path) -> None:
    (tmp_path / "checker.py").write_text("assert answer\nassert (")
    with ScriptedServer.in_thread([]) as server:
        tasks = [{**task, "steps": 3} for task in numbers(9)]
        arguments = prepare(tmp_path, server.base_url, tasks)
        for changed, said in [
            (
                ["-s", "config.max_steps={stepz}"],
                "the field 'stepz', which no task has; did you mean 'steps'?",
            ),
            (["--checker", "checker.py"], "checker.py:2: this is not Python code: '(' was never closed"),
            (["--only", "n10"], "no task has the id 'n10'; did you mean 'n1'?"),
        ]:
            result = codeact_team(*arguments, *changed, cwd=tmp_path)
            assert (result.returncode, result.stderr.count("error:")) == (2, 1), result.stderr
            assert said in result.stderr


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ({"expected": 1}, "it has no `text`, which says what to do"),
        # a checker needs a sandbox
        pytest.param(
            {"text": "Go.", "checker": "assert ("},
            "its `checker` is not Python code, in line 1: '(' was never closed",
            marks=pytest.mark.long,
        ),
    ],
)
def test_lines_that_are_broken_for_the_same_reason_are_told_together(
    tmp_path: Path, broken: dict[str, Any], why: str
) -> None:
    with ScriptedServer.in_thread(at_once) as server:
        tasks = [*numbers(1), *[broken] * 5]
        arguments = (
            prepare(tmp_path, server.base_url, tasks)
            if "checker" in broken
            else prepare_talk(tmp_path, tasks)
        )
        result = codeact_team(*arguments, cwd=tmp_path, **local_model(server.base_url))
    assert result.stderr.count("error:") == 1
    places = "tasks.jsonl:2, tasks.jsonl:3, tasks.jsonl:4 and 2 more are left out"
    assert f"error: {places}: {why}" in result.stderr


@pytest.mark.long
def test_a_failure_of_many_tasks_is_explained_once(tmp_path: Path) -> None:
    with ScriptedServer.in_thread(lambda _: HttpError(404)) as server:
        arguments = prepare_talk(tmp_path, numbers(4))
        result = codeact_team(*arguments, cwd=tmp_path, **local_model(server.base_url))
    assert result.stdout.count("(404)") == 1
    assert result.stdout.count("failed · as n") == 3


def test_a_wrong_key_ends_a_batch_at_once_and_the_right_one_goes_on(tmp_path: Path) -> None:
    reply: list[AnyReply] = [HttpError(401)]

    def replying(body: Body) -> AnyReply:
        return reply[0] if reply else at_once(body)

    with ScriptedServer.in_thread(replying) as server:
        arguments = [*prepare_talk(tmp_path, numbers(4)), "--concurrency", "1"]
        variables = local_model(server.base_url)
        refused = codeact_team(*arguments, cwd=tmp_path, **variables)
        assert len(server.requests) == 1
        assert (refused.returncode, refused.stderr.count("(401)")) == (2, 1), refused.stderr
        assert (
            f"error: the batch stops: the model's server at {server.base_url} does not accept the API key"
            in refused.stderr
        )
        assert "4 not done" in refused.stdout
        reply.clear()
        key = "config.model_client.config.api_key=the-right-one"
        result = codeact_team(*arguments, "-s", key, cwd=tmp_path, **variables)
    assert result.returncode == 0, result.stderr
    assert "4 answered · 0 reviewed\nright answers: 100.0%" in result.stdout


def test_a_terminal_shows_what_tasks_are_doing(tmp_path: Path) -> None:
    def reply(body: Body) -> AnyReply:
        return Slow(60, Text("never")) if "Double 2" in str(body["messages"]) else at_once(body)

    with ScriptedServer.in_thread(reply) as server:
        tasks = numbers(3)
        tasks[2]["expected"] = 7
        arguments = prepare_talk(tmp_path, tasks)
        with on_a_terminal(*arguments, cwd=tmp_path, **local_model(server.base_url)) as terminal:
            terminal.wait_for("✗ n3 · answered · wrong: expected 7, given 6")
            terminal.wait_for("n2  asks the model  call 1  0:00:0")
            terminal.wait_for("2/3")
            terminal.wait_for("2 answered · 0 reviewed · 1 right · 1 wrong · 220 tokens")
            terminal.type("\x03")
            terminal.wait_for("2 answered · 0 reviewed · 1 not done")
            assert terminal.end() == 130


@pytest.mark.long
def test_ctrl_c_stops_it_in_order_and_the_same_command_goes_on(tmp_path: Path) -> None:
    is_waiting = True

    def second_hangs(body: Any) -> AnyReply:
        if is_waiting and len(body["messages"]) > 3 and "Double 2" in str(body["messages"]):
            return Slow(60, Text("never"))
        return doubling(body)

    with ScriptedServer.in_thread(second_hangs) as server:
        arguments = [*prepare(tmp_path, server.base_url, numbers(3)), "--concurrency", "1"]
        with start(
            ["-m", "codeact_team", *arguments],
            cwd=tmp_path,
            environment=environment(),
            stdin=subprocess.PIPE,
        ) as process:
            while len(server.requests) < 4:
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            stdout, stderr = process.communicate(timeout=60)
            assert process.returncode == 130
        assert "1 answered · 0 reviewed · 2 not done" in stdout.decode()
        assert "error: interrupted" in stderr.decode()
        assert [one["id"] for one in results(tmp_path / "out")] == ["n1"]
        is_waiting = False
        result = codeact_team(*arguments, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        # the first call of the second task was answered before
        assert len(server.requests) == 4 + 1 + 2
    assert [one["answer"] for one in results(tmp_path / "out")] == ["2", "4", "6"]


def test_a_run_of_a_batch_can_be_shown(tmp_path: Path) -> None:
    with ScriptedServer.in_thread(at_once) as server:
        arguments = prepare_talk(tmp_path, numbers(1))
        codeact_team(*arguments, cwd=tmp_path, **local_model(server.base_url))
    shown = codeact_team("show", "out/runs/n1", cwd=tmp_path)
    assert "Double 1 please.\n\n── helper\n2\n" in shown.stdout
    listed = codeact_team("runs", "--run-dir", "out/runs", cwd=tmp_path)
    assert "n1" in listed.stdout


def test_bad_input_is_told_in_one_message(tmp_path: Path) -> None:
    arguments = prepare(tmp_path, "http://127.0.0.1:9", [])
    for changed, said in [
        ([*arguments], "there are no tasks"),
        ([*arguments[:2], "no.jsonl", *arguments[3:]], "there is no file no.jsonl"),
        ([*arguments, "--checker", "no.py"], "the checker cannot be read from no.py"),
        ([*arguments, "--max-cost", "1"], "BudgetTermination"),
        (["batch", "no.yaml", "tasks.jsonl", "--out", "out"], "there is no such file"),
    ]:
        result = codeact_team(*changed, cwd=tmp_path)
        assert (result.returncode, said in result.stderr) == (2, True), result.stderr
        assert "Traceback" not in result.stderr


def test_files_outside_the_directory_of_the_tasks_are_refused_without_a_flag(tmp_path: Path) -> None:
    (tmp_path / "outside.csv").write_text("1")
    (tmp_path / "here").mkdir()
    with ScriptedServer.in_thread(at_once) as server:
        task = {**numbers(1)[0], "files": ["../outside.csv"]}
        arguments = prepare(tmp_path / "here", server.base_url, [task])
        refused = codeact_team(*arguments, cwd=tmp_path / "here")
        assert refused.returncode == 2
        assert "error: tasks.jsonl:1 is left out" in refused.stderr
        assert "--allow-outside-files" in " ".join(refused.stderr.split())
        allowed = codeact_team(*arguments, "--allow-outside-files", cwd=tmp_path / "here")
        assert allowed.returncode == 0, allowed.stderr


def test_a_task_for_each_file_needs_no_tasks_file(tmp_path: Path) -> None:
    (tmp_path / "ten").mkdir()
    for number in (1, 2):
        (tmp_path / "ten" / f"{number}.csv").write_text(f"a\n{number}\n")
    command = ["batch", talker(tmp_path, ["A sum."]), "--each", "ten/*.csv", "--workers", "1"]
    told = codeact_team(*command, "Sum column a", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert "results: batch-results/results.jsonl" in told.stdout
    found = results(tmp_path / "batch-results")
    assert [(each["id"], each["text"]) for each in found] == [
        ("1.csv", "Sum column a"),
        ("2.csv", "Sum column a"),
    ]
    again = codeact_team(*command, "Sum column a", cwd=tmp_path)
    assert "2 of 2 have a result already" in again.stderr


@pytest.mark.long
def test_what_waits_for_a_person_is_parked_and_goes_on_when_it_is_answered(tmp_path: Path) -> None:
    with ScriptedServer.in_thread(doubling) as server:
        arguments = prepare(tmp_path, server.base_url, numbers(2))
        rules = [{"code": "*write('2')*", "decision": "ask"}]
        config = coder(server.base_url, approval=rules, approval_timeout="park")
        (tmp_path / "coder.json").write_text(json.dumps(config))
        parked = codeact_team(*arguments, cwd=tmp_path)
        assert parked.returncode == 3, parked.stdout + parked.stderr
        assert "1 answered · 1 parked · 0 reviewed" in parked.stdout
        [waits] = [one for one in results(tmp_path / "out") if one["outcome"] == "parked"]
        asked = len(server.requests)
        assert codeact_team("answer", f"out/{waits['run']}", "yes", cwd=tmp_path).returncode == 0
        result = codeact_team(*arguments, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        assert len(server.requests) == asked + 1
    assert [one["answer"] for one in results(tmp_path / "out")] == ["2", "4"]


@pytest.mark.long
def test_code_that_ctrl_c_has_stopped_is_no_result(tmp_path: Path) -> None:
    """All tasks are right in the end, as those of a batch that nobody has interrupted."""
    go, tasks = tmp_path / "go", numbers(3)
    go.touch()

    def reply(body: Body) -> AnyReply:
        answer = doubling(body)
        assert isinstance(answer, Text)
        return replace(
            answer,
            text=answer.text.replace(
                "```python", f"```python\nwhile not open({str(go)!r}).read():\n    pass"
            ),
        )

    with ScriptedServer.in_thread(reply) as server:
        arguments = prepare(tmp_path, server.base_url, tasks, max_seconds=600)
        arguments += ["-s", f"config.code_executor.config.readable=[{go}]"]
        with start(
            ["-m", "codeact_team", *arguments],
            cwd=tmp_path,
            environment=environment(),
            stdin=subprocess.DEVNULL,
        ) as process:
            journals = tmp_path / "out" / "runs"
            while sum('"begin":"block"' in file.read_text() for file in journals.glob("*/journal.jsonl")) < 3:
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
        assert process.returncode == 130
        assert results(tmp_path / "out") == []
        go.write_text("go")
        result = codeact_team(*arguments, cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert [(one["answer"], one["correct"]) for one in results(tmp_path / "out")] == [
        (str(2 * n), True) for n in (1, 2, 3)
    ]
