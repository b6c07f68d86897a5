"""Call AutoGen's tools and functions that were given one by one."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, cast

from autogen_agentchat.base import TaskResult
from autogen_core import EVENT_LOGGER_NAME, CancellationToken, trace_tool_span
from autogen_core.logging import ToolCallEvent
from autogen_core.tools import BaseTool, FunctionTool
from pydantic import BaseModel, JsonValue, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from codeact_team.autogen_internals import function_of
from codeact_team.errors import CodeActTeamError, SettingError
from codeact_team.tools.returned_values import MEDIA_TYPES, Piece, ToolFailed, pieces_of
from codeact_team.tools.schema_documents import NO_SCHEMA, Schema
from codeact_team.tools.tool_sources import ListedTool, Listing, ToolSource
from codeact_team.visibility import cut

MAX_THREADS = 64
"""How many functions that are no coroutines run at the same time. Further calls wait."""

_MAX_LOGGED = 2000
_TOKEN = "cancellation_token"
_RUN_JSON: Any = BaseTool[Any, Any].run_json

event_logger = logging.getLogger(EVENT_LOGGER_NAME)


class PythonTools(ToolSource):
    """Tools that return values, where AutoGen's own workbench would make text of them.

    Functions that are no coroutines run in threads, which cannot be stopped: a call that is cancelled leaves its
    function running, unless that looks at its ``cancellation_token``. A tool without a schema is refused.
    """

    label = "tools"

    def __init__(self, tools: Sequence[BaseTool[Any, Any]]) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._threads: ThreadPoolExecutor | None = None
        self.listed = [_listed(tool) for tool in tools]
        """The tools, which never change."""

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)

    async def list_tools(self) -> Listing:
        return Listing(self.listed)

    def understood(self, tool: ListedTool, arguments: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
        given = self._tools[tool.name]
        if type(given).run_json is not _RUN_JSON:
            return arguments
        read = _read_arguments(given, arguments)
        return {**arguments, **read.model_dump(mode="json", by_alias=True, warnings=False, fallback=repr)}

    async def call(
        self, tool: ListedTool, arguments: dict[str, JsonValue], cancellation_token: CancellationToken
    ) -> Sequence[Piece]:
        given = self._tools[tool.name]
        if type(given).run_json is not _RUN_JSON:
            return pieces_of(await given.run_json(arguments, cancellation_token))
        # what AutoGen's does, without turning the value to text, which fails for a model with a date
        with trace_tool_span(tool_name=tool.name, tool_description=given.description):
            value = await self._run(given, _read_arguments(given, arguments), cancellation_token)
            if isinstance(value, TaskResult):
                # of an agent or a team: what a model gets of it, and not all of its messages
                value = given.return_value_as_string(value)
            pieces = pieces_of(value)
        if event_logger.isEnabledFor(logging.INFO):
            shown = cut(json.dumps(pieces, default=repr), _MAX_LOGGED)
            event_logger.info(ToolCallEvent(tool_name=tool.name, arguments=arguments, result=shown))
        return pieces

    async def _run(
        self, tool: BaseTool[Any, Any], arguments: BaseModel, cancellation_token: CancellationToken
    ) -> Any:
        if not isinstance(tool, FunctionTool) or type(tool).run is not FunctionTool.run:
            return await tool.run(arguments, cancellation_token)
        # not AutoGen's own threads, which are as few as the loop's
        function = function_of(tool)
        if inspect.iscoroutinefunction(function):
            return await tool.run(arguments, cancellation_token)
        given = {name: getattr(arguments, name) for name in type(arguments).model_fields}
        if _TOKEN in inspect.signature(function).parameters:
            given[_TOKEN] = cancellation_token
        if inspect.isasyncgenfunction(function):
            return [item async for item in function(**given)]
        if self._threads is None:
            self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="codeact-team-tool")
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: context.run(_call, partial(function, **given))
        )

    def error(self, message: str) -> CodeActTeamError:
        return SettingError(f"{self.label}: {message}")


def _call(function: partial[Any]) -> Any:
    try:
        returned = function()
        # here, for its body may take its time
        return list(cast("Iterable[Any]", returned)) if inspect.isgenerator(returned) else returned
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


def _listed(tool: BaseTool[Any, Any]) -> ListedTool:
    try:
        schema = _arguments_of(tool)
    except Exception as error:  # whatever a tool, or pydantic, raises about types that have no schema
        raise SettingError(
            f"tools: {tool.name!r} has parameters of types that have no JSON schema: {cut(str(error), 500)}"
        ) from error
    # not always a type, whatever AutoGen says
    returned: Any = cast("Any", tool.return_type())
    if returned is TaskResult:
        # which code gets as text
        returned = str
    returns_media = isinstance(returned, type) and issubclass(returned, MEDIA_TYPES)
    returns = None if returns_media else _schema_of_returned(cast("Any", returned))
    return ListedTool(tool.name, tool.description, schema, returns, returns_media)


def _arguments_of(tool: BaseTool[Any, Any]) -> Schema:
    if type(tool).schema is not BaseTool.schema:
        return cast("Schema", tool.schema.get("parameters", NO_SCHEMA))
    # AutoGen's own puts definitions in the place of references, which it cannot where a type holds itself
    return {"additionalProperties": False, **tool.args_type().model_json_schema()}


def _schema_of_returned(returned: object) -> Schema | None:
    # AutoGen passes on what a signature says that says nothing
    if isinstance(returned, type) and returned.__name__ == "_empty":
        return None
    try:
        return TypeAdapter(cast("Any", returned)).json_schema(mode="serialization")
    except PydanticUserError:
        return None
