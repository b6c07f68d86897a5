"""Whatever a person does in a chat, it comes to what the steps have made that count."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from support.openai_server import AnyReply, Body, ScriptedServer, Slow, Text
from support.terminal import CTRL_C, Terminal, on_a_terminal
from test_cli_chat import ask, codeact, leave
from test_cli_chat_kept import ON, kept, kill, python, wait_for_requests

STEPS = 6


def reply(body: Body) -> AnyReply:
    """Run code that notes the message, and then say so; only after a while if that is to be stopped."""
    asked, *since = [message["content"] for message in body["messages"]][-2:]
    last = since[0] if since else asked
    if last.startswith(("Do ", "Wait ")):
        number = last.split()[1].rstrip(".")
        return python(f"globals().setdefault('done', []).append({number})")
    return Slow(600, Text("late")) if asked_of(body).startswith("Wait ") else Text("Done.")


def asked_of(body: Body) -> str:
    """The last message of the person."""
    said = [message["content"] for message in body["messages"] if message["role"] == "user"]
    return next(text for text in reversed(said) if text.startswith(("Do ", "Wait ")))


class Chats(RuleBasedStateMachine):
    """One chat: it is left or killed and continued as often as there is reason to."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs: list[str] = []
        """Those that are not undone."""
        self.number = 0
        self.stack = ExitStack()
        self.folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.server = self.stack.enter_context(ScriptedServer.in_thread(reply))
        self.command, self.variables = codeact(self.server)
        self._open(self.command)

    def _open(self, command: list[str]) -> None:
        terminal = on_a_terminal(*command, cwd=self.folder, **self.variables)
        self.terminal: Terminal = self.stack.enter_context(terminal)

    def _continue(self) -> None:
        self._open(ON)
        for text in self.inputs:
            self.terminal.wait_for(f"> {text}")
            self.terminal.wait_for(_ENDS[text.split()[0]])

    def _enter(self, text: str) -> None:
        self.number += 1
        self.inputs.append(f"{text} {self.number}.")
        ask(self.terminal, self.inputs[-1])

    @property
    def counting(self) -> list[str]:
        """The messages that count."""
        forgotten = [n for n, text in enumerate(self.inputs) if text == "/reset"]
        return self.inputs[forgotten[-1] + 1 if forgotten else 0 :]

    @rule()
    def message(self) -> None:
        self._enter("Do")
        self.terminal.wait_for("── answered")

    @rule()
    def stopped(self) -> None:
        before = len(self.server.requests)
        self._enter("Wait")
        wait_for_requests(self.server, before + 2)
        self.terminal.type(CTRL_C)
        self.terminal.wait_for("── stopped")

    @rule()
    def undo(self) -> None:
        ask(self.terminal, "/undo")
        if self.inputs:
            self.inputs.pop()
            self.terminal.wait_for("the last message is undone")
        else:
            self.terminal.wait_for("nothing to undo")

    @rule()
    def reset(self) -> None:
        ask(self.terminal, "/reset")
        self.inputs.append("/reset")
        self.terminal.wait_for("forgotten")

    @precondition(lambda self: self.number > 0)
    @rule()
    def killed(self) -> None:
        self.terminal.wait_for("\n> ")
        kill(self.terminal)
        self._continue()

    @precondition(lambda self: self.number > 0)
    @rule()
    def left(self) -> None:
        leave(self.terminal)
        self._continue()

    def teardown(self) -> None:
        with self.stack:
            if self.number:
                self._check()

    def _check(self) -> None:
        ask(self.terminal, "/run print(globals().get('done', []))")
        self.terminal.wait_for(f"\n{[int(text.split()[1][:-1]) for text in self.counting]}\n")
        self.message()
        said = [message["content"] for message in self.server.requests[-1]["messages"]]
        assert [text for text in said if text.startswith(("Do ", "Wait "))] == self.counting
        leave(self.terminal)
        assert len(kept(self.folder)) == 1


_ENDS = {"Do": "── answered", "Wait": "── stopped", "/reset": "forgotten"}


@pytest.mark.long
@pytest.mark.hypothesis
@pytest.mark.timeout(900)
def test_it_comes_to_the_same_as_the_steps_that_count() -> None:
    run_state_machine_as_test(
        Chats,
        settings=settings(
            max_examples=12,
            database=None,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "steps",
    ["message killed reset message message", "message reset message killed message killed message"],
)
def test_what_was_forgotten_stays_so_whenever_the_chat_was_killed(steps: str) -> None:
    chats = Chats()
    with chats.stack:
        for step in steps.split():
            getattr(chats, step)()
        chats.teardown()
