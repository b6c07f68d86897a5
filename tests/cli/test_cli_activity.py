"""What a run is said to wait for."""

from __future__ import annotations

import pytest

from codeact_team.cli import activity
from codeact_team.cli.activity import Activity
from codeact_team.core.effects import Event
from codeact_team.core.events import (
    BlockBegan,
    BlockEnded,
    ModelCallBegan,
    ModelCallEnded,
    ModelCallPutOff,
    ProcessBegan,
    ProcessEnded,
    QuestionAnswered,
    QuestionAsked,
    RequestBegan,
    RequestEnded,
    SandboxPreparing,
    SandboxStarted,
    SandboxStarting,
    ToolCallBegan,
    ToolCallEnded,
    Words,
)
from codeact_team.core.execution import CallOutcome


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(activity, "time", clock)
    return clock


def test_what_is_waited_for_is_said_with_its_time_and_limit(clock: Clock):
    waiting = Activity()

    def said(event: Event, seconds: float = 7) -> str:
        waiting(event)
        clock.now += seconds
        return waiting.describe()

    assert (
        said(ModelCallBegan(span=1, agent="coder", model="gpt-4.1\x1b[2J"))
        == "waiting for gpt-4.1␛[2J 0:00:07"
    )
    assert said(Words(agent="coder", text="Look")) == "gpt-4.1␛[2J writes 0:00:14"
    assert said(ModelCallEnded(span=1, agent="coder", model="gpt-4.1")) == "working 0:00:07"
    assert said(BlockBegan(span=2, agent="coder", blocks=[], timeout=60)) == "code runs 0:00:07 of 0:01:00"
    assert said(SandboxStarting(sandbox="Docker")) == "the sandbox starts 0:00:07"
    assert said(SandboxPreparing(sandbox="Docker", doing="getting pandas")) == "getting pandas 0:00:07"
    assert said(SandboxStarted(sandbox="Docker")) == "code runs 0:00:28 of 0:01:00"
    assert (
        said(ToolCallBegan(span=3, agent="coder", name="stock", arguments="")) == "tools.stock works 0:00:07"
    )
    asked = RequestBegan(span=8, agent="coder", method="GET", url="https://example.org/slow")
    assert said(asked) == "waiting for example.org/slow 0:00:07"
    assert said(RequestEnded(span=8, agent="coder", status=200)) == "tools.stock works 0:00:21"
    # a connection that is passed through may last
    connected = RequestBegan(span=9, agent="coder", method="CONNECT", url="example.org:443")
    assert said(connected) == "tools.stock works 0:00:28"
    assert said(QuestionAsked(span=4, agent="coder", text="?")) == "waiting for a person's answer 0:00:07"
    assert said(QuestionAnswered(span=4, agent="coder")) == "tools.stock works 0:00:42"
    ended = ToolCallEnded(span=3, agent="coder", name="stock", outcome=CallOutcome.OK)
    assert said(ended) == "code runs 0:01:17 of 0:01:00"
    assert said(BlockEnded(span=2, agent="coder")) == "working 0:00:07"
    assert said(ProcessBegan(span=5, argv=["make", "all"])) == "make runs 0:00:07"
    assert said(ProcessEnded(span=5, returncode=0)) == "working 0:00:07"
    # nobody waits for it
    assert said(ProcessBegan(span=6, argv=["serve"], is_job=True)) == "working 0:00:14"


def test_a_call_that_is_put_off_says_until_when(clock: Clock):
    waiting = Activity()
    waiting(ModelCallBegan(span=1, agent="coder", model="gpt-4.1"))
    waiting(
        ModelCallPutOff(parent=1, reason="too many requests for the model's server (429): slow", seconds=42.0)
    )
    clock.now += 2
    assert waiting.describe() == "asked again in 0:00:41: too many requests for the model's server"
    clock.now += 40
    assert waiting.describe() == "waiting for gpt-4.1 0:00:42"
