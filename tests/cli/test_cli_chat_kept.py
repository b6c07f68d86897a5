"""Chats that are kept: killed, gone on with, shown and replayed, as their users have it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.command_line import COMMAND, codeact_team, environment, lines, local_model, talker
from support.fork_server import Forked, start
from support.openai_server import AnyReply, Body, HttpError, ScriptedServer, Slow, Text
from support.terminal import CTRL_C, Terminal, on_a_terminal
from test_cli_chat import ask, asked, codeact, leave
from test_cli_interrupts import SLEEPS

ON = ["chat", "--continue"]


def python(code: str) -> Text:
    return Text(f"```python\n{code}\n```")


def wait_for_requests(server: ScriptedServer, count: int) -> None:
    while len(server.requests) < count:
        time.sleep(0.01)


def kill(terminal: Terminal) -> None:
    terminal.process.kill()
    terminal.end()


def kept(folder: Path) -> list[dict[str, object]]:
    """The runs that are kept there."""
    return [json.loads(line) for line in codeact_team("runs", "--json", cwd=folder).stdout.splitlines()]


def test_a_chat_goes_on_quietly_and_is_listed_shown_and_replayed_as_one(tmp_path: Path):
    with ScriptedServer.in_thread([Text("Four."), Text("Nine.")]) as server:
        talk, variables = ["chat", talker(tmp_path), "-q"], local_model(server.base_url)
        done = codeact_team(*talk, cwd=tmp_path, stdin="/cost\n2 * 2?\n", **variables)
        more = codeact_team(*ON, "-q", cwd=tmp_path, stdin="3 * 3?\n/cost\n", **variables)
    assert done.stdout == "nothing is known of tokens or cost\nFour.\n"
    answer, cost = more.stdout.splitlines()
    assert (answer, cost.endswith(" in, 20 out)")) == ("Nine.", True), "the cost of both messages"
    assert asked(server, 1) == ["2 * 2?", "Four.", "3 * 3?"]
    (run,) = kept(tmp_path)
    assert (run["state"], run["task"], run["messages"]) == ("answered", "2 * 2?", 4)
    shown = codeact_team("show", "last", cwd=tmp_path).stdout
    assert shown.count("Nine.") == 1
    assert "\n── in all · 4 messages · 220 tokens (200 in, 20 out) · " in shown
    places = [shown.index(said) for said in ("2 * 2?", "Four.", "3 * 3?", "Nine.")]
    assert places == sorted(places)
    replayed = codeact_team("replay", "last", cwd=tmp_path, **variables)
    assert (replayed.returncode, "as recorded" in replayed.stdout) == (0, True), replayed.stderr


@pytest.mark.long
def test_the_page_of_a_chat_is_written_in_the_middle_of_it(tmp_path: Path):
    entered = "1?\n/html\n2?\n/html\n/html no/page.html\n"
    done = codeact_team("chat", talker(tmp_path, ["One.", "Two."]), cwd=tmp_path, stdin=entered)
    assert "the page is chat.html\n" in done.stderr
    assert "the page is chat.html; it replaces the file that was there\n" in done.stderr
    assert "error: the page cannot be written to no/page.html: No such file or directory\n" in done.stderr
    page = (tmp_path / "chat.html").read_text()
    assert [said in page for said in ("One.", "Two.")] == [True, True]


def test_what_has_failed_or_is_undone_or_forgotten_stays_so_when_a_chat_goes_on(tmp_path: Path):
    replies: Sequence[AnyReply] = [Text("One."), HttpError(401), *map(Text, ("Three.", "Four.", "Six."))]
    with ScriptedServer.in_thread(replies) as server:
        variables = local_model(server.base_url)
        entered = "1?\n2?\n3?\n/undo\n"
        codeact_team("chat", talker(tmp_path), cwd=tmp_path, stdin=entered, **variables)
        more = codeact_team(*ON, cwd=tmp_path, stdin="4?\n/undo\n/undo\n/undo\n/undo\n/reset\n", **variables)
        codeact_team(*ON, cwd=tmp_path, stdin="6?\n", **variables)
    assert [asked(server, request) for request in (2, 3, 4)] == [
        ["1?", "One.", "2?", "3?"],
        ["1?", "One.", "2?", "4?"],
        ["6?"],
    ]
    shown = [more.stdout.find(said) for said in ("1?", "One.", "2?", "── failed", "4?", "Four.")]
    assert (-1 not in shown, shown) == (True, sorted(shown))
    assert "Three." not in more.stdout
    # the fourth message, the one that had failed, and the first
    assert more.stderr.count("the last message is undone") == 3
    assert more.stderr.count("nothing to undo") == 1


@pytest.mark.docker
def test_a_chat_that_cannot_go_on_stays_as_it_was(tmp_path: Path):
    replies = [python("x = 41"), Text("It is set."), python("print(x + 1)"), Text("There it is.")]
    with ScriptedServer.in_thread(replies) as server:
        command, variables = codeact(server, confined=False)
        codeact_team(*command, "-q", cwd=tmp_path, stdin="Set x.\n", **variables)
        (before,) = kept(tmp_path)
        failed = codeact_team(*ON, cwd=tmp_path, DOCKER_HOST="unix:///nowhere", **variables)
        assert (failed.returncode, "no container engine answers" in failed.stderr) == (2, True), failed.stderr
        (after,) = kept(tmp_path)
        assert {key: after[key] for key in ("id", "state", "task")} == {
            key: before[key] for key in ("id", "state", "task")
        }
        more = codeact_team(*ON, "-q", cwd=tmp_path, stdin="Add one.\n", **variables)
    assert "There it is." in more.stdout


# the tutorial does so among the usual tests
@pytest.mark.long
def test_a_chat_that_was_killed_goes_on_with_its_variables_and_its_conversation(tmp_path: Path):
    replies = [python("x = 41"), Text("It is set."), python("print(x + 1)"), Text("There it is.")]
    with ScriptedServer.in_thread(replies) as server:
        command, variables = codeact(server)
        with on_a_terminal(*command, cwd=tmp_path, **variables) as terminal:
            ask(terminal, "Set x.")
            terminal.wait_for("It is set.\n\n── answered")
            terminal.wait_for("\n> ")
            kill(terminal)
        with on_a_terminal(*ON, cwd=tmp_path, **variables) as terminal:
            terminal.wait_for("> Set x.")
            terminal.wait_for("It is set.\n\n── answered")
            ask(terminal, "Add one.")
            terminal.wait_for("\n42\n")
            terminal.wait_for("There it is.")
            assert leave(terminal) == 0
            assert "to go on: codeact-team resume " in terminal.text
    assert asked(server, 2)[:1] == ["Set x."]
    assert len(kept(tmp_path)) == 1


@pytest.mark.long
def test_work_on_a_message_that_was_killed_goes_on_where_it_was(tmp_path: Path):
    replies: Sequence[AnyReply] = [python("x = 41"), Slow(60, Text("late")), Text("It is set.")]
    with ScriptedServer.in_thread(replies) as server:
        command, variables = codeact(server)
        with on_a_terminal(*command, cwd=tmp_path, **variables) as terminal:
            ask(terminal, "Set x.")
            wait_for_requests(server, 2)
            kill(terminal)
        with on_a_terminal(*ON, cwd=tmp_path, **variables) as terminal:
            terminal.wait_for("It is set.\n\n── answered")
            ask(terminal, "/run print(x)")
            terminal.wait_for("\n41\n")
            assert leave(terminal) == 0


@pytest.mark.long
def test_what_a_person_has_stopped_stays_stopped_and_what_failed_stays_failed(tmp_path: Path):
    replies: Sequence[AnyReply] = [
        python("x = 41"),
        Slow(60, Text("late")),
        HttpError(401),
        Text("Yes?"),
        python("print(x + 1)"),
        Text("There it is."),
    ]
    with ScriptedServer.in_thread(replies) as server:
        command, variables = codeact(server)
        with on_a_terminal(*command, cwd=tmp_path, **variables) as terminal:
            ask(terminal, "Set x.")
            wait_for_requests(server, 2)
            terminal.type(CTRL_C)
            terminal.wait_for("── stopped")
            ask(terminal, "Once more.")
            terminal.wait_for("── failed")
            ask(terminal, "Hello?")
            terminal.wait_for("Yes?\n\n── answered")
            kill(terminal)
        with on_a_terminal(*ON, cwd=tmp_path, **variables) as terminal:
            terminal.wait_for("── stopped")
            terminal.wait_for("── failed")
            terminal.wait_for("Yes?\n\n── answered")
            ask(terminal, "Add one.")
            terminal.wait_for("\n42\n")
            terminal.wait_for("There it is.")
            assert leave(terminal) == 0
    before, after = asked(server, 3), asked(server, 4)
    assert after[: len(before)] == before


@pytest.mark.long
def test_code_that_a_person_has_stopped_does_not_run_again(tmp_path: Path):
    replies: Sequence[AnyReply] = [
        python("x = 41"),
        Text("It is set."),
        python(f"import time\nprint({SLEEPS!r}, flush=True)\ntime.sleep(61)"),
        Text("Yes?"),
        Text("And now?"),
    ]
    with ScriptedServer.in_thread(replies) as server:
        command, variables = codeact(server)
        with on_a_terminal(*command, cwd=tmp_path, **variables) as terminal:
            ask(terminal, "Set x.")
            terminal.wait_for("It is set.\n\n── answered")
            ask(terminal, "Sleep.")
            terminal.wait_for(SLEEPS)
            terminal.type(CTRL_C)
            terminal.wait_for("── stopped")
            ask(terminal, "Hello?")
            terminal.wait_for("Yes?\n\n── answered")
            kill(terminal)
        with on_a_terminal(*ON, cwd=tmp_path, **variables) as terminal:
            terminal.wait_for("── stopped")
            terminal.wait_for("Yes?\n\n── answered")
            ask(terminal, "Hello again?")
            terminal.wait_for("And now?\n\n── answered")
            assert leave(terminal) == 0
    before, after = asked(server, 3), asked(server, 4)
    assert after[: len(before)] == before


@pytest.mark.long
def test_what_was_forgotten_stays_forgotten(tmp_path: Path):
    replies = [python("x = 41"), Text("It is set."), python("print(x)"), Text("It is gone.")]
    with ScriptedServer.in_thread(replies) as server:
        command, variables = codeact(server)
        with on_a_terminal(*command, cwd=tmp_path, **variables) as terminal:
            ask(terminal, "Set x.")
            terminal.wait_for("It is set.\n\n── answered")
            ask(terminal, "/reset")
            terminal.wait_for("forgotten")
            terminal.wait_for("\n> ")
            kill(terminal)
        with on_a_terminal(*ON, cwd=tmp_path, **variables) as terminal:
            ask(terminal, "Show x.")
            terminal.wait_for("NameError: name 'x' is not defined")
            terminal.wait_for("It is gone.")
            assert leave(terminal) == 0
    assert asked(server, 2) == ["Show x."]


@pytest.mark.long
def test_a_chat_is_listed_shown_and_replayed(tmp_path: Path):
    replies = [python("x = 41"), Text("It is set."), python("print(x + 1)"), Text("There it is.")]
    with ScriptedServer.in_thread(replies) as server:
        command, variables = codeact(server)
        done = codeact_team(*command, cwd=tmp_path, stdin="Set x.\nAdd one.\n/run print(x)\n", **variables)
    assert done.returncode == 0, done.stderr
    (run,) = kept(tmp_path)
    assert (run["state"], run["task"], run["steps"]) == ("answered", "Set x.", 3)
    shown = codeact_team("show", "last", cwd=tmp_path)
    assert "Set x." in shown.stdout
    assert "Add one." in shown.stdout
    assert "There it is." in shown.stdout
    replayed = codeact_team("replay", "last", cwd=tmp_path)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert "as recorded" in replayed.stdout
    page = codeact_team("show", "last", "--html", "page.html", cwd=tmp_path)
    assert page.returncode == 0
    assert "Add one." in (tmp_path / "page.html").read_text()


def test_a_chat_without_a_message_is_not_kept(tmp_path: Path):
    assert codeact_team("chat", talker(tmp_path, ["Hi."]), cwd=tmp_path, stdin="/help\n").returncode == 0
    assert kept(tmp_path) == []
    told = codeact_team(*ON, cwd=tmp_path)
    assert told.returncode == 2
    assert "begin one by `codeact-team chat CONFIG`" in told.stderr


@pytest.mark.long
def test_quietly_a_chat_prints_its_answers_only(tmp_path: Path):
    with ScriptedServer.in_thread([Text("Four."), Text("Nine."), Text("Sixteen.")]) as server:
        command, variables = codeact(server)
        done = codeact_team(*command, "-q", cwd=tmp_path, stdin="2 * 2?\n3 * 3?\n", **variables)
        limit = ["-s", "config.max_steps=7"]
        more = codeact_team(*ON, "-q", *limit, cwd=tmp_path, stdin="4 * 4?\n", **variables)
    # a limit may change: the journal knows all that was asked
    assert "the config has changed" not in more.stderr
    assert (done.stdout, more.stdout) == ("Four.\nNine.\n", "Sixteen.\n")


@pytest.mark.long
def test_files_of_a_chat_are_delivered_as_they_are_made(tmp_path: Path):
    replies = [
        python("open('a.txt', 'w').write('1')"),
        Text("Made."),
        python("open('b.txt', 'w').write('2')"),
        Text("Made."),
    ]
    with ScriptedServer.in_thread(replies) as server:
        command, variables = codeact(server)
        done = codeact_team(*command, "--out", "out", cwd=tmp_path, stdin="One.\nTwo.\n", **variables)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.txt", "b.txt"]


@pytest.mark.long
def test_undo_brings_back_variables_files_and_the_conversation_and_stays_undone(tmp_path: Path):
    show = python('import glob\nprint(x, glob.glob("*.txt"))')
    replies = [
        python("x = 41\nopen('a.txt', 'w').close()"),
        Text("It is set."),
        python("x = 0\nopen('b.txt', 'w').close()"),
        Text("It is nought."),
        show,
        Text("As it was."),
        show,
        Text("Still so."),
        show,
        Text("It is gone."),
    ]
    with ScriptedServer.in_thread(replies) as server:
        command, variables = codeact(server)
        with on_a_terminal(*command, cwd=tmp_path, **variables) as terminal:
            ask(terminal, "Set x.")
            terminal.wait_for("It is set.\n\n── answered")
            ask(terminal, "Make it nought.")
            terminal.wait_for("It is nought.\n\n── answered")
            ask(terminal, "/undo")
            terminal.wait_for("the last message is undone")
            ask(terminal, "Show x.")
            terminal.wait_for("\n41 ['a.txt']\n")
            terminal.wait_for("As it was.\n\n── answered")
            kill(terminal)
        with on_a_terminal(*ON, cwd=tmp_path, **variables) as terminal:
            terminal.wait_for("As it was.\n\n── answered")
            assert "nought" not in terminal.text
            ask(terminal, "Show x again.")
            terminal.wait_for("\n41 ['a.txt']\n")
            terminal.wait_for("Still so.")
            for _ in range(3):
                ask(terminal, "/undo")
                terminal.wait_for("the last message is undone")
            ask(terminal, "/undo")
            terminal.wait_for("nothing to undo")
            ask(terminal, "Show x once more.")
            terminal.wait_for("NameError: name 'x' is not defined")
            assert leave(terminal) == 0
    for request in (4, 6):
        assert "Make it nought." not in asked(server, request)
    assert asked(server, 8) == ["Show x once more."]
    replayed = codeact_team("replay", "last", cwd=tmp_path, XDG_STATE_HOME=str(tmp_path / "state"))
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr


def test_the_files_of_all_messages_are_listed_and_saved(tmp_path: Path):
    replies = [
        python("open('a.txt', 'w').write('1')"),
        Text("Made."),
        python("open('b.txt', 'w').write('22')"),
        Text("Made."),
    ]
    with ScriptedServer.in_thread(replies) as server:
        command, variables = codeact(server)
        entered = "One.\nTwo.\n/files\n/save saved\n/save /proc/x\n"
        done = codeact_team(*command, "-q", cwd=tmp_path, stdin=entered, **variables)
    assert done.stdout == (
        f"Made.\nMade.\nmade {workspace(tmp_path)}/a.txt · 1 byte\nmade {workspace(tmp_path)}/b.txt · 2 bytes\n"
        "made saved/a.txt · 1 byte\nmade saved/b.txt · 2 bytes\n"
    )
    assert "error: the directory /proc/x for files cannot be made" in done.stderr
    assert (tmp_path / "saved" / "b.txt").read_text() == "22"


def workspace(folder: Path) -> Path:
    """The workspace of the only run, as it is named from there."""
    (found,) = (folder / ".codeact-team" / "runs" / "workspaces").iterdir()
    return found.relative_to(folder)


@pytest.mark.long
def test_files_that_code_makes_again_when_a_chat_is_resumed_are_no_news(tmp_path: Path):
    replies = [python("open('a.txt', 'w').write('1')"), Text("Made."), python("print(2)"), Text("Two.")]
    with ScriptedServer.in_thread(replies) as server:
        command, variables = codeact(server)
        assert codeact_team(*command, cwd=tmp_path, stdin="One.\n", **variables).returncode == 0
        done = codeact_team(*ON, "--json", cwd=tmp_path, stdin="Two.\n", **variables)
        listed = codeact_team(*ON, "-q", cwd=tmp_path, stdin="/files\n", **variables)
    first, second = [line for line in lines(done.stdout) if line["type"] == "result"]
    assert [(file["path"], file["change"]) for file in first["files"]] == [("a.txt", "made")]
    assert second["files"] == []
    assert listed.stdout.endswith(f"made {workspace(tmp_path)}/a.txt · 1 byte\n")


@pytest.mark.long
def test_work_that_took_too_long_is_not_begun_again(tmp_path: Path):
    replies: Sequence[AnyReply] = [
        python("x = 41"),
        Slow(60, Text("late")),
        HttpError(401),
        Text("Yes?"),
        Text("And now?"),
    ]
    with ScriptedServer.in_thread(replies) as server:
        command, variables = codeact(server)
        entered = "Set x.\nAgain.\nHello?\n"
        first = codeact_team(*command, "--timeout", "3", cwd=tmp_path, stdin=entered, **variables)
        second = codeact_team(*ON, cwd=tmp_path, stdin="Hello again?\n/run print(x)\n", **variables)
    assert "the time limit of 3 seconds is reached" in first.stdout
    # the second message could not be worked on
    assert (first.returncode, second.returncode) == (1, 0), second.stderr
    assert second.stdout.endswith("\n41\n")
    before, after = asked(server, 3), asked(server, 4)
    assert after[: len(before)] == before


@pytest.mark.long
@pytest.mark.parametrize("fatal", range(1, 7))
def test_a_chat_that_is_killed_at_any_request_comes_to_the_same(tmp_path: Path, fatal: int):
    messages = ["Set x.", "Add one.", "Show x."]
    replies = [
        python("x = 41\nopen('log.txt', 'a').write('set ')"),
        Text("Set."),
        python("x += 1\nopen('log.txt', 'a').write('added ')"),
        Text("Added."),
        python("print(x, open('log.txt').read())"),
        Text("Shown."),
    ]
    victims: list[Forked] = []
    asked_for: list[list[str]] = []

    def answer(request: Body) -> AnyReply:
        said = [message["content"] for message in request["messages"]]
        if said not in asked_for:
            asked_for.append(said)
        if len(asked_for) == fatal and victims:
            victims.pop().kill()
            return Slow(60, Text("late"))
        return replies[asked_for.index(said)]

    with ScriptedServer.in_thread(answer) as server:
        command, variables = codeact(server)
        with start(
            [*COMMAND[1:], *command],
            cwd=tmp_path,
            environment=environment(**variables),
            stdin=subprocess.PIPE,
        ) as process:
            victims.append(process)
            process.communicate("".join(f"{message}\n" for message in messages).encode(), timeout=60)
        (run,) = (tmp_path / ".codeact-team" / "runs").glob("2*")
        journal = (run / "journal.jsonl").read_text()
        begun = sum(message in journal for message in messages)
        rest = "".join(f"{message}\n" for message in messages[begun:])
        done = codeact_team(*ON, cwd=tmp_path, stdin=rest, **variables)
    assert done.returncode == 0, done.stderr
    assert "\n42 set added \n" in done.stdout
    assert "Shown." in done.stdout
    assert len(asked_for) == 6
