"""Sources of tools: Python functions, AutoGen's tools and workbenches; and the values that they return."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import json
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from io import BytesIO
from itertools import islice
from typing import Any, cast

from autogen_agentchat.base import TaskResult
from autogen_core import EVENT_LOGGER_NAME, CancellationToken, ComponentModel, Image, trace_tool_span
from autogen_core.logging import ToolCallEvent
from autogen_core.tools import BaseTool, FunctionTool, ImageResultContent, ToolResult, Workbench
from PIL.Image import Image as Picture
from pydantic import BaseModel, JsonValue, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from codeact_team.core.autogen_internals import function_of, tools_inside
from codeact_team.core.execution import Artifact
from codeact_team.core.providers import resolve_function
from codeact_team.errors import CodeActTeamError, SettingError, WorkbenchError
from codeact_team.text.visibility import clean, cut
from codeact_team.tools.model_reader import ModelReader
from codeact_team.tools.schemas import ANYTHING, Schema

Piece = JsonValue | Artifact
"""A part of a tool's result."""

_MEDIA_TYPES = (Artifact, bytes, bytearray, memoryview, Image, Picture)
"""Types of values that JSON does not have, but a tool may return, by themselves or in a list."""

_MAX_ERROR = 4000
"""Characters of an error that code gets to see."""
_MAX_LEAVES = 3

_ANY_BYTES = "application/octet-stream"
_MIME_TYPE = re.compile(r"[a-zA-Z0-9][\w.+-]{0,60}/[a-zA-Z0-9][\w.+-]{0,100}", re.ASCII)


class ToolFailed(Exception):
    """A tool has failed. The text is for the author of the call."""


def error_text(text: str) -> str:
    """Bound the text of a tool's error."""
    return clean(text, _MAX_ERROR) or "the tool failed without giving a reason"


def describe_error(error: BaseException) -> str:
    """Return the text of an exception without its traceback; of a group, the texts of its members."""
    texts: dict[str, None] = {}
    for leaf in islice(leaves(error), _MAX_LEAVES):
        text, kind = str(leaf)[: 4 * _MAX_ERROR], type(leaf).__name__
        texts[f"{kind}: {text}" if text else kind] = None
    return clean("; ".join(texts), _MAX_ERROR)


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions of a group, or ``error`` itself."""
    if isinstance(error, BaseExceptionGroup):
        for member in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from leaves(member)
    else:
        yield error


def pieces_of(value: object) -> Sequence[Piece]:
    """Convert the value that a function returned into the pieces for the code.

    Models, dataclasses, enums, dates and the like become their JSON form; numbers that JSON lacks, such as ``nan``, stay
    as they are, and bytes within other values become base64.

    Raises:
        ToolFailed: If the value has no form in JSON.
    """
    items = cast("Sequence[object]", value) if isinstance(value, list | tuple) else ()
    parts = items if any(isinstance(item, _MEDIA_TYPES) for item in items) else [cast("object", value)]
    return [
        _artifact(cast("object", part)) if isinstance(part, _MEDIA_TYPES) else _as_json(part)
        for part in parts
    ]


def pieces_of_result(result: ToolResult) -> Sequence[Piece]:
    """Convert a workbench's answer into the pieces for the code; :class:`ToolFailed` if it is an error."""
    if result.is_error:
        raise ToolFailed(error_text(result.to_text(replace_image="[a picture]")))
    return [
        _artifact(part.content) if isinstance(part, ImageResultContent) else part.content
        for part in result.result
    ]


def mime_type(text: str | None) -> str:
    """Return ``text`` if it can be a MIME type, else the type of any bytes."""
    return text.lower() if text and _MIME_TYPE.fullmatch(text) else _ANY_BYTES


def _artifact(value: object) -> Artifact:
    if isinstance(value, Artifact):
        return value
    if isinstance(value, Image | Picture):
        picture, file = value.image if isinstance(value, Image) else value, BytesIO()
        fits = picture.mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16")
        (picture if fits else picture.convert("RGB")).save(file, "PNG")
        return Artifact("image/png", file.getvalue())
    return Artifact(_ANY_BYTES, bytes(cast("bytes", value)))


def _as_json(value: object) -> JsonValue:
    try:
        plain: JsonValue = to_jsonable_python(value, bytes_mode="base64")
        # a number may be too long for JSON, and a value nested too deeply
        json.dumps(plain)
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        reason = cut(str(error), 300)
        raise ToolFailed(
            f"the tool returned a {type(value).__name__} that has no form in JSON ({reason}); it should return plain "
            "values, or media by themselves or in a list"
        ) from error
    return plain


@dataclass(frozen=True)
class ListedTool:
    """A tool as its source lists it.

    Attributes:
        description: Its description, hostile if the source is.
        schema: The JSON Schema of its arguments, unchecked.
        returns: The schema of the value that code gets, if it is known.
        output: The schema of the answers of an MCP server, as the server states it.
    """

    name: str
    description: str
    schema: Schema
    returns: Schema | None = None
    returns_media: bool = False
    output: Schema | None = None


@dataclass(frozen=True)
class Catalog:
    """The tools of a source, in the namespace ``server`` if it has one."""

    tools: Sequence[ListedTool]
    server: str | None = None


@dataclass(frozen=True)
class Arguments:
    """The arguments of one call that fit the tool's schema: as JSON, and as its Pydantic model if there is one."""

    plain: dict[str, JsonValue]
    model: BaseModel | None = None

    def received(self) -> dict[str, JsonValue]:
        """The arguments as JSON values as the tool gets them, as far as that is known."""
        if self.model is None:
            return self.plain
        return self.plain | self.model.model_dump(mode="json", by_alias=True, warnings=False, fallback=repr)


class ToolSource(ABC):
    """Tools that are started, listed and stopped together."""

    label: str
    """Names it in errors."""

    @abstractmethod
    async def start(self) -> None:
        """Start it, unless it runs; a :class:`WorkbenchError` if it does not start, and nothing is left running."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop it, if it was started here."""

    @abstractmethod
    async def list_tools(self) -> Catalog:
        """Return the tools there are now; a :class:`WorkbenchError` if they cannot be had."""

    def read(self, tool: ListedTool, arguments: dict[str, JsonValue]) -> Arguments:
        """Read arguments that fit the schema; :class:`ToolFailed` if the tool would not take them."""
        return Arguments(arguments)

    @abstractmethod
    async def call(
        self, tool: ListedTool, arguments: Arguments, cancellation_token: CancellationToken
    ) -> Sequence[Piece]:
        """Call a tool. It may raise anything; the text of a :class:`ToolFailed` is for the code."""

    def error(self, message: str) -> CodeActTeamError:
        """Make an error about one of its tools."""
        return WorkbenchError(f"{self.label}: {message}")


_reader = lru_cache(1024)(ModelReader[BaseModel])
"""The same for the same model: tools are called again and again."""


def require_bounded(model: type[BaseModel], arguments: dict[str, JsonValue]) -> None:
    """Raise :class:`ToolFailed` if it would take somebody else too long to read these arguments into a model."""
    try:
        _reader(model).require_bounded(arguments)
    except ValueError as error:
        raise ToolFailed(str(error)) from None
    except (PydanticUserError, AttributeError):
        # a type that has no schema, such as Pydantic's class of all models: the tool states one of its own
        return


class AnyWorkbench(ToolSource):
    """Any workbench of AutoGen's interface. It is started and stopped here."""

    def __init__(self, workbench: Workbench) -> None:
        self._workbench = workbench
        self._started = False
        self.label = f"workbench {type(workbench).__name__}"

    async def start(self) -> None:
        if self._started:
            return
        try:
            await self._workbench.start()
        except Exception as error:  # any, of somebody's workbench
            raise WorkbenchError(f"{self.label} does not start: {describe_error(error)}") from error
        self._started = True

    async def stop(self) -> None:
        if self._started:
            self._started = False
            await self._workbench.stop()

    async def list_tools(self) -> Catalog:
        try:
            tools = [
                ListedTool(
                    name=schema["name"],
                    description=schema.get("description", ""),
                    schema=cast("Schema", schema.get("parameters", ANYTHING)),
                )
                for schema in await self._workbench.list_tools()
            ]
        except Exception as error:  # any, of somebody's workbench
            raise WorkbenchError(f"{self.label} does not list its tools: {describe_error(error)}") from error
        return Catalog(tools)

    def read(self, tool: ListedTool, arguments: dict[str, JsonValue]) -> Arguments:
        if (inner := tools_inside(self._workbench).get(tool.name)) is not None:
            require_bounded(inner.args_type(), arguments)
        return Arguments(arguments)

    async def call(
        self, tool: ListedTool, arguments: Arguments, cancellation_token: CancellationToken
    ) -> Sequence[Piece]:
        return pieces_of_result(
            await self._workbench.call_tool(tool.name, arguments.plain, cancellation_token)
        )


Tool = BaseTool[Any, Any] | Callable[..., Any] | str
"""The forms in which a tool may be given."""

_VARIADIC = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


@dataclass(frozen=True)
class GivenTool:
    """A tool, its import path if it was given by that, and whether it was given as a function."""

    tool: BaseTool[Any, Any]
    path: str | None = None
    is_live: bool = False

    def dump(self) -> ComponentModel | str:
        """Dump the tool for a config; a :class:`SettingError` if it has no form there.

        A ``FunctionTool`` is dumped as AutoGen does it, with its source; loading that must be allowed.
        """
        if self.path is not None:
            return self.path
        advice = "put it into a module, and give its import path, `module:function`"
        if self.is_live:
            raise SettingError(f"tools: {self.tool.name!r} is a live function and cannot be dumped: {advice}")
        try:
            return self.tool.dump_component()
        except Exception as error:  # any, of a tool that cannot be dumped
            raise SettingError(
                f"tools: {self.tool.name!r} ({type(self.tool).__name__}) cannot be dumped "
                f"({type(error).__name__}: {error}): {advice}"
            ) from error


def read_tool(tool: Tool) -> GivenTool:
    """Make AutoGen's object for a tool that may be given in any form.

    Raises:
        SettingError: If it cannot be a tool.
        ConfigError: If its import path leads to no function, or may not be followed.
    """
    if isinstance(tool, FunctionTool) and type(tool).run is FunctionTool.run:
        # it would fail at the first call
        _check_parameters(tool.name, function_of(tool))
    if isinstance(tool, BaseTool):
        return GivenTool(cast("BaseTool[Any, Any]", tool))
    if isinstance(tool, str):
        return GivenTool(function_tool(resolve_function(tool)), path=tool)
    return GivenTool(function_tool(tool), is_live=True)


def function_tool(function: Callable[..., Any], name: str | None = None) -> FunctionTool:
    """Make a tool of a function, by its own name or another one; a :class:`SettingError` if it cannot be one."""
    given = cast("Any", function)
    definition: Any = given.func if isinstance(given, partial) else given
    if not inspect.isfunction(definition) and not inspect.ismethod(definition):
        raise SettingError(
            f"tools: {definition!r} is not a function; give a function written with 'def', a partial of one, or a "
            "BaseTool"
        )
    if definition.__name__ == "<lambda>":
        raise SettingError("tools: a lambda has no name; write it with 'def'")
    shown = definition.__qualname__.replace("<locals>.", "")
    _check_parameters(shown, function)
    try:
        return FunctionTool(function, description=inspect.getdoc(definition) or "", name=name)
    except (ValueError, TypeError, NameError, RuntimeError) as error:
        raise SettingError(
            f"tools: {shown} cannot be a tool: {error}; annotate parameters with types that JSON has, and describe them "
            "by Annotated[type, 'what it is']"
        ) from error


def _check_parameters(name: str, function: Callable[..., Any]) -> None:
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in _VARIADIC:
            shown = f"{_VARIADIC[parameter.kind]}{parameter.name}"
            raise SettingError(
                f"tools: {name} takes {shown}; write its parameters out, as each has to be described"
            )
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise SettingError(f"tools: {name} takes {parameter.name!r} by position only; remove the '/'")
        if parameter.annotation is inspect.Parameter.empty:
            raise SettingError(
                f"tools: parameter {parameter.name!r} of {name} has no annotation; write one, such as "
                f"'{parameter.name}: str'"
            )


_MAX_THREADS = 64
"""Functions that are no coroutines and run at the same time. Further calls wait."""

_MAX_LOGGED = 2000
_TOKEN = "cancellation_token"
_RUN_JSON: Any = BaseTool[Any, Any].run_json

event_logger = logging.getLogger(EVENT_LOGGER_NAME)


class PythonTools(ToolSource):
    """Python functions and AutoGen's tools, whose values stay values; AutoGen's own workbench makes text of them.

    Functions that are no coroutines run in threads, which cannot be stopped: a call that is cancelled leaves its
    function running, unless the function looks at its ``cancellation_token``. A tool without a schema is refused.
    """

    label = "tools"

    def __init__(self, tools: Sequence[BaseTool[Any, Any]]) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._threads: ThreadPoolExecutor | None = None
        self.listed: list[ListedTool] = [_listed(tool) for tool in tools]
        """The tools, which never change."""

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)

    async def list_tools(self) -> Catalog:
        return Catalog(self.listed)

    def read(self, tool: ListedTool, arguments: dict[str, JsonValue]) -> Arguments:
        given = self._tools[tool.name]
        if type(given).run_json is not _RUN_JSON:
            require_bounded(given.args_type(), arguments)
            return Arguments(arguments)
        try:
            return Arguments(arguments, _reader(given.args_type()).read(arguments))
        except ValidationError as error:
            problems = (
                f"{'.'.join(map(str, item['loc'])) or 'arguments'}: {item['msg']}"
                for item in error.errors(include_url=False, include_context=False, include_input=False)[:3]
            )
            raise ToolFailed("; ".join(problems)) from None
        except ValueError as error:
            raise ToolFailed(str(error)) from None

    async def call(
        self, tool: ListedTool, arguments: Arguments, cancellation_token: CancellationToken
    ) -> Sequence[Piece]:
        given = self._tools[tool.name]
        if arguments.model is None:
            return pieces_of(await given.run_json(arguments.plain, cancellation_token))
        # as AutoGen's run_json, but without turning the value to text, which fails for a model with a date
        with trace_tool_span(tool_name=tool.name, tool_description=given.description):
            value = await self._run(given, arguments.model, cancellation_token)
            if isinstance(value, TaskResult):
                # of an agent or a team: the text that a model gets of it, and not all of its messages
                value = given.return_value_as_string(value)
            pieces = pieces_of(value)
        if event_logger.isEnabledFor(logging.INFO):
            shown = cut(json.dumps(pieces, default=repr), _MAX_LOGGED)
            event_logger.info(ToolCallEvent(tool_name=tool.name, arguments=arguments.plain, result=shown))
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
            self._threads = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="codeact-team-tool")
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


def _listed(tool: BaseTool[Any, Any]) -> ListedTool:
    try:
        if type(tool).schema is not BaseTool.schema:
            schema = cast("Schema", tool.schema.get("parameters", ANYTHING))
        else:
            # AutoGen's own puts definitions in the place of references, which it cannot where a type holds itself
            schema = {"additionalProperties": False, **tool.args_type().model_json_schema()}
    except Exception as error:  # any, of a tool or of pydantic, about types that have no schema
        raise SettingError(
            f"tools: {tool.name!r} has parameters of types that have no JSON schema: {cut(str(error), 500)}"
        ) from error
    # not always a type, whatever AutoGen says
    returned: Any = cast("Any", tool.return_type())
    if returned is TaskResult:
        # the code gets its text
        returned = str
    returns_media = isinstance(returned, type) and issubclass(returned, _MEDIA_TYPES)
    returns = None if returns_media else schema_of_returned(cast("Any", returned))
    return ListedTool(tool.name, tool.description, schema, returns, returns_media)


def schema_of_returned(returned: object) -> Schema | None:
    """Return the schema of the values of a return annotation, if it says one."""
    # AutoGen's return type of a function without a return annotation
    if isinstance(returned, type) and returned.__name__ == "_empty":
        return None
    try:
        return TypeAdapter(cast("Any", returned)).json_schema(mode="serialization")
    except PydanticUserError:
        return None
