"""Running code, as an effect that passes the door: what the effects of all agents that run code have in common."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import TypeVar

from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult
from pydantic import JsonValue

from codeact_team.effects import Effect
from codeact_team.events import BlockBegan, BlockEnded, Code, block_ended

R = TypeVar("R", bound=CodeResult)


class CodeRun(Effect[R]):
    """Code blocks run in an executor.

    Args:
        executor: What runs them.
        blocks: The blocks.
        run: Runs other blocks in the same way, with the same tools.
        message_id: The id of the message that tells what came of them, where there is one.

    Attributes:
        part: The executor.
    """

    def __init__(
        self,
        executor: CodeExecutor,
        blocks: Sequence[CodeBlock],
        run: Callable[[list[CodeBlock]], Awaitable[CodeResult]],
        message_id: str | None = None,
    ) -> None:
        self.part = executor
        self.run = run
        self._blocks = [Code(block.language, block.code) for block in blocks]
        self._message_id = message_id

    def request(self) -> JsonValue:
        return {"blocks": [asdict(block) for block in self._blocks]}

    def began(self, span: int) -> BlockBegan:
        return BlockBegan(span=span, agent=self.source, blocks=self._blocks)

    def ended(self, span: int, outcome: R | None, error: BaseException | None) -> BlockEnded:
        return block_ended(span, self.source, outcome, error, self._message_id)
