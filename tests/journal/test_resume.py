"""A run that was killed goes on, and ends as one that was left alone."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
from cli.command_line import environment
from support import fork_server
from support.openai_server import AnyReply, Body, Json, ScriptedServer, Text

from codeact_team.journal import RecordedRun, find_run
from codeact_team.journal.log import read_log

PROGRAM = Path(__file__).with_name("killed_run.py")


@dataclass
class Story:
    """A config, what its model says to a request, and what has to come of it."""

    config: dict[str, Any]
    reply: Callable[[Body], AnyReply]
    answer: str
    effects: Sequence[str] = ()
    files: str | None = "one\ntwo\nthree\n"


def said_before(body: Body) -> int:
    return sum(message["role"] == "assistant" for message in body["messages"])


def of_the_agent(body: Body) -> AnyReply:
    return [
        python("open('log.txt', 'a').write('one\\n')\nfirst = tools.book(amount=5)\nprint(first)"),
        python("numbers = [first, 7]\nopen('log.txt', 'a').write('two\\n')\nprint(numbers)"),
        python(
            "first += tools.book(amount=3)\nopen('log.txt', 'a').write('three\\n')\n"
            "final_answer(f'{first} {numbers} {open(\"log.txt\").read().split()}')"
        ),
    ][min(said_before(body), 2)]


def of_the_nested_teams(body: Body) -> AnyReply:
    for line in ("one", "two"):
        if f"You write {line}." in json.dumps(body["messages"]):
            return python(f"open('log.txt', 'a').write('{line}\\n')\nprint('done')")
    return Json({"problems": [], "accepted": True, "next_step": "", "answer": "It is done."})


def of_the_team(body: Body) -> AnyReply:
    if "You write code." in json.dumps(body["messages"]):
        return [
            python("open('log.txt', 'a').write('one\\n')\nprint(open('log.txt').read())"),
            python(
                "open('log.txt', 'a').write('two\\n')\nopen('log.txt', 'a').write('three\\n')\nprint('done')"
            ),
        ][min(said_before(body), 1)]
    if "three" in json.dumps(body["messages"]):
        return Json({"problems": [], "accepted": True, "next_step": "", "answer": "It is done."})
    return Json({"problems": ["More."], "accepted": False, "next_step": "Once more."})


def python(code: str) -> Text:
    return Text(f"```python\n{code}\n```")


CLIENT = {
    "provider": "autogen_ext.models.openai.OpenAIChatCompletionClient",
    "config": {"model": "gpt-4o", "max_retries": 0},
}
CONFINED = {"confinement": "best_effort", "work_dir": "work"}


def agent(executor: str, settings: dict[str, Any]) -> Story:
    return Story(
        {
            "provider": "codeact_team.CodeActAgent",
            "config": {
                "name": "coder",
                "model_client": CLIENT,
                "tools": ["killed_run:book"],
                "code_executor": {"provider": executor, "config": settings},
            },
        },
        of_the_agent,
        "3 [1, 7] ['one', 'two', 'three']",
        ["5", "3"],
        "one\ntwo\nthree\n" if "work_dir" in settings else None,
    )


SESSION = agent("codeact_team.ConfinedSessionCodeExecutor", CONFINED)
EXECUTOR = {
    "provider": "codeact_team.ConfinedCommandLineCodeExecutor",
    "config": CONFINED,
}


def assistant(says: str) -> dict[str, Any]:
    config = {
        "name": "coder",
        "description": "A coder.",
        "model_client": CLIENT,
        "system_message": says,
        "reflect_on_tool_use": False,
        "tool_call_summary_format": "{result}",
    }
    return {"provider": "autogen_agentchat.agents.AssistantAgent", "config": config}


def team(*participants: dict[str, Any], **settings: Any) -> dict[str, Any]:
    provider = "autogen_agentchat.teams.RoundRobinGroupChat"
    config = {"participants": participants, **settings}
    return {"provider": provider, "component_type": "team", "config": config}


RUNNER = {
    "provider": "codeact_team.CodeExecutorAgent",
    "config": {"name": "executor", "code_executor": EXECUTOR, "reflect": False},
}
REVIEWER = {
    "provider": "codeact_team.ReflectionAgent",
    "config": {"name": "reviewer", "model_client": CLIENT},
}
ACCEPTED: dict[str, Any] = {
    "termination_condition": {"provider": "codeact_team.ReflectionTermination", "config": {}}
}
TEAM = Story(team(assistant("You write code."), RUNNER, REVIEWER, **ACCEPTED), of_the_team, "It is done.")
NESTED = Story(
    # their agents have the same names, and their executors the same directory
    team(
        team(assistant("You write one."), RUNNER, name="first", description="First.", max_turns=2),
        team(assistant("You write two."), RUNNER, name="second", description="Second.", max_turns=2),
        REVIEWER,
        **ACCEPTED,
    ),
    of_the_nested_teams,
    "It is done.",
    files="one\ntwo\n",
)
DOCKER = agent("codeact_team.DockerSessionCodeExecutor", {})
STORIES = [
    pytest.param(SESSION, id="session"),
    pytest.param(TEAM, id="team"),
    pytest.param(NESTED, id="nested-teams"),
    pytest.param(DOCKER, id="session-in-a-container", marks=pytest.mark.docker),
]
each_story = pytest.mark.parametrize("story", STORIES)


def run(folder: Path, server: ScriptedServer, nth: int, how: str, *arguments: str) -> tuple[int, str, str]:
    variables = environment(
        OPENAI_API_KEY="sk-of-the-test-0123456789",
        OPENAI_BASE_URL=server.base_url,
        PYTHONPATH=str(PROGRAM.parent),
    )
    with fork_server.start(
        [str(PROGRAM), str(nth), how, *arguments], cwd=folder, environment=variables, stdin=subprocess.DEVNULL
    ) as process:
        stdout, stderr = process.communicate(timeout=100)
        return process.wait(100), stdout.decode(), stderr.decode()


def start(
    folder: Path, server: ScriptedServer, story: Story, nth: int, how: str = "after"
) -> tuple[int, str, str]:
    (folder / "config.json").write_text(json.dumps(story.config))
    (folder / "work").mkdir(exist_ok=True)
    return run(folder, server, nth, how, "run", "config.json", "Go.", "-q", "--allow", "killed_run")


def resume(folder: Path, server: ScriptedServer, nth: int = 0, how: str = "after") -> tuple[int, str, str]:
    return run(folder, server, nth, how, "resume", "last", "-q", "--allow", "killed_run")


def unknown_calls(folder: Path) -> int:
    recorded = RecordedRun(find_run("last", folder / ".codeact-team" / "runs"))
    return sum(
        "it is unknown what became of this call" in json.dumps(each.outcome)
        for each in recorded.effects()
        if each.kind == "tool_call"
    )


def check(folder: Path, story: Story, code: int, stdout: str, stderr: str) -> None:
    effects = (folder / "effects.txt").read_text().split() if (folder / "effects.txt").exists() else []
    if unknown_calls(folder):
        # told to the code, which has not repeated it by itself
        assert len(effects) <= 3, stderr
        return
    assert (code, stdout.strip()) == (0, story.answer), stderr
    assert effects == [*story.effects]
    if story.files is not None:
        assert (folder / "work" / "log.txt").read_text() == story.files


def alone(folder: Path, server: ScriptedServer, story: Story) -> int:
    """Run a story without killing it, and return the number of its entries but the last, which tells its result."""
    folder.mkdir()
    code, stdout, stderr = start(folder, server, story, 0)
    assert (code, stdout.strip()) == (0, story.answer), stderr
    return int(re.findall(r"\d+", stderr)[-1]) - 1


def kill_and_resume(folder: Path, server: ScriptedServer, story: Story, *kills: tuple[int, str]) -> None:
    folder.mkdir()
    (nth, how), *others = kills
    start(folder, server, story, nth, how)
    for nth, how in others:
        code, stdout, stderr = resume(folder, server, nth, how)
        if code != -signal.SIGKILL:
            # it had not so many entries left to write
            check(folder, story, code, stdout, stderr)
            return
    check(folder, story, *resume(folder, server))


@each_story
def test_a_run_that_is_killed_goes_on_to_the_same_end(tmp_path: Path, story: Story) -> None:
    with ScriptedServer.in_thread(story.reply) as server:
        entries = alone(tmp_path / "alone", server, story)
        for part in (0.35, 0.6, 0.85):
            kill_and_resume(tmp_path / str(part), server, story, (round(entries * part), "torn"))


@pytest.mark.long
@pytest.mark.timeout(1800)
@each_story
def test_it_goes_on_from_whatever_entry_was_the_last(tmp_path: Path, story: Story) -> None:
    with ScriptedServer.in_thread(story.reply) as server:
        # at every one of the first; the entries of the others are of the same kinds
        step = 1 if story is SESSION else 3
        for nth in range(2, alone(tmp_path / "alone", server, story) + 1, step):
            kill_and_resume(tmp_path / str(nth), server, story, (nth, "torn"))


@pytest.mark.long
@pytest.mark.timeout(1800)
@each_story
def test_it_may_be_killed_again_while_it_goes_on(tmp_path: Path, story: Story) -> None:
    moments = Random(7)
    with ScriptedServer.in_thread(story.reply) as server:
        entries = alone(tmp_path / "alone", server, story)
        for round_ in range(10):
            kills = [
                (moments.randint(2, entries), moments.choice(["before", "torn", "after"])) for _ in range(3)
            ]
            kill_and_resume(tmp_path / str(round_), server, story, *kills)


@pytest.mark.parametrize("repeatable", [[], ["b*"]])
def test_a_call_that_was_under_way_is_unknown_unless_it_may_be_made_twice(
    tmp_path: Path, repeatable: list[str]
) -> None:
    config = {**SESSION.config["config"], "tool_limits": {"repeatable": repeatable}}
    story = Story({**SESSION.config, "config": config}, SESSION.reply, SESSION.answer)
    with ScriptedServer.in_thread(story.reply) as server:
        (tmp_path / "alone").mkdir()
        start(tmp_path / "alone", server, story, 0)
        run = find_run("last", tmp_path / "alone" / ".codeact-team" / "runs")
        entries = list(read_log(run.lines))
        asked = next(entry["n"] for entry in entries if entry.get("ask", {}).get("kind") == "tool_call")
        answered = next(entry["n"] for entry in entries if entry.get("answered") == asked)
        killed = tmp_path / "killed"
        killed.mkdir()
        start(killed, server, story, answered, "before")
        resume(killed, server)
    effects = (killed / "effects.txt").read_text().split()
    assert (unknown_calls(killed), effects) == ((0, ["5", "5", "3"]) if repeatable else (1, ["5"]))


def test_a_run_that_was_accepted_has_nothing_to_go_on_with(tmp_path: Path) -> None:
    with ScriptedServer.in_thread(SESSION.reply) as server:
        alone(tmp_path / "alone", server, SESSION)
        code, _, stderr = resume(tmp_path / "alone", server)
    assert code == 2
    assert "and its work was accepted: there is nothing to go on with" in stderr


def test_files_that_somebody_has_changed_since_are_not_overwritten(tmp_path: Path) -> None:
    with ScriptedServer.in_thread(TEAM.reply) as server:
        entries = alone(tmp_path / "alone", server, TEAM)
        folder = tmp_path / "changed"
        folder.mkdir()
        start(folder, server, TEAM, entries // 2)
        log = folder / "work" / "log.txt"
        log.write_text("mine\n")
        code, _, stderr = resume(folder, server)
    assert code == 2
    assert "somebody has changed or removed log.txt" in stderr
    assert log.read_text() == "mine\n"


def test_files_that_somebody_has_added_since_stay(tmp_path: Path) -> None:
    with ScriptedServer.in_thread(SESSION.reply) as server:
        (tmp_path / "alone").mkdir()
        start(tmp_path / "alone", server, SESSION, 0)
        run = find_run("last", tmp_path / "alone" / ".codeact-team" / "runs")
        # the first block has ended
        killed = next(entry["n"] for entry in read_log(run.lines) if "ran" in entry) + 1
        folder = tmp_path / "killed"
        folder.mkdir()
        start(folder, server, SESSION, killed)
        (folder / "work" / "notes.txt").write_text("mine\n")
        check(folder, SESSION, *resume(folder, server))
    assert (folder / "work" / "notes.txt").read_text() == "mine\n"


def test_a_run_of_which_a_part_acts_past_the_journal_says_so_and_is_not_gone_on_with(tmp_path: Path) -> None:
    by_the_clock = {
        "provider": "autogen_agentchat.conditions.TimeoutTermination",
        "config": {"timeout_seconds": 60},
    }
    config = team(assistant("You write code."), RUNNER, termination_condition=by_the_clock, max_turns=1)
    with ScriptedServer.in_thread(of_the_team) as server:
        _, _, stderr = start(tmp_path, server, Story(config, of_the_team, ""), 0)
        assert "this run cannot be resumed, as these act past what is recorded: TimeoutTermination" in stderr
        code, _, stderr = resume(tmp_path, server)
    assert code == 2
    assert "error: the run cannot go on: TimeoutTermination act past its journal" in stderr
