"""The loop of an agent that acts by code: the model writes, the code runs, the model reads what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from autogen_agentchat.agents import ApprovalFuncType
from autogen_agentchat.base import Response
from autogen_agentchat.messages import (
    CodeExecutionEvent,
    CodeGenerationEvent,
    ModelClientStreamingChunkEvent,
    TextMessage,
    ThoughtEvent,
)
from autogen_core.code_executor import CodeBlock, CodeResult
from autogen_core.model_context import ChatCompletionContext
from autogen_core.models import (
    AssistantMessage,
    ChatCompletionClient,
    CreateResult,
    LLMMessage,
    SystemMessage,
    UserMessage,
)

from codeact_team.agents.calls import complete, visible_to
from codeact_team.agents.codeact.budget import Limits
from codeact_team.agents.codeact.conversation import keep_in_view
from codeact_team.agents.codeact.handoffs import Handoffs, HandoffTaken
from codeact_team.agents.codeact.kept_output import keep_output
from codeact_team.agents.codeact.replies import read_reply
from codeact_team.agents.codeact.run import MAX_REMARKS, CodeActRun
from codeact_team.agents.step import perform, warming_up
from codeact_team.agents.turn import Item
from codeact_team.errors import CodeActTeamError
from codeact_team.execution import Outcome, SessionCodeExecutor
from codeact_team.observations import Ending
from codeact_team.parsing import make_inert
from codeact_team.reflection import REFLECTION_SYSTEM_MESSAGE, reflect
from codeact_team.retry import decide_retry

_CODE_CANCELLED = "Code execution was cancelled."
_NOT_RUN = "The code in that answer was not run."


@dataclass(frozen=True, kw_only=True)
class CodeActLoop:
    """How an agent works on a task; what it has come to is in a :class:`CodeActRun`.

    Attributes:
        name: The agent's.
        model_client: The model that writes code.
        executor: Where the code runs.
        context: What the model remembers.
        handoffs: Agents that the work can be handed to.
        limits: What a run may cost.
        stream_words: Whether the model's words are yielded while they come.
        stream_output: Whether the code's output is yielded while it comes.
        max_retries_on_error: How many errors in a row may be mended; ``None`` where an error is a result like others.
        max_reflections: How often a reflection may send the agent back to work; 0 for no reflection.
        approve: Asked before each execution.
    """

    name: str
    model_client: ChatCompletionClient
    executor: SessionCodeExecutor
    context: ChatCompletionContext
    handoffs: Handoffs
    limits: Limits
    stream_words: bool
    stream_output: bool
    max_retries_on_error: int | None
    max_reflections: int
    approve: ApprovalFuncType | None

    async def run(self, run: CodeActRun) -> AsyncGenerator[Item, None]:
        """Work on the run's task; the last thing yielded is the response."""
        try:
            with run.budget:
                async with warming_up(self.executor), aclosing(self._work(run)) as items:
                    async for item in items:
                        yield item
            if (question := run.last_question) is not None:
                async with aclosing(self._conclude(run, question)) as items:
                    async for item in items:
                        yield item
        finally:
            if run.unanswered:
                await self._tell(run, _CODE_CANCELLED)
        yield self._respond(run)

    async def _work(self, run: CodeActRun) -> AsyncGenerator[Item, None]:
        """Write and act, until there is an answer or something else ends it."""
        try:
            while not run.ended():
                for part in (self._write, self._act):
                    async with aclosing(part(run)) as items:
                        async for item in items:
                            yield item
        except asyncio.CancelledError:
            if not run.only_time_is_over:
                raise
            run.ending = run.ending or Ending.MAX_SECONDS

    async def _write(self, run: CodeActRun, prompt: str | None = None) -> AsyncGenerator[Item, None]:
        """Let the model go on; what it writes is then the run's reply."""
        calls = complete(
            self.model_client,
            await self._conversation(run, run.instructions, prompt),
            source=self.name,
            stream=self.stream_words,
            cancellation_token=run.cancellation_token if prompt else run.budget.token,
            tools=self.handoffs.tools,
        )
        async with aclosing(calls) as items:
            async for item in items:
                if isinstance(item, CreateResult):
                    run.usage.add(item.usage)
                    if item.thought:
                        yield ThoughtEvent(content=item.thought, source=self.name)
                    run.reply = read_reply(item, self.executor.supported_languages)
                else:
                    yield item
        run.budget.steps += 1
        taken = await self.handoffs.take(
            run.reply, source=self.name, cancellation_token=run.cancellation_token
        )
        if isinstance(taken, HandoffTaken):
            run.handoff = taken
            return
        if taken is not None:
            run.reply = replace(run.reply, remark=taken)
        said = AssistantMessage(content=run.reply.text, source=self.name, thought=run.reply.thought)
        run.unanswered = bool(run.reply.blocks)
        await self._remember(run, said)

    async def _act(self, run: CodeActRun) -> AsyncGenerator[Item, None]:
        """Do what the reply asks for: hand over, run its code, take it for the answer, or ask for something better."""
        reply = run.reply
        if run.handoff is not None:
            events = await self._hand_over(run, run.handoff)
        elif reply.blocks:
            async with aclosing(self._execute(run)) as items:
                async for item in items:
                    yield item
            events = await self._draw_conclusions(run)
        elif reply.remark is None or (run.remarks and reply.may_be_answer):
            ending = Ending.NO_ANSWER if reply.is_empty else Ending.ANSWERED
            events = await self._answer(run, reply.text, ending)
        else:
            events = await self._remark(run, reply.remark)
        for event in events:
            yield event

    async def _execute(self, run: CodeActRun) -> AsyncGenerator[Item, None]:
        """Run the reply's code, and tell the model what came of it."""
        yield self._generated(run, run.reply.text, run.reply.blocks)
        run.latest = len(run.said) - 1
        step = perform(
            self.executor,
            run.reply.blocks,
            tools=run.tools,
            approval=self.approve,
            context=await self._view(run) if self.approve else [],
            cancellation_token=run.budget.token,
        )
        result: CodeResult | None = None
        try:
            async with aclosing(step) as items:
                async for item in items:
                    if isinstance(item, CodeResult):
                        result = item
                    elif self.stream_output:
                        yield ModelClientStreamingChunkEvent(content=item, source=self.name)
        except CodeActTeamError as error:
            await self._tell(run, f"The code could not be run: {error}")
            raise
        assert result is not None, "a step ends with its result"
        run.take(result)
        kept_in = None if run.cancelled else await keep_output(self.executor, result.output)
        await self._tell(run, run.observation(kept_in))
        yield CodeExecutionEvent(retry_attempt=run.budget.steps - 1, result=run.result, source=self.name)

    async def _draw_conclusions(self, run: CodeActRun) -> Sequence[Item]:
        """What follows from a result, apart from what the model makes of it."""
        if run.result.outcome is Outcome.CANCELLED:
            return []
        if (answer := run.final_answer) is not None:
            await self._remember(run, AssistantMessage(content=answer, source=self.name))
            return await self._answer(run, answer, Ending.ANSWERED)
        if run.going_in_circles:
            run.ending = Ending.STUCK
        elif run.failed and self.max_retries_on_error is not None:
            return await self._decide_retry(run, self.max_retries_on_error)
        return []

    async def _decide_retry(self, run: CodeActRun, most: int) -> Sequence[Item]:
        """Let the model decide whether an error is worth another attempt."""
        if run.ended():
            return []
        if run.errors > most:
            run.ending = Ending.GIVEN_UP
            return []
        conversation = await self._conversation(run, run.instructions)
        answer = await decide_retry(self.model_client, conversation, cancellation_token=run.budget.token)
        decision = answer.value
        run.usage.add(answer.usage)
        run.decisions.append(decision)
        if not decision.retry:
            run.ending = Ending.GIVEN_UP
            await self._tell(run, f"No further attempt: {decision.reason}")
            return []
        correction = f"Proposed correction: {decision.reason}"
        await self._tell(run, correction)
        return [self._generated(run, f"Attempt number: {run.errors}\n{correction}", [])]

    async def _remark(self, run: CodeActRun, remark: str) -> Sequence[Item]:
        """Tell the model why what it wrote is neither run nor taken for an answer."""
        run.remarks += 1
        if run.remarks == MAX_REMARKS:
            run.ending = Ending.STUCK
        await self._tell(run, remark)
        return [self._generated(run, run.reply.text, [])]

    async def _hand_over(self, run: CodeActRun, handoff: HandoffTaken) -> Sequence[Item]:
        run.ending = run.ending or Ending.HANDED_OFF
        for message in handoff.remembered(self.name, run.reply.thought):
            await self._remember(run, message)
        return handoff.events(self.name)

    async def _answer(self, run: CodeActRun, text: str, ending: Ending) -> Sequence[Item]:
        """Take ``text`` for the answer, unless a reflection on it sends the agent back to work."""
        run.answer, run.ending, run.remarks = text, ending, 0
        spent = run.spent
        if not self.max_reflections or run.cancelled or spent in (Ending.MAX_SECONDS, Ending.MAX_TOKENS):
            return []
        conversation = await self._conversation(run, REFLECTION_SYSTEM_MESSAGE)
        judged = await reflect(self.model_client, conversation, cancellation_token=run.budget.token)
        run.usage.add(judged.usage)
        run.verdict = judged.value
        verdict = make_inert(judged.value.to_text())
        thoughts = [judged.thought] if judged.thought else []
        # nothing can be learned from a verdict that could not be read
        more = judged.problem is None and run.reflections < self.max_reflections
        if not judged.value.accepted and more and run.spent is None:
            run.reflections += 1
            run.verdict = run.ending = None
            await self._tell(run, f"A review of your answer:\n{verdict}\nGo on, then answer anew.")
            thoughts.insert(0, text)
        return [ThoughtEvent(content=thought, source=self.name) for thought in [*thoughts, verdict]]

    async def _conclude(self, run: CodeActRun, question: str) -> AsyncGenerator[Item, None]:
        """Let the model make the best answer from what is there."""
        if run.cancelled:
            run.ending = Ending.CANCELLED
            return
        async with aclosing(self._write(run, question)) as items:
            async for item in items:
                yield item
        run.answer = run.reply.text
        if run.handoff is not None:
            for event in await self._hand_over(run, run.handoff):
                yield event
        elif run.reply.blocks:
            # nor is it run by another agent that reads it
            run.answer = make_inert(run.reply.text)
            await self._tell(run, _NOT_RUN)

    async def _view(self, run: CodeActRun) -> list[LLMMessage]:
        kept = await self.context.get_messages()
        return keep_in_view(kept, task=run.task, said=run.said, latest=run.latest)

    async def _conversation(
        self, run: CodeActRun, instructions: str, prompt: str | None = None
    ) -> list[LLMMessage]:
        system = [SystemMessage(content=instructions)] if instructions else []
        asked = [UserMessage(content=prompt, source="user")] if prompt else []
        return visible_to(self.model_client, [*system, *await self._view(run), *asked])

    async def _remember(self, run: CodeActRun, message: LLMMessage) -> None:
        run.said.append(message)
        await self.context.add_message(message)

    async def _tell(self, run: CodeActRun, text: str) -> None:
        run.unanswered = False
        await self._remember(run, UserMessage(content=text, source=self.name))

    def _generated(self, run: CodeActRun, text: str, blocks: list[CodeBlock]) -> CodeGenerationEvent:
        step = run.budget.steps - 1
        return CodeGenerationEvent(retry_attempt=step, content=text, code_blocks=blocks, source=self.name)

    def _respond(self, run: CodeActRun) -> Response:
        if run.handoff is None:
            message = TextMessage(content=run.final_text, source=self.name)
        else:
            message = run.handoff.message(self.name)
        final = message.model_copy(update={"models_usage": run.usage.total, "metadata": run.metadata()})
        return Response(chat_message=final, inner_messages=run.inner_messages)
