"""A run that nobody is there to answer is parked, answered by a command of its own, and goes on."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import fork_server
from support.command_line import COMMAND, codeact_team, environment, in_this_process, lines, talker
from support.openai_server import AnyReply, Body, ScriptedServer, Text
from support.waiting import until

from codeact_team.journal.log import read_log
from codeact_team.journal.recorded_run import RecordedRun
from codeact_team.journal.run_directory import find_run

CLIENT = {
    "provider": "autogen_ext.models.openai.OpenAIChatCompletionClient",
    "config": {"model": "gpt-4o", "max_retries": 0},
}
ASK_FOR_REFUNDS: list[dict[str, Any]] = [{"tool": "refund", "decision": "ask", "reason": "it is money"}]
ASK_FOR_CODE: list[dict[str, Any]] = [{"code": "*refund*", "decision": "ask"}]
EXECUTOR: dict[str, Any] = {
    "provider": "codeact_team.ConfinedSessionCodeExecutor",
    "config": {"confinement": "best_effort", "work_dir": "work", "packages": []},
}
WITH_A_NETWORK: dict[str, Any] = {
    "provider": "codeact_team.DockerSessionCodeExecutor",
    "config": {"network": "bridge", "packages": []},
}
PARKED, STOPPED = 3, 130


def agent(name: str, rules: list[dict[str, Any]], executor: Any = EXECUTOR) -> dict[str, Any]:
    config = {
        "name": name,
        "model_client": CLIENT,
        "system_message": f"You are {name}. $tools",
        "tools": [f"parking_tools:{name}" for name in ("refund", "count", "hang")],
        "approval": rules,
        "approval_timeout": "park",
        "code_executor": executor,
    }
    return {"provider": "codeact_team.CodeActAgent", "config": config}


class Case:
    """A folder with a config in it, and a model that answers with blocks of code, one after the other."""

    def __init__(
        self, folder: Path, server: ScriptedServer, rules: list[dict[str, Any]], executor: Any = EXECUTOR
    ) -> None:
        self.folder = folder
        shutil.copy(Path(__file__).with_name("parking_tools.py"), folder)
        self.variables = {
            "OPENAI_API_KEY": "sk-of-the-test-0123456789",
            "OPENAI_BASE_URL": server.base_url,
        }
        self.write(agent("coder", rules, executor))

    def write(self, config: dict[str, Any]) -> None:
        (self.folder / "config.json").write_text(json.dumps(config))

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.command("run", "config.json", "Go.", "--allow", "parking_tools", *arguments)

    def resume(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.command("resume", "last", "--allow", "parking_tools", *arguments)

    def answer(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return in_this_process("answer", "last", "--run-dir", str(self.runs), *arguments, stdin=stdin)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return codeact_team(*arguments, cwd=self.folder, **self.variables)

    def open(self) -> list[dict[str, Any]]:
        return lines(self.answer("--json").stdout)

    def state(self) -> str:
        (run,) = lines(in_this_process("runs", "--run-dir", str(self.runs), "--json").stdout)
        return run["state"]

    @property
    def runs(self) -> Path:
        return self.folder / ".codeact-team" / "runs"

    @property
    def effects(self) -> list[str]:
        file = self.folder / "effects.txt"
        return file.read_text().splitlines() if file.exists() else []


def saying(*blocks: str) -> Callable[[Body], AnyReply]:
    def reply(body: Body) -> AnyReply:
        said = sum(message["role"] == "assistant" for message in body["messages"])
        return Text(f"```python\n{blocks[min(said, len(blocks) - 1)]}\n```")

    return reply


@pytest.mark.long
def test_a_call_waits_for_its_approval_until_another_day_in_another_place(tmp_path: Path) -> None:
    blocks = saying(
        "x = [1]\nopen('log.txt', 'a').write('one\\n')",
        "open('log.txt', 'a').write('two\\n')\ntold = tools.refund(order='A')\nx.append(2)\n"
        "final_answer(f'{told} {x} {open(\"log.txt\").read().split()}')",
    )
    (tmp_path / "here").mkdir()
    with ScriptedServer.in_thread(blocks) as server:
        case = Case(tmp_path / "here", server, ASK_FOR_REFUNDS)
        told = lines(case.run("--json").stdout)
        (parked,) = [event for event in told if event["type"] == "run_parked"]
        (question,) = parked["questions"]
        assert question["text"] == (
            'coder wants to call refund:\n| order: "A"\nYou are asked because: it is money'
        )
        assert (told[-1]["ending"], told[-1]["exit_code"], told[-1]["accepted"]) == ("parked", PARKED, False)
        assert f"codeact-team answer {parked['record']}" in told[-1]["stop_reason"]
        asked = len(server.requests)

        case.folder = (tmp_path / "here").rename(tmp_path / "there")
        again = case.resume()
        assert again.returncode == PARKED
        assert f"question {question['n']}: coder wants to call refund" in again.stderr
        assert case.state() == "parked"
        assert case.open() == [question]

        for wrong in ("maybe", "yes please"):
            said = case.answer(wrong)
            assert said.returncode == 2
            assert f"'{wrong}' is not an answer to question {question['n']}" in said.stderr
        assert "the run has no open question 1; open are:" in case.answer("yes", "-n", "1").stderr
        assert case.answer("yes").returncode == 0
        assert "all questions of the run are answered: resume it" in case.answer("no").stderr
        assert case.state() == "ready"
        shown = case.command("show", "last").stderr
        assert re.search(
            r"^its question is answered; to go on: codeact-team resume \S+ --allow parking_tools$",
            shown,
            re.MULTILINE,
        )
        assert case.effects == []

        log = case.folder / "work" / "log.txt"
        left = log.read_text()
        log.write_text("mine\n")
        assert "somebody has changed or removed log.txt" in case.resume("-q").stderr
        log.write_text(left)
        (case.folder / "work" / "notes.txt").write_text("mine, too\n")

        ended = case.resume("-q")
        assert (ended.returncode, ended.stdout) == (0, "refunded A [1, 2] ['one', 'two']\n")
        assert len(server.requests) == asked, "what the model has said is known"
    assert case.effects == ["refund A"]
    asked_for = [
        each for each in RecordedRun(find_run("last", case.runs)).effects() if each.kind == "approval"
    ]
    assert [(each.outcome, each.error, each.is_repeated) for each in asked_for] == [
        ({"allowed": True, "reason": "", "always": False}, None, is_repeated) for is_repeated in (False, True)
    ]
    assert log.read_text() == "one\ntwo\n"
    assert (case.folder / "work" / "notes.txt").read_text() == "mine, too\n"
    assert "is not waiting for an answer: it is answered" in case.answer("yes").stderr


@pytest.mark.long
def test_calls_side_by_side_are_asked_about_at_once_and_what_else_is_under_way_comes_to_its_end(
    tmp_path: Path,
) -> None:
    blocks = saying(
        "import asyncio\ntold = await asyncio.gather(tools.refund.aio(order='A'), tools.count.aio(), "
        "tools.refund.aio(order='B'), return_exceptions=True)\nfinal_answer(f'{told}')"
    )
    with ScriptedServer.in_thread(blocks) as server:
        case = Case(tmp_path, server, ASK_FOR_REFUNDS)
        assert case.run("-q").returncode == PARKED
        assert case.effects == ["counted"]
        first, second = case.open()
        assert '"A"' in first["text"]
        assert '"B"' in second["text"]
        assert (
            f"choose one of the open questions by --question: {first['n']}, {second['n']}"
            in case.answer("yes").stderr
        )
        assert case.answer("-n", str(second["n"])).stdout.count("wants to call") == 1
        said = case.answer("no", "not", "today", "--question", str(first["n"]), "--json")
        assert json.loads(said.stdout) == {
            "answered": first["n"],
            "key": first["key"],
            "open": [second["n"]],
        }
        # the other one is still asked, and has its number
        assert case.resume("-q").returncode == PARKED
        assert case.open() == [second]
        case.answer("yes")
        ended = case.resume("-q")
    assert ended.returncode == 0
    assert re.search(r"not today.*, 3, 'refunded B'", ended.stdout), ended.stdout
    assert case.effects == ["counted", "refund B"]


@pytest.mark.long
def test_other_agents_go_on_until_they_wait_as_well(tmp_path: Path) -> None:
    def reply(body: Body) -> AnyReply:
        if "You are quick." in json.dumps(body["messages"]):
            return Text("```python\nfinal_answer(tools.refund(order='A'))\n```")
        return Text("```python\ntools.count()\nfinal_answer(tools.refund(order='B'))\n```")

    confined = {"provider": EXECUTOR["provider"], "config": {**EXECUTOR["config"], "work_dir": None}}
    names = ["quick", "slow"]
    config: dict[str, Any] = {
        "participants": [agent(name, ASK_FOR_REFUNDS, confined) for name in names],
        "graph": {
            "nodes": {name: {"name": name, "edges": []} for name in names},
            "default_start_node": None,
        },
    }
    provider = "autogen_agentchat.teams.GraphFlow"
    with ScriptedServer.in_thread(reply) as server:
        case = Case(tmp_path, server, ASK_FOR_REFUNDS)
        case.write({"provider": provider, "component_type": "team", "config": config})
        assert case.run("-q").returncode == PARKED
        assert sorted(question["agent"] for question in case.open()) == names
        for question in case.open():
            assert case.answer("yes", "-n", str(question["n"])).returncode == 0
        asked = len(server.requests)
        assert case.resume("-q").returncode == 0
        assert len(server.requests) == asked
    assert sorted(case.effects) == ["counted", "refund A", "refund B"]


@pytest.mark.long
def test_the_same_question_asked_again_is_another_one(tmp_path: Path) -> None:
    blocks = saying(
        "first = tools.refund(order='A')\ntry:\n    second = tools.refund(order='A')\nexcept Exception as error:\n"
        "    second = str(error)\nfinal_answer(f'{first}, {second}')"
    )
    with ScriptedServer.in_thread(blocks) as server:
        case = Case(tmp_path, server, ASK_FOR_REFUNDS)
        case.run("-q")
        (first,) = case.open()
        case.answer("yes")
        assert case.resume("-q").returncode == PARKED
        (second,) = case.open()
        assert second["n"] != first["n"]
        case.answer("no", "once is enough")
        ended = case.resume("-q")
    assert ended.returncode == 0
    assert ended.stdout.startswith("refunded A, ")
    assert "once is enough" in ended.stdout
    assert case.effects == ["refund A"]


@pytest.mark.long
def test_questions_that_are_open_together_are_answered_by_one_command(tmp_path: Path) -> None:
    blocks = saying(
        "import asyncio\ntold = await asyncio.gather(*(tools.refund.aio(order=order) for order in 'AB'))\n"
        "final_answer(f'{told}')"
    )
    with ScriptedServer.in_thread(blocks) as server:
        case = Case(tmp_path, server, ASK_FOR_REFUNDS)
        parked = case.run("-q")
        assert parked.returncode == PARKED
        assert "--all ANSWER; --question N in place of --all answers one" in parked.stderr
        assert "ANSWER, which is yes, no (a reason may follow) or always; --all" in case.answer().stderr
        assert "leave --question out" in case.answer("yes", "--all", "-n", "1").stderr
        assert case.answer("yes", "--all").stdout.count("is answered") == 2
        assert case.resume("-q").returncode == 0
    assert sorted(case.effects) == ["refund A", "refund B"]


@pytest.mark.long
def test_an_answer_for_one_call_counts_more_than_a_grant_for_all(tmp_path: Path) -> None:
    blocks = saying(
        "import asyncio\ntold = await asyncio.gather(tools.refund.aio(order='A'), tools.refund.aio(order='B'), "
        "return_exceptions=True)\nfinal_answer(f'{told} {tools.refund(order=\"C\")}')"
    )
    with ScriptedServer.in_thread(blocks) as server:
        case = Case(tmp_path, server, ASK_FOR_REFUNDS)
        case.run("-q")
        first, second = case.open()
        case.answer("always", "-n", str(first["n"]))
        case.answer("no", "not that one")
        ended = case.resume("-q")
    assert (ended.returncode, "not that one" in ended.stdout) == (0, True)
    assert second["text"].count('"B"') == 1
    assert case.effects == ["refund A", "refund C"]


@pytest.mark.long
def test_what_a_rule_has_allowed_before_stays_used_up(tmp_path: Path) -> None:
    blocks = saying(
        "tools.refund(order='A')",
        "told = tools.refund(order='B')\ntry:\n    tools.refund(order='C')\nexcept Exception as error:\n"
        "    told += f', {error}'\nfinal_answer(told)",
    )
    rules = [{"tool": "refund", "decision": "allow", "at_most": 2}, *ASK_FOR_REFUNDS]
    with ScriptedServer.in_thread(blocks) as server:
        case = Case(tmp_path, server, rules)
        assert case.run("-q").returncode == PARKED
        case.answer("no", "that is enough")
        ended = case.resume("-q")
    assert ended.stdout.startswith("refunded B, ")
    assert "that is enough" in ended.stdout
    assert case.effects == ["refund A", "refund B"]


@pytest.mark.long
def test_code_waits_for_its_approval(tmp_path: Path) -> None:
    blocks = saying("tools.refund(order='A')", "final_answer('I leave it.')")
    with ScriptedServer.in_thread(blocks) as server:
        case = Case(tmp_path, server, ASK_FOR_CODE)
        assert case.run("-q").returncode == PARKED
        shown = case.answer()
        assert "coder wants to run python code:\n| tools.refund(order='A')\n" in shown.stdout
        case.answer("no", "ask the shop first")
        assert case.resume("-q").stdout == "I leave it.\n"
        assert "ask the shop first" in json.dumps(server.requests[-1])
    assert case.effects == []


@pytest.mark.long
def test_all_of_the_code_that_waits_for_its_approval_is_shown(tmp_path: Path) -> None:
    block = "\n".join(["# refund", *(f"x = {number}" for number in range(400)), f"y = {'1' * 30_000!r}"])
    with ScriptedServer.in_thread(saying(block)) as server:
        case = Case(tmp_path, server, ASK_FOR_CODE)
        assert case.run("-q").returncode == PARKED
        shown = case.answer().stdout
    quoted = "".join(f"\n| {line}" for line in block.split("\n"))
    assert quoted in shown.replace("\n|↳ ", "")


@pytest.mark.docker
@pytest.mark.long
def test_where_code_could_reach_more_than_its_workspace_no_answer_reaches_it(tmp_path: Path) -> None:
    with ScriptedServer.in_thread(saying("final_answer(tools.refund(order='A'))")) as server:
        case = Case(tmp_path, server, ASK_FOR_REFUNDS, WITH_A_NETWORK)
        parked = case.run("-q")
        assert parked.returncode == PARKED
        assert (
            "(no answer reaches it: the code that asked was stopped half-way, and is not repeated."
            in parked.stderr
        )
        assert "to answer: " not in parked.stderr
        assert "to go on: codeact-team resume" in case.answer().stderr
        answered = case.answer("yes")
    assert answered.returncode == 2
    assert "Resume the run on a terminal, to be asked anew" in answered.stderr


@pytest.mark.long
def test_a_person_who_is_not_there_is_asked_for_a_text_later(tmp_path: Path) -> None:
    person = {"provider": "autogen_agentchat.agents.UserProxyAgent", "config": {"name": "client"}}
    with ScriptedServer.in_thread([Text("Which size?")]) as server:
        case = Case(tmp_path, server, ASK_FOR_CODE)
        case.variables |= {"LOCAL_MODEL": "scripted-model", "LOCAL_BASE_URL": server.base_url}
        helper = json.loads((tmp_path / talker(tmp_path)).read_text())
        case.write(
            {
                "provider": "autogen_agentchat.teams.RoundRobinGroupChat",
                "component_type": "team",
                "config": {"participants": [helper, person], "max_turns": 2},
            }
        )
        assert case.run("-q").returncode == PARKED
        (question,) = case.open()
        assert (question["kind"], question["agent"]) == ("person_input", "client")
        assert (
            "helper has said:\n| Which size?\nclient is asked: Enter your response: " in case.answer().stdout
        )
        assert case.resume("-q").returncode == PARKED
        assert case.open() == [question]
        case.answer("-", stdin="yes: the\nlarge one\n")
        told = lines(case.resume("--json").stdout)
    assert told[-1]["exit_code"] == 1
    said = [event["message"]["content"] for event in told if event["type"] == "message"]
    assert said[-1] == "yes: the\nlarge one"


@pytest.mark.long
def test_a_run_that_is_not_recorded_cannot_be_parked(tmp_path: Path) -> None:
    with ScriptedServer.in_thread(saying("tools.refund(order='A')", "final_answer('no')")) as server:
        case = Case(tmp_path, server, ASK_FOR_CODE)
        ran = case.run("-q", "--no-record")
        assert ran.stdout == "no\n"
        assert "This run cannot be parked, as it is not recorded" in ran.stderr
        asked = json.dumps(server.requests[-1])
    assert "the user was not there to approve it" in asked
    assert "recorded" not in asked, "a model knows nothing of that"


async def test_ctrl_c_stops_a_run_that_waits_for_what_is_under_way(tmp_path: Path) -> None:
    blocks = saying("import asyncio\nawait asyncio.gather(tools.refund.aio(order='A'), tools.hang.aio())")
    with ScriptedServer.in_thread(blocks) as server:
        case = Case(tmp_path, server, ASK_FOR_REFUNDS)
        command = [*COMMAND[1:], "run", "config.json", "Go.", "--allow", "parking_tools"]
        with fork_server.start(
            command, cwd=tmp_path, environment=environment(**case.variables), stdin=subprocess.DEVNULL
        ) as process:
            await until(lambda: case.effects == ["hangs"])
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
            assert process.wait(60) == STOPPED
        assert case.state() == "stopped"
        assert "is not waiting for an answer: it is stopped" in case.answer("yes").stderr


@pytest.mark.long
def test_files_of_parked_code_are_delivered_when_it_has_ended(tmp_path: Path) -> None:
    blocks = saying(
        "open('made.txt', 'w').write('made')",
        "import os\nopen('partial.tmp', 'w').write('half')\ntold = tools.refund(order='A')\n"
        "os.rename('partial.tmp', 'whole.txt')\nfinal_answer(told)",
    )
    with ScriptedServer.in_thread(blocks) as server:
        case = Case(tmp_path, server, ASK_FOR_REFUNDS)
        assert case.run("-q", "--out", "out").returncode == PARKED
        assert [path.name for path in (tmp_path / "out").iterdir()] == ["made.txt"]
        case.answer("yes")
        assert case.resume("-q", "--out", "out").returncode == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"made.txt", "whole.txt"}


def killed(case: Case, nth: int, how: str, *arguments: str) -> None:
    """Kill the command when it writes an entry of the journal, its ``nth``."""
    program = [str(Path(__file__).with_name("killed_run.py")), str(nth), how, *arguments]
    with fork_server.start(
        program, cwd=case.folder, environment=environment(**case.variables), stdin=subprocess.DEVNULL
    ) as process:
        process.communicate(timeout=100)
        assert process.wait(100) == -signal.SIGKILL


def entries(case: Case) -> list[dict[str, Any]]:
    return list(read_log(find_run("last", case.runs).lines))


@pytest.mark.long
def test_a_call_that_may_have_been_made_is_asked_about_anew(tmp_path: Path) -> None:
    blocks = saying(
        "for attempt in range(2):\n    try:\n        told = tools.refund(order='A')\n"
        "    except Exception as error:\n        told = str(error)\nfinal_answer(told)"
    )
    with ScriptedServer.in_thread(blocks) as server:
        (tmp_path / "case").mkdir()
        case = Case(tmp_path / "case", server, ASK_FOR_REFUNDS)
        case.run("-q")
        (first,) = case.open()
        case.answer("yes")
        known = len(entries(case))
        shutil.copytree(case.folder, tmp_path / "copy")
        assert case.resume("-q").returncode == PARKED
        made = [n for n, entry in enumerate(entries(case), 1) if entry.get("end") == "tool_call"][1]
        shutil.rmtree(case.folder)
        (tmp_path / "copy").rename(case.folder)

        # the money is gone, and that is not written down
        killed(case, made - known, "torn", "resume", "last", "-q", "--allow", "parking_tools")
        assert case.effects == ["refund A"]
        assert case.resume("-q").returncode == PARKED
        (second,) = case.open()
        assert second["n"] != first["n"]
        assert case.effects == ["refund A"]
        case.answer("no", "it was")
        assert "it was" in case.resume("-q").stdout
    assert case.effects == ["refund A"]


def parked_and_killed(folder: Path, server: ScriptedServer, nth: int, how: str) -> None:
    folder.mkdir()
    case = Case(folder, server, ASK_FOR_REFUNDS)
    killed(case, nth, how, "run", "config.json", "Go.", "-q", "--allow", "parking_tools")
    assert case.resume("-q").returncode == PARKED
    assert case.effects == []
    assert case.answer("yes").returncode == 0
    assert case.resume("-q").stdout == "refunded A\n"
    assert case.effects == ["refund A"]


REFUNDS = saying("final_answer(tools.refund(order='A'))")


def entries_while_parking(folder: Path, server: ScriptedServer) -> list[int]:
    folder.mkdir()
    case = Case(folder, server, ASK_FOR_REFUNDS)
    case.run("-q")
    (question,) = case.open()
    kept = entries(case)
    asked = next(n for n, entry in enumerate(kept, 1) if "begin" in entry and entry["span"] == question["n"])
    return [*range(asked, len(kept) + 1)]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_run_may_be_killed_at_each_moment_of_its_parking(tmp_path: Path) -> None:
    with ScriptedServer.in_thread(REFUNDS) as server:
        for nth in entries_while_parking(tmp_path / "alone", server):
            for how in ("torn", "after"):
                parked_and_killed(tmp_path / f"{nth}-{how}", server, nth, how)


NOTES = saying("open('log.txt', 'a').write('refund\\n')\nfinal_answer(open('log.txt').read())")


def stopped_while_resumed(case: Case, nth: int, how: str) -> bool:
    """Stop the resume of a run that was parked and answered with an entry, and resume it; whether there was such an entry."""
    resume = ("resume", "last", "-q", "--allow", "parking_tools", "--out", "out")
    program = [str(Path(__file__).with_name("killed_run.py")), str(nth), how, *resume]
    with fork_server.start(
        program, cwd=case.folder, environment=environment(**case.variables), stdin=subprocess.DEVNULL
    ) as process:
        process.communicate(timeout=100)
        is_stopped = process.wait(100) != 0
    told = case.resume("-q", "--out", "out")
    if told.returncode == PARKED:
        # the answer had been given to code of which nobody knows whether it has begun
        assert case.answer("yes").returncode == 0
        told = case.resume("-q", "--out", "out")
    assert (told.returncode, told.stdout) == (0, "refund\n"), (nth, how, told.stderr)
    assert (case.folder / "out" / "log.txt").read_text() == "refund\n"
    return is_stopped


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("ways", [("torn", "after"), ("INT", "TERM")], ids=["killed", "told"])
def test_a_suspended_run_may_be_stopped_at_each_entry_of_its_resume(
    tmp_path: Path, ways: tuple[str, str]
) -> None:
    (tmp_path / "case").mkdir()
    with ScriptedServer.in_thread(NOTES) as server:
        case = Case(tmp_path / "case", server, ASK_FOR_CODE)
        assert case.run("-q").returncode == PARKED
        assert case.answer("yes").returncode == 0
        shutil.copytree(case.folder, tmp_path / "answered")
        nth = 1
        while stopped_while_resumed(case, nth, ways[nth % 2]):
            shutil.rmtree(case.folder)
            shutil.copytree(tmp_path / "answered", case.folder)
            nth += 1
    assert nth > 5


@pytest.mark.parametrize("quiet", [pytest.param(True, marks=pytest.mark.long), False])
def test_a_parked_run_ends_with_its_question_and_with_nothing_of_what_was_stopped(
    tmp_path: Path, quiet: bool
) -> None:
    with ScriptedServer.in_thread(saying("print('help')", "tools.refund(order='A')")) as server:
        case = Case(tmp_path, server, ASK_FOR_REFUNDS)
        ran = case.run(*(["-q"] if quiet else []))
    assert ran.returncode == PARKED
    assert re.search(
        r"\nto answer: codeact-team answer (\S+) ANSWER\nto go on: codeact-team resume \1 --allow parking_tools\n\Z",
        ran.stderr,
    )
    assert "coder wants to call refund" in ran.stderr
    for stopped in ("KeyboardInterrupt", "cancelled)", "best answer", "codeact-team"):
        assert stopped not in ran.stdout
    assert ("── parked" in ran.stdout) is not quiet
    page = tmp_path / "run.html"
    case.command("show", "last", "--html", str(page))
    assert "KeyboardInterrupt" not in page.read_text()
