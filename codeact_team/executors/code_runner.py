"""How code runs in a sandbox, whatever sandbox it is: what an executor asks for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from autogen_core.code_executor import CodeBlock

from codeact_team.aio import to_the_end
from codeact_team.execution import ExecutionResult, HostTools
from codeact_team.executors.bounded_output import BoundedOutput
from codeact_team.executors.place import Place
from codeact_team.executors.stopping import Call
from codeact_team.sandboxes.base import Exit


class BlockError(Exception):
    """A block that cannot be run as it is; the text is for the model."""


@dataclass(slots=True)
class BlockEnd:
    """How a block ended.

    Attributes:
        exit: Its exit code, why what blocks leave behind for others is lost, if it is, and what the kernel counted.
        ran: Whether it began to run.
        sandbox_lives: Whether it is known that the sandbox goes on, even where an interpreter is lost.
    """

    exit: Exit
    ran: bool = True
    sandbox_lives: bool = False


@dataclass(frozen=True)
class Setup:
    """A block that runs before all others, wherever what blocks leave behind is new."""

    block: CodeBlock
    failure: str
    """What to say before its output if it fails."""
    may_read_data: bool = True
    """Whether it may read what a person gives to the code, besides modules that are there."""


Program = TypeVar("Program")
End = TypeVar("End", bound=BlockEnd)


class CodeRunner(ABC, Generic[Program, End]):
    """How code runs in the sandbox of a place."""

    lives_on: bool
    """Whether Python blocks share an interpreter."""
    loss: str
    """What the model is told when what blocks leave behind for others is lost: ``{}`` stands for the reason."""
    loss_before: str | None = None
    """The same, where it was lost after a user's last block and before the next; ``None`` if that is not told."""

    def __init__(self, languages: Iterable[str]) -> None:
        self.languages = tuple(languages)
        self.setup: list[Setup] = []

    @property
    def interpreter(self) -> int | None:
        """The number of the interpreter that lives on between blocks, as was heard last; ``None`` if there is none."""
        return 0

    @property
    def interpreter_loss(self) -> str:
        """Why the interpreter before that one is gone."""
        return ""

    async def open(self, place: Place) -> None:
        """Start, in a sandbox that runs, what all blocks need, unless it is there.

        Raises:
            SandboxError: If it cannot start.
        """

    async def close(self) -> str | None:
        """End that; the reason why it has ended before, if it has."""
        return None

    async def is_well(self, place: Place, call: Call) -> bool:
        """Whether what runs in a sandbox, in which no block of anybody's has run, answers; the call stops asking.

        Raises:
            SandboxError: If it does not.
        """
        return place.sandbox is not None and await place.sandbox.answers()

    def take_over(self, other: AnyRunner) -> None:
        """Have what another one has opened in a sandbox that this one has now; the other has nothing afterwards."""

    async def renew(self, place: Place, *, in_use: bool) -> None:
        """End all that blocks have left behind; if ``in_use``, while one may run."""
        if place.sandbox is not None:
            await to_the_end(place.sandbox.stop())

    @abstractmethod
    def read(self, block: CodeBlock) -> Program:
        """What is to be run.

        Raises:
            BlockError: If nothing can be.
        """

    def read_setup(self, setup: Setup) -> Program:
        """What is to be run for a piece of the setup."""
        return self.read(setup.block)

    @abstractmethod
    async def run(
        self,
        program: Program,
        place: Place,
        call: Call,
        output: BoundedOutput,
        tools: HostTools | None = None,
    ) -> End:
        """Run it until it ends, or until the call is stopped.

        Raises:
            SandboxError: If nothing can run here at all.
        """

    @abstractmethod
    def result(self, ends: Sequence[End], *, state_lost: bool) -> ExecutionResult:
        """What is known of a call by how its blocks ended, in order."""


AnyRunner: TypeAlias = CodeRunner[Any, Any]
