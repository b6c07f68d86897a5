"""The tools that an agent's code may call on the host, and who approves what it does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from autogen_core import CancellationToken
from autogen_core.tools import Workbench
from pydantic import TypeAdapter

from codeact_team import scope
from codeact_team.agents.host_tool_calls import TurnTools
from codeact_team.agents.tool_settings import ToolLimits
from codeact_team.aio import until_cancelled
from codeact_team.approval import ApprovalRule, Approvals, Handler
from codeact_team.effects import current_door, perform
from codeact_team.errors import SettingError
from codeact_team.providers import resolve_function
from codeact_team.tool_listing import ToolListing
from codeact_team.tools import Listing, Offer, Tool, Toolbox

_LISTINGS = TypeAdapter(Sequence[Listing])


class AgentTools:
    """The tools of an agent, which is the ``source`` of their calls, and who approves what its code does.

    Raises:
        SettingError: If something is no tool, two have the same name, or nobody would ever be asked.
    """

    def __init__(
        self,
        source: str,
        *,
        tools: Sequence[Tool],
        workbench: Workbench | Sequence[Workbench] | None,
        limits: ToolLimits,
        approval: Sequence[ApprovalRule],
        handler: Handler | str | None,
        parks: bool = False,
    ) -> None:
        if parks and not any(rule.decision == "ask" for rule in approval):
            raise SettingError("approval_timeout has no effect: no rule in approval says `decision: ask`")
        if handler is not None and not any(rule.decision == "ask" for rule in approval):
            raise SettingError("approval_handler has no effect: no rule in approval says `decision: ask`")
        workbenches = [workbench] if isinstance(workbench, Workbench) else list(workbench or ())
        self._toolbox = Toolbox(tools, workbenches) if tools or workbenches else None
        self._source = source
        self._door = current_door()
        self._limits = limits
        self._handler = handler
        ask = resolve_function(handler) if isinstance(handler, str) else handler
        self._approvals = Approvals(approval, ask, source, parks=parks)
        self._rights = (list(tools), workbenches, limits, list(approval), handler)
        if self._toolbox is not None:
            # a server that does not start is told of before a model is paid
            scope.register(self._toolbox)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return self._toolbox is not None

    async def begin_turn(self, cancellation_token: CancellationToken) -> TurnTools:
        """The tools as they are now, for one turn of the agent; they are started if need be.

        Raises:
            WorkbenchError: If they cannot be had.
        """
        offer: Offer | None = None
        if self._toolbox is not None:
            # made outside a scope and used inside it, they belong to it all the same
            scope.register(self._toolbox)
            offer = await until_cancelled(self._toolbox.offer(self._ask), cancellation_token)
        return TurnTools(
            self._source,
            offer,
            self._limits,
            self._approvals,
            cancellation_token,
            door=self._door,
            user=self,
            rights=self._rights,
            start=None if self._toolbox is None else self._toolbox.be_started,
        )

    async def _ask(
        self, asked: list[str], listed: Callable[[], Awaitable[Sequence[Listing]]]
    ) -> Sequence[Listing]:
        return await perform(ToolListing(None, _LISTINGS, asked, self._source), listed, self._door)

    def reset(self) -> None:
        """Forget what was granted."""
        self._approvals.reset()

    async def stop(self) -> None:
        """Stop what was started for this agent."""
        if self._toolbox is not None:
            await self._toolbox.stop()

    def parts(self) -> Mapping[str, Any]:
        """The live settings of the agent that are here; tools and workbenches as they are dumped.

        Raises:
            SettingError: If one of these has no form in a config.
        """
        box = self._toolbox
        return {
            "tools": [] if box is None else box.dump_tools(),
            "workbench": [] if box is None else box.dump_workbenches(),
            "approval_handler": self._handler,
        }
