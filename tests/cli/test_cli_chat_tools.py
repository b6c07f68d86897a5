"""Chats whose code calls tools that cost money: what is asked, left open, and undone, as their users have it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command_line import codeact_team
from support.terminal import CTRL_D, ENTER, on_a_terminal
from test_cli_chat import ask, leave
from test_cli_chat_kept import ON, kept

SHOP = '''
def open_orders() -> list[int]:
    """List the open orders."""
    return [17, 21]


def refund(number: int, euros: float) -> str:
    """Pay an order back."""
    with open("refunds.txt", "a") as file:
        print(number, euros, file=file)
    return f"order {number} is paid back"
'''
LOOK = "```python\nlate = tools.open_orders()\nprint(late)\n```"
REFUND = "```python\nfor number in late:\n    print(tools.refund(number, euros=12.5))\n```"


def shop(folder: Path, *answers: str) -> list[str]:
    """The command for a chat with an agent that has these tools, and whose model says this."""
    (folder / "shop.py").write_text(SHOP)
    client = {
        "provider": "autogen_ext.models.replay.ReplayChatCompletionClient",
        "config": {"chat_completions": answers},
    }
    executor = {
        "provider": "codeact_team.ConfinedSessionCodeExecutor",
        "config": {"confinement": "best_effort"},
    }
    config = {
        "name": "coder",
        "tools": ["shop:open_orders", "shop:refund"],
        "approval": [{"tool": "refund", "decision": "ask", "reason": "it costs money"}],
        "code_executor": executor,
        "model_client": client,
    }
    agent = {"provider": "codeact_team.CodeActAgent", "config": config}
    (folder / "shop.json").write_text(json.dumps(agent))
    return ["chat", "shop.json", "--allow", "shop"]


def refunds(folder: Path) -> list[str]:
    """The refunds that were made."""
    file = folder / "refunds.txt"
    return file.read_text().splitlines() if file.exists() else []


def test_ctrl_d_at_a_question_leaves_the_chat_and_the_question_is_asked_when_it_goes_on(tmp_path: Path):
    command = shop(tmp_path, LOOK, "Two are late.", REFUND, "Both are paid back.")
    variables = {"PYTHONPATH": str(tmp_path)}
    with on_a_terminal(*command, cwd=tmp_path, **variables) as terminal:
        ask(terminal, "Which are late?")
        ask(terminal, "Refund them.")
        terminal.wait_for("any arguments) >")
        terminal.type("y", ENTER)
        terminal.wait_for("number: 21")
        terminal.wait_for("any arguments) >")
        terminal.type(CTRL_D)
        terminal.wait_for("the run is parked until this is answered:\nquestion ")
        terminal.wait_for("to go on: codeact-team resume ")
        assert terminal.end() == 3
    assert "denied" not in terminal.text
    (run,) = kept(tmp_path)
    assert run["state"] == "parked"
    with on_a_terminal(*ON, "--allow", "shop", cwd=tmp_path, **variables) as terminal:
        terminal.wait_for("number: 21")
        terminal.wait_for("any arguments) >")
        terminal.type("y", ENTER)
        terminal.wait_for("Both are paid back.")
        assert leave(terminal) == 0
    assert refunds(tmp_path) == ["17 12.5", "21 12.5"]


@pytest.mark.long
def test_ctrl_d_at_a_question_of_a_chat_that_is_not_kept_leaves_it(tmp_path: Path):
    command = shop(tmp_path, "```python\ntools.refund(17, 12.5)\n```")
    with on_a_terminal(*command, "--no-record", cwd=tmp_path, PYTHONPATH=str(tmp_path)) as terminal:
        ask(terminal, "Refund it.")
        terminal.wait_for("any arguments) >")
        terminal.type(CTRL_D)
        assert terminal.end() == 0
    assert "denied" not in terminal.text
    assert refunds(tmp_path) == []


def test_calls_of_code_that_is_rebuilt_are_shown_where_they_were_made_and_not_again(tmp_path: Path):
    command = shop(tmp_path, LOOK, "Two are late.", "```python\nprint(len(late))\n```", "Two.", "Two still.")
    variables = {"PYTHONPATH": str(tmp_path)}
    codeact_team(*command, cwd=tmp_path, stdin="Which are late?\n", **variables)
    more = codeact_team(*ON, "--allow", "shop", cwd=tmp_path, stdin="How many?\n", **variables)
    before, _, after = more.stdout.partition("How many?")
    for line in ("→ tools.open_orders {}", "✓ tools.open_orders", "tools.open_orders: 1 call"):
        assert before.count(line) == 1
        assert line not in after
    assert "\n2\n" in after
    # what was told once more is told the same way from its record
    codeact_team(*ON, "--allow", "shop", cwd=tmp_path, stdin="Still?\n", **variables)
    shown = codeact_team("show", "last", cwd=tmp_path).stdout
    assert shown.count("→ tools.open_orders {}") == 1
    codeact_team("show", "last", "--html", "page.html", cwd=tmp_path)
    assert (tmp_path / "page.html").read_text().count("<code>tools.open_orders {}</code>") == 1


def test_the_page_of_a_chat_shows_each_message_once_and_totals_of_the_whole(tmp_path: Path):
    command = shop(tmp_path, LOOK, "Two are late.", "```python\nprint(len(late))\n```", "Two.")
    entered = "Which are late?\n/run print(late)\nHow many?\n"
    codeact_team(*command, cwd=tmp_path, stdin=entered, PYTHONPATH=str(tmp_path))
    codeact_team("show", "last", "--html", "page.html", cwd=tmp_path)
    body = (tmp_path / "page.html").read_text().partition("<main>")[2]
    assert [body.count(text) for text in ("Which are late?", "/run print(late)", "How many?")] == [1, 1, 1]
    head = (tmp_path / "page.html").read_text().partition("<main>")[0]
    for name, value in (("Messages", 8), ("Steps", 3)):
        assert f"<dt>{name}</dt><dd>{value}</dd>" in head
    assert "No end is recorded" not in body


def test_undo_names_what_stays_done_and_asks_before_it_goes_below_that(tmp_path: Path):
    code = "late = [17]\nopen('log.txt', 'w').close()\nprint(tools.refund(17, euros=12.5))"
    command = shop(
        tmp_path, "```python\nlate = []\n```", "Noted.", f"```python\n{code}\n```", "It is paid back."
    )
    variables = {"PYTHONPATH": str(tmp_path)}
    with on_a_terminal(*command, cwd=tmp_path, **variables) as terminal:
        ask(terminal, "None is late.")
        terminal.wait_for("Noted.")
        ask(terminal, "Refund 17.")
        terminal.wait_for("any arguments) >")
        terminal.type("y", ENTER)
        terminal.wait_for("It is paid back.\n\n── answered")
        for said in ("n", "y"):
            ask(terminal, "/undo")
            terminal.wait_for("warning: refund(number=17, euros=12.5) was called, and stays done\n")
            terminal.wait_for("Undo the message all the same? y yes, n no >")
            terminal.type(said, ENTER)
        terminal.wait_for("the last message is undone: Refund 17.\n")
        terminal.wait_for("restored before other code runs: variables late; files log.txt\n")
        ask(terminal, "/run print(late)")
        terminal.wait_for("\n[]\n")
        # code of the person's own counts as a message
        ask(terminal, "/undo")
        terminal.wait_for("the last message is undone: /run print(late)\n")
        ask(terminal, "/undo")
        terminal.wait_for("the last message is undone: None is late.\nrestored before other code runs")
        assert leave(terminal) == 0
    assert terminal.text.count("the last message is undone") == 3
    assert refunds(tmp_path) == ["17 12.5"]
