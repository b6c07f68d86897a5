"""The result of a run: its ending, its costs, and its failures in words."""

# the name of a class says which of the types it has
# pyright: reportIncompatibleVariableOverride=false

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from signal import Signals
from typing import ClassVar, Literal

from autogen_core.models import RequestUsage

from codeact_team.agents.observations import Ending
from codeact_team.core.effects import Event
from codeact_team.core.events import (
    BlockBegan,
    BudgetSpent,
    ModelCallEnded,
    RequestDenied,
    RunBegan,
    ToolCallEnded,
)
from codeact_team.core.execution import CallOutcome
from codeact_team.core.executor_interface import Change
from codeact_team.errors import AnswerCutOffError, CodeActTeamError, EngineError, SandboxLostError
from codeact_team.models.refusals import RefusalKind, ServerRefusal, asked_server, in_one_line
from codeact_team.text.redaction import without_secrets

MAX_FILES = 1000
"""Files that a result lists."""
_ERRNO = re.compile(r"\[Errno -?\d+\] ")


def explain(error: BaseException, *, environ: Mapping[str, str] = os.environ) -> str:
    """An error and its remedy for a person, without a traceback, and without the secrets of ``environ``."""
    # a refusal that may pass is shown while it is tried again
    refusal, guide = ServerRefusal.of(error), None if is_transient(error) else "models"
    if isinstance(error, CodeActTeamError):
        text, guide = str(error), error.guide
    elif refusal is not None:
        text = str(refusal)
    elif _is_named(error, "APITimeoutError"):
        text = (
            f"{asked_server(error)} did not answer in time; try again, or raise `timeout` of the model client"
        )
    elif _is_named(error, "APIConnectionError"):
        reason = _ERRNO.sub("", str(error.__cause__ or "")) or str(error)
        is_cut = error.__cause__ is not None and _is_named(error.__cause__, "RemoteProtocolError")
        text = (
            f"the connection to {asked_server(error)} broke off ({in_one_line(reason)}): try again; if it happens again, "
            "check the server, and any proxy in between"
            if is_cut
            else f"{asked_server(error)} cannot be reached ({in_one_line(reason)}): check that it runs, and `base_url` of the "
            "model client (or OPENAI_BASE_URL)"
        )
    elif str(error) == "No more mock responses available":
        text = (
            "the recorded conversation has no further answers: it was recorded for another task, or the code took "
            "another course this time; use a config with a model, such as `team`"
        )
    else:
        text, guide = f"{in_one_line(_named(error))}; --log-level debug shows where it comes from", None
    return without_secrets(text if guide is None else f"{text}; more: codeact-team help {guide}", environ)


def is_transient(error: BaseException) -> bool:
    """Whether the same run may succeed a little later: the model's server is not there, overloaded, or has failed."""
    if (refusal := ServerRefusal.of(error)) is not None:
        return refusal.is_transient
    return isinstance(error, AnswerCutOffError) or _is_named(error, "APIConnectionError")


def is_of_infrastructure(error: BaseException) -> bool:
    """Whether a run failed by its environment, such as the model's server, the engine, or a sandbox, and not by its input."""
    if isinstance(error, EngineError | SandboxLostError):
        return True
    return is_transient(error) or _is_named(error, "APITimeoutError")


def retry_after(error: BaseException) -> float | None:
    """The seconds to wait that a model's server asks for, if it does."""
    refusal = ServerRefusal.of(error)
    return None if refusal is None else refusal.retry_after


def is_too_many(error: BaseException) -> bool:
    """Whether a model's server has refused because of too many requests."""
    return _is_refused_as(error, RefusalKind.TOO_MANY)


def is_refused(error: BaseException) -> bool:
    """Whether a model's server refuses the key, or this call with it."""
    return _is_refused_as(error, RefusalKind.KEY, RefusalKind.FORBIDDEN)


def unknown_to_server(error: BaseException) -> str | None:
    """The words of a model's server that does not know the model, or the address; ``None`` of any other error."""
    refusal = ServerRefusal.of(error)
    return refusal.said if refusal is not None and refusal.kind is RefusalKind.UNKNOWN else None


def is_unauthorized(error: BaseException) -> bool:
    """Whether a model's server does not accept the key."""
    return _is_refused_as(error, RefusalKind.KEY)


def _is_refused_as(error: BaseException, *kinds: RefusalKind) -> bool:
    refusal = ServerRefusal.of(error)
    return refusal is not None and refusal.kind in kinds


def _is_named(error: BaseException, name: str) -> bool:
    return any(kind.__name__ == name for kind in type(error).__mro__)


def _named(error: BaseException) -> str:
    """An error by the name of its class; one that a team of AutoGen's has passed on as text has it there."""
    if type(error) is RuntimeError and "\nTraceback:\n" in str(error):
        named = str(error).partition("\nTraceback:\n")[0]
        # each team on the way out has wrapped it once more
        return re.sub(r"^(?:RuntimeError: )+(?=\w+: )", "", named)
    return f"{type(error).__name__}: {error}"


def reasons_in(*told: str | None) -> Sequence[str]:
    """Those reasons that there are, each once, in a line."""
    return [" ".join(reason.split()) for reason in dict.fromkeys(filter(None, told))]


MOST_MISSING = 20
"""Hosts that a result names."""


class RunEnding(StrEnum):
    """The ending of a run, or of a run of a task in a batch."""

    ACCEPTED = "accepted"
    """A review has accepted its work."""
    ANSWERED = "answered"
    """An agent has answered, or the team has come to an end of its own, and there is no review."""
    NOT_ACCEPTED = "not accepted"
    """The team ended without either."""
    FAILED = "failed"
    """It could not run, or not go on: bad input, or an environment that does not work."""
    STOPPED = "stopped"
    """A signal stopped it."""
    PARKED = "parked"
    """It waits for the answer of a person who was not there."""

    @property
    def is_success(self) -> bool:
        """Whether its answer counts, and is delivered with its files."""
        return self in (RunEnding.ACCEPTED, RunEnding.ANSWERED)

    @property
    def is_final(self) -> bool:
        """Whether the team has come to the end of its work, well or not."""
        return self.is_success or self is RunEnding.NOT_ACCEPTED


@dataclass
class ToolUse:
    """The calls that code has made of one tool.

    Attributes:
        name: The tool, as code calls it.
        outcomes: How many calls had each outcome.
    """

    name: str
    outcomes: dict[CallOutcome, int] = field(default_factory=dict[CallOutcome, int])
    seconds: float = 0.0
    """Wall-clock time; calls side by side count each."""


@dataclass
class Cost:
    """The money that a run has cost, by the prices of its budget.

    Attributes:
        amount: For all calls of models whose tokens and price are known.
        currency: As the config has it.
        unpriced: Models that were asked and have no price.
        uncounted: How many calls of models have an unknown number of tokens.
        is_estimated: Whether tokens are estimated of some calls, whose servers have not told them.
    """

    amount: float
    currency: str
    unpriced: Sequence[str] = ()
    uncounted: int = 0
    is_estimated: bool = False

    def to_text(self) -> str:
        """The cost for a person, and which parts of it are unknown."""
        amount = "<0.0001" if 0 < self.amount < 0.0001 else f"{self.amount:,.4f}"
        unknown = [f"no price for {model}" for model in self.unpriced]
        if self.uncounted:
            unknown.append(f"unknown tokens of {self.uncounted} call{'' if self.uncounted == 1 else 's'}")
        told = f"{'about ' if self.is_estimated else ''}{amount} {self.currency}"
        return f"at least {told} ({', '.join(unknown)})" if unknown else told


@dataclass(frozen=True)
class RunFile:
    """A file that a run has made or changed.

    Attributes:
        path: Its path in the workspace, invisible characters replaced; hostile data.
        size: In bytes.
        change: Whether it was made, changed or removed.
        found_at: Its path on this machine; ``None`` if it is gone, or only in a container.
        problem: Why it has no copy, if one was wanted.
        is_copy: Whether ``found_at`` is a copy that was wanted, and the workspace has the file, too.
        sha256: The digest of its content in hexadecimal digits, if the run's record keeps that.
    """

    path: str
    size: int
    change: Change
    found_at: str | None = None
    problem: str = ""
    is_copy: bool = False
    sha256: str | None = None

    @property
    def is_renamed(self) -> bool:
        """Whether it has another name where it was delivered, as something else had its own."""
        return self.found_at is not None and os.path.basename(self.found_at) != os.path.basename(self.path)


@dataclass(frozen=True)
class AgentEnding:
    """The ending of an agent's work without an answer, or with a verdict that could not be read.

    Attributes:
        agent: The agent.
        ending: The ending of its work.
    """

    agent: str
    ending: Ending

    def to_text(self) -> str:
        """The same for a person."""
        return f"{self.agent}: {self.ending.sentence}"


@dataclass(frozen=True)
class WrongSetting:
    """A setting of a model client that its server does not know.

    Attributes:
        model: The model that was asked for.
        name: The setting: ``model``, or ``base_url``.
    """

    model: str
    name: str


@dataclass(kw_only=True)
class RunResult(Event, type="result"):
    """The result of a run, its last event.

    Attributes:
        usage: The tokens of all calls of models.
        is_estimated: Whether they are estimated of some calls, whose servers have not told them.
        cost: ``None`` where no prices are known.
        messages: How many there were, the task included.
        steps: How often code ran.
        seconds: Wall-clock time, from the config to the last thing stopped.
        stop_reason: Why the team stopped, in its own words; of a single agent, which limit has cut its work short.
        reviewed: Whether somebody has judged the work.
        objection: Why work that nobody has judged does not count as answered.
        cause: The agent's ending that kept the work from being accepted, if it was one.
        error: What went wrong, and what to do.
        wrong_setting: The setting that is wrong, if a server does not know the model, or the address.
        is_transient: Whether the same run may succeed a little later.
        is_of_infrastructure: As of :func:`is_of_infrastructure`.
        tools: In the order of the first calls.
        missing_hosts: The entries of ``egress`` that would allow what the code has asked for and no rule is for.
        answer: In words, or as JSON if an agent has an ``output_schema``. It counts if the ending is a success; else it is
            the best so far. ``None`` without anything like an answer. Hostile data.
        files: What it has made or changed in its workspaces; a thousand at most.
        file_notes: Remarks on them, such as how many more there are.
        files_due: How many files could not be copied to where they were wanted, or are lost.
    """

    type: ClassVar[Literal["result"]]
    ending: RunEnding
    usage: RequestUsage
    messages: int
    seconds: float
    stop_reason: str | None = None
    reviewed: bool = False
    objection: str | None = None
    cause: AgentEnding | None = None
    error: str | None = None
    wrong_setting: WrongSetting | None = None
    is_transient: bool = False
    is_of_infrastructure: bool = False
    signal: Signals | None = None
    tools: Sequence[ToolUse] = ()
    missing_hosts: Sequence[str] = ()
    answer: str | None = None
    files: Sequence[RunFile] = ()
    file_notes: Sequence[str] = ()
    files_due: int = 0
    cost: Cost | None = None
    steps: int = 0
    is_estimated: bool = False

    @property
    def reasons(self) -> Sequence[str]:
        """What has ended it, and why it does not count, as the screen and pages say it beside the error; each in a line."""
        return reasons_in(self.stop_reason, self.objection)

    @property
    def problem(self) -> str | None:
        """Its error, or else why its work does not count, in a line, as lists and exports say it; ``None`` if it counts."""
        if self.ending.is_success:
            return None
        return " · ".join(reasons_in(self.error) or self.reasons) or None

    @property
    def answer_label(self) -> str:
        """What :attr:`answer` is, for a heading beside the ending."""
        if self.answer is None:
            return "no answer"
        return "answer" if self.ending.is_success else "best answer so far"

    @property
    def renamed(self) -> str:
        """Where the files are that the answer names, and whose copies have other names, a line each; mostly empty."""
        named = [file for file in self.files if file.is_renamed and _names(self.answer or "", file.path)]
        return "\n".join(f"{file.path} is {file.found_at}" for file in named)

    @property
    def delivered_answer(self) -> str | None:
        """The answer, and below it :attr:`renamed`, where it is text: the words of a model stay as they are, and so does JSON."""
        if self.answer is None or not self.renamed or _is_json(self.answer):
            return self.answer
        return f"{self.answer.rstrip()}\n\n{self.renamed}"

    @property
    def exit_code(self) -> int:
        """0 accepted or answered, 1 neither, 2 failed, 3 parked, 75 if the same run may succeed later, 128 + n by signal n.

        The last two as ``sysexits`` and shells have them. Work that counts has failed, too, if its files could not be
        copied to where they were wanted.
        """
        if self.signal is not None:
            return 128 + self.signal
        if self.is_transient:
            return os.EX_TEMPFAIL
        if self.ending.is_success:
            return 2 if self.files_due else 0
        return {RunEnding.NOT_ACCEPTED: 1, RunEnding.PARKED: 3}.get(self.ending, 2)


def merged(files: Mapping[str, RunFile], later: Iterable[RunFile]) -> dict[str, RunFile]:
    """The files of tasks one after the other, by the path: each once, as it is now, and as it was changed at first."""
    known = dict(files)
    for file in later:
        path = file.found_at or file.path
        known[path] = replace(file, change=known.get(path, file).change)
    return known


def _names(text: str, path: str) -> bool:
    name = re.escape(os.path.basename(path))
    return re.search(rf"(?<![\w.-]){name}(?![\w-]|\.\w)", text) is not None


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict | list)
    except (ValueError, RecursionError):
        return False


class Costs:
    """A listener that counts what a run has used.

    Args:
        in_all: Whether the tasks of a team are counted together.

    Attributes:
        usage: The tokens of all calls of models; answers from a cache cost none.
        cached: How many answers came from a cache.
        is_estimated: Whether some of these are estimated.
        tools: By name, in the order of the first calls, the tools that code has called.
        missing_hosts: The first entries of ``egress`` that would allow what code was denied.
        messages: How many have come out of the team, the task included and chunks not.
        cost: In money, if a budget has prices.
    """

    def __init__(self, *, in_all: bool = False) -> None:
        self._in_all = in_all
        self._begin()

    def _begin(self) -> None:
        self.usage: RequestUsage = RequestUsage(0, 0)
        self.cached: int = 0
        self.is_estimated: bool = False
        self.tools: dict[str, ToolUse] = {}
        self.missing_hosts: dict[str, None] = {}
        self.messages = 0
        self.cost: Cost | None = None
        self._blocks: set[int] = set()

    @property
    def steps(self) -> int:
        """The number of times that code ran."""
        return len(self._blocks)

    def __call__(self, event: Event) -> None:
        match event:
            case RunBegan() if not self._in_all:
                self._begin()
            case ModelCallEnded(usage=RequestUsage() as usage, cached=False):
                self.usage.prompt_tokens += usage.prompt_tokens
                self.usage.completion_tokens += usage.completion_tokens
                self.is_estimated |= event.is_estimated
            case ModelCallEnded(cached=True):
                self.cached += 1
            case BudgetSpent(currency=str() as currency):
                cost = Cost(
                    event.spent["cost"], currency, event.unpriced, event.uncounted, event.is_estimated
                )
                # the cost of an outer team includes the cost of inner teams
                if self.cost is None or _extent(cost) >= _extent(self.cost):
                    self.cost = cost
            case BlockBegan():
                self._blocks.add(event.span)
            case ToolCallEnded() if event.parent in self._blocks:
                tool = self.tools.setdefault(event.name, ToolUse(event.name))
                tool.outcomes[event.outcome] = tool.outcomes.get(event.outcome, 0) + 1
                tool.seconds += event.seconds
            case RequestDenied(entry=str() as entry) if len(self.missing_hosts) < MOST_MISSING:
                self.missing_hosts[entry] = None
            case _:
                pass


def _extent(cost: Cost) -> tuple[float, int, int]:
    return cost.amount, len(cost.unpriced), cost.uncounted
