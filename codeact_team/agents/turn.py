"""The state of one turn of an agent: its events and messages, and what it costs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import uuid4

from autogen_agentchat.base import Response
from autogen_agentchat.messages import (
    BaseAgentEvent,
    BaseChatMessage,
    CodeExecutionEvent,
    CodeGenerationEvent,
    ModelClientStreamingChunkEvent,
    ThoughtEvent,
)
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from autogen_core.models import CreateResult, LLMMessage, RequestUsage
from autogen_core.tools import Tool

from codeact_team.agents.messages import Fault
from codeact_team.agents.observations import CodeRecord, ExecutionRecord, encodable, result_to_metadata
from codeact_team.agents.tool_calls import TurnTools
from codeact_team.core.effects import Dispatcher, emit
from codeact_team.core.events import Decision, Judged, Output, Words, emit_message, emit_piece
from codeact_team.core.execution import (
    Drawn,
    ExecutionResult,
    Outcome,
    Picture,
    SessionResult,
    pictures_to_metadata,
    read_drawn,
)
from codeact_team.models.clients import WrappedClient
from codeact_team.models.structured import ModelAnswer
from codeact_team.models.verdicts import RetryDecision, Verdict, decide_retry, reflect
from codeact_team.text.quoting import make_inert, take_thoughts_off

Item = BaseAgentEvent | BaseChatMessage | Response
"""An item that an agent yields."""
YieldItem = Callable[[Item], Awaitable[None]]
"""Lets an agent yield something."""


@dataclass(kw_only=True)
class Turn:
    """The state of one turn of an agent. An event and the AutoGen message with the same content have the same id."""

    source: str
    """The agent."""
    yield_item: YieldItem
    dispatcher: Dispatcher | None
    """The one that the agent remembers."""
    cancellation_token: CancellationToken
    """The caller's."""
    inner_messages: list[BaseAgentEvent | BaseChatMessage] = field(default_factory=list[Any])
    message_id: str = field(default_factory=lambda: str(uuid4()))
    """The id of the next message, which has in full what is streamed before it."""
    streamed: str | None = None
    """The id of the message that was last streamed."""
    usage: RequestUsage | None = None
    """The tokens of all calls of models so far; ``None`` where there was none."""

    def count(self, used: RequestUsage) -> None:
        """Count the tokens of a call of a model."""
        before = self.usage or RequestUsage(0, 0)
        self.usage = RequestUsage(
            before.prompt_tokens + used.prompt_tokens, before.completion_tokens + used.completion_tokens
        )

    def take_id(self) -> str:
        """The id for the message that is made now."""
        taken, self.message_id = self.message_id, str(uuid4())
        return taken

    async def send(self, message: BaseAgentEvent | BaseChatMessage) -> None:
        """Yield a message, which the response then has among its inner ones."""
        self.inner_messages.append(message)
        emit_message(message, self.dispatcher)
        await self.yield_item(message)

    async def stream(self, text: str) -> None:
        """Yield a piece of what the next message will have."""
        self.streamed = self.message_id
        await self.yield_item(
            ModelClientStreamingChunkEvent(content=text, source=self.source, full_message_id=self.message_id)
        )

    async def think(self, thought: str | None, message_id: str | None = None) -> None:
        """Tell what a model thought, if it did; the id is for what was streamed already."""
        if thought:
            message = ThoughtEvent(id=message_id or str(uuid4()), content=thought, source=self.source)
            await self.send(message)

    async def complete(
        self,
        client: WrappedClient,
        messages: Sequence[LLMMessage],
        *,
        stream: bool,
        cancellation_token: CancellationToken | None = None,
        tools: Sequence[Tool] = (),
    ) -> CreateResult:
        """Have a model continue a conversation, and return its reply, with its thoughts apart and emitted.

        Args:
            client: The model.
            messages: The conversation, as the model can read it.
            stream: Whether to yield the words as they come.
            cancellation_token: Stops the call. Default: the turn's.
            tools: What the model may call instead of answering.

        Raises:
            ModelError: If the result of the client, or the answer of its server, is no answer of a model.
        """
        options: dict[str, Any] = {"tools": tools} if tools else {}
        result = await client.ask(
            messages,
            emit=self.stream if stream else None,
            message_id=self.message_id,
            cancellation_token=cancellation_token or self.cancellation_token,
            **options,
        )
        self.count(result.usage)
        if isinstance(result.content, str):
            said = take_thoughts_off(result.content, result.thought)
            result = result.model_copy(update={"content": said.text, "thought": said.thought})
        await self.think(result.thought)
        return result

    async def reflect(
        self,
        client: WrappedClient,
        messages: Sequence[LLMMessage],
        cancellation_token: CancellationToken,
        *,
        answered: bool,
    ) -> ModelAnswer[Verdict]:
        """Let a model judge the work, and write its answer unless that is there already."""
        answer = await reflect(client, messages, answered=answered, cancellation_token=cancellation_token)
        self.count(answer.usage)
        return answer

    async def judge(self, judged: ModelAnswer[Verdict], message_id: str) -> Verdict:
        """Tell a verdict, and what the model thought; the message of that id tells it, too."""
        verdict = judged.value
        await self.think(judged.thought)
        judged_event = Judged(
            agent=self.source, message_id=message_id, **verdict.model_dump(exclude={"unreadable"})
        )
        emit(judged_event, self.dispatcher)
        return verdict

    def respond(self, message: BaseChatMessage) -> Response:
        """The response: a message of the turn's id, with what the turn has cost."""
        final = message.model_copy(update={"id": self.take_id(), "models_usage": self.usage})
        emit_message(final, self.dispatcher)
        return Response(chat_message=final, inner_messages=self.inner_messages)


@dataclass(kw_only=True)
class CodeTurn(Turn):
    """State of one turn of an agent that runs code: its reply, blocks, results, pictures and files."""

    tools: TurnTools
    """The tools that the code may call on the host."""
    stream_output: bool
    """Whether the code's output is yielded as it comes."""
    sandbox: str | None = None
    """The description of the sandbox, once it was asked for."""
    text: str = ""
    """The latest text of the model."""
    fault: Fault | None = None
    """The fault for which no code in that text is run, if it has one."""
    blocks: list[CodeBlock] = field(default_factory=list[CodeBlock])
    """The blocks to run next."""
    unsupported: list[str] = field(default_factory=list[str])
    """Labels of code beside them that is not run."""
    unclosed: list[str] = field(default_factory=list[str])
    """The authors whose code beside them is not run, because its end is missing."""
    invented: bool = False
    """Whether what follows them is not read, as it pretends that they have run already."""
    executed: list[list[CodeBlock]] = field(default_factory=list[list[CodeBlock]])
    result: ExecutionResult = field(default_factory=partial(ExecutionResult, exit_code=0, output=""))
    drawn: Drawn = field(default_factory=Drawn)
    """The pictures that the blocks of the result have drawn."""
    max_pictures: int
    """The most pictures that the response passes on."""
    pictures: Sequence[Picture] = ()
    """The latest pictures of the turn."""
    files: dict[str, int] = field(default_factory=dict[str, int])
    """The sizes of the files that its code has made or changed, by their paths."""
    decisions: list[RetryDecision] = field(default_factory=list[RetryDecision])
    remark: str | None = None
    """Text that the response adds to the result, if it passes that on."""

    @property
    def stopped(self) -> bool:
        """Whether the caller has stopped it, so that no model is asked any more."""
        return self.result.outcome is Outcome.CANCELLED or self.cancellation_token.is_cancelled()

    @property
    def whole_answer(self) -> str | None:
        """The argument of the latest code's call of ``final_answer``."""
        answer = self.result.answer if isinstance(self.result, SessionResult) else None
        return None if answer is None else encodable(answer)

    async def output(self, text: str) -> None:
        """Tell a piece of what the code writes."""
        emit_piece(Output(agent=self.source, text=text, message_id=self.message_id), self.dispatcher)
        if self.stream_output:
            await self.stream(text)

    async def decide_retry(
        self, client: WrappedClient, messages: Sequence[LLMMessage], cancellation_token: CancellationToken
    ) -> RetryDecision:
        """Let a model decide whether code that failed is worth another attempt, and tell what it decides."""
        answer = await decide_retry(client, messages, cancellation_token=cancellation_token)
        decision = answer.value
        self.count(answer.usage)
        self.decisions.append(decision)
        emit(Decision(agent=self.source, retry=decision.retry, reason=decision.reason), self.dispatcher)
        await self.think(answer.thought)
        return decision

    async def wrote(self, attempt: int, text: str, blocks: list[CodeBlock]) -> None:
        """Tell of code that the model has written, a correction that it proposes, or words that are not run."""
        message = CodeGenerationEvent(
            id=self.take_id(), retry_attempt=attempt, content=text, code_blocks=blocks, source=self.source
        )
        await self.send(message)

    async def read_pictures(self) -> None:
        """Read the pictures and files that the blocks of the result have made."""
        shown = self.result.artifacts if isinstance(self.result, SessionResult) else ()
        artifacts = [*shown, *self.result.saved_pictures]
        self.files |= self.result.files
        self.drawn = await asyncio.to_thread(read_drawn, artifacts) if artifacts else Drawn()
        if self.max_pictures:
            self.pictures = [*self.pictures, *self.drawn.pictures][-self.max_pictures :]

    async def ran(self, attempt: int) -> None:
        """Yield AutoGen's message of the result; its field for it drops on its way what ours has more."""
        await self.send(
            CodeExecutionEvent(
                id=self.take_id(),
                retry_attempt=attempt,
                result=self.result,
                source=self.source,
                metadata=result_to_metadata(self.result),
            )
        )

    def metadata(self) -> dict[str, str]:
        """The turn, for programs; nothing where there was no code."""
        if not self.executed:
            return {}
        *earlier, last = self.executed
        record = ExecutionRecord(
            blocks=_records(last),
            exit_code=self.result.exit_code,
            outcome=self.result.outcome,
            output=self.result.output,
            limit=self.result.limit,
            code_file=self.result.code_file,
            remark=self.remark,
            attempts=len(self.executed),
            superseded=[block for blocks in earlier for block in _records(blocks)],
            answer=self.whole_answer,
            retry_decisions=self.decisions,
            tool_calls=self.tools.recorded.records,
            omitted_tool_calls=self.tools.recorded.omitted,
            # once the others are taken, it is 0
            omitted_approvals=self.tools.approvals.left_out,
            approvals=self.tools.approvals.take_records(),
            files=self.files,
        )
        told = any(isinstance(message, CodeExecutionEvent) for message in self.inner_messages)
        result = {} if told else result_to_metadata(self.result)
        return {**record.to_metadata(), **result, **pictures_to_metadata(self.pictures)}

    def respond(self, message: BaseChatMessage) -> Response:
        ending = {} if self.fault is None else self.fault.ending.to_metadata()
        return super().respond(message.model_copy(update={"metadata": {**ending, **self.metadata()}}))

    def with_left_out(self, text: str) -> str:
        """``text``, and which code was left out."""
        return "\n".join([text, *self.left_out])

    def add(self, remarks: Sequence[str]) -> None:
        """Add to what the model has written. Where that was streamed, these are more pieces of it."""
        for remark in remarks:
            self.text = f"{self.text}\n{remark}"
            if self.streamed == self.message_id:
                piece = Words(agent=self.source, text=f"\n{remark}", message_id=self.message_id)
                emit_piece(piece, self.dispatcher)

    def report(self) -> str:
        """The result itself, what was left out, and why no further attempt was made."""
        remarks = self.left_out
        if self.decisions and not self.decisions[-1].retry:
            remarks.append(make_inert(self.decisions[-1].to_text()))
        self.remark = "\n".join(remarks)
        return "\n".join([self.result.output, *remarks])

    @property
    def left_out(self) -> list[str]:
        """Which code is not run."""
        remarks: list[str] = []
        if self.unsupported:
            labels = ", ".join(self.unsupported)
            remarks.append(f"[Code not run, its language is not supported here: {labels}]")
        if self.unclosed:
            authors = ", ".join(self.unclosed)
            remarks.append(f"[Code not run, its last block is never closed and may be cut off: {authors}]")
        if self.invented:
            remarks.append("[Left out: what follows the code as if it had run already]")
        return remarks


def _records(blocks: list[CodeBlock]) -> list[CodeRecord]:
    return [CodeRecord(language=block.language, code=block.code) for block in blocks]
