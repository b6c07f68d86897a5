"""Effects for the requests of any agent to executors and workbenches. They go through the dispatcher."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, TypeVar

from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult
from pydantic import JsonValue, TypeAdapter

from codeact_team.core.effects import Begin, Effect, End
from codeact_team.core.events import (
    BlockBegan,
    BlockEnded,
    Code,
    ToolListingBegan,
    ToolListingEnded,
)
from codeact_team.core.execution import ArtifactReference, Outcome, SessionResult
from codeact_team.core.sandbox_description import DataEntry
from codeact_team.text.amounts import counted, size_of

T = TypeVar("T")
R = TypeVar("R", bound=CodeResult)
Run = Callable[[list[CodeBlock]], Awaitable[CodeResult]]

_BLOCK_ENDED = TypeAdapter(BlockEnded)
_TOLD = {field.name for field in fields(BlockEnded)} - {"artifacts"}


class WorkspaceEffect(Effect[T]):
    """An effect that may change files in the workspace of an executor, its ``part``, and nothing else that code has left there."""


class DataGiven(WorkspaceEffect[Sequence[DataEntry]]):
    """A person gives a file or a directory of this machine to the code of an executor; the outcome is what a model is told.

    Args:
        executor: The executor.
        path: Of the file or directory.
        is_told: Whether people are told what came of it; of several executors, it is enough to tell it of one.
    """

    kind = "data"
    form = TypeAdapter(Sequence[DataEntry])
    fails_undone = True

    def __init__(self, executor: CodeExecutor, path: str, *, is_told: bool = True) -> None:
        self.part = executor
        self._path = path
        self._is_told = is_told

    def request(self) -> JsonValue:
        return {"path": self._path}

    def facts_at_end(
        self, outcome: Sequence[DataEntry] | None, error: BaseException | None
    ) -> Mapping[str, JsonValue]:
        if outcome is None:
            return {"told": str(error) or f"{self._path} is not given: the copying was stopped"}
        if not self._is_told:
            return {"told": ""}
        size = size_of(sum(entry.size for entry in outcome))
        match outcome:
            case [DataEntry(path=path, files=None)] if "/" not in path:
                return {"told": f"the code has a copy of {path} now · {size}"}
            case _:
                files = sum(1 if entry.files is None else entry.files for entry in outcome)
                name = outcome[0].path.partition("/")[0] if outcome else self._path
                return {"told": f"the code has a copy of {name}/ now · {counted(files, 'file')}, {size}"}


class CodeEffect(Effect[T]):
    """An effect that depends on the state that earlier code has left in an executor.

    Args:
        executor: The executor.
        run: Runs blocks there as the agent does, with the same tools, but without records.

    Attributes:
        is_apart: Whether it happens in a fork of the session, whose state is not yet its own.
        is_done_again: Whether a resumed run does it again although it is recorded: its program starts again, and asks for
            everything in the same order.
    """

    is_apart = False
    is_done_again = False

    def __init__(self, executor: CodeExecutor, run: Run) -> None:
        self.part = executor
        self.run = run


class CodeRun(CodeEffect[R]):
    """Code blocks run in an executor; ``message_id`` is the id of the message with the result, if there is one."""

    spends = ("processor_seconds", "seconds")

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

    def facts(self) -> Mapping[str, JsonValue]:
        timeout: object = getattr(self.part, "timeout", None)
        facts: dict[str, JsonValue] = {"timeout": timeout} if isinstance(timeout, int | float) else {}
        return {**facts, "of_program": True} if self.is_done_again else facts

    def facts_at_end(self, outcome: R | None, error: BaseException | None) -> Mapping[str, JsonValue]:
        facts: dict[str, JsonValue] = {}
        if self._message_id is not None:
            facts["message_id"] = self._message_id
        if isinstance(outcome, SessionResult) and outcome.artifacts:
            facts["artifacts"] = [asdict(ArtifactReference.of(artifact)) for artifact in outcome.artifacts]
        return facts

    @classmethod
    def began(cls, begin: Begin) -> BlockBegan:
        blocks = [Code(block["language"], block["code"]) for block in begin.request["blocks"]]
        return BlockBegan(blocks=blocks, **BlockBegan.fields_in(begin.facts))

    @classmethod
    def ended(cls, end: End) -> BlockEnded:
        found: dict[str, Any] = {"error": end.error}
        if end.outcome is not None:
            # the fields have the names that they have in the result
            found |= {"outcome": Outcome.COMPLETED}
            found |= {name: end.outcome[name] for name in end.outcome.keys() & _TOLD}
        return _BLOCK_ENDED.validate_python({**found, **end.facts})


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

    @classmethod
    def began(cls, begin: Begin) -> ToolListingBegan:
        return ToolListingBegan(of=begin.request["list"])

    @classmethod
    def ended(cls, end: End) -> ToolListingEnded:
        return ToolListingEnded(of=end.request["list"])
