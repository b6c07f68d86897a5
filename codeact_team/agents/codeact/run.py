"""One run of the agent: its steps so far, and when it has to end."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from autogen_core.code_executor import CodeBlock
from autogen_core.models import LLMMessage

from codeact_team.agents.codeact.config import Budget, Limits
from codeact_team.agents.codeact.reply import NOTHING, HandoffTaken, Reply
from codeact_team.agents.observations import Ending, observe, shorten, summarize
from codeact_team.agents.turn import CodeTurn, Item
from codeact_team.core.aio import is_being_cancelled
from codeact_team.core.execution import Artifact, ExecutionResult, Outcome, SessionResult
from codeact_team.models.verdicts import Verdict
from codeact_team.text.quoting import as_data, make_inert

MAX_REPETITIONS = 3
"""The most steps in a row that bring nothing new."""

_CHANGES_BY_ITSELF = re.compile(
    r"<block \d+>"  # in tracebacks: a session counts its blocks
    r"|\b0x[0-9a-f]{6,}"  # where an object is in memory
    r"|(?<=/tmp)[a-z0-9_]{8}\b"  # what tempfile makes up
    r"|\b(?:\d{4}-\d\d-\d\d[T ])?\d?\d:\d\d:\d\d(?:[.,]\d+)?"  # when something was
    r"|\b(?:\d+\.\d+ ?s(?:ec(?:ond)?s?)?|\d+(?:\.\d+)? ?[mµun]s)\b"  # how long it took
)


class Repetition:
    """Counts the steps in a row with code and a result that have been there before.

    Block numbers, addresses, temporary names and times make no result a new one. Anything new in between starts the count
    anew, so that a test may run after each of many changes; a circle of several steps is noticed as well.
    """

    def __init__(self) -> None:
        self.steps: int = 0
        self._seen: set[int] = set()

    def note(self, blocks: Sequence[CodeBlock], result: ExecutionResult) -> None:
        """Note what ran, and what came of it."""
        code = tuple((block.language, block.code.strip()) for block in blocks)
        output = _CHANGES_BY_ITSELF.sub("", result.output)
        step = hash((code, result.exit_code, result.outcome, output))
        self.steps = self.steps + 1 if step in self._seen else 0
        self._seen.add(step)


MAX_ARTIFACT_BYTES = 32 * 1024 * 1024
"""The most bytes of all artifacts of one run; its messages are kept as long as the run's result is."""
MAX_REMARKS = 3
"""The most replies in a row that are neither code nor an answer."""

_LIMITS = {
    Ending.MAX_STEPS: "You have used up the steps for this task.",
    Ending.MAX_SECONDS: "The time for this task is over.",
    Ending.MAX_TOKENS: "You have used up the tokens for this task.",
    Ending.MAX_CALLS: "You have used up the calls of tools for this task.",
    Ending.STUCK: "You are going in circles.",
    Ending.CUT_OFF: "Your replies were cut off, so be brief.",
    Ending.NO_SUCH_TOOL: "There are no tools that you could call.",
    Ending.GIVEN_UP: "No further attempt is made.",
}
_LAST_QUESTION = (
    "Code is not run any more. Give the best answer to the task that the results so far allow, in plain words, and say "
    "what is missing."
)
_LAST_QUESTION_AS_JSON = (
    "Code is not run any more. Reply with nothing but JSON: the best answer to the task that the results so far allow and "
    "that fits the schema. If none can, say in plain words what is missing."
)
_CANCELLED = "The run was cancelled."
_REPEATED = "The same code has had the same result before. Try something else, or answer with what you have."
_TIME_IS_OVER = "The time for this task is over; the code was stopped."
_EMPTY_ANSWER = "(The answer is empty.)"


async def _keep_to_oneself(_: Item) -> None:
    pass


@dataclass(kw_only=True)
class CodeActRun(CodeTurn):
    """The state of one run of the agent."""

    limits: Limits
    instructions: str
    """The system message, ready to send; empty for none."""
    task: list[LLMMessage]
    """The messages that the run begins with."""
    budget: Budget = field(init=False)
    said: list[LLMMessage] = field(default_factory=list[LLMMessage])
    """The messages since the task."""
    latest: int = 0
    """Where in that the latest code stands."""
    unanswered: bool = False
    """Whether the last thing said is code of which nothing has come yet."""
    reply: Reply = NOTHING
    """The latest reply of the model."""
    remarks: int = 0
    """The number of replies in a row that were neither code nor an answer."""
    errors: int = 0
    """The number of executions in a row that failed."""
    repetition: Repetition = field(default_factory=Repetition)
    reflections: int = 0
    """The number of times that a reflection has sent the agent back to work."""
    verdict: Verdict | None = None
    handoff: HandoffTaken | None = None
    answer: str = ""
    ending: Ending | None = None
    artifact_bytes: int = 0
    """The bytes of all artifacts so far."""
    omitted_artifacts: int = 0
    """The number of artifacts of the latest result for which there was no room."""
    shown: list[Artifact] = field(default_factory=list[Artifact])
    """The artifacts so far."""

    def __post_init__(self) -> None:
        self.budget = Budget(self.limits, self.cancellation_token, self.source, self.dispatcher)
        self.tools.pause = self.budget.paused

    def attempt(self) -> CodeActRun:
        """A run on the same task for one of several attempts at it, of which nothing is yielded."""
        return CodeActRun(
            source=self.source,
            yield_item=_keep_to_oneself,
            dispatcher=self.dispatcher,
            cancellation_token=self.cancellation_token,
            tools=self.tools.in_attempt(),
            stream_output=False,
            max_pictures=self.max_pictures,
            limits=self.limits,
            instructions=self.instructions,
            task=self.task,
        )

    async def is_over(self) -> bool:
        """Whether there is an answer, or something else ends the run."""
        if self.ending is None:
            await self.budget.check_time()
            self.ending = Ending.CANCELLED if self.stopped else self.spent
        return self.ending is not None

    async def add_result(self, result: ExecutionResult) -> None:
        """Add the result of the blocks."""
        await self.budget.check_time()
        observed = observe(result)
        if observed.outcome is Outcome.CANCELLED and self.budget.time_is_over and not self.cancelled:
            limit = f"max_seconds: {self.limits.max_seconds:g}"
            observed = replace(observed, outcome=Outcome.TIMED_OUT, limit=limit)
        if isinstance(observed, SessionResult):
            kept: list[Artifact] = []
            for artifact in observed.artifacts:
                if self.artifact_bytes + artifact.size <= MAX_ARTIFACT_BYTES:
                    self.artifact_bytes += artifact.size
                    kept.append(artifact)
            self.omitted_artifacts = len(observed.artifacts) - len(kept)
            self.shown += kept
            observed = replace(observed, artifacts=kept)
        self.result = observed
        self.unsupported, self.invented = self.reply.unsupported, self.reply.invented
        await self.read_pictures()
        self.executed.append(self.reply.blocks)
        self.repetition.note(self.reply.blocks, observed)
        self.errors = self.errors + 1 if self.failed else 0
        self.remarks = 0

    @property
    def spent(self) -> Ending | None:
        """Which limit is reached, if one is."""
        return Ending.MAX_CALLS if self.tools.limited.used_up else self.budget.spent(self.usage)

    def last_question(self, *, as_json: bool) -> str | None:
        """Return the question for a last answer if a limit has ended the run; ``None`` if none has."""
        if self.ending is None or self.ending not in _LIMITS:
            return None
        return f"{_LIMITS[self.ending]} {_LAST_QUESTION_AS_JSON if as_json else _LAST_QUESTION}"

    @property
    def final_text(self) -> str:
        """The text of the response."""
        if self.ending is not Ending.CANCELLED:
            return self.answer
        return self.result.output if self.result.outcome is Outcome.CANCELLED else _CANCELLED

    @property
    def cancelled(self) -> bool:
        """Whether the caller has stopped it."""
        return self.cancellation_token.is_cancelled()

    async def only_time_is_over(self) -> bool:
        """Whether a cancellation is due to the time limit alone."""
        await self.budget.check_time()
        return self.budget.time_is_over and not self.cancelled and not is_being_cancelled()

    @property
    def failed(self) -> bool:
        """Whether the latest code had an error that could be mended."""
        return self.result.exit_code != 0 and self.result.outcome not in (Outcome.DENIED, Outcome.CANCELLED)

    @property
    def final_answer(self) -> str | None:
        """The argument of the code's call of ``final_answer``, as it is passed on."""
        answer = super().whole_answer
        if answer is None:
            return None
        return make_inert(shorten(answer)) if answer.strip() else _EMPTY_ANSWER

    @property
    def whole_answer(self) -> str | None:
        # a later answer in words may have taken its place
        return super().whole_answer if self.answer == self.final_answer else None

    def observation(self) -> str:
        """The text of the latest result for the model."""
        summary = summarize(self.result)
        output = f"{self.result.output.rstrip()}\n{summary}" if summary else self.result.output
        remarks = [self.with_left_out(as_data(output))]
        if self.budget.time_is_over and not self.cancelled:
            remarks.append(_TIME_IS_OVER)
        if self.omitted_artifacts:
            remarks.append(
                f"There was no room for {self.omitted_artifacts} of the pictures or tables it made."
            )
        if isinstance(self.result, SessionResult) and (file := self.result.output_file) is not None:
            remarks.append(f"The output was cut. Code can read what is left out here from the file {file}.")
        if self.repetition.steps:
            remarks.append(_REPEATED)
        return "\n".join(remarks)

    def metadata(self) -> dict[str, str]:
        """The run, for programs."""
        if self.ending is Ending.CANCELLED and self.result.outcome is Outcome.CANCELLED:
            self.remark = ""
        ending = {} if self.ending is None else self.ending.to_metadata()
        verdict = {} if self.verdict is None else self.verdict.to_metadata()
        return {**super().metadata(), **ending, **verdict}
