"""A run runs once more without its models and tools, and it is told where its code comes to something else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import stories
from killing import ALLOWED, PROGRAM, last_run, start
from stories import SESSION, TEAM, Story, assistant, coder, component, python, runner, team, verdict
from support import fork_server
from support.command_line import environment
from support.openai_server import AnyReply, Body, HttpError, ScriptedServer

from codeact_team.errors import JournalError
from codeact_team.runs.replaying import replay_run

KINDS = [
    pytest.param(SESSION, id="session"),
    *(
        pytest.param(story, id=name, marks=[pytest.mark.long, *marks])
        for name, story, *marks in (
            ("session-in-a-container", stories.DOCKER, pytest.mark.docker),
            ("calls-side-by-side", stories.SIDE_BY_SIDE),
            ("approvals", stories.APPROVED),
            ("nested-teams", stories.NESTED),
            ("swarm", stories.SWARM),
            ("graph", stories.GRAPH),
            ("tools-of-autogen", stories.TOOLS),
        )
    ),
]


def replay(
    folder: Path, *arguments: str, stdin: bytes = b"", run: str = "last", **variables: str
) -> tuple[int, str, str]:
    """Replay the last run of a folder, where no model's server is known, nor a key for one."""
    command = [str(PROGRAM), "0", "after", "replay", run, *ALLOWED[1:], *arguments]
    known = environment(PYTHONPATH=str(PROGRAM.parent), **variables)
    with fork_server.start(command, cwd=folder, environment=known, stdin=subprocess.PIPE) as process:
        stdout, stderr = process.communicate(stdin, timeout=100)
        return process.wait(100), stdout.decode(), stderr.decode()


def record(folder: Path, story: Story, nth: int = 0) -> None:
    folder.mkdir(exist_ok=True)
    with ScriptedServer.in_thread(story.reply) as server:
        start(folder, server, story, nth)


def kept(folder: Path) -> Path:
    return last_run(folder).path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("story", KINDS)
def test_a_run_comes_to_the_same_without_a_model_and_without_its_tools(tmp_path: Path, story: Story) -> None:
    record(tmp_path, story)
    before = contents(tmp_path)
    code, stdout, stderr = replay(tmp_path)
    assert code == 0, stdout + stderr
    assert "── as recorded · " in stdout
    assert "otherwise" not in stderr
    # nor is anything of it written anew
    assert contents(tmp_path) == before


def called_by_code() -> Story:
    """Tools of a server, called by code."""
    of_autogen = stories.with_a_server()
    (participant, *_) = of_autogen.config["config"]["participants"]
    config = coder(tools=[], workbench=participant["config"]["workbench"])
    return Story(config, lambda _: python("final_answer(str(tools.bookings.Booking(amount=5)))"), "", ["5"])


@pytest.mark.parametrize(
    ("story", "place"),
    [
        pytest.param(
            stories.with_a_server, "config.participants.coder.config", id="autogen", marks=pytest.mark.long
        ),
        pytest.param(called_by_code, "config", id="code"),
    ],
)
@pytest.mark.long
def test_the_servers_of_tools_are_not_needed(tmp_path: Path, story: Callable[[], Story], place: str) -> None:
    record(tmp_path, story())
    effects = (tmp_path / "effects.txt").read_text()
    assert effects.splitlines() == [*story().effects]
    nowhere = f"{place}.workbench.0.config.server_params.command=/nowhere"
    code, stdout, stderr = replay(tmp_path, "-s", nowhere)
    assert (code, "── as recorded" in stdout) == (0, True), stdout + stderr
    assert "(model call)" not in stderr
    assert (tmp_path / "effects.txt").read_text() == effects


def reading(shared: Path, *tools: str) -> Story:
    """A run whose code reads what a person has beside it."""
    (shared / "shared").mkdir()
    (shared / "shared" / "number.txt").write_text("1")
    config = coder(tools=tools, settings={**stories.IN_WORK, "readable": [str(shared / "shared")]})

    def reply(body: Body) -> AnyReply:
        del body
        path = str(shared / "shared" / "number.txt")
        return python(f"print('above')\nprint(open({path!r}).read())\nfinal_answer('done')")

    return Story(config, reply, "done")


@pytest.mark.long
def test_code_that_comes_to_something_else_is_told_by_a_diff(tmp_path: Path) -> None:
    record(tmp_path, reading(tmp_path))
    (tmp_path / "shared" / "number.txt").write_text("2")
    code, stdout, _ = replay(tmp_path)
    assert code == 1
    assert "── not as recorded" in stdout
    assert [line[2:] for line in stdout.splitlines() if line.startswith(("| -", "| +"))] == [
        "--- recorded",
        "+++ now",
        "-1",
        "+2",
    ]
    code, stdout, _ = replay(tmp_path, "--json")
    found = json.loads(stdout.splitlines()[-1])
    assert (code, found["type"], found["block"]) == (1, "replayed", 1)
    assert "-1\n+2" in found["difference"]


@pytest.mark.long
def test_a_prompt_in_other_words_is_told_and_is_no_difference(tmp_path: Path) -> None:
    record(tmp_path, TEAM)
    code, stdout, stderr = replay(tmp_path, "-s", "config.participants.coder.config.system_message=Write.")
    assert (code, "── as recorded · 2 calls of code" in stdout) == (0, True), stderr
    assert "coder has sent another request than was recorded 2 times (model call)" in stderr


@pytest.mark.long
def test_a_config_that_ends_otherwise_is_told(tmp_path: Path) -> None:
    record(tmp_path, TEAM)
    code, stdout, _ = replay(tmp_path, "-q", "-s", "config.max_turns=3")
    assert code == 1
    assert "when it was recorded, the run ended as accepted, and now as not accepted" in stdout


@pytest.mark.long
def test_another_config_may_run_in_its_place(tmp_path: Path) -> None:
    record(tmp_path, TEAM)
    config = {**TEAM.config, "config": {**TEAM.config["config"], "max_turns": 3}}
    (tmp_path / "other.json").write_text(json.dumps(config))
    assert replay(tmp_path, "-q", "--config", "other.json")[0] == 1


@pytest.mark.long
def test_a_run_that_was_killed_is_replayed_as_far_as_it_went(tmp_path: Path) -> None:
    record(tmp_path, SESSION, nth=25)
    code, stdout, stderr = replay(tmp_path, "-q")
    assert (code, "as far as it went" in stdout) == (0, True), stdout + stderr


@pytest.mark.long
def test_a_run_is_replayed_where_its_directory_was_carried(tmp_path: Path) -> None:
    record(tmp_path / "here", SESSION)
    (tmp_path / "there").mkdir()
    kept(tmp_path / "here").rename(tmp_path / "there" / "run")
    code, stdout, stderr = replay(tmp_path / "there", "-q", run="run")
    assert (code, "── as recorded · 3 calls of code" in stdout) == (0, True), stderr


def refuses_structure(body: Body) -> AnyReply:
    if body.get("response_format", {}).get("type") == "json_schema":
        return HttpError(400, "response_format is not supported")
    if "You write code." in json.dumps(body["messages"]):
        return python("print('done')")
    return verdict(True)


@pytest.mark.long
def test_what_failed_and_was_mended_fails_again(tmp_path: Path) -> None:
    record(tmp_path, Story(TEAM.config, refuses_structure, "It is done."))
    code, stdout, stderr = replay(tmp_path)
    assert (code, "── as recorded · 1 call of code" in stdout) == (0, True), stdout + stderr


@pytest.mark.long
def test_code_that_calls_otherwise_than_then_is_told(tmp_path: Path) -> None:
    story = reading(tmp_path, "killed_run:book")
    path = str(tmp_path / "shared" / "number.txt")

    def reply(body: Body) -> AnyReply:
        del body
        code = f"try: tools.book(amount=int(open({path!r}).read()))\nexcept Exception: pass\nfinal_answer('done')"
        return python(code)

    record(tmp_path, Story(story.config, reply, "done"))
    (tmp_path / "shared" / "number.txt").write_text("2")
    before = (tmp_path / "effects.txt").read_text()
    code, stdout, _ = replay(tmp_path, "-q")
    assert code == 1
    assert "coder has made one tool call more than is recorded" in stdout
    assert (tmp_path / "effects.txt").read_text() == before


def test_code_that_reaches_more_than_its_workspace_is_not_run_again_unless_asked_for(tmp_path: Path) -> None:
    unsafe = runner()
    unsafe["config"]["code_executor"] = component(
        "autogen_ext.code_executors.local.LocalCommandLineCodeExecutor", work_dir="work"
    )
    config = team(assistant("You write code."), unsafe, max_turns=2)
    record(tmp_path, Story(config, lambda _: python("open('log.txt', 'a').write('one\\n')"), ""))
    code, _, stderr = replay(tmp_path, "-q")
    assert code == 2
    assert "its code can reach more than its workspace" in stderr
    assert replay(tmp_path, "-q", "--beyond-workspace")[0] == 0
    assert (tmp_path / "work" / "log.txt").read_text() == "one\n"


@pytest.mark.long
def test_one_goes_back_to_a_moment_and_on_from_there(tmp_path: Path) -> None:
    record(tmp_path, SESSION)
    effects = (tmp_path / "effects.txt").read_text()
    with ScriptedServer.in_thread(SESSION.reply) as server:
        code, stdout, stderr = replay(
            tmp_path,
            "--until",
            "2",
            stdin=b"/run print('now', numbers, sorted(__import__('os').listdir()))\nGo on.\n",
            OPENAI_API_KEY="sk-of-the-test-0123456789",
            OPENAI_BASE_URL=server.base_url,
        )
        assert [len(request["messages"]) for request in server.requests] == [7]
    assert code == 0, stderr
    assert "now [1, 7] ['log.txt']\n" in stdout
    # it is in the present again: its tools are called
    assert (tmp_path / "effects.txt").read_text() == effects + "3\n"
    assert (tmp_path / "work" / "log.txt").read_text() == "one\ntwo\nthree\n"


@pytest.mark.long
def test_one_cannot_go_back_past_a_difference(tmp_path: Path) -> None:
    record(tmp_path, reading(tmp_path))
    (tmp_path / "shared" / "number.txt").write_text("2")
    code, stdout, _ = replay(tmp_path, "--until", "1", stdin=b"/run print('now')\n", OPENAI_API_KEY="none")
    assert (code, "\nnow\n" in stdout) == (1, False)


@pytest.mark.long
async def test_a_program_is_told_what_differs(tmp_path: Path) -> None:
    record(tmp_path, reading(tmp_path))
    found = await replay_run(kept(tmp_path))
    assert (found.difference, found.blocks, found.is_whole) == (None, 1, True)
    (tmp_path / "shared" / "number.txt").write_text("2")
    found = await replay_run(kept(tmp_path))
    assert "-1\n+2" in (found.difference or "")
    with pytest.raises(JournalError, match="is not the directory of a run"):
        await replay_run(tmp_path)


async def test_a_run_of_somebody_else_is_replayed_where_the_program_trusts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path, reading(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "of another"))
    with pytest.raises(JournalError, match="was not recorded by you"):
        await replay_run(kept(tmp_path))
    assert (await replay_run(kept(tmp_path), trusted=True)).is_whole


@pytest.mark.long
def test_a_recorded_run_is_a_test_in_one_line_wherever_the_test_runs(tmp_path: Path) -> None:
    record(tmp_path, reading(tmp_path))
    (tmp_path / "test_it.py").write_text(
        f"def test_it(replay_run):\n    replay_run({str(kept(tmp_path))!r})\n"
    )

    (tmp_path / "shared" / "number.txt").write_text("2")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"]
    elsewhere = environment(XDG_STATE_HOME=str(tmp_path / "of another"))
    done = subprocess.run(command, cwd=tmp_path, env=elsewhere, capture_output=True, timeout=100)
    assert done.returncode == 1
    assert b"did not give the recorded result: \n--- recorded\n+++ now\n" in done.stdout


@pytest.mark.long
def test_a_run_that_acts_past_its_journal_is_not_replayed(tmp_path: Path) -> None:
    by_the_clock = component("autogen_agentchat.conditions.TimeoutTermination", timeout_seconds=60)
    config = team(assistant("You write code."), runner(), termination_condition=by_the_clock, max_turns=1)
    record(tmp_path, Story(config, TEAM.reply, ""))
    code, _, stderr = replay(tmp_path, "-q")
    assert code == 2
    assert "these bypass its journal, and would really act again: TimeoutTermination" in stderr
