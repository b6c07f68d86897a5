"""Running code blocks as effects: approved, streamed, bounded."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
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
from codeact_team.core.effects import Door, perform
from codeact_team.core.execution import Artifact, ExecutionResult, Outcome, SessionResult
from codeact_team.core.executor_interface import Emit, SessionCodeExecutor, StreamingCodeExecutor
from codeact_team.errors import CodeActTeamError, ForkError, SandboxError
from codeact_team.session.protocol import KEPT_APART
from codeact_team.tools.approval_rules import Question, misleading_as_it_is
from codeact_team.tools.approvals import Answer, AskedQuestion

logger = logging.getLogger(__name__)


async def keep_output(executor: SessionCodeExecutor, result: ExecutionResult) -> str | None:
    """Put output that is cut where it is passed on into a new file of the workspace, for as long as the executor runs.

    Returns:
        The file's path; ``None`` where none is needed, or the workspace takes none.
    """
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


_TIMEOUT_EXIT_CODE = 124
"""What the ``timeout`` command exits with."""
CANCELLED = "Code execution was cancelled."
_SET_BACK = (
    "[Variables and files of the workspace are again as they were before this code. What it has done elsewhere, such as by "
    "tools, is not undone.]"
)
_HALF_CHANGED = "[Variables may be half changed by this code: {}]"
INTERRUPTED = "The run was interrupted while this code ran: whether it has run to its end, and what it has done, is not known."


class Block(CodeRun[ExecutionResult]):
    """Code blocks of one of our agents run."""

    kind = "block"

    def dump(self, outcome: ExecutionResult) -> JsonValue:
        return dump_result(outcome)

    def load(self, data: JsonValue) -> ExecutionResult:
        return load_result(data)

    def unknown(self) -> ExecutionResult:
        result = SessionResult if isinstance(self.part, SessionCodeExecutor) else ExecutionResult
        unknown = result(exit_code=1, output=INTERRUPTED, outcome=Outcome.LOST)
        if isinstance(unknown, SessionResult):
            unknown.state_lost = True
        return unknown


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
    door: Door | None = None,
    keeps_output: bool = False,
    max_pictures: int = 0,
    rolls_back: bool = False,
    branch_of: SessionCodeExecutor | None = None,
) -> ExecutionResult:
    """Ask for approval, and run the blocks.

    Args:
        executor: Any AutoGen executor.
        blocks: What to run.
        tools: What the code may call on the host, and the rules for its approval.
        approval: Asked beside the rules, and shown the ``context``.
        context: The conversation.
        cancellation_token: Stops the wait for approval and the execution.
        emit: Gets the output as it comes, of an executor that streams it.
        message_id: The id of the message that tells of the result.
        door: The door that the agent remembers.
        keeps_output: Whether output that is too long for a model is kept in the workspace.
        max_pictures: How many pictures are read that the code has saved in the workspace, where it has shown none.
        rolls_back: Whether variables and files are as they were before code that fails.
        branch_of: Whose branch the executor is, if it is one. Where that has ended, it is a result as that of code that fails.

    Raises:
        SandboxError: If no code can run here at all.
        SettingError: If that is because of a setting of the executor.
    """

    async def work() -> ExecutionResult:
        if denial is not None:
            return denial
        _raise_if_cancelled(cancellation_token)
        try:
            result = await _execute_as_set(executor, blocks, tools, cancellation_token, emit, rolls_back)
        except SandboxError as error:
            if branch_of is None:
                raise
            return SessionResult(exit_code=1, output=str(error), outcome=Outcome.LOST, state_lost=True)
        if keeps_output and isinstance(executor, SessionCodeExecutor) and isinstance(result, SessionResult):
            result.output_file = await keep_output(executor, result)
        if max_pictures and result.outcome is Outcome.COMPLETED and any(".png" in one.code for one in blocks):
            # code that saves a picture names it; one that it has shown as well is known already
            result.saved_pictures = await _saved_pictures(executor, 0 if _shows(result) else max_pictures)
        return result

    try:
        _raise_if_cancelled(cancellation_token)
        denial = await _denial(tools, approval, blocks, context, cancellation_token, door)
        again = repeating(executor, tools, cancellation_token, rolls_back=rolls_back)
        block = Block(branch_of or executor, blocks, again, message_id)
        block.source = tools.source
        block.is_apart = branch_of is not None
        return await perform(block, work, door)
    except asyncio.CancelledError:
        # the token cancels what it is linked to; a task that was itself cancelled has to stay so
        if not cancellation_token.is_cancelled() or is_being_cancelled():
            raise
        return ExecutionResult(exit_code=1, output=CANCELLED, outcome=Outcome.CANCELLED)


def repeating(
    executor: CodeExecutor, tools: TurnTools, cancellation_token: CancellationToken, *, rolls_back: bool
) -> Run:
    """What runs blocks once more as those of a turn are run, whose records know nothing of it."""

    async def again(blocks: list[CodeBlock]) -> CodeResult:
        return await _execute_as_set(
            executor, blocks, tools.unrecorded(), cancellation_token, None, rolls_back
        )

    return again


@asynccontextmanager
async def warming_up(executor: CodeExecutor) -> AsyncGenerator[None]:
    """Within it, an executor that is a sandbox starts while the model is writing."""
    if not isinstance(executor, StreamingCodeExecutor):
        yield
        return
    starting = asyncio.ensure_future(executor.start())
    try:
        yield
    finally:
        # whatever went wrong with it was raised by the first execution
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)


def _shows(result: ExecutionResult) -> bool:
    return isinstance(result, SessionResult) and any(one.mime_type == "image/png" for one in result.artifacts)


async def _saved_pictures(executor: CodeExecutor, most: int) -> list[Artifact]:
    if not isinstance(executor, StreamingCodeExecutor):
        return []
    try:
        return list(await executor.workspace.new_pictures(most))
    except SandboxError as error:
        logger.warning("pictures that the code may have saved are not looked at: %s", error)
        return []


def _raise_if_cancelled(cancellation_token: CancellationToken) -> None:
    if cancellation_token.is_cancelled():
        raise asyncio.CancelledError


async def _denial(
    tools: TurnTools,
    approval: ApprovalFuncType | None,
    blocks: Sequence[CodeBlock],
    context: list[LLMMessage],
    cancellation_token: CancellationToken,
    door: Door | None,
) -> ExecutionResult | None:
    reason = await until_cancelled(tools.denial_of(blocks), cancellation_token)
    if reason is None and approval is not None:
        reason = next(
            filter(None, (misleading_as_it_is(block.code, block.language) for block in blocks)), None
        )
    if reason is None and approval is not None:
        code = "\n\n".join(_fenced(block) for block in blocks)
        asked = AskedQuestion(
            Question(tools.source, "code", next((block.language for block in blocks), ""), code=code)
        )
        ask = partial(_ask, approval, ApprovalRequest(code=code, context=context), cancellation_token)
        answer = await perform(asked, ask, door)
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
    """What an approval function of AutoGen's kind says; usually it asks a person."""
    try:
        answer = approval(request)
        if isinstance(answer, Awaitable):
            answer = await until_cancelled(answer, cancellation_token)
        return Answer(answer.approved, answer.reason)
    except Exception as error:
        logger.exception("the approval function failed, so the code is not run")
        return Answer(False, f"the approval function failed: {type(error).__name__}: {error}")


def _fenced(block: CodeBlock) -> str:
    """The block for review: code that holds a fence must not look as if it ended there."""
    longest = max((len(run) for run in re.findall("`+", block.code)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{block.language}\n{block.code}\n{fence}"


async def _execute_as_set(
    executor: CodeExecutor,
    blocks: list[CodeBlock],
    tools: TurnTools,
    cancellation_token: CancellationToken,
    emit: Emit | None,
    rolls_back: bool,
) -> ExecutionResult:
    if rolls_back and isinstance(executor, SessionCodeExecutor):
        return await _execute_or_roll_back(executor, blocks, tools, cancellation_token, emit)
    return await _execute(executor, blocks, tools, cancellation_token, emit)


async def _execute_or_roll_back(
    executor: SessionCodeExecutor,
    blocks: list[CodeBlock],
    tools: TurnTools,
    cancellation_token: CancellationToken,
    emit: Emit | None,
) -> ExecutionResult:
    """Run blocks; where they fail, the variables and files are as they were before, if that is possible."""
    try:
        checkpoint = await executor.checkpoint()
    except ForkError as error:
        result = await _execute(executor, blocks, tools, cancellation_token, emit)
        return _remarked(result, _HALF_CHANGED.format(error)) if _has_failed(result) else result
    try:
        result = await _execute(executor, blocks, tools, cancellation_token, emit)
        if not _has_failed(result):
            return result
        try:
            await executor.rollback(checkpoint, user=tools.user)
        except SandboxError as error:
            return _remarked(result, _HALF_CHANGED.format(error))
    finally:
        await to_the_end(checkpoint.aclose())
    if isinstance(result, SessionResult):
        # what the failed code has bound is gone, and what was there before it is not
        result = replace(result, names=[], omitted_names=0, state_lost=False)
    return _remarked(result, _SET_BACK)


def _has_failed(result: ExecutionResult) -> bool:
    return result.exit_code != 0 and result.outcome in (Outcome.COMPLETED, Outcome.TIMED_OUT, Outcome.LOST)


def _remarked(result: ExecutionResult, remark: str) -> ExecutionResult:
    separator = "" if result.output.endswith("\n") or not result.output else "\n"
    return replace(result, output=f"{result.output}{separator}{remark}")


async def _execute(
    executor: CodeExecutor,
    blocks: list[CodeBlock],
    tools: TurnTools,
    cancellation_token: CancellationToken,
    emit: Emit | None,
) -> ExecutionResult:
    denials = tools.denials
    try:
        if not isinstance(executor, StreamingCodeExecutor):
            plain = await executor.execute_code_blocks(blocks, cancellation_token=cancellation_token)
            return _cancelled(plain) if cancellation_token.is_cancelled() else full_result(plain)
        if isinstance(executor, SessionCodeExecutor) and tools:
            result = await executor.run_code_blocks(
                blocks, cancellation_token, user=tools.user, tools=tools, emit=emit
            )
        else:
            result = await executor.run_code_blocks(blocks, cancellation_token, user=tools.user, emit=emit)
    except CodeActTeamError:
        raise
    except Exception as error:
        # AutoGen lets its executors raise, for time-outs among others; a model can read that, a team only ends by it
        logger.warning("%s raised %r", type(executor).__name__, error)
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        if isinstance(error, TimeoutError):
            return ExecutionResult(exit_code=_TIMEOUT_EXIT_CODE, output=text, outcome=Outcome.TIMED_OUT)
        failure = f"The code could not be run: {text}"
        return ExecutionResult(exit_code=1, output=failure, outcome=Outcome.NOT_RUN)
    # the code may say so without any reason to
    if isinstance(result, SessionResult) and result.denied and tools.denials > denials:
        return replace(result, outcome=Outcome.DENIED)
    return result


def _cancelled(result: CodeResult) -> ExecutionResult:
    """The result of an executor that does not raise when it is cancelled, as AutoGen's for Docker."""
    if result.exit_code == 0:
        return full_result(result)
    return ExecutionResult(
        exit_code=result.exit_code, output=result.output or CANCELLED, outcome=Outcome.CANCELLED
    )
