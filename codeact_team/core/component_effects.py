"""What is asked of executors and of workbenches, as effects that go through the dispatcher: whatever agent asks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import TypeVar

from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult
from pydantic import JsonValue, TypeAdapter

from codeact_team.core.effects import Effect, error_text
from codeact_team.core.events import (
    BlockBegan,
    BlockEnded,
    Code,
    ToolListingBegan,
    ToolListingEnded,
)
from codeact_team.core.execution import ArtifactReference, Outcome, SessionResult

T = TypeVar("T")
R = TypeVar("R", bound=CodeResult)
Run = Callable[[list[CodeBlock]], Awaitable[CodeResult]]


class CodeEffect(Effect[T]):
    """A request to an executor, which has to be in the state that the code before has left.

    Args:
        executor: The executor.
        run: Runs blocks there like those of the agent, with the same tools, but without records.

    Attributes:
        is_apart: Whether it happens in a fork of the session, whose state is not yet its own.
    """

    is_apart = False

    def __init__(self, executor: CodeExecutor, run: Run) -> None:
        self.part = executor
        self.run = run


class CodeRun(CodeEffect[R]):
    """Code blocks run in an executor; ``message_id`` is that of the message with the result, if there is one."""

    def __init__(
        self,
        executor: CodeExecutor,
        blocks: Sequence[CodeBlock],
        run: Run,
        message_id: str | None = None,
    ) -> None:
        super().__init__(executor, run)
        self._blocks = [Code(block.language, block.code) for block in blocks]
        self._message_id = message_id

    def request(self) -> JsonValue:
        return {"blocks": [asdict(block) for block in self._blocks]}

    def began(self) -> BlockBegan:
        timeout: object = getattr(self.part, "timeout", None)
        return BlockBegan(blocks=self._blocks, timeout=timeout if isinstance(timeout, int | float) else None)

    def ended(self, outcome: R | None, error: BaseException | None) -> BlockEnded:
        return block_ended(outcome, error, self._message_id)


def block_ended(
    result: CodeResult | None, error: BaseException | None = None, message_id: str | None = None
) -> BlockEnded:
    """The end of code blocks by their result."""
    event = BlockEnded(message_id=message_id, error=error_text(error))
    if result is not None:
        event.outcome = Outcome.COMPLETED
        # the fields have the names that they have in the result
        for name in vars(event).keys() & vars(result).keys():
            setattr(event, name, getattr(result, name))
    if isinstance(result, SessionResult):
        event.artifacts = [ArtifactReference.of(artifact) for artifact in result.artifacts]
    return event


class ToolListing(Effect[T]):
    """Workbenches are asked for their tools.

    Args:
        part: The workbench, if there is only one.
        form: How pydantic writes and reads the list as JSON.
        asked: The names of the workbenches.
        source: The agent that asks, if that is known.
    """

    kind = "tool_listing"

    def __init__(
        self, part: object, form: TypeAdapter[T], asked: list[str], source: str | None = None
    ) -> None:
        self.part = part
        self.form = form
        self._asked = asked
        if source is not None:
            self.source = source

    def request(self) -> JsonValue:
        return {"list": [*self._asked]}

    def began(self) -> ToolListingBegan:
        return ToolListingBegan(of=self._asked)

    def ended(self, outcome: T | None, error: BaseException | None) -> ToolListingEnded:
        return ToolListingEnded(of=self._asked)
