"""The loop of an agent that acts by code: the model writes, the code runs, the model reads the result."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace

from autogen_agentchat.agents import ApprovalFuncType
from autogen_agentchat.base import Response
from autogen_agentchat.messages import TextMessage, ThoughtEvent
from autogen_core.model_context import ChatCompletionContext
from autogen_core.models import AssistantMessage, LLMMessage, SystemMessage, UserMessage

from codeact_team.agents.base import Vision
from codeact_team.agents.block_calls import CANCELLED, INTERRUPTED, run_blocks, warming_up
from codeact_team.agents.codeact.config import CodeActAgentConfig
from codeact_team.agents.codeact.reply import (
    HOW_TO_ANSWER,
    Handoffs,
    HandoffTaken,
    Misfit,
    OutputSchema,
    keep_in_view,
    read_reply,
)
from codeact_team.agents.codeact.run import MAX_REMARKS, MAX_REPETITIONS, CodeActRun
from codeact_team.agents.messages import CALLED_A_TOOL, NO_ANSWER_IN_TIME, visible_to
from codeact_team.agents.observations import Ending, shorten
from codeact_team.core.execution import Outcome, SessionResult
from codeact_team.core.executor_interface import SessionCodeExecutor
from codeact_team.errors import CodeActTeamError
from codeact_team.models.clients import WrappedClient
from codeact_team.models.verdicts import REFLECTION_SYSTEM_MESSAGE, Verdict
from codeact_team.text.quoting import make_inert

_NOT_REVIEWED = Verdict(
    accepted=False, problems=["The answer was not reviewed: a limit was reached before that."]
)
_NOT_RUN = "The code in that answer was not run."
_NOT_ASKED_AGAIN = (Ending.NO_ANSWER, Ending.REFUSED)
"""Endings of a model that was asked twice and has nothing to say: a third question would be in vain."""


@dataclass(frozen=True, kw_only=True)
class CodeActLoop:
    """The loop in which an agent works on a task; the state of one run is a :class:`CodeActRun`."""

    settings: CodeActAgentConfig
    model_client: WrappedClient
    executor: SessionCodeExecutor
    context: ChatCompletionContext
    vision: Vision
    handoffs: Handoffs
    output: OutputSchema | None
    approve: ApprovalFuncType | None
    fork_of: SessionCodeExecutor | None = None
    """The session of which the executor is a fork, in one of several parallel attempts."""

    async def work(self, run: CodeActRun) -> None:
        """Work on the run's task until an answer, a limit or the caller ends it."""
        try:
            with run.budget:
                async with warming_up(self.executor):
                    try:
                        while not await run.is_over():
                            await self._write(run)
                            if run.handoff is not None:
                                await self._hand_over(run, run.handoff)
                            elif run.reply.blocks:
                                await self._execute(run)
                            else:
                                await self._take_words(run)
                    except asyncio.CancelledError:
                        if not await run.only_time_is_over():
                            raise
                        run.ending = run.ending or Ending.MAX_SECONDS
                if (question := run.last_question(as_json=self.output is not None)) is not None:
                    await self._conclude(run, question)
        finally:
            if run.unanswered:
                await self._tell(run, CANCELLED)
        if self.settings.max_reflections and run.ending is Ending.ANSWERED:
            run.verdict = run.verdict or _NOT_REVIEWED

    def respond(self, run: CodeActRun) -> Response:
        """The response of a run that has ended."""
        if run.handoff is None:
            return run.respond(TextMessage(content=run.final_text, source=run.source))
        return run.respond(run.handoff.message(run.source))

    async def _write(self, run: CodeActRun, prompt: str | None = None) -> None:
        """Have the model continue; its text becomes the run's reply."""
        result = await run.complete(
            self.model_client,
            await self._conversation(run, run.instructions, prompt),
            stream=self.settings.model_client_stream,
            cancellation_token=run.budget.last_call if prompt else run.budget.token,
            tools=self.handoffs.tools,
        )
        run.reply = read_reply(result, self.executor.supported_languages)
        run.budget.steps += 1
        taken = await self.handoffs.hand_off(
            run.reply, source=run.source, cancellation_token=run.cancellation_token
        )
        if isinstance(taken, HandoffTaken):
            run.handoff = taken
            return
        if taken is not None:
            run.reply = replace(run.reply, remark=taken, fault=None)
        said = AssistantMessage(content=run.reply.text, source=run.source, thought=run.reply.thought)
        run.unanswered = bool(run.reply.blocks)
        await self._remember(run, said)

    async def _execute(self, run: CodeActRun) -> None:
        """Run the reply's code, report the result to the model, and end the run if nothing is left to do."""
        await run.wrote(run.budget.steps - 1, run.reply.text, run.reply.blocks)
        run.latest = len(run.said) - 1
        try:
            result = await run_blocks(
                self.executor,
                run.reply.blocks,
                tools=run.tools,
                approval=self.approve,
                context=await self._view(run) if self.approve else [],
                cancellation_token=run.budget.token,
                emit=run.output,
                message_id=run.message_id,
                dispatcher=run.dispatcher,
                keeps_output=True,
                max_pictures=self.settings.max_pictures,
                rolls_back=self.settings.rollback_on_error,
                fork_of=self.fork_of,
            )
        except CodeActTeamError as error:
            await self._tell(run, f"The code could not be run: {error}")
            raise
        await run.add_result(result)
        await self._tell(run, self.vision.add(run.observation(), run.drawn))
        await run.ran(run.budget.steps - 1)
        if run.result.outcome is Outcome.CANCELLED:
            return
        if (answer := await self._given_answer(run)) is not None:
            await self._remember(run, AssistantMessage(content=shorten(answer), source=run.source))
            await self._answer(run, answer, Ending.ANSWERED)
        elif self.fork_of and run.result.outcome is Outcome.LOST and INTERRUPTED not in run.result.output:
            # the interpreter of a fork does not restart; the session itself is as before
            run.ending = Ending.GIVEN_UP
        elif run.repetition.steps >= MAX_REPETITIONS:
            run.ending = Ending.STUCK
        elif run.failed and self.settings.max_retries_on_error is not None:
            await self._decide_retry(run, self.settings.max_retries_on_error)

    async def _given_answer(self, run: CodeActRun) -> str | None:
        """The answer that the code gave; the model reads why it is refused, if it is."""
        if self.output is None or not isinstance(run.result, SessionResult) or run.result.answer is None:
            return run.final_answer
        try:
            return self.output.of_code(run.result)
        except Misfit as misfit:
            remark = f"The answer is not taken: {misfit}."
            await self._tell(run, remark)
            await run.think(remark)
            return None

    async def _take_words(self, run: CodeActRun) -> None:
        """Take a reply without code as the answer, or ask for something better."""
        reply = run.reply
        if run.remarks and reply.fault is not None and reply.fault.ending in _NOT_ASKED_AGAIN:
            await self._answer(run, reply.text, reply.fault.ending)
            return
        if reply.remark is not None and (reply.fault is not None or reply.calls):
            await self._remark(run, reply.remark)
            return
        if self.output is None:
            if reply.remark is None or (run.remarks and reply.may_be_answer):
                await self._answer(run, reply.text, Ending.ANSWERED)
            else:
                await self._remark(run, reply.remark)
            return
        try:
            text = self.output.of_words(reply.text)
        except Misfit as misfit:
            await self._remark(run, remark := f"The answer is not taken: {misfit}. {HOW_TO_ANSWER}")
            await run.think(remark)
            return
        # what was streamed may be written otherwise
        run.take_id()
        await self._answer(run, text, Ending.ANSWERED)

    async def _decide_retry(self, run: CodeActRun, most: int) -> None:
        """Ask the model whether an error is worth another attempt."""
        if await run.is_over():
            return
        if run.errors > most:
            run.ending = Ending.GIVEN_UP
            return
        conversation = await self._conversation(run, run.instructions)
        decision = await run.decide_retry(self.model_client, conversation, run.budget.token)
        await self._tell(run, decision.to_text())
        if decision.retry:
            await run.wrote(run.budget.steps - 1, f"Attempt number: {run.errors}\n{decision.to_text()}", [])
        else:
            run.ending = Ending.GIVEN_UP

    async def _remark(self, run: CodeActRun, remark: str) -> None:
        """Explain to the model why its reply is neither run nor taken as an answer."""
        run.remarks += 1
        if run.remarks == MAX_REMARKS:
            run.ending = run.reply.fault.ending if run.reply.fault else Ending.STUCK
        await self._tell(run, remark)
        await run.wrote(run.budget.steps - 1, run.reply.text, [])

    async def _hand_over(self, run: CodeActRun, handoff: HandoffTaken) -> None:
        run.ending = run.ending or Ending.HANDED_OFF
        for message in handoff.remembered(run.source, run.reply.thought):
            await self._remember(run, message)
        # the message of the hand-off has none of the words that were streamed
        run.take_id()
        for event in handoff.events(run.source):
            await run.send(event)

    async def _answer(self, run: CodeActRun, text: str, ending: Ending) -> None:
        """Take ``text`` as the answer, unless a reflection sends the agent back to work."""
        run.answer, run.ending, run.remarks = text, ending, 0
        if not self.settings.max_reflections or run.cancelled:
            return
        await run.budget.check_time()
        if run.spent in (Ending.MAX_SECONDS, Ending.MAX_TOKENS):
            return
        conversation = await self._conversation(run, REFLECTION_SYSTEM_MESSAGE)
        judged = await run.reflect(self.model_client, conversation, run.budget.token, answered=True)
        shown = make_inert(judged.value.to_text())
        message = ThoughtEvent(content=shown, source=run.source)
        # nothing can be learned from a verdict that could not be read
        more = judged.problem is None and run.reflections < self.settings.max_reflections
        await run.budget.check_time()
        if more and not judged.value.accepted and run.spent is None:
            run.reflections += 1
            run.ending = None
            await self._tell(run, f"A review of your answer:\n{shown}\nGo on, then answer anew.")
            await run.think(text, run.take_id())
            await run.judge(judged, message.id)
        else:
            run.verdict = await run.judge(judged, message.id)
        await run.send(message)

    async def _conclude(self, run: CodeActRun, question: str) -> None:
        """Ask the model for the best answer that the results so far allow."""
        if run.cancelled:
            run.ending = Ending.CANCELLED
            return
        try:
            await self._write(run, question)
        except asyncio.CancelledError:
            if not await run.only_time_is_over():
                raise
            # what was streamed of another answer is no part of this one
            run.take_id()
            run.answer = NO_ANSWER_IN_TIME
            return
        run.answer = run.reply.text
        if run.handoff is not None:
            await self._hand_over(run, run.handoff)
        elif run.reply.calls:
            names = dict.fromkeys(call.name for call in run.reply.calls)
            run.answer = make_inert(f"{CALLED_A_TOOL}: {', '.join(names)}.)")
        elif not run.reply.may_be_answer:
            # nor is it run by another agent that reads it
            run.answer = make_inert(run.reply.text)
            await self._tell(run, _NOT_RUN)
        elif self.output is not None:
            with suppress(Misfit):
                run.answer = self.output.of_words(run.reply.text)
                run.take_id()

    async def _view(self, run: CodeActRun) -> list[LLMMessage]:
        kept = await self.context.get_messages()
        return keep_in_view(kept, task=run.task, said=run.said, latest=run.latest)

    async def _conversation(
        self, run: CodeActRun, instructions: str, prompt: str | None = None
    ) -> list[LLMMessage]:
        system = [SystemMessage(content=instructions)] if instructions else []
        asked = [UserMessage(content=prompt, source="user")] if prompt else []
        return self.vision.show(visible_to(self.model_client, [*system, *await self._view(run), *asked]))

    async def _remember(self, run: CodeActRun, message: LLMMessage) -> None:
        run.said.append(message)
        await self.context.add_message(message)

    async def _tell(self, run: CodeActRun, text: str) -> None:
        run.unanswered = False
        await self._remember(run, UserMessage(content=text, source=run.source))
