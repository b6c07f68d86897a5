"""CodeAct for Microsoft's Agent Framework: code in one of our sandboxes, which lives as long as the agent's session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Self
from weakref import WeakKeyDictionary

from agent_framework import (
    AgentSession,
    Content,
    ContextProvider,
    FunctionInvocationContext,
    FunctionTool,
    MiddlewareFailure,
    SessionContext,
    SupportsAgentRun,
)

from codeact_team import open_sandbox
from codeact_team.adapters.agent_framework_bridge import (
    OUTPUT,
    FrameworkCalls,
    FrameworkFunctions,
    OutputFiles,
    contents_of,
)
from codeact_team.adapters.conversations import ConversationSandbox, ConversationSandboxes
from codeact_team.agents.agent_config import ToolLimits
from codeact_team.errors import CodeActTeamError
from codeact_team.tools.approvals import Approvals, Handler

_NAME = "execute_code"
_DESCRIPTION = "Run Python code in a sandbox. Variables, imports and functions of earlier calls are there."
_CODE = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
_INSTRUCTIONS = f"""\
Solve tasks with Python code: the tool `{_NAME}` runs it in a sandbox.
- Its interpreter lives on: variables, imports and functions of one call are there in the next, also after an error.
- Print what you want to see, or end with an expression, whose value is shown.
- Save files for the user in the directory `{OUTPUT}`; they are attached to the result.
"""
_LOST = "The sandbox of the earlier calls is gone, with its variables and files. This one is new."


@dataclass
class _Known:
    """State of the sandbox of a session: its approvals and its output files."""

    approvals: Approvals
    files: OutputFiles


class ExecuteCodeTool(FunctionTool):
    """The tool ``execute_code``, within ``async with``.

    Each session of the agent has a sandbox: variables, imports and files of one call are there in the next, and in later
    runs. Without a session, each call has a sandbox of its own.

    Args:
        where: ``docker`` or ``confined``.
        tools: Functions on this machine, which code calls as ``tools.NAME(...)``.
        approval_mode: Whether the framework asks for approval of each ``execute_code``.
        approval_handler: Is asked, while the code waits, about each call of a tool with the mode ``always_require``; such as
            ``codeact_team.ask_with(input)``. Without one, the framework asks about ``execute_code`` if any tool has that mode.
        tool_limits: Limits of the calls by the code of one ``execute_code``.
        max_sandboxes: How many stay open; beyond that, the one that was used the longest time ago is closed.
        source_id: Its key in the session's state.
        settings: Those of :func:`codeact_team.open_sandbox`, such as ``packages``, ``data`` and ``timeout``.

    Raises:
        SettingError: If a setting or a tool cannot be used.
        TypeError: If a setting is unknown.
    """

    def __init__(
        self,
        where: Literal["docker", "confined"] = "docker",
        *,
        tools: Any = None,
        approval_mode: Literal["always_require", "never_require"] = "never_require",
        approval_handler: Handler | None = None,
        tool_limits: ToolLimits | None = None,
        max_sandboxes: int = 20,
        source_id: str = "codeact_team",
        **settings: Any,
    ) -> None:
        functions = FrameworkFunctions(tools)
        if functions.asked_about and approval_handler is None:
            approval_mode, functions.asked_about = "always_require", []
        super().__init__(
            name=_NAME,
            description=_DESCRIPTION,
            func=self._run_code,
            input_model=_CODE,
            approval_mode=approval_mode,
        )
        # in each fresh interpreter
        settings["setup"] = (
            f"__import__('os').makedirs({OUTPUT!r}, exist_ok=True)\n{settings.get('setup', '')}"
        )
        # settings that cannot be used are an error now
        open_sandbox(where, **settings)
        self._functions = functions
        self._handler = approval_handler
        self._limits = tool_limits or ToolLimits()
        self._sandboxes = ConversationSandboxes(partial(open_sandbox, where, **settings), max_sandboxes)
        self._known = WeakKeyDictionary[ConversationSandbox, _Known]()
        self._packages: Sequence[str] = settings.get("packages") or ()
        self._source_id = source_id

    async def __aenter__(self) -> Self:
        await self._sandboxes.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._sandboxes.__aexit__(*error)

    def build_instructions(self) -> str:
        """The instructions for an agent that has this tool: how code runs, and the functions that it may call."""
        packages = f"- Packages: {', '.join(self._packages)}.\n" if self._packages else ""
        return f"{_INSTRUCTIONS}{packages}\n{self._functions.offer.describe()}".rstrip()

    async def _run_code(self, code: str, outer: FunctionInvocationContext) -> list[Content]:
        session = outer.session
        try:
            async with self._sandboxes.of(None if session is None else session.session_id) as there:
                if (known := self._known.get(there)) is None:
                    approvals = Approvals(self._functions.asked_about, self._handler, _NAME)
                    known = self._known[there] = _Known(approvals, OutputFiles(there.sandbox))
                state = {} if session is None else session.state
                # a session may be stored, and loaded in another process
                before = state.get(self._source_id, {}).get("sandbox", there.id)
                state.setdefault(self._source_id, {})["sandbox"] = there.id
                calls = FrameworkCalls(outer, self._functions.offer, self._limits, known.approvals)
                result = await there.sandbox.run_python(code, tools=calls)
                return await contents_of(result, known.files, "" if before == there.id else _LOST)
        except CodeActTeamError as error:
            # nothing that a model could mend
            raise MiddlewareFailure(str(error)) from error


class CodeActProvider(ContextProvider):
    """Gives an agent the tool ``execute_code`` and its instructions, within ``async with``.

    Args:
        where: ``docker`` or ``confined``.
        source_id: Names this provider among those of the agent.
        settings: Settings of :class:`ExecuteCodeTool`.

    Attributes:
        tool: The tool.
    """

    def __init__(
        self,
        where: Literal["docker", "confined"] = "docker",
        *,
        source_id: str = "codeact_team",
        **settings: Any,
    ) -> None:
        super().__init__(source_id)
        self.tool: ExecuteCodeTool = ExecuteCodeTool(where, source_id=source_id, **settings)

    async def __aenter__(self) -> Self:
        await self.tool.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.tool.__aexit__(*error)

    async def before_run(
        self,
        *,
        agent: SupportsAgentRun,
        session: AgentSession,
        context: SessionContext,
        state: dict[str, Any],
    ) -> None:
        context.extend_instructions(self.source_id, self.tool.build_instructions())
        context.extend_tools(self.source_id, [self.tool])
