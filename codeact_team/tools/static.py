"""A workbench of single tools that returns what they return, instead of text."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import json
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from autogen_core import EVENT_LOGGER_NAME, CancellationToken, trace_tool_span
from autogen_core.logging import ToolCallEvent
from autogen_core.tools import BaseTool, FunctionTool, StaticWorkbench
from pydantic import BaseModel, ValidationError

from codeact_team.tools.content import Piece, ToolFailed, pieces_of
from codeact_team.visibility import cut

MAX_THREADS = 64
"""How many functions that are no coroutines run at the same time; more calls are not made at once."""

_MAX_LOGGED = 2000
_RUN_JSON: Any = BaseTool[Any, Any].run_json

event_logger = logging.getLogger(EVENT_LOGGER_NAME)


class PythonWorkbench(StaticWorkbench):
    """AutoGen's static workbench, for callers that want values.

    Functions that are no coroutines run in threads, which cannot be stopped: a call that is cancelled leaves its
    function running, unless that looks at its ``cancellation_token``.
    """

    def __init__(self, tools: Sequence[BaseTool[Any, Any]]) -> None:
        super().__init__(list(tools))
        self._threads: ThreadPoolExecutor | None = None

    @property
    def tools(self) -> Sequence[BaseTool[Any, Any]]:
        """The tools."""
        return self._tools

    async def stop(self) -> None:
        """Let go of the threads."""
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)

    async def call_for_pieces(
        self, tool: BaseTool[Any, Any], arguments: Mapping[str, Any], cancellation_token: CancellationToken
    ) -> Sequence[Piece]:
        """Call a tool.

        Raises:
            ToolFailed: If its arguments do not fit, or it returns what cannot be passed on.
            Exception: Whatever it raises.
        """
        if type(tool).run_json is not _RUN_JSON:
            return pieces_of(await tool.run_json(arguments, cancellation_token))
        # what AutoGen's does, without turning the value to text, which fails for a model with a date
        with trace_tool_span(tool_name=tool.name, tool_description=tool.description):
            pieces = pieces_of(await self._run(tool, _read_arguments(tool, arguments), cancellation_token))
        if event_logger.isEnabledFor(logging.INFO):
            shown = cut(json.dumps(pieces, default=repr), _MAX_LOGGED)
            event_logger.info(ToolCallEvent(tool_name=tool.name, arguments=dict(arguments), result=shown))
        return pieces

    async def _run(
        self, tool: BaseTool[Any, Any], arguments: BaseModel, cancellation_token: CancellationToken
    ) -> Any:
        if not isinstance(tool, FunctionTool) or type(tool).run is not FunctionTool.run:
            return await tool.run(arguments, cancellation_token)
        # private, and pinned with AutoGen, whose own threads are as few as the loop's
        function, signature = tool._func, tool._signature  # pyright: ignore[reportPrivateUsage]
        if inspect.iscoroutinefunction(function):
            return await tool.run(arguments, cancellation_token)
        given = {name: getattr(arguments, name) for name in type(arguments).model_fields}
        if "cancellation_token" in signature.parameters:
            given["cancellation_token"] = cancellation_token
        if self._threads is None:
            self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="codeact-team-tool")
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: context.run(_call, partial(function, **given))
        )


def _call(function: partial[Any]) -> Any:
    try:
        return function()
    except StopIteration as error:
        # a future cannot hold one, and would never be done
        raise RuntimeError(f"StopIteration: {error}") from error
    except SystemExit as error:
        raise RuntimeError(f"the tool tried to exit ({error})") from error


def _read_arguments(tool: BaseTool[Any, Any], arguments: Mapping[str, Any]) -> BaseModel:
    try:
        return tool.args_type().model_validate(arguments)
    except ValidationError as error:
        said = (
            f"{'.'.join(map(str, item['loc'])) or 'arguments'}: {item['msg']}"
            for item in error.errors(include_url=False, include_context=False, include_input=False)[:3]
        )
        raise ToolFailed("; ".join(said)) from None
