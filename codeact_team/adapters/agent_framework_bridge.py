"""Function calls and results between Microsoft's Agent Framework and the code of a sandbox."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Sequence
from contextvars import ContextVar
from hashlib import sha256
from mimetypes import guess_type
from typing import TYPE_CHECKING, Any, cast, get_type_hints

from agent_framework import Content, FunctionInvocationContext, FunctionTool, normalize_tools
from autogen_core import CancellationToken
from pydantic import JsonValue

from codeact_team.agents.agent_config import ToolLimits
from codeact_team.agents.observations import describe_files, observe, summarize
from codeact_team.agents.tool_calls import TurnTools
from codeact_team.core.execution import Artifact, CallAnswer, SessionResult, read_drawn
from codeact_team.errors import SettingError
from codeact_team.tools.approval_rules import ApprovalRule
from codeact_team.tools.approvals import Approvals, Pause
from codeact_team.tools.schemas import Schema
from codeact_team.tools.sources import (
    Arguments,
    Catalog,
    ListedTool,
    Piece,
    ToolSource,
    pieces_of,
    require_bounded,
    schema_of_returned,
)
from codeact_team.tools.toolbox import Offer, assemble

if TYPE_CHECKING:
    from codeact_team import AsyncSandbox

OUTPUT = "output"
"""The directory of the workspace for files that are attached to results."""
_MAX_ATTACHED = 20
"""Files of one result that are attached to it."""
_MAX_ATTACHED_BYTES = 5 << 20
"""Bytes of one of these."""
_MAX_READ_BYTES = 100 << 20
"""Bytes of files that are looked at after each call."""

_outer: ContextVar[FunctionInvocationContext] = ContextVar("codeact_team_agent_framework_outer")
"""The call of ``execute_code`` whose code makes a call."""


class FrameworkFunctions(ToolSource):
    """Functions of the framework. They get the session and the keyword arguments of the agent's run, and return values.

    Args:
        tools: Functions, or objects that the framework has made of some.

    Attributes:
        offer: What the code is offered.
        asked_about: A rule of approval for each function that always requires it.

    Raises:
        SettingError: If something is no function, or two have the same name.
    """

    label = "tools"

    def __init__(self, tools: Any) -> None:
        functions = [_read(tool) for tool in normalize_tools(tools)]
        self._functions = {function.name: function for function in functions}
        self._catalog = Catalog(
            [ListedTool(one.name, one.description, one.parameters(), _returned(one)) for one in functions]
        )
        self.offer: Offer = assemble([(self, self._catalog)])
        self.asked_about: list[ApprovalRule] = [
            ApprovalRule(tool=offered.name, decision="ask")
            for offered, function in zip(self.offer.tools, functions, strict=True)
            if function.approval_mode == "always_require"
        ]

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def list_tools(self) -> Catalog:
        return self._catalog

    def read(self, tool: ListedTool, arguments: dict[str, JsonValue]) -> Arguments:
        if (model := self._functions[tool.name].input_model) is not None:
            require_bounded(model, arguments)
        return Arguments(arguments)

    async def call(
        self, tool: ListedTool, arguments: Arguments, cancellation_token: CancellationToken
    ) -> Sequence[Piece]:
        function, outer = self._functions[tool.name], _outer.get()
        context = FunctionInvocationContext(function, arguments.plain, outer.session, kwargs=outer.kwargs)
        value: object = await function.invoke(arguments=arguments.plain, context=context, skip_parsing=True)
        parts = cast("list[object]", value) if isinstance(value, list) else [value]
        if any(isinstance(part, Content) for part in parts):
            # functions of MCP servers return these
            return [piece for part in parts for piece in pieces_of(_plain(part))]
        return pieces_of(cast("object", value))


def _read(tool: object) -> FunctionTool:
    if not isinstance(tool, FunctionTool) or tool.declaration_only:
        raise SettingError(
            f"tools: {tool!r} is not a function on this machine; for an MCP server, give its `functions` once it is connected"
        )
    return tool


def _returned(function: FunctionTool) -> Schema | None:
    try:
        return schema_of_returned(get_type_hints(function.func)["return"])
    except (KeyError, NameError, TypeError):
        # without an annotation, or with one that names what only a type checker imports
        return None


def _plain(part: object) -> object:
    if not isinstance(part, Content):
        return part
    if part.type == "data" and part.uri is not None:
        return Artifact(part.media_type or "", b64decode(part.uri.partition(",")[2]))
    return part.text if part.type == "text" else part.to_dict()


class FrameworkCalls(TurnTools):
    """The calls by the code of one call of ``execute_code``.

    Args:
        outer: That call.
        offer: The functions.
        limits: Limits of its calls.
        approvals: Decides before each.
    """

    def __init__(
        self, outer: FunctionInvocationContext, offer: Offer, limits: ToolLimits, approvals: Approvals
    ) -> None:
        super().__init__("execute_code", offer, limits, approvals, CancellationToken())
        self._outer = outer

    async def call(self, name: str, arguments: dict[str, JsonValue], *, pause: Pause) -> CallAnswer:
        # each call is a task of its own
        _outer.set(self._outer)
        return await super().call(name, arguments, pause=pause)


class OutputFiles:
    """The files that a sandbox has in the directory for these. Each is attached once, and again when it has changed."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox
        self._known: dict[str, tuple[int, bytes]] = {}
        """Sizes and digests by path."""

    async def read_new(self) -> tuple[list[Content], list[str]]:
        """Read those that are new or changed.

        Returns:
            The files, and sentences about them for the model.

        Raises:
            SandboxError: If the sandbox is lost meanwhile.
        """
        taken: list[Content] = []
        attached: dict[str, int] = {}
        left: dict[str, int] = {}
        room = _MAX_READ_BYTES
        for path, size in (await self._sandbox.list()).items():
            if not path.startswith(f"{OUTPUT}/"):
                continue
            data = await self._read(path) if size <= min(room, _MAX_ATTACHED_BYTES) else None
            room -= len(data or b"")
            known = size, sha256(data or b"").digest()
            if self._known.get(path) == known:
                continue
            self._known[path] = known
            if data is not None and len(taken) < _MAX_ATTACHED:
                kind = guess_type(path)[0] or "application/octet-stream"
                taken.append(Content.from_data(data, kind, name=path, additional_properties={"path": path}))
                attached[path] = size
            else:
                left[path] = size
        said = {"Attached": attached, "Not attached (too large, too many, or not readable)": left}
        return taken, [f"{what}: {describe_files(files)}" for what, files in said.items() if files]

    async def _read(self, path: str) -> bytes | None:
        try:
            return await self._sandbox.get(path)
        except OSError:
            # what the code has left running may have removed it
            return None


async def contents_of(result: SessionResult, files: OutputFiles, note: str = "") -> list[Content]:
    """Return the contents for the model and the agent's caller: text, pictures that were shown, and new files.

    Args:
        result: The result of the code.
        files: The output files of its sandbox.
        note: A text before the output.

    Raises:
        SandboxError: If the sandbox is lost meanwhile.
    """
    seen, drawn = observe(result), await asyncio.to_thread(read_drawn, result.artifacts)
    pictures = [Content.from_data(picture.png, "image/png") for picture in drawn.pictures]
    taken, about_files = await files.read_new()
    lines = filter(None, (note, seen.output, summarize(seen), *drawn.problems, *about_files))
    return [Content.from_text("\n".join(lines)), *pictures, *taken]
