"""The line that says what a run waits for."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from codeact_team.cli.screen import clock
from codeact_team.core.effects import EffectBegan, EffectEnded, Event, OtherEffectBegan
from codeact_team.core.events import (
    BlockBegan,
    ModelCallBegan,
    ModelCallPutOff,
    ProcessBegan,
    QuestionAsked,
    RequestBegan,
    SandboxLost,
    SandboxPreparing,
    SandboxStarted,
    SandboxStarting,
    SandboxStopped,
    ToolCallBegan,
    Words,
)
from codeact_team.journal.result import RunResult
from codeact_team.text.visibility import one_line

_MOST = 36
"""Characters of a name, so that the time behind it fits into a narrow terminal."""


@dataclass(frozen=True)
class _Doing:
    words: str
    rank: int
    began: float
    limit: float | None = None
    put_off: float = 0.0
    """Until when."""
    why: str = ""


_CODE, _SANDBOX, _TOOL, _MODEL, _PERSON = range(1, 6)
"""Ranks of work under way. The highest is shown: code waits for its sandbox and its tools, a tool for its model."""


class Activity:
    """A listener that knows what a run waits for: a model, a sandbox, code, a tool or a person, and for how long so far."""

    def __init__(self) -> None:
        self._under_way: dict[int | str, _Doing] = {}
        """By the span of what has begun, or the name of a sandbox that starts."""
        self._calls: dict[str, tuple[int, str]] = {}
        """The span of the last call of a model by an agent, and the model."""
        self._idle = _Doing("working", 0, time.monotonic())
        self.tail = ""
        """Text of a model that is written and not shown yet."""

    def __call__(self, event: Event) -> None:
        """Take note of an event."""
        was_busy = bool(self._under_way)
        match event:
            case SandboxStarting():
                self._begin(event.sandbox, "the sandbox starts", _SANDBOX)
            case SandboxPreparing():
                self._begin(event.sandbox, one_line(event.doing, _MOST), _SANDBOX)
            case SandboxStarted() | SandboxStopped() | SandboxLost():
                self._under_way.pop(event.sandbox, None)
            case EffectBegan():
                self._effect(event)
            case ModelCallPutOff():
                self._put_off(event)
            case Words():
                self._writes(event.agent)
            case EffectEnded():
                self._under_way.pop(event.span, None)
            case RunResult():
                self._under_way.clear()
            case _:
                return
        if was_busy and not self._under_way:
            self._idle = _Doing("working", 0, time.monotonic())

    def describe(self) -> str:
        """Describe the work that is waited for, its seconds so far, and its time limit."""
        # at each event, it would take long where much is under way; copied, as another thread may add to it
        under_way = [*self._under_way.values()]
        # the last one to begin of the highest rank
        doing = max(under_way, key=lambda one: (one.rank, one.began), default=self._idle)
        if (left := doing.put_off - time.monotonic()) > 0:
            return f"asked again in {clock(left + 1)}: {doing.why}"
        seconds = clock(time.monotonic() - doing.began)
        if doing.limit is not None:
            seconds = f"{seconds} of {clock(doing.limit)}"
        tail = f" · {self.tail}" if self.tail else ""
        return f"{doing.words} {seconds}{tail}"

    def _effect(self, event: EffectBegan) -> None:
        match event:
            case ModelCallBegan():
                self._calls[event.agent] = event.span, one_line(event.model, _MOST) or "the model"
                self._begin(event.span, f"waiting for {self._calls[event.agent][1]}", _MODEL)
            case BlockBegan():
                self._begin(event.span, "code runs", _CODE, event.timeout)
            case ProcessBegan(is_job=False):
                self._begin(event.span, f"{one_line(event.argv[0], _MOST)} runs", _CODE)
            case ToolCallBegan():
                self._begin(event.span, f"tools.{one_line(event.name, _MOST)} works", _TOOL)
            case RequestBegan(is_connection=False):
                self._begin(
                    event.span, f"waiting for {one_line(event.url.partition('://')[2], _MOST)}", _TOOL
                )
            case QuestionAsked():
                self._begin(event.span, "waiting for a person's answer", _PERSON)
            case OtherEffectBegan():
                self._begin(event.span, f"waiting for {one_line(event.kind, _MOST)}", _TOOL)
            case _:
                pass

    def _put_off(self, event: ModelCallPutOff) -> None:
        if (doing := self._under_way.get(event.parent or 0)) is not None:
            now = time.monotonic()
            why = one_line(event.reason.partition(" (")[0], 2 * _MOST)
            self._under_way[event.parent or 0] = replace(doing, put_off=now + event.seconds, why=why)

    def _writes(self, agent: str) -> None:
        span, model = self._calls.get(agent, (0, ""))
        if (doing := self._under_way.get(span)) is not None:
            self._under_way[span] = replace(doing, words=f"{model} writes")

    def _begin(self, key: int | str, words: str, rank: int, limit: float | None = None) -> None:
        self._under_way[key] = _Doing(words, rank, time.monotonic(), limit)
