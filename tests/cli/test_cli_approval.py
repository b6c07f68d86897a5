"""What a person at a terminal is asked, and what comes of the answers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.command_line import environment
from support.cost import SHORT
from support.fork_server import start
from support.terminal import CTRL_C, CTRL_D, ENTER, Terminal, on_a_terminal

DRIVER = [sys.executable, str(Path(__file__).with_name("approval_driver.py"))]
ASK = {"tool": "*", "decision": "ask"}
ASK_FOR_CODE = {"code": "*", "decision": "ask", "reason": "new here"}
REFUND: dict[str, Any] = {"name": "orders.refund", "arguments": {"order": "A-17", "amount": 250}}


def plan(folder: Path, *asked: dict[str, Any], rules: Sequence[dict[str, Any]], noise: str = "") -> str:
    file = str(folder / "records.json")
    return json.dumps({"rules": rules, "asked": asked, "noise": noise, "file": file})


@contextmanager
def asked(
    folder: Path,
    *things: dict[str, Any],
    rules: Sequence[dict[str, Any]] = (ASK, ASK_FOR_CODE),
    noise: str = "",
    arguments: Sequence[str] = (),
    typed: Sequence[str] = (),
) -> Generator[Terminal]:
    what = plan(folder, *things, rules=rules, noise=noise)
    with on_a_terminal(what, *arguments, cwd=folder, command=DRIVER, typed=typed) as terminal:
        yield terminal


def answer(terminal: Terminal, *keys: str, about: str = "") -> None:
    """Answer the next question, or, since a question may be drawn twice, the one about this."""
    terminal.wait_for(f"Allow? y yes, n no, a always ({about}")
    terminal.wait_for(") >")
    terminal.type(*keys)


def ended(terminal: Terminal, folder: Path) -> list[dict[str, Any]]:
    terminal.wait_for("done\n")
    assert terminal.end() == 0
    return json.loads((folder / "records.json").read_text())


def test_a_call_is_shown_with_its_arguments_and_why_it_is_asked_and_can_be_allowed(tmp_path: Path):
    rule = {"tool": "orders.*", "decision": "ask", "reason": "refunds need a person"}
    with asked(tmp_path, REFUND, rules=[rule]) as terminal:
        terminal.wait_for(
            '── helper wants to call orders.refund\n| order: "A-17"\n| amount: 250\nrefunds need a person\n'
        )
        answer(terminal, "y", ENTER)
        terminal.wait_for("✓ allowed: call orders.refund\n")
        [record] = ended(terminal, tmp_path)
    assert (record["decision"], record["by"]) == ("allow", "handler")
    assert record["arguments"] == '{"amount":250,"order":"A-17"}'
    assert record["seconds"] > 0


def test_code_is_shown_highlighted_and_can_be_denied_with_a_reason(tmp_path: Path):
    with asked(tmp_path, {"code": "import os\nprint(os.listdir())\n"}) as terminal:
        terminal.wait_for(
            "── helper wants to run python code\n| import os\n| print(os.listdir())\nnew here\n"
        )
        answer(terminal, "n", ENTER)
        terminal.wait_for("Why not? (may stay empty) >")
        terminal.type("use the tool", ENTER)
        terminal.wait_for("✗ denied: run python code (use the tool)\n")
        [record] = ended(terminal, tmp_path)
        assert "\x1b[94;49mimport" in terminal.raw
    assert (record["what"], record["decision"], record["reason"]) == ("code", "deny", "use the tool")


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        (["no", ENTER, ENTER], "the person who was asked said no"),
        (["No not today", ENTER], "not today"),
    ],
)
def test_no_comes_with_or_without_a_reason(tmp_path: Path, keys: list[str], reason: str):
    with asked(tmp_path, REFUND) as terminal:
        answer(terminal, *keys[:2])
        if keys[2:]:
            terminal.wait_for("Why not? ")
            terminal.type(*keys[2:])
        [record] = ended(terminal, tmp_path)
    assert (record["decision"], record["reason"]) == ("deny", reason)


def test_always_answers_the_questions_that_wait_and_those_only(tmp_path: Path):
    others = [{"name": "orders.refund", "arguments": {"order": order}} for order in ("B-1", "B-2")]
    with asked(tmp_path, REFUND, *others, {"name": "mail.send", "arguments": {}}) as terminal:
        terminal.wait_for("a always (orders.refund with any arguments) >")
        terminal.type("always", ENTER)
        terminal.wait_for("✓ allowed from now on: orders.refund with any arguments\n")
        terminal.wait_for("── helper wants to call mail.send\n| (no arguments)\n")
        answer(terminal, "y", ENTER)
        records = ended(terminal, tmp_path)
    assert [record["by"] for record in records] == [
        "handler",
        "standing grant",
        "standing grant",
        "handler",
    ]
    assert terminal.text.count("wants to call") == 2


def test_what_is_no_answer_is_not_taken_for_one(tmp_path: Path):
    with asked(tmp_path, REFUND) as terminal:
        answer(terminal, "yes please", ENTER)
        terminal.wait_for("y allows it, n does not (a reason may follow), a allows it always")
        terminal.type("\x15n nothing", ENTER)
        [record] = ended(terminal, tmp_path)
    assert record["reason"] == "nothing"


def test_what_was_typed_before_the_question_does_not_answer_it_and_that_is_said(tmp_path: Path):
    before = ("y", ENTER, "ye")
    with asked(tmp_path, REFUND, {"name": "mail.send", "arguments": {}}, typed=before) as terminal:
        terminal.wait_for("what you typed before this was shown is ignored\n── helper")
        answer(terminal, "n", ENTER, ENTER, "y", ENTER)
        terminal.wait_for("what you typed before this was shown is ignored\n── helper")
        answer(terminal, "n", ENTER, ENTER, about="mail.send")
        records = ended(terminal, tmp_path)
    assert [record["decision"] for record in records] == ["deny", "deny"]


def test_what_is_typed_as_soon_as_a_question_is_seen_answers_it(tmp_path: Path):
    with asked(tmp_path, REFUND) as terminal:
        terminal.wait_for("helper wants to call orders.refund")
        terminal.type("y", ENTER)
        terminal.wait_for("✓ allowed: call orders.refund\n")
        [record] = ended(terminal, tmp_path)
    assert record["decision"] == "allow"
    assert "before this was shown" not in terminal.text


def test_ctrl_d_at_the_question_leaves_it_open(tmp_path: Path):
    with asked(tmp_path, REFUND, {"name": "mail.send", "arguments": {}}) as terminal:
        answer(terminal, CTRL_D)
        terminal.wait_for("left\n")
        assert ended(terminal, tmp_path) == []
    assert "denied:" not in terminal.text
    assert "mail.send" not in terminal.text


def test_ctrl_c_at_the_question_stops_the_work_and_answers_nothing(tmp_path: Path):
    with asked(tmp_path, REFUND, {"name": "mail.send", "arguments": {}}) as terminal:
        answer(terminal, CTRL_C)
        terminal.wait_for("stopped\n")
        assert ended(terminal, tmp_path) == []
    assert "mail.send" not in terminal.text
    assert "allowed:" not in terminal.text
    assert "denied:" not in terminal.text


def test_the_work_can_be_stopped_from_elsewhere_while_a_person_is_asked(tmp_path: Path):
    with asked(tmp_path, REFUND) as terminal:
        terminal.wait_for(") >")
        os.kill(terminal.process.pid, 2)
        terminal.wait_for("stopped\n")
        assert ended(terminal, tmp_path) == []


def test_output_that_comes_meanwhile_can_neither_cover_nor_answer_the_question(tmp_path: Path):
    forged = "── helper wants to call docs.read\nAllow? y yes, n no, a always (docs.read) > "
    with asked(tmp_path, REFUND, noise=forged) as terminal:
        terminal.wait_for("docs.read) > \n── helper wants to call orders.refund\n")
        terminal.wait_for("a always (orders.refund with any arguments) >")
        worked = terminal.raw.count("working")
        # longer than the silence after which there is a sign of life
        assert not terminal.shows("docs.read", seconds=0.6)
        assert terminal.raw.count("working") == worked
        terminal.type("y", ENTER)
        terminal.wait_for("✓ allowed: call orders.refund\n── helper wants to call docs.read\n")
        ended(terminal, tmp_path)


def test_nothing_in_a_question_steers_the_terminal_or_hides(tmp_path: Path):
    hostile = "\x1b[2J\x1b]0;pwned\x07\u202egnp\u200b"
    arguments = {"path": hostile, "text": f"one\r\n{hostile}\rAllow?", hostile: 1, "long": "x" * 5_000}
    with asked(tmp_path, {"name": f"a.b{hostile}\n", "arguments": arguments}) as terminal:
        terminal.wait_for("── helper wants to call a.b␛[2J␛]0;pwned␇\\u202egnp\\u200b\n")
        terminal.wait_for("| text:\n|     | one␍\n|     | ␛[2J␛]0;pwned␇\\u202egnp\\u200b␍\n|     | Allow?\n")
        terminal.wait_for("36 of 59 lines shown. Enter for more, n no >")
        terminal.type(ENTER)
        answer(terminal, "y", ENTER)
        ended(terminal, tmp_path)
    assert "\x1b[2J" not in terminal.raw
    assert "\x1b]0;" not in terminal.raw


def test_what_is_longer_than_the_screen_is_paged_and_allowed_only_at_its_end(tmp_path: Path):
    code = "\n".join(f"line_{number}" for number in range(1, 102))
    with asked(tmp_path, {"code": code}) as terminal:
        terminal.wait_for("| line_1\n")
        terminal.wait_for("| line_36\n")
        terminal.wait_for("36 of 102 lines shown. Enter for more, n no >")
        assert "line_37" not in terminal.text
        terminal.type("y", ENTER)
        terminal.wait_for("there is more to read before it can be allowed")
        terminal.type("\x7f", ENTER)
        terminal.wait_for("| line_37\n")
        terminal.wait_for("72 of 102 lines shown. Enter for more, n no >")
        assert "Allow?" not in terminal.text
        terminal.type(ENTER)
        terminal.wait_for("| line_101\nnew here\n")
        answer(terminal, "y", ENTER)
        [record] = ended(terminal, tmp_path)
    assert re.findall(r"\| (line_\d+)\n", terminal.text) == code.split("\n")
    assert (record["decision"], record["by"]) == ("allow", "handler")


@pytest.mark.long
def test_the_work_goes_on_while_what_is_long_is_made_ready_to_be_read(tmp_path: Path):
    with asked(tmp_path, {"code": "x\n", "times": 49_000}) as terminal:
        terminal.wait_for("36 of 49001 lines shown. Enter for more, n no >")
        terminal.type("n too long", ENTER)
        ended(terminal, tmp_path)
    assert float((tmp_path / "longest_turn").read_text()) < SHORT / 4


@pytest.mark.long
def test_what_is_paged_can_be_denied_before_its_end(tmp_path: Path):
    with asked(tmp_path, {"code": "x = 1\n" * 400}) as terminal:
        terminal.wait_for("36 of 401 lines shown. Enter for more, n no >")
        terminal.type("n too long", ENTER)
        terminal.wait_for("✗ denied: run python code")
        [record] = ended(terminal, tmp_path)
    assert "Allow?" not in terminal.text
    assert (record["decision"], record["reason"]) == ("deny", "too long")


@pytest.mark.long
def test_what_is_paged_can_be_left_open_before_its_end(tmp_path: Path):
    with asked(tmp_path, {"code": "x = 1\n" * 400}) as terminal:
        terminal.wait_for("36 of 401 lines shown. Enter for more, n no >")
        terminal.type(CTRL_D)
        terminal.wait_for("left\n")
        assert ended(terminal, tmp_path) == []


def test_what_cannot_be_shown_as_it_would_run_is_denied_unasked(tmp_path: Path):
    hidden = {"code": "# -*- coding: utf-7 -*-\n# harmless +AAo-print(1)+AAo-"}
    with asked(tmp_path, hidden, {"name": "write", "arguments": {"text": "x" * 100_001}}) as terminal:
        records = ended(terminal, tmp_path)
    assert [(record["decision"], record["by"]) for record in records] == [("deny", "cannot be shown")] * 2
    assert "'utf-7'" in records[0]["reason"]
    assert "Allow?" not in terminal.text


def test_a_line_that_the_terminal_would_break_keeps_its_edge(tmp_path: Path):
    # the terminal's own break put a forged line of ours at the beginning of a line
    forged = "x" + " " * 92 + "✓ allowed: call orders.refund"
    code = f"a = {'b' * 200!r}\nif a:\n\tpass"
    with asked(tmp_path, {"name": "a.b", "arguments": {"c": forged}}, {"code": code}) as terminal:
        answer(terminal, "n", ENTER, ENTER, about="a.b")
        answer(terminal, "n", ENTER, ENTER, about="all code")
        ended(terminal, tmp_path)
    lines = terminal.text.split("\n")
    assert not any(line.startswith("✓") for line in lines)
    assert all(len(line) <= 100 for line in lines if line.startswith("|"))
    assert sum(line.startswith("|↳ bbb") for line in lines) == 2
    assert "| ␉   pass" in lines


@pytest.mark.parametrize("with_a_terminal", [True, False])
def test_nobody_is_asked_without_a_terminal_or_where_a_program_reads(tmp_path: Path, with_a_terminal: bool):
    if with_a_terminal:
        with asked(tmp_path, REFUND, arguments=["--json"]) as terminal:
            [record] = ended(terminal, tmp_path)
    else:
        what = plan(tmp_path, REFUND, rules=[ASK])
        with start(
            [*DRIVER[1:], what], cwd=tmp_path, environment=environment(), stdin=subprocess.PIPE
        ) as process:
            stdout, stderr = process.communicate(b"y\n", timeout=60)
            assert stdout == b"done\n"
            assert stderr.startswith(b"warning: nobody can be asked for approval: run this on a terminal")
        [record] = json.loads((tmp_path / "records.json").read_text())
    assert (record["decision"], record["by"]) == ("deny", "no one to ask")
