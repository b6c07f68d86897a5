"""How tests run code in sessions."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock

from codeact_team.core.execution import ExecutionResult, HostTools, SessionResult
from codeact_team.executors.session import InterpreterCodeExecutor


def streamed(
    executor: InterpreterCodeExecutor,
    *code: str,
    tools: HostTools | None = None,
    token: CancellationToken | None = None,
    language: str = "python",
) -> AsyncGenerator[str | ExecutionResult, None]:
    """What each ``code`` writes as a block of its own, all in one call, and then the result."""
    blocks = [CodeBlock(code=text, language=language) for text in code]
    return executor.execute_code_blocks_stream(blocks, token or CancellationToken(), tools=tools)


async def said(
    executor: InterpreterCodeExecutor,
    *code: str,
    tools: HostTools | None = None,
    token: CancellationToken | None = None,
    language: str = "python",
) -> SessionResult:
    """The result of that."""
    blocks = [CodeBlock(code=text, language=language) for text in code]
    result = await executor.run_code_blocks(blocks, token or CancellationToken(), tools=tools)
    assert isinstance(result, SessionResult)
    return result


async def output(
    executor: InterpreterCodeExecutor, *code: str, tools: HostTools | None = None, language: str = "python"
) -> str:
    """The output of code that succeeds."""
    result = await said(executor, *code, tools=tools, language=language)
    assert result.exit_code == 0, result.output
    return result.output


async def until_it_says(items: AsyncGenerator[object, None], words: str) -> None:
    """Read what code writes until it ends with ``words``; how much comes at a time is not defined."""
    seen = ""
    while not seen.endswith(words):
        seen += str(await anext(items))
