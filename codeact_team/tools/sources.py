"""Where tools come from, behind one small interface: single tools, and workbenches of any kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from autogen_core import CancellationToken
from autogen_core.tools import BaseTool, Workbench
from pydantic import JsonValue, TypeAdapter
from pydantic.errors import PydanticUserError

from codeact_team.errors import CodeActTeamError, SettingError, WorkbenchError
from codeact_team.tools.content import MEDIA_TYPES, Piece, pieces_of_result
from codeact_team.tools.schemas import NO_SCHEMA, Schema
from codeact_team.tools.static import PythonWorkbench
from codeact_team.tools.text import describe_error
from codeact_team.visibility import cut


@dataclass(frozen=True)
class ListedTool:
    """A tool as its source lists it.

    Attributes:
        name: What the source calls it.
        description: What it does.
        schema: The JSON schema of its arguments, unchecked.
        returns: The JSON schema of what it returns, if that is known.
        returns_media: Whether that is a picture or the like.
    """

    name: str
    description: str
    schema: Schema
    returns: Schema | None = None
    returns_media: bool = False


class ToolSource(ABC):
    """Tools that are started, listed and stopped together."""

    wire_is_json: bool = False
    """Whether arguments travel as JSON that others read, so that it has to be strict."""

    @property
    @abstractmethod
    def workbench(self) -> Workbench:
        """The workbench behind it."""

    @property
    @abstractmethod
    def label(self) -> str:
        """What it is, for an error."""

    @property
    def server(self) -> str | None:
        """The name of the server, whose tools have a namespace of their own; ``None`` for all others."""
        return None

    @abstractmethod
    async def start(self) -> None:
        """Start it, unless it runs.

        Raises:
            WorkbenchError: If it cannot start. Nothing is left running then.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Stop it, if it was started here."""

    @abstractmethod
    async def list_tools(self) -> Sequence[ListedTool]:
        """The tools there are now.

        Raises:
            WorkbenchError: If they cannot be had.
        """

    @abstractmethod
    async def call(
        self, tool: ListedTool, arguments: dict[str, JsonValue], cancellation_token: CancellationToken
    ) -> Sequence[Piece]:
        """Call a tool.

        Raises:
            ToolFailed: If it fails, and says why.
            Exception: If it fails otherwise.
        """

    def error(self, message: str) -> CodeActTeamError:
        """An error about one of its tools."""
        return WorkbenchError(f"{self.label}: {message}")


class SingleTools(ToolSource):
    """Tools that were given one by one.

    Args:
        tools: The tools.

    Raises:
        SettingError: If one has no schema, or two have the same name.
    """

    def __init__(self, tools: Sequence[BaseTool[Any, Any]]) -> None:
        self._workbench = PythonWorkbench(tools)
        self._by_name = {tool.name: tool for tool in tools}
        self._listed = [_listed(tool) for tool in tools]

    @property
    def workbench(self) -> PythonWorkbench:
        return self._workbench

    @property
    def label(self) -> str:
        return "tools"

    @property
    def listed(self) -> Sequence[ListedTool]:
        """The tools, which never change."""
        return self._listed

    async def start(self) -> None:
        await self._workbench.start()

    async def stop(self) -> None:
        await self._workbench.stop()

    async def list_tools(self) -> Sequence[ListedTool]:
        return self._listed

    async def call(
        self, tool: ListedTool, arguments: dict[str, JsonValue], cancellation_token: CancellationToken
    ) -> Sequence[Piece]:
        return await self._workbench.call_for_pieces(self._by_name[tool.name], arguments, cancellation_token)

    def error(self, message: str) -> CodeActTeamError:
        return SettingError(f"{self.label}: {message}")


class AnyWorkbench(ToolSource):
    """A workbench of which nothing more is known.

    Args:
        workbench: The workbench. It is started and stopped here.
    """

    def __init__(self, workbench: Workbench) -> None:
        self._workbench = workbench
        self._started = False

    @property
    def workbench(self) -> Workbench:
        return self._workbench

    @property
    def label(self) -> str:
        return f"workbench {type(self._workbench).__name__}"

    async def start(self) -> None:
        if self._started:
            return
        try:
            await self._workbench.start()
        except Exception as error:  # whatever a workbench raises
            raise WorkbenchError(f"{self.label} does not start: {describe_error(error)}") from error
        self._started = True

    async def stop(self) -> None:
        if self._started:
            self._started = False
            await self._workbench.stop()

    async def list_tools(self) -> Sequence[ListedTool]:
        try:
            return [
                ListedTool(
                    name=schema["name"],
                    description=schema.get("description", ""),
                    schema=cast("Schema", schema.get("parameters", NO_SCHEMA)),
                )
                for schema in await self._workbench.list_tools()
            ]
        except Exception as error:  # whatever a workbench raises
            raise WorkbenchError(f"{self.label} does not list its tools: {describe_error(error)}") from error

    async def call(
        self, tool: ListedTool, arguments: dict[str, JsonValue], cancellation_token: CancellationToken
    ) -> Sequence[Piece]:
        return pieces_of_result(await self._workbench.call_tool(tool.name, arguments, cancellation_token))


def _listed(tool: BaseTool[Any, Any]) -> ListedTool:
    try:
        schema = _arguments_of(tool)
    except Exception as error:  # whatever a tool, or pydantic, raises about types that have no schema
        raise SettingError(
            f"tools: {tool.name!r} has parameters of types that have no JSON schema: {cut(str(error), 500)}"
        ) from error
    # not always a type, whatever AutoGen says
    returned: Any = cast("Any", tool.return_type())
    returns_media = isinstance(returned, type) and issubclass(returned, MEDIA_TYPES)
    returns = None if returns_media else _schema_of_returned(cast("Any", returned))
    return ListedTool(tool.name, tool.description, schema, returns, returns_media)


def _arguments_of(tool: BaseTool[Any, Any]) -> Schema:
    if type(tool).schema is not BaseTool.schema:
        return cast("Schema", tool.schema.get("parameters", NO_SCHEMA))
    # AutoGen's own puts definitions in the place of references, which it cannot where a type holds itself
    return {"additionalProperties": False, **tool.args_type().model_json_schema()}


def _schema_of_returned(returned: object) -> Mapping[str, JsonValue] | None:
    # AutoGen passes on what a signature says that says nothing
    if isinstance(returned, type) and returned.__name__ == "_empty":
        return None
    try:
        return TypeAdapter(cast("Any", returned)).json_schema(mode="serialization")
    except PydanticUserError:
        return None
