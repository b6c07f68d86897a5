"""Code blocks of an agent run as effects: approved, streamed, bounded."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

from autogen_agentchat.agents import ApprovalFuncType, ApprovalRequest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult
from autogen_core.models import LLMMessage
from pydantic import JsonValue

from codeact_team.agents.observations import (
    MAX_OBSERVATION_CHARS,
    dump_result,
    encodable,
    full_result,
    load_result,
)
from codeact_team.agents.tool_calls import TurnTools
from codeact_team.core.aio import is_being_cancelled, to_the_end, until_cancelled
from codeact_team.core.component_effects import CodeRun, Run
from codeact_team.core.effects import Dispatcher, End, perform
from codeact_team.core.events import BlockEnded
from codeact_team.core.execution import ExecutionResult, Outcome, SessionResult
from codeact_team.core.executor_interface import Emit, NewFiles, SessionCodeExecutor, StreamingCodeExecutor
from codeact_team.errors import CodeActTeamError, ForkError, SandboxError
from codeact_team.session.protocol import KEPT_APART
from codeact_team.text.visibility import readable
from codeact_team.tools.approval_rules import Question, misleading_as_it_is
from codeact_team.tools.approvals import Answer, AskedQuestion, running_code

logger = logging.getLogger(__name__)

_MAX_FILES = 100
_NAMES_A_FILE = re.compile(r"\.\w{1,8}['\"]|>")
"""Code that makes a file has its name in it, or writes to it by a shell; to look for files takes a while."""
_TIMEOUT_EXIT_CODE = 124
"""The exit code of the ``timeout`` command."""
CANCELLED = "Code execution was cancelled."
_SET_BACK = (
    "[Variables and files of the workspace are again as they were before this code. What it has done elsewhere, such as by "
    "tools, is not undone.]"
)
_HALF_CHANGED = "[Variables may be half changed by this code: {}]"
INTERRUPTED = "The run was interrupted while this code ran: whether it has run to its end, and what it has done, is not known."


async def _keep_output(executor: SessionCodeExecutor, result: ExecutionResult) -> str | None:
    """Write output too long for a model into a new file of the workspace, until the executor stops; return its path."""
    output = result.output
    if len(output) <= MAX_OBSERVATION_CHARS or result.outcome is Outcome.CANCELLED:
        return None
    try:
        there = await executor.workspace.list()
        names = (f"output-{number}.txt" for number in count(1))
        name = next(name for name in names if f"{KEPT_APART}/{name}" not in there)
        return await executor.workspace.put(name, encodable(output), temporary=True)
    except (OSError, ValueError, SandboxError) as error:
        logger.warning("output that was cut could not be kept in the workspace: %s", error)
        return None


class AgentBlock(CodeRun[ExecutionResult]):
    """Code blocks of one of this package's agents run."""

    kind = "block"

    def dump(self, outcome: ExecutionResult) -> JsonValue:
        return dump_result(outcome)

    def load(self, data: JsonValue) -> ExecutionResult:
        return load_result(data)

    @classmethod
    def ended(cls, end: End) -> BlockEnded:
        # a result is tagged by its sort
        return super().ended(replace(end, outcome=end.outcome and next(iter(end.outcome.values()))))

    def unknown(self) -> ExecutionResult:
        if isinstance(self.part, SessionCodeExecutor):
            return SessionResult(exit_code=1, output=INTERRUPTED, outcome=Outcome.LOST, state_lost=True)
        return ExecutionResult(exit_code=1, output=INTERRUPTED, outcome=Outcome.LOST)


async def run_blocks(
    executor: CodeExecutor,
    blocks: list[CodeBlock],
    *,
    tools: TurnTools,
    approval: ApprovalFuncType | None,
    context: list[LLMMessage],
    cancellation_token: CancellationToken,
    emit: Emit | None = None,
    message_id: str | None = None,
    dispatcher: Dispatcher | None = None,
    keeps_output: bool = False,
    max_pictures: int = 0,
    rolls_back: bool = False,
    fork_of: SessionCodeExecutor | None = None,
) -> ExecutionResult:
    """Ask for approval, and run the blocks.

    Args:
        executor: Any AutoGen executor.
        blocks: The blocks.
        tools: The tools that the code may call, and the rules of its approval.
        approval: A function of AutoGen's kind that approves code in addition to the rules.
        context: The conversation, for ``approval``.
        cancellation_token: Stops the wait for approval and the execution.
        emit: Receives the output as it comes, if the executor streams it.
        message_id: The id of the message that will have the result.
        dispatcher: The dispatcher that the agent remembers.
        keeps_output: Whether output that is too long for a model is kept in the workspace.
        max_pictures: How many pictures are read that the code has saved in the workspace, if it has shown none.
            What files it has made is asked in any case.
        rolls_back: Whether variables and files are restored after code that fails.
        fork_of: The executor of which this one is a fork, if it is one. A fork that has ended is a failed result.

    Raises:
        SandboxError: If no code can run here at all; a :class:`SettingError` if a setting is to blame.
    """
    execution = _Execution(executor, tools, cancellation_token, emit, rolls_back)

    async def work() -> ExecutionResult:
        if denial is not None:
            return denial
        _raise_if_cancelled(cancellation_token)
        try:
            with running_code(tools.approvals):
                result = await execution.run(blocks)
        except SandboxError as error:
            if fork_of is None:
                raise
            return SessionResult(exit_code=1, output=str(error), outcome=Outcome.LOST, state_lost=True)
        if keeps_output and isinstance(executor, SessionCodeExecutor) and isinstance(result, SessionResult):
            result.output_file = await _keep_output(executor, result)
        if result.outcome is Outcome.COMPLETED and any(_NAMES_A_FILE.search(one.code) for one in blocks):
            # pictures that were shown are known already
            shown = result.artifacts if isinstance(result, SessionResult) else []
            has_shown = any(one.mime_type == "image/png" for one in shown)
            new = await _new_files(executor, 0 if has_shown else max_pictures)
            result.files = {readable(file.path): file.size for file in new.files[:_MAX_FILES]}
            result.saved_pictures = [*new.pictures]
        return result

    try:
        _raise_if_cancelled(cancellation_token)
        denial = await _denial(tools, approval, blocks, context, cancellation_token, dispatcher)
        again = repeating(executor, tools, cancellation_token, rolls_back=rolls_back)
        block = AgentBlock(fork_of or executor, blocks, again, message_id)
        block.source = tools.source
        block.is_apart = fork_of is not None
        return await perform(block, work, dispatcher)
    except asyncio.CancelledError:
        # by the token; a task that was itself cancelled has to end as cancelled
        if not cancellation_token.is_cancelled() or is_being_cancelled():
            raise
        return ExecutionResult(exit_code=1, output=CANCELLED, outcome=Outcome.CANCELLED)


def repeating(
    executor: CodeExecutor, tools: TurnTools, cancellation_token: CancellationToken, *, rolls_back: bool
) -> Run:
    """Make a function that runs blocks as the turn does, without a trace in the turn's records."""
    return _Execution(executor, tools.unrecorded(), cancellation_token, rolls_back=rolls_back).run


@asynccontextmanager
async def warming_up(executor: CodeExecutor) -> AsyncGenerator[None]:
    """Within it, the sandbox of the executor starts, while the model is writing."""
    if not isinstance(executor, StreamingCodeExecutor):
        yield
        return
    starting = asyncio.ensure_future(executor.start())
    try:
        yield
    finally:
        # the first execution has raised its error
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)


async def _new_files(executor: CodeExecutor, pictures: int) -> NewFiles:
    if not isinstance(executor, StreamingCodeExecutor):
        return NewFiles()
    try:
        return await executor.workspace.new_files(pictures)
    except SandboxError as error:
        logger.warning("files that the code may have made are not known: %s", error)
        return NewFiles()


def _raise_if_cancelled(cancellation_token: CancellationToken) -> None:
    if cancellation_token.is_cancelled():
        raise asyncio.CancelledError


async def _denial(
    tools: TurnTools,
    approval: ApprovalFuncType | None,
    blocks: Sequence[CodeBlock],
    context: list[LLMMessage],
    cancellation_token: CancellationToken,
    dispatcher: Dispatcher | None,
) -> ExecutionResult | None:
    reason = await until_cancelled(tools.denial_of(blocks), cancellation_token)
    if reason is None and approval is not None:
        reasons = (misleading_as_it_is(block.code, block.language) for block in blocks)
        reason = next(filter(None, reasons), None)
    if reason is None and approval is not None:
        code = "\n\n".join(_fenced(block) for block in blocks)
        language = blocks[0].language if blocks else ""
        asked = AskedQuestion(Question(tools.source, "code", language, code=code))
        ask = partial(_ask, approval, ApprovalRequest(code=code, context=context), cancellation_token)
        answer = await perform(asked, ask, dispatcher)
        if answer is None:
            reason = "nobody was there to ask"
        elif not answer.allowed:
            reason = answer.reason
    if reason is None:
        return None
    return ExecutionResult(
        exit_code=1, output=f"Code execution was not approved. Reason: {reason}", outcome=Outcome.DENIED
    )


async def _ask(
    approval: ApprovalFuncType, request: ApprovalRequest, cancellation_token: CancellationToken
) -> Answer:
    """Call an approval function of AutoGen's kind, which usually asks a person."""
    try:
        answer = approval(request)
        if isinstance(answer, Awaitable):
            answer = await until_cancelled(answer, cancellation_token)
        return Answer(answer.approved, answer.reason)
    except Exception as error:
        logger.exception("the approval function failed, so the code is not run")
        return Answer(False, f"the approval function failed: {type(error).__name__}: {error}")


def _fenced(block: CodeBlock) -> str:
    """Put a fence around the block that is longer than any in its code."""
    longest = max((len(run) for run in re.findall("`+", block.code)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{block.language}\n{block.code}\n{fence}"


@dataclass(frozen=True)
class _Execution:
    """Blocks that are run in an executor, with the tools of a turn."""

    executor: CodeExecutor
    tools: TurnTools
    cancellation_token: CancellationToken
    emit: Emit | None = None
    rolls_back: bool = False

    async def run(self, blocks: list[CodeBlock]) -> ExecutionResult:
        """Run blocks; if they fail, restore the variables and files where that is wanted and possible."""
        executor = self.executor
        if not self.rolls_back or not isinstance(executor, SessionCodeExecutor):
            return await self._run(blocks)
        try:
            checkpoint = await executor.checkpoint()
        except ForkError as error:
            result = await self._run(blocks)
            return _remarked(result, _HALF_CHANGED.format(error)) if _has_failed(result) else result
        try:
            result = await self._run(blocks)
            if not _has_failed(result):
                return result
            try:
                await executor.rollback(checkpoint, user=self.tools.user)
            except SandboxError as error:
                return _remarked(result, _HALF_CHANGED.format(error))
        finally:
            await to_the_end(checkpoint.aclose())
        if isinstance(result, SessionResult):
            # names and files of the failed code are gone, and the state before it is not lost
            shown = [replace(one, file=None) for one in result.artifacts]
            result = replace(result, names=[], omitted_names=0, state_lost=False, artifacts=shown)
        return _remarked(result, _SET_BACK)

    async def _run(self, blocks: list[CodeBlock]) -> ExecutionResult:
        executor, tools, token = self.executor, self.tools, self.cancellation_token
        denials = tools.recorded.denials
        try:
            if not isinstance(executor, StreamingCodeExecutor):
                plain = await executor.execute_code_blocks(blocks, cancellation_token=token)
                return _cancelled(plain) if token.is_cancelled() else full_result(plain)
            if isinstance(executor, SessionCodeExecutor) and tools:
                result = await executor.run_code_blocks(
                    blocks, token, user=tools.user, tools=tools, emit=self.emit
                )
            else:
                result = await executor.run_code_blocks(blocks, token, user=tools.user, emit=self.emit)
        except CodeActTeamError:
            raise
        except Exception as error:
            # AutoGen lets its executors raise, for time-outs among others; a model can read that, but it would end a team
            logger.warning("%s raised %r", type(executor).__name__, error)
            text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            if isinstance(error, TimeoutError):
                return ExecutionResult(exit_code=_TIMEOUT_EXIT_CODE, output=text, outcome=Outcome.TIMED_OUT)
            failure = f"The code could not be run: {text}"
            return ExecutionResult(exit_code=1, output=failure, outcome=Outcome.NOT_RUN)
        # only if a call was really denied: the code can claim it
        if isinstance(result, SessionResult) and result.denied and tools.recorded.denials > denials:
            return replace(result, outcome=Outcome.DENIED)
        return result


def _has_failed(result: ExecutionResult) -> bool:
    return result.exit_code != 0 and result.outcome in (Outcome.COMPLETED, Outcome.TIMED_OUT, Outcome.LOST)


def _remarked(result: ExecutionResult, remark: str) -> ExecutionResult:
    separator = "" if result.output.endswith("\n") or not result.output else "\n"
    return replace(result, output=f"{result.output}{separator}{remark}")


def _cancelled(result: CodeResult) -> ExecutionResult:
    """Convert the result of a cancelled executor that does not raise, as AutoGen's for Docker."""
    if result.exit_code == 0:
        return full_result(result)
    return ExecutionResult(
        exit_code=result.exit_code, output=result.output or CANCELLED, outcome=Outcome.CANCELLED
    )
