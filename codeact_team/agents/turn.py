"""What one turn of an agent that runs code has come to."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from autogen_agentchat.base import Response
from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage, ModelClientStreamingChunkEvent
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock

from codeact_team.agents.calls import UsageTotal
from codeact_team.agents.tool_use import TurnTools
from codeact_team.execution import ExecutionResult, Outcome
from codeact_team.observations import CodeRecord, ExecutionRecord
from codeact_team.parsing import make_inert
from codeact_team.retry import RetryDecision

Item = BaseAgentEvent | BaseChatMessage | Response
"""What an agent yields."""


class Turn:
    """What one turn of the agent has come to so far."""

    def __init__(self, cancellation_token: CancellationToken, tools: TurnTools) -> None:
        self.cancellation_token = cancellation_token
        self.tools = tools
        self.inner_messages: list[BaseAgentEvent | BaseChatMessage] = []
        self.usage = UsageTotal()
        self.text = ""
        self.blocks: list[CodeBlock] = []
        """To run next."""
        self.unsupported: list[str] = []
        """Labels of code beside them that is not run."""
        self.executed: list[list[CodeBlock]] = []
        self.result = ExecutionResult(exit_code=0, output="")
        self.decisions: list[RetryDecision] = []

    @property
    def stopped(self) -> bool:
        """Whether the caller has stopped it, so that no model is asked any more."""
        return self.result.outcome is Outcome.CANCELLED or self.cancellation_token.is_cancelled()

    def metadata(self) -> dict[str, str]:
        """The turn, for programs; nothing where there was no code."""
        if not self.executed:
            return {}
        *earlier, last = self.executed
        approvals, omitted_approvals = self.tools.take_approvals()
        record = ExecutionRecord(
            blocks=_records(last),
            exit_code=self.result.exit_code,
            outcome=self.result.outcome,
            output=self.result.output,
            limit=self.result.limit,
            code_file=self.result.code_file,
            attempts=len(self.executed),
            superseded=[block for blocks in earlier for block in _records(blocks)],
            retry_decisions=self.decisions,
            tool_calls=self.tools.records,
            omitted_tool_calls=self.tools.omitted_records,
            approvals=approvals,
            omitted_approvals=omitted_approvals,
        )
        return record.to_metadata()

    def with_unsupported(self, text: str) -> str:
        """``text``, and which code was left out."""
        if not self.unsupported:
            return text
        labels = ", ".join(self.unsupported)
        return f"{text}\n[Code not run, its language is not supported here: {labels}]"

    def report(self) -> str:
        """The result itself, what was left out, and why no further attempt was made."""
        text = self.with_unsupported(self.result.output)
        if not self.decisions or self.decisions[-1].retry:
            return text
        return f"{text}\nNo further attempt: {make_inert(self.decisions[-1].reason)}"


async def recorded(turn: Turn, items: AsyncGenerator[Item, None]) -> AsyncGenerator[Item, None]:
    """The items; what is to be found in the response's ``inner_messages`` is noted in the turn."""
    async with aclosing(items):
        async for item in items:
            if not isinstance(item, Response | ModelClientStreamingChunkEvent):
                turn.inner_messages.append(item)
            yield item


def _records(blocks: list[CodeBlock]) -> list[CodeRecord]:
    return [CodeRecord(language=block.language, code=block.code) for block in blocks]
