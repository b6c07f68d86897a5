"""What one turn of an agent that runs code has come to."""

from __future__ import annotations

from collections.abc import Sequence

from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock

from codeact_team.agents.calls import UsageTotal
from codeact_team.execution import ExecutionResult
from codeact_team.observations import CodeRecord, ExecutionRecord
from codeact_team.retry import RetryDecision


class Turn:
    """What one turn of the agent has come to so far."""

    def __init__(self, cancellation_token: CancellationToken) -> None:
        self.cancellation_token = cancellation_token
        self.inner_messages: list[BaseAgentEvent | BaseChatMessage] = []
        self.usage = UsageTotal()
        self.text = ""
        self.blocks: list[CodeBlock] = []
        self.result = ExecutionResult(exit_code=0, output="")
        self.attempts = 0
        self.decisions: list[RetryDecision] = []

    def record(self) -> ExecutionRecord:
        """The turn, for programs."""
        return ExecutionRecord(
            blocks=[CodeRecord(language=block.language, code=block.code) for block in self.blocks],
            exit_code=self.result.exit_code,
            outcome=self.result.outcome,
            output=self.result.output,
            limit=self.result.limit,
            code_file=self.result.code_file,
            attempts=self.attempts,
            retry_decisions=self.decisions,
        )


def with_unsupported(text: str, labels: Sequence[str]) -> str:
    """``text``, and which code in the messages was left out."""
    if not labels:
        return text
    return f"{text}\n[Code not run, its language is not supported here: {', '.join(labels)}]"


def with_declined_retry(turn: Turn) -> str:
    """The result of a turn without a reflection, and why it was not mended."""
    if not turn.decisions or turn.decisions[-1].retry:
        return turn.result.output
    return f"{turn.result.output}\nNo further attempt: {turn.decisions[-1].reason}"
