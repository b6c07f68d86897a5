"""``codeact-team chat`` as its users have it: on a terminal, and at the end of a pipe."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
from pathlib import Path

import pytest
from support.command_line import (
    ACCEPT,
    CODE,
    COMMAND,
    CONFINED,
    NO_HTTP_RETRIES,
    codeact_team,
    environment,
    lines,
    local_model,
    set_all,
    talker,
)
from support.fork_server import start
from support.openai_server import HttpError, Json, ScriptedServer, Slow, Text
from support.terminal import CTRL_C, CTRL_D, ENTER, ESCAPE, PASTE, UP, Terminal, on_a_terminal
from test_cli_interrupts import SLEEPS, containers_of, sleepers, sleeps, wait_for_output, wait_for_request

TEAM = ["chat", "local-model", *set_all([CONFINED, NO_HTTP_RETRIES])]
READY = "\n> "


def chat(folder: Path) -> list[str]:
    """The command for an agent that only talks."""
    return ["chat", talker(folder)]


def parrot(folder: Path) -> list[str]:
    """The command for one that always says the same, without any model."""
    return ["chat", talker(folder, ["So be it."] * 9)]


def agent(folder: Path) -> list[str]:
    """The command for an agent that asks the scripted model, and runs its code confined."""
    talks = json.loads((folder / talker(folder)).read_text())
    settings = {
        "name": "helper",
        "model_client": talks["config"]["model_client"],
        "code_executor": {
            "provider": "codeact_team.ConfinedCommandLineCodeExecutor",
            "config": {"confinement": "best_effort"},
        },
        "reflect": False,
        "stream_output": True,
    }
    file = folder / "agent.json"
    file.write_text(json.dumps({"provider": "codeact_team.CodeExecutorAgent", "config": settings}))
    return ["chat", str(file)]


def codeact(server: ScriptedServer, *, confined: bool = True) -> tuple[list[str], dict[str, str]]:
    """The command for the shipped agent that acts by code, and its environment."""
    executor = "{provider: codeact_team.ConfinedSessionCodeExecutor, config: {confinement: best_effort}}"
    overrides = [
        f"config.code_executor={executor}" if confined else "config.code_executor.config.packages=[]"
    ]
    variables = {"OPENAI_API_KEY": "a-key", "OPENAI_BASE_URL": server.base_url}
    return ["chat", "codeact", *set_all(overrides)], variables


def ask(terminal: Terminal, *message: str) -> None:
    terminal.wait_for(READY)
    terminal.type(*message, ENTER)


def leave(terminal: Terminal, *keys: str) -> int:
    """Leave by these keys, or by Ctrl-D; the exit code."""
    terminal.wait_for(READY)
    terminal.type(*(keys or [CTRL_D]))
    return terminal.end()


def asked(server: ScriptedServer, request: int) -> list[str]:
    """What the model is given, without its system message."""
    messages = server.requests[request]["messages"]
    return [message["content"] for message in messages if message["role"] != "system"]


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_a_conversation_lives_on_from_message_to_message_until_it_is_reset(tmp_path: Path):
    replies = [Text("Hello Ada."), Text("You are Ada."), Text("Who knows?")]
    with (
        ScriptedServer.in_thread(replies) as server,
        on_a_terminal(*chat(tmp_path), cwd=tmp_path, **local_model(server.base_url)) as terminal,
    ):
        terminal.wait_for("Enter sends, Alt+Enter begins a new line, Ctrl-D leaves; /help tells more\n")
        ask(terminal, "I am Ada.")
        terminal.wait_for("── helper\nHello Ada.\n\n── answered · 2 messages · 110 tokens (100 in, 10 out)")
        ask(terminal, "Who am I?")
        terminal.wait_for("You are Ada.")
        ask(terminal, "/reset")
        terminal.wait_for("the conversation and the variables are forgotten")
        ask(terminal, "And now?")
        terminal.wait_for("Who knows?")
        assert leave(terminal) == 0
    assert asked(server, 1) == ["I am Ada.", "Hello Ada.", "Who am I?"]
    assert asked(server, 2) == ["And now?"]
    # what somebody has typed is on the screen already
    assert "── user" not in terminal.text


@pytest.mark.parametrize(
    "confined", [True, pytest.param(False, marks=[pytest.mark.docker, pytest.mark.long])]
)
def test_variables_live_on_from_message_to_message_and_through_ctrl_c(tmp_path: Path, confined: bool):
    seconds = f"67.{int(confined)}5"
    replies = [
        Text("```python\nx = 41\n```"),
        Text("It is set."),
        Text("```python\nx += 1\n```\n"),
        sleeps(seconds),
        Text("```python\nx\n```"),
        Text("There it is."),
        Text("```python\nx\n```"),
        Text("It is gone."),
    ]
    with ScriptedServer.in_thread(replies) as server:
        command, variables = codeact(server, confined=confined)
        with on_a_terminal(*command, cwd=tmp_path, **variables) as terminal:
            ask(terminal, "Set x.")
            terminal.wait_for("It is set.\n\n── answered")
            ask(terminal, "Add one, and sleep.")
            terminal.wait_for(SLEEPS)
            assert confined or len(containers_of(terminal.process)) == 1
            terminal.type(CTRL_C)
            terminal.wait_for("── stopped · ")
            assert sleepers(seconds) == []
            ask(terminal, "Show x.")
            terminal.wait_for("\n42\n✓ exit code 0\nThere it is.\n")
            ask(terminal, "/reset")
            ask(terminal, "Show x.")
            terminal.wait_for("NameError: name 'x' is not defined\n✗ exit code 1\nIt is gone.\n")
            assert leave(terminal) == 0
            assert confined or not containers_of(terminal.process)
    assert asked(server, 2)[0] == "Set x."
    assert asked(server, 6) == ["Show x."]


def test_ctrl_c_ends_a_model_call_at_once_and_pressed_once_too_often_does_not_leave(tmp_path: Path):
    with (
        ScriptedServer.in_thread([Slow(60, Text("late")), Text("Here.")]) as server,
        on_a_terminal(*chat(tmp_path), cwd=tmp_path, **local_model(server.base_url)) as terminal,
    ):
        ask(terminal, "Think.")
        wait_for_request(server)
        # a third could be the second one that finds nothing at work, and that leaves
        for _ in range(2):
            os.killpg(terminal.process.pid, signal.SIGINT)
        terminal.wait_for("── stopped · 1 message ")
        ask(terminal, "Are you there?")
        terminal.wait_for("Here.")
        assert leave(terminal) == 0
    assert "late" not in terminal.text


@pytest.mark.long
def test_a_team_works_on_after_a_turn_that_was_stopped_and_one_that_failed(tmp_path: Path):
    # in AutoGen's round-robin team the next run ends after one speaker, who is not even the first
    replies = [sleeps("64.25"), HttpError(401), Text(CODE), Json(ACCEPT)]
    with (
        ScriptedServer.in_thread(replies) as server,
        on_a_terminal(*TEAM, cwd=tmp_path, **local_model(server.base_url)) as terminal,
    ):
        ask(terminal, "Sleep.")
        terminal.wait_for(SLEEPS)
        terminal.type(CTRL_C)
        terminal.wait_for("── stopped · ")
        ask(terminal, "What is 6 times 7?")
        terminal.wait_for("── failed · 1 message ")
        terminal.wait_for(f"error: the model's server at {server.base_url} does not accept the API key (401)")
        ask(terminal, "And now?")
        terminal.wait_for("── coder\n")
        terminal.wait_for("── executor\nthe answer is 42\n✓ exit code 0\n")
        terminal.wait_for("✓ Accepted.")
        terminal.wait_for("── accepted · ")
        assert leave(terminal) == 0
    assert sleepers("64.25") == []


@pytest.mark.long
def test_the_same_error_is_explained_each_time(tmp_path: Path):
    with (
        ScriptedServer.in_thread([HttpError(401), HttpError(401)]) as server,
        on_a_terminal(*chat(tmp_path), cwd=tmp_path, **local_model(server.base_url)) as terminal,
    ):
        for _ in range(2):
            ask(terminal, "Hello?")
            terminal.wait_for(
                f"error: the model's server at {server.base_url} does not accept the API key (401)"
            )
        # what people type to leave is no message to the model
        assert leave(terminal, "exit", ENTER) == 0


def test_a_message_can_have_many_lines_typed_or_pasted(tmp_path: Path):
    with (
        ScriptedServer.in_thread([Text("One."), Text("Two.")]) as server,
        on_a_terminal(*chat(tmp_path), cwd=tmp_path, **local_model(server.base_url)) as terminal,
    ):
        ask(terminal, "This is", ESCAPE, ENTER, "typed.")
        terminal.wait_for("One.")
        ask(terminal, PASTE.format("This is\npasted."))
        terminal.wait_for("Two.")
        assert leave(terminal) == 0
    assert asked(server, 1) == ["This is\ntyped.", "One.", "This is\npasted."]


def test_ctrl_c_at_the_prompt_clears_the_line_and_leaves_where_there_is_none(tmp_path: Path):
    with on_a_terminal(*parrot(tmp_path), cwd=tmp_path) as terminal:
        terminal.wait_for(READY)
        for _ in range(2):
            terminal.type("never sent", CTRL_C)
            terminal.wait_for("never sent")
            terminal.wait_for(READY)
        os.kill(terminal.process.pid, signal.SIGINT)
        terminal.wait_for("Ctrl-C again, or Ctrl-D, leaves")
        terminal.wait_for(READY)
        terminal.type(CTRL_C)
        assert terminal.end() == 0
    assert "── helper" not in terminal.text


def test_commands_are_words_of_their_own_and_everything_else_is_a_message(tmp_path: Path):
    with on_a_terminal(*parrot(tmp_path), cwd=tmp_path) as terminal:
        ask(terminal, "/resett")
        terminal.wait_for("warning: /resett is no command\n")
        ask(terminal, "/help")
        terminal.wait_for(
            "/reset   forget the conversation and the variables\n/help    show this\n"
            "/exit    leave, as do exit and quit\n"
        )
        for message in ("/etc/passwd", "// really", "/reset the counter"):
            ask(terminal, message)
            terminal.wait_for("So be it.")
        ask(terminal, "/exit")
        assert terminal.end() == 0


def test_what_was_entered_comes_back_in_the_next_chat_and_is_nobody_else_s(tmp_path: Path):
    with on_a_terminal(*parrot(tmp_path), cwd=tmp_path) as terminal:
        ask(terminal, "the first", ESCAPE, ENTER, "has two lines")
        terminal.wait_for("So be it.")
        assert leave(terminal) == 0
    with on_a_terminal(*parrot(tmp_path), cwd=tmp_path) as terminal:
        terminal.wait_for(READY)
        terminal.type(UP)
        terminal.wait_for("the first\n  has two lines")
        terminal.type(CTRL_C, CTRL_C, CTRL_C)
        assert terminal.end() == 0
    history = tmp_path / "state" / "codeact-team" / "history"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (history.parent, history)] == [0o700, 0o600]


@pytest.mark.long
def test_without_a_place_for_the_history_the_chat_says_so_once_and_goes_on(tmp_path: Path):
    (tmp_path / "state").write_text("in the way")
    with on_a_terminal(*parrot(tmp_path), cwd=tmp_path) as terminal:
        for keys in ("hello", UP):
            ask(terminal, keys)
            terminal.wait_for("So be it.")
        assert leave(terminal) == 0
    assert terminal.text.count("warning: what you type cannot be kept for the next chat: ") == 1


@pytest.mark.parametrize("busy", [False, pytest.param(True, marks=pytest.mark.long)])
def test_sigterm_stops_everything(tmp_path: Path, busy: bool):
    seconds = f"65.{int(busy)}5"
    with (
        ScriptedServer.in_thread([sleeps(seconds)]) as server,
        on_a_terminal(*agent(tmp_path), cwd=tmp_path, **local_model(server.base_url)) as terminal,
    ):
        terminal.wait_for(READY)
        assert children_of(terminal.process.pid)
        if busy:
            terminal.type("Sleep.", ENTER)
            terminal.wait_for(SLEEPS)
        terminal.process.terminate()
        assert terminal.end() == 143
        how_to_go_on = "to go on: codeact-team resume" if busy else ""
        assert f"error: terminated\n{how_to_go_on}" in terminal.text
        assert "Traceback (most recent" not in terminal.text.partition("KeyboardInterrupt")[2]
        assert sleepers(seconds) == []
        assert len(server.requests) == busy


@pytest.mark.parametrize("busy", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_terminal_that_is_closed_leaves_nothing_running(tmp_path: Path, busy: bool):
    seconds = f"66.{int(busy)}5"
    with (
        ScriptedServer.in_thread([sleeps(seconds)]) as server,
        on_a_terminal(*agent(tmp_path), cwd=tmp_path, **local_model(server.base_url)) as terminal,
    ):
        terminal.wait_for(READY)
        if busy:
            terminal.type("Sleep.", ENTER)
            terminal.wait_for(SLEEPS)
        terminal.hang_up()
        # at the prompt, it is also the end of the input
        assert terminal.process.wait(timeout=30) in (129, 0)
        assert sleepers(seconds) == []


def test_a_sandbox_that_cannot_start_is_explained_before_anything_is_asked(tmp_path: Path):
    with on_a_terminal("chat", "executor", cwd=tmp_path, DOCKER_HOST="unix:///nowhere") as terminal:
        assert terminal.end() == 2
    told = terminal.text[terminal.text.index("error:") :]
    assert told.startswith(
        "error: no container engine answers at unix:///nowhere (No such file or directory): start Docker"
    )
    assert "\nerror:" not in told
    assert all(len(line) <= 100 for line in told.splitlines())
    assert READY not in terminal.text


def test_a_bad_config_is_explained_before_anything_is_asked(tmp_path: Path):
    with on_a_terminal("chat", "nowhere.yaml", cwd=tmp_path) as terminal:
        assert terminal.end() == 2
    assert terminal.text.endswith("error: nowhere.yaml: there is no such file\n")
    assert terminal.text.count("\n") <= 2


def test_each_line_of_a_pipe_is_a_message(tmp_path: Path):
    replies = [Text("One."), Text("Two."), Text("Three.")]
    with ScriptedServer.in_thread(replies) as server:
        result = codeact_team(
            *chat(tmp_path),
            cwd=tmp_path,
            stdin="Wörter\n\n/help\r\n  second\n/reset\nthird",
            **local_model(server.base_url),
        )
    assert result.returncode == 0, result.stderr
    assert [asked(server, request) for request in range(3)] == [
        ["Wörter"],
        ["Wörter", "One.", "second"],
        ["third"],
    ]
    shown = re.sub(r"\d+\.\d s", "SECONDS", result.stdout)
    summary = "── answered · 2 messages · 110 tokens (100 in, 10 out) · SECONDS\n"
    assert shown == "\n".join(
        f"── user\n{question}\n\n── helper\n{answer}\n\n{summary}"
        for question, answer in (("Wörter", "One."), ("second", "Two."), ("third", "Three."))
    )


@pytest.mark.long
def test_a_message_that_cannot_be_worked_on_does_not_keep_the_others_from_it(tmp_path: Path):
    with ScriptedServer.in_thread([HttpError(500), Text("Two.")]) as server:
        result = codeact_team(
            *chat(tmp_path), cwd=tmp_path, stdin="first\nsecond\n", **local_model(server.base_url)
        )
    assert result.returncode == 75
    assert f"error: the model's server at {server.base_url} failed (500)" in result.stderr
    assert "── helper\nTwo.\n" in result.stdout


def test_json_has_one_opening_and_a_result_for_each_message(tmp_path: Path):
    with ScriptedServer.in_thread([Text("One."), HttpError(401)]) as server:
        result = codeact_team(
            *chat(tmp_path), "--json", cwd=tmp_path, stdin="first\nsecond\n", **local_model(server.base_url)
        )
    assert result.returncode == 1
    events = lines(result.stdout)
    told = [event["type"] for event in events if event["type"] in ("format", "opened", "message", "result")]
    assert told == ["format", "opened", "message", "message", "result", "message", "result"]
    results = [event for event in events if event["type"] == "result"]
    assert [(each["ending"], each["exit_code"], each["messages"]) for each in results] == [
        ("answered", 0, 2),
        ("failed", 2, 1),
    ]
    assert "401" in results[1]["error"]


@pytest.mark.long
def test_a_file_and_nothing_at_all_are_standard_input_like_a_pipe(tmp_path: Path):
    (tmp_path / "messages.txt").write_text("one\ntwo\n")
    for name, count in ((tmp_path / "messages.txt", 2), (Path(os.devnull), 0)):
        with name.open("rb") as stdin:
            command = [*COMMAND[1:], *parrot(tmp_path)]
            with start(command, cwd=tmp_path, environment=environment(), stdin=stdin.fileno()) as process:
                stdout, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert stdout.decode().count("── user\n") == count


def test_a_line_that_is_no_text_is_bad_input(tmp_path: Path):
    result = codeact_team(*parrot(tmp_path), cwd=tmp_path, stdin=b"\xff\xfe\n")
    assert result.returncode == 2
    assert result.stderr.endswith("error: a message from standard input is not UTF-8 text\n")


@pytest.mark.parametrize(
    ("number", "code", "busy"),
    [
        pytest.param(signal.SIGINT, 130, True, id="INT", marks=pytest.mark.long),
        pytest.param(signal.SIGTERM, 143, False, id="TERM"),
        pytest.param(signal.SIGHUP, 129, True, id="HUP", marks=pytest.mark.long),
    ],
)
def test_a_signal_ends_a_chat_without_a_terminal(
    tmp_path: Path, number: signal.Signals, code: int, busy: bool
):
    seconds = f"{code}.75"
    with (
        ScriptedServer.in_thread([sleeps(seconds)]) as server,
        start(
            [*COMMAND[1:], *agent(tmp_path), "--json"],
            cwd=tmp_path,
            environment=environment(**local_model(server.base_url)),
            stdin=subprocess.PIPE,
        ) as process,
    ):
        assert process.stdin is not None
        wait_for_output(process, '"opened"')
        if busy:
            process.stdin.write(b"Sleep.\nNever asked.\n")
            wait_for_output(process, SLEEPS)
        os.killpg(process.pid, number)
        stdout, stderr = process.communicate(timeout=30)
        assert process.returncode == code
        assert b"Traceback" not in stderr
        assert sleepers(seconds) == []
        events = lines(stdout.decode())
        assert [event["ending"] for event in events if event["type"] == "result"] == ["stopped"] * busy
        assert len(server.requests) == busy


def test_output_that_nobody_reads_any_more_ends_the_chat_quietly(tmp_path: Path):
    command = [*COMMAND[1:], *parrot(tmp_path)]
    with start(command, cwd=tmp_path, environment=environment(), stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"hello\n")
        wait_for_output(process, "── helper")
        process.stdout.close()
        process.stdin.write(b"hello\n")
        assert process.wait(60) == 141
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_lines_can_be_typed_where_the_output_goes_elsewhere(tmp_path: Path):
    with on_a_terminal(*parrot(tmp_path), "--json", cwd=tmp_path) as terminal:
        terminal.wait_for("each line is a message; Ctrl-D ends\n")
        terminal.type("hello\n")
        terminal.wait_for('"type": "result"')
        terminal.type(CTRL_D)
        assert terminal.end() == 0
