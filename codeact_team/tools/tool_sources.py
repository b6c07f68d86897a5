"""Where tools come from, behind one small interface: single tools, and workbenches of any kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from autogen_core import CancellationToken
from autogen_core.tools import Workbench
from pydantic import JsonValue

from codeact_team.errors import CodeActTeamError, WorkbenchError
from codeact_team.tools.error_texts import describe_error
from codeact_team.tools.returned_values import Piece, pieces_of_result
from codeact_team.tools.schema_documents import NO_SCHEMA, Schema


@dataclass(frozen=True)
class ListedTool:
    """A tool as its source lists it; what is known of what it returns may be nothing."""

    name: str
    description: str
    schema: Schema
    """Of its arguments, unchecked."""
    returns: Schema | None = None
    returns_media: bool = False
    output: Schema | None = None
    """Of what a server answers with, as it says so."""


@dataclass(frozen=True)
class Listing:
    """What a source lists.

    Attributes:
        tools: The tools that there are.
        server: The name of the server, whose tools have a namespace of their own; ``None`` for all others.
    """

    tools: Sequence[ListedTool]
    server: str | None = None


class ToolSource(ABC):
    """Tools that are started, listed and stopped together."""

    wire_is_json: bool = False
    """Whether arguments travel to another program as JSON, which has to be strict then."""

    label: str
    """What it is, for an error."""

    @abstractmethod
    async def start(self) -> None:
        """Start it, unless it runs. After a ``WorkbenchError`` nothing is left running."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop it, if it was started here."""

    @abstractmethod
    async def list_tools(self) -> Listing:
        """The tools there are now, or a ``WorkbenchError``."""

    def understood(self, tool: ListedTool, arguments: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
        """The arguments as a tool gets them, as far as that is known, unless they do not fit: that is a ``ToolFailed``."""
        return arguments

    @abstractmethod
    async def call(
        self, tool: ListedTool, arguments: dict[str, JsonValue], cancellation_token: CancellationToken
    ) -> Sequence[Piece]:
        """Call a tool. A ``ToolFailed`` says why it fails; it may raise anything else, too."""

    def error(self, message: str) -> CodeActTeamError:
        """An error about one of its tools."""
        return WorkbenchError(f"{self.label}: {message}")


class AnyWorkbench(ToolSource):
    """A workbench of which nothing more is known. It is started and stopped here."""

    def __init__(self, workbench: Workbench) -> None:
        self._workbench = workbench
        self._started = False
        self.label = f"workbench {type(workbench).__name__}"

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

    async def list_tools(self) -> Listing:
        try:
            tools = [
                ListedTool(
                    name=schema["name"],
                    description=schema.get("description", ""),
                    schema=cast("Schema", schema.get("parameters", NO_SCHEMA)),
                )
                for schema in await self._workbench.list_tools()
            ]
        except Exception as error:  # whatever a workbench raises
            raise WorkbenchError(f"{self.label} does not list its tools: {describe_error(error)}") from error
        return Listing(tools)

    async def call(
        self, tool: ListedTool, arguments: dict[str, JsonValue], cancellation_token: CancellationToken
    ) -> Sequence[Piece]:
        return pieces_of_result(await self._workbench.call_tool(tool.name, arguments, cancellation_token))
