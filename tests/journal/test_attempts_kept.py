"""Attempts side by side in a run that is killed, parked, or goes on with higher limits."""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from killing import alone, begun_and_ended, check, last_run, resume, run, start
from stories import ATTEMPTS, Story, coder, python, said_before, text_of
from support.openai_server import AnyReply, Body, Json, ScriptedServer, Text

from codeact_team.journal.log import read_log


def resume_hint(*steps: str) -> Any:
    """A model whose attempts each have a ``number``, and that chooses the second."""
    begun = count(1)

    def reply(body: Body) -> AnyReply:
        if "Choose the one whose answer is to be given." in text_of(body):
            return Json({"reason": "It is as good as any.", "answer": 2})
        if "Give the best answer" in text_of(body):
            return Text("It is not known yet.")
        said = said_before(body)
        return python(steps[said] if said else f"number = {next(begun)}\n{steps[0]}")

    return reply


def events_of(folder: Path, kind: str) -> list[Any]:
    """What was told since the run was resumed last."""
    told: list[Any] = []
    for entry in read_log(last_run(folder).lines):
        if "resumed" in entry:
            told.clear()
        if entry.get("type") == kind:
            told.append(entry)
    return told


@pytest.mark.long
def test_after_one_is_chosen_only_its_code_runs_again(tmp_path: Path) -> None:
    with ScriptedServer.in_thread(ATTEMPTS.reply) as server:
        alone(tmp_path / "alone", server, ATTEMPTS)
        entries = list(read_log(last_run(tmp_path / "alone").lines))
        _, answered = begun_and_ended(entries, "promotion")
        folder = tmp_path / "killed"
        folder.mkdir()
        start(folder, server, ATTEMPTS, answered)
        check(folder, ATTEMPTS, *resume(folder, server))
    # in its next turn, and nothing in the forks of that
    assert [told["blocks"] for told in events_of(folder, "blocks_repeated")] == [3]


@pytest.mark.long
def test_before_that_the_code_of_each_attempt_runs_again_in_its_fork(tmp_path: Path) -> None:
    with ScriptedServer.in_thread(ATTEMPTS.reply) as server:
        alone(tmp_path / "alone", server, ATTEMPTS)
        entries = list(read_log(last_run(tmp_path / "alone").lines))
        promotion, _ = begun_and_ended(entries, "promotion")
        folder = tmp_path / "killed"
        folder.mkdir()
        start(folder, server, ATTEMPTS, promotion)
        check(folder, ATTEMPTS, *resume(folder, server))
    assert [told["blocks"] for told in events_of(folder, "blocks_repeated")] == [3, 3, 3]


@pytest.mark.long
def test_attempts_go_on_with_higher_limits(tmp_path: Path) -> None:
    reply = resume_hint("print(number)", "number += 10\nprint(number)", "final_answer(number > 10)")
    story = Story(coder(attempts=2, tools=[], max_steps=2), reply, "")
    with ScriptedServer.in_thread(story.reply) as server:
        assert start(tmp_path, server, story, 0)[:2] == (1, "It is not known yet.\n")
        code, stdout, stderr = resume(tmp_path, server, 0, "after", "-s", "config.max_steps=5")
    assert (code, stdout) == (0, "true\n"), stderr


@pytest.mark.long
def test_attempts_wait_for_a_person(tmp_path: Path) -> None:
    reply = resume_hint("open('log.txt', 'a').write('x')\nn = tools.double(amount=7)", "final_answer(n)")
    approval = [{"tool": "double", "decision": "ask"}]
    limits = {"repeatable": ["double"]}
    config = coder(
        attempts=2,
        tools=["killed_run:double"],
        tool_limits=limits,
        approval=approval,
        approval_timeout="park",
    )
    story = Story(config, reply, "14")
    with ScriptedServer.in_thread(story.reply) as server:
        code, _, stderr = start(tmp_path, server, story, 0)
        assert code == 3, stderr
        asked = re.findall(r"question (\d+): coder wants to call double", stderr)
        assert len(asked) == 2
        for number in asked:
            run(tmp_path, server, 0, "after", "answer", "last", "--question", number, "yes")
        code, stdout, stderr = resume(tmp_path, server)
    assert (code, stdout) == (0, "14\n"), stderr
    assert (tmp_path / "work" / "log.txt").read_text() == "x"


@pytest.mark.long
def test_a_run_with_attempts_is_replayed(tmp_path: Path) -> None:
    with ScriptedServer.in_thread(ATTEMPTS.reply) as server:
        start(tmp_path, server, ATTEMPTS, 0)
        code, stdout, stderr = run(
            tmp_path, server, 0, "after", "replay", "last", "--allow", "killed_run", "--allow-unsafe"
        )
    assert code == 0, stderr
    assert "as recorded · 15 calls of code" in stdout
