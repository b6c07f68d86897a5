"""What came of running code, and what the code may call on the host meanwhile."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum

from autogen_core.code_executor import CodeResult
from pydantic import JsonValue


class Outcome(StrEnum):
    """How the execution of some code blocks came to its end."""

    COMPLETED = "completed"
    """The code ran to its own end, with whatever exit code."""
    TIMED_OUT = "timed_out"
    """The time limit stopped it."""
    CANCELLED = "cancelled"
    """The caller stopped it."""
    DENIED = "denied"
    """It was not approved and did not run."""
    NOT_RUN = "not_run"
    """It could not be run: an unusable file name or an unknown language."""
    LOST = "lost"
    """The sandbox ended under it; the next call gets a fresh one."""


@dataclass(frozen=True)
class Artifact:
    """What a block has made beside text, such as a figure; hostile data.

    Attributes:
        mime_type: Such as ``image/png`` or ``text/html``.
        data: The bytes, as the code made them.
    """

    mime_type: str
    data: bytes


@dataclass
class ExecutionResult(CodeResult):
    """AutoGen's ``CodeResult`` with what else is known.

    Attributes:
        exit_code: 0 for success; of the last block that ran.
        output: What the blocks wrote, stdout and stderr in order, bounded; hostile data.
        outcome: How it ended.
        code_file: Host path of the first block's file where the workspace is a directory of the host; a name only,
            never to be opened without refusing symbolic links.
        limit: The limit that the code ran into, and the config field that sets it.
        omitted_bytes: How many bytes of output were dropped from the middle.
        seconds: Wall-clock time from the first block's start to the last block's end.
        processor_seconds: Processor time that the sandbox has used since the call before; ``None`` where that is not known.
        missing_module: The Python module whose absence ended the code, by what it wrote last.
        saved_pictures: Pictures that the code has saved in the workspace, where an agent has read them there.
    """

    outcome: Outcome = Outcome.COMPLETED
    code_file: str | None = None
    limit: str | None = None
    omitted_bytes: int = 0
    seconds: float = 0.0
    processor_seconds: float | None = None
    missing_module: str | None = None
    saved_pictures: list[Artifact] = field(default_factory=list[Artifact])


@dataclass(frozen=True)
class BoundName:
    """A global name that a block has bound, or bound anew; hostile data.

    Attributes:
        name: The name.
        type: The name of its value's type, such as ``ndarray``.
        size: The value's shape or length in words, such as ``(3, 4)`` or ``10 items``, where it has one.
        preview: The beginning of what the value looks like, where that is known without running its code.
    """

    name: str
    type: str
    size: str | None = None
    preview: str | None = None


@dataclass
class SessionResult(ExecutionResult):
    """A result of code that runs in a living interpreter.

    Attributes:
        state_lost: Whether the interpreter that held the variables is gone; the next block gets a fresh one.
        names: The names bound by the blocks, at most a few dozen.
        omitted_names: How many more there were.
        artifacts: Figures, pictures and tables, in order.
        answer: What the code called ``final_answer`` with, as text; the first call counts. ``None`` if it did not.
        answer_is_json: Whether that text is the JSON of the value; if not, the value is that text, or there is a problem.
        answer_problem: Why the value is none that JSON has, or is not whole in that text.
        denied: Whether what ended the code was a call of a tool that was not approved, by the code's own account.
        output_file: The file of the workspace that has the whole output, where an agent has kept it there.
    """

    state_lost: bool = False
    names: list[BoundName] = field(default_factory=list[BoundName])
    omitted_names: int = 0
    artifacts: list[Artifact] = field(default_factory=list[Artifact])
    answer: str | None = None
    answer_is_json: bool = False
    answer_problem: str = ""
    denied: bool = False
    output_file: str | None = None


class CallOutcome(StrEnum):
    """What became of the call of a tool."""

    OK = "ok"
    """The tool returned."""
    FAILED = "failed"
    """The tool had an error."""
    TIMED_OUT = "timed_out"
    """The tool's time limit stopped it."""
    DENIED = "denied"
    """It was not approved, and the tool was not called."""
    REFUSED = "refused"
    """The tool was not called: it is not offered, the arguments are wrong, or a limit is reached."""
    CANCELLED = "cancelled"
    """The block ended, or nobody waited for it any more."""


@dataclass(frozen=True)
class CallAnswer:
    """What the code gets for the call of a tool."""

    outcome: CallOutcome = CallOutcome.OK
    content: Sequence[JsonValue | Artifact] = ()
    """What the tool returned: one value, or for MCP several pieces, media among them."""
    error: str = ""
    """What is wrong, in words for the model, unless the outcome is ``OK``."""


class HostTools(ABC):
    """The functions of the host that the code of one execution may call, and what becomes of each call."""

    @property
    @abstractmethod
    def declarations(self) -> Sequence[Mapping[str, JsonValue]]:
        """What the sandbox is told of each, the same object as long as it is the same.

        ``name``: the dotted path below ``tools`` by which code calls it, at most two identifiers; ``doc``: its
        docstring; ``parameters``: a list of objects with ``name`` (an identifier), ``key`` (its name in the arguments),
        ``annotation`` (as it is shown), ``required``, ``default`` (a value, if it has one) and ``keyword_only``;
        ``returns``: an annotation or null; ``takes_others``: whether it may be called with other keywords, too.
        """

    @property
    @abstractmethod
    def max_parallel(self) -> int:
        """How many calls run at the same time."""

    @property
    def rights(self) -> object:
        """What agents must have alike, by ``==``, for their code to share an interpreter. Default: nobody has them."""
        return self

    @abstractmethod
    async def call(
        self,
        name: str,
        arguments: dict[str, JsonValue],
        *,
        pause: Callable[[], AbstractContextManager[None]],
    ) -> CallAnswer:
        """Call a tool. Whatever goes wrong is an answer; only a cancellation is raised.

        Args:
            name: As declared, if the code is honest.
            arguments: Unchecked.
            pause: Within it, as while a person is asked, time does not count against the block.
        """
