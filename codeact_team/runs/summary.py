"""Makes the result of a run: the answer, and whether it was accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from signal import Signals

from autogen_agentchat.base import ChatAgent, Team
from autogen_agentchat.conditions import TextMentionTermination
from autogen_agentchat.messages import (
    BaseAgentEvent,
    BaseChatMessage,
    CodeExecutionEvent,
    HandoffMessage,
    ModelClientStreamingChunkEvent,
    StopMessage,
    ToolCallSummaryMessage,
    UserInputRequestedEvent,
)

from codeact_team.agents.code_executor import CodeExecutorAgent
from codeact_team.agents.messages import given_answer, is_substitute, text_of
from codeact_team.agents.observations import Ending, ExecutionRecord, encodable, shorten
from codeact_team.agents.reflection_agent import ReflectionAgent
from codeact_team.agents.teams import ReflectionTermination
from codeact_team.core.autogen_internals import components_in
from codeact_team.core.effects import Event
from codeact_team.core.events import (
    BlockEnded,
    BudgetSpent,
    ModelCallEnded,
    RunBegan,
)
from codeact_team.errors import BudgetError
from codeact_team.journal.promoted import PromotedListener
from codeact_team.journal.result import (
    AgentEnding,
    Costs,
    RunEnding,
    RunResult,
    WrongSetting,
    explain,
    is_of_infrastructure,
    is_transient,
    unknown_to_server,
)
from codeact_team.models.verdicts import Verdict
from codeact_team.runs.limits import is_no_limit
from codeact_team.text.markdown import extract_code
from codeact_team.text.quoting import take_thoughts_off, without_zero_width

_OPEN = (Ending.ANSWERED, Ending.HANDED_OFF)
"""Endings of an agent's work that say nothing against it."""


_UNREADABLE = {
    "length": Ending.CUT_OFF,
    "content_filter": Ending.REFUSED,
    "function_calls": Ending.NO_SUCH_TOOL,
}
"""Endings of a reviewer whose verdict could not be read, by the finish reason of the model."""


class Acceptance:
    """Judges a run by the messages that come out of its team."""

    def __init__(self, *, reviewed: bool = False) -> None:
        self.reviewed = reviewed
        """Whether somebody in the team has to judge the work of the others."""
        self._begin()

    def _begin(self) -> None:
        self.broken_off = False
        """Whether the team was stopped in the middle of its work."""
        self.ended_by_itself = False
        """Whether the team has come to an answer, and to an end of its own that is no limit."""
        self._is_cut_off = False
        """Whether the last reply of a model was."""
        self._verdict: Verdict | None = None
        self._reviewer = ""
        self._own_verdict: Verdict | None = None
        """Of an agent on its own answer."""
        self._exit_code: int | None = None
        self._ending: tuple[str, Ending] | None = None
        self._used_up: set[str] = set()

    def __call__(self, event: Event) -> None:
        if isinstance(event, RunBegan):
            self._begin()
        elif isinstance(event, BudgetSpent):
            self._used_up.update(filter(None, [event.used_up]))
        elif isinstance(event, ModelCallEnded):
            self._is_cut_off = event.finish_reason == "length"

    @property
    def ending(self) -> RunEnding:
        """The outcome by the verdict; without one, by whether there is an objection."""
        if self.verdict is not None:
            return RunEnding.ACCEPTED if self.verdict.accepted else RunEnding.NOT_ACCEPTED
        return RunEnding.ANSWERED if self.objection is None else RunEnding.NOT_ACCEPTED

    @property
    def verdict(self) -> Verdict | None:
        """The verdict that counts: a reviewer's last; without a reviewer, an agent's on its own answer."""
        return self._verdict or (None if self.reviewed else self._own_verdict)

    @property
    def objection(self) -> str | None:
        """The reason for which work without a verdict does not count as answered; ``None`` if it counts, or has a verdict.

        A reviewer has to review it. Without one, no agent's work may have been cut short, and the last code must have
        succeeded or, if none has run, an agent have come to its answer, or the team to an end of its own. A team that a limit has
        ended has proved nothing.
        """
        if self.verdict is not None:
            return None
        if self.reviewed:
            return "nobody has reviewed the work"
        if self.broken_off:
            return "the work was broken off"
        if self.cause is not None:
            return self.cause.to_text()
        if self._exit_code is not None:
            return None if self._exit_code == 0 else "the last code failed"
        if self._is_answered or (self.ended_by_itself and not self._is_cut_off):
            return None
        return "no code has run, and nobody has reviewed the work"

    def is_broken_off_by(self, stop_reason: str | None) -> bool:
        """Whether that is the budget's reason, and no agent had come to its answer just then."""
        return stop_reason in self._used_up and not self._is_answered

    @property
    def _is_answered(self) -> bool:
        return self._ending is not None and self._ending[1] is Ending.ANSWERED

    @property
    def cause(self) -> AgentEnding | None:
        """The agent whose work ended last, if that was without an answer or a verdict that could be read."""
        if self._ending is not None and self._ending[1] not in _OPEN:
            return AgentEnding(*self._ending)
        if self.verdict is None or self.verdict.unreadable is None:
            return None
        source = self._reviewer if self._verdict or self._ending is None else self._ending[0]
        return AgentEnding(source, _UNREADABLE.get(self.verdict.unreadable, Ending.UNREADABLE_VERDICT))

    def add(self, message: BaseAgentEvent | BaseChatMessage) -> None:
        """Judge by a message that has come out of the team."""
        if isinstance(message, CodeExecutionEvent):
            self._exit_code = message.result.exit_code
        if not isinstance(message, BaseChatMessage):
            return
        if (record := ExecutionRecord.from_metadata(message.metadata)) is not None:
            self._exit_code = record.exit_code
        verdict = Verdict.from_metadata(message.metadata)
        if (ending := Ending.from_metadata(message.metadata)) is not None:
            self._ending = message.source, ending
            self._own_verdict = verdict
            return
        if self._ending is not None and message.source == self._ending[0]:
            # it has come further since
            self._ending = None
        if verdict is not None:
            self._verdict, self._reviewer = verdict, message.source


_USER = "user"
"""The source of tasks."""
_NOT_SAID = (HandoffMessage, StopMessage, ToolCallSummaryMessage)
"""Messages that only steer a team, or pass something on."""


class Answers(PromotedListener):
    """Finds a run's answer in the messages that come out of its team."""

    def __init__(self) -> None:
        super().__init__()
        self.marks: Sequence[str] = ()
        """Words by which an agent ends the team, such as ``TERMINATE``: at the end of an answer they are no part of it."""
        self._begin()

    def _begin(self) -> None:
        self._accepted: str | None = None
        """Of a reviewer, as long as that has not been sent back."""
        self._given: str | None = None
        """By code, or by an agent that acts by code."""
        self._said: str | None = None
        """By an agent, in words."""
        self._output: str | None = None
        """Of the last code that succeeded."""
        self._printed: dict[str, str] = {}
        """By each agent's last code, if that succeeded."""
        self._people = {_USER}
        self._refused: set[str] = set()
        """Agents whose model declined when it was last asked."""

    @property
    def best(self) -> str | None:
        """The answer that counts, or the best so far; ``None`` without anything like an answer.

        That of the last accepting review; else the last that an agent has come to by itself; else the last words of an
        agent, but not those before the first result; else the last output of code that succeeded.
        """
        return self._accepted or self._given or self._said or self._output

    def hear(self, event: Event) -> None:
        match event:
            case RunBegan():
                self._begin()
            case BlockEnded():
                self._printed[event.agent] = event.output.rstrip() if event.exit_code == 0 else ""
            case ModelCallEnded(finish_reason="content_filter"):
                self._refused.add(event.agent)
            case ModelCallEnded():
                self._refused.discard(event.agent)
            case _:
                pass

    def add(self, message: BaseAgentEvent | BaseChatMessage) -> None:
        """Look for an answer in a message that has come out of the team."""
        match message:
            case UserInputRequestedEvent(source=person):
                self._people.add(person)
            case CodeExecutionEvent(source=agent):
                self._read_output(agent)
            case BaseChatMessage() if message.source not in self._people:
                self._read_chat(message)
            case _:
                pass

    def _read_chat(self, message: BaseChatMessage) -> None:
        ending = Ending.from_metadata(message.metadata)
        verdict = Verdict.from_metadata(message.metadata)
        record = ExecutionRecord.from_metadata(message.metadata)
        given = given_answer(message)
        if verdict is not None and ending is None:
            self._accepted = encodable(verdict.answer) if verdict.accepted else None
        elif given is not None:
            self._given = given
        elif ending is not None:
            self._read_last_words(text_of(message), ending)
        elif record is not None and record.remark is not None:
            self._read_output(message.source)
        elif not isinstance(message, _NOT_SAID) and message.source not in self._refused:
            said = self._without_mark(take_thoughts_off(text_of(message)).text.strip())
            if said and not (_is_program(said) or _is_complaint(said)):
                self._said = said

    def _without_mark(self, said: str) -> str:
        for mark in self.marks:
            said = said.removesuffix(mark).rstrip()
        return said

    def _read_last_words(self, text: str, ending: Ending) -> None:
        # code that was not run any more was made inert
        is_code = without_zero_width(text) != text and _is_program(text)
        if ending.has_answer and not (is_code or _is_complaint(text)):
            self._given = text

    def _read_output(self, agent: str) -> None:
        # the output of a message has words where nothing was printed
        if printed := self._printed.get(agent):
            if self._output is None:
                self._said = None
            self._output = encodable(shorten(printed))


def _is_program(text: str) -> bool:
    found = extract_code(without_zero_width(text), ["python", "sh"], default_language="python")
    return bool(found.blocks or found.unclosed)


def _is_complaint(text: str) -> bool:
    """Whether it is what our agents say where there is no code, or no answer of a model's."""
    return is_substitute(text) or text.startswith(CodeExecutorAgent.NO_CODE_BLOCKS_FOUND_MESSAGE)


@dataclass(frozen=True)
class WorkEnd:
    """The end of a run or of a reset; fields as in :class:`RunResult`."""

    stop_reason: str | None = None
    is_broken_off: bool = False
    is_parked: bool = False
    """Whether it waits for an answer."""
    error: str | None = None
    unknown_to_server: str | None = None
    """The words of a model's server that does not know the model, or the address."""
    is_transient: bool = False
    is_of_infrastructure: bool = False
    signal: Signals | None = None

    @classmethod
    def by(cls, failure: BaseException) -> WorkEnd:
        """The end that a failure has made."""
        if not isinstance(failure, Exception):
            return cls("it was cancelled", is_broken_off=True)
        if isinstance(failure, BudgetError):
            return cls(str(failure), is_broken_off=True)
        return cls(
            error=explain(failure),
            unknown_to_server=unknown_to_server(failure),
            is_transient=is_transient(failure),
            is_of_infrastructure=is_of_infrastructure(failure),
        )

    @property
    def came_by_itself(self) -> bool:
        """Whether the team ended its work, well or not."""
        return self.error is None and self.signal is None and not self.is_broken_off


class Summary:
    """A listener that makes the result of a run.

    Args:
        in_all: Whether the costs of all tasks of a team are counted together; all else is of the last.
    """

    def __init__(self, *, in_all: bool = False) -> None:
        self._acceptance, self._answers, self._costs = Acceptance(), Answers(), Costs(in_all=in_all)
        self._has_team = False
        self._refused: ModelCallEnded | None = None
        """The last call of a model that has failed."""

    def begin(self, team: Team | ChatAgent) -> None:
        """Note whether somebody in the team judges the work of the others, or something waits for a judgement."""
        self._has_team = True
        reviewing = ReflectionAgent | ReflectionTermination
        parts = list(components_in(team))
        self._acceptance.reviewed = any(isinstance(part, reviewing) for part in parts)
        marks = [
            part.dump_component().config["text"] for part in parts if isinstance(part, TextMentionTermination)
        ]
        self._answers.marks = list(filter(None, marks))

    def __call__(self, event: Event) -> None:
        for part in (self._acceptance, self._answers, self._costs):
            part(event)
        if isinstance(event, ModelCallEnded) and event.error is not None:
            self._refused = event

    def add(self, message: BaseAgentEvent | BaseChatMessage) -> None:
        """Add a message that has come out of the team: only these count, in this order."""
        if not isinstance(message, ModelClientStreamingChunkEvent):
            self._costs.messages += 1
            self._acceptance.add(message)
            self._answers.add(message)

    def result(self, end: WorkEnd, seconds: float) -> RunResult:
        """The result, without files, of work that has ended so after some seconds of wall-clock time."""
        acceptance, costs = self._acceptance, self._costs
        acceptance.broken_off = end.is_broken_off or acceptance.is_broken_off_by(end.stop_reason)
        is_own = end.stop_reason is None or is_no_limit(end.stop_reason)
        acceptance.ended_by_itself = is_own and self._answers.best is not None
        if end.signal is not None:
            ending = RunEnding.STOPPED
        elif end.error is not None:
            ending = RunEnding.FAILED
        elif end.is_parked:
            ending = RunEnding.PARKED
        elif not self._has_team and end.came_by_itself:
            # a program has done with its sandbox what it wanted
            ending = RunEnding.ANSWERED
        else:
            ending = acceptance.ending
        return RunResult(
            ending=ending,
            usage=costs.usage,
            is_estimated=costs.is_estimated,
            messages=costs.messages,
            steps=costs.steps,
            seconds=seconds,
            stop_reason=end.stop_reason or (acceptance.cause and acceptance.cause.to_text()),
            reviewed=acceptance.verdict is not None,
            cause=acceptance.cause if ending is RunEnding.NOT_ACCEPTED else None,
            objection=acceptance.objection if ending is RunEnding.NOT_ACCEPTED else None,
            error=end.error,
            wrong_setting=self._wrong_setting(end.unknown_to_server),
            is_transient=end.is_transient,
            is_of_infrastructure=end.is_of_infrastructure,
            signal=end.signal,
            tools=list(costs.tools.values()),
            missing_hosts=list(costs.missing_hosts),
            # a run that waits has come to nothing yet
            answer=None if ending is RunEnding.PARKED else self._answers.best,
            cost=costs.cost,
        )

    def _wrong_setting(self, said: str | None) -> WrongSetting | None:
        if said is None or self._refused is None:
            return None
        # a server that does not know the model says its name
        model = self._refused.model
        return WrongSetting(model, "model" if model in said else "base_url")
