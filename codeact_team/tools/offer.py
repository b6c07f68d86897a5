"""Offer code the tools that it may call at the moment."""

from __future__ import annotations

import asyncio
import json
import logging
import weakref
from collections.abc import Mapping, Sequence

from autogen_core import CancellationToken
from pydantic import JsonValue

from codeact_team.aio import is_being_cancelled, until_cancelled
from codeact_team.parsing import make_inert
from codeact_team.suggestions import did_you_mean
from codeact_team.tools.argument_checking import ArgumentChecker
from codeact_team.tools.declarations import declare
from codeact_team.tools.error_texts import describe_error
from codeact_team.tools.returned_values import Piece, ToolFailed, error_text
from codeact_team.tools.tool_sources import ListedTool, ToolSource
from codeact_team.visibility import cut

logger = logging.getLogger(__name__)

HANDFUL = 8
"""How many tools the model is shown whole. If there are more, it gets one line of each and looks up the rest."""

_MAX_LINES = 300
_MAX_NAME = 200


class OfferedTool:
    """A tool that code may call by the dotted path ``name`` below ``tools``.

    A ``ValueError``, ``TypeError`` or ``RecursionError`` says that its schema cannot be used.
    """

    def __init__(self, name: str, listed: ListedTool, source: ToolSource) -> None:
        self.name = name
        self._listed = listed
        self._source = source
        self._checker = ArgumentChecker(listed.schema)
        self.declaration = declare(name, listed)
        self.declared = self.declaration.declare()
        """See :attr:`codeact_team.execution.HostTools.declarations`."""
        self.size = len(json.dumps(self.declared))
        """How many bytes there are to tell of it."""

    def check(self, arguments: Mapping[str, JsonValue]) -> None:
        """Check what code passed; a ``ValueError`` says what is wrong and where."""
        self._checker.check(arguments)
        if self._source.wire_is_json:
            _check_strict(arguments)

    def understood(self, arguments: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        """Return the arguments as the tool gets them, as far as that is known, with its defaults for those left out.

        They may be found not to fit; a ``ToolFailed`` says so.
        """
        parameters = self.declaration.parameters
        defaults = {one.key: one.default[0] for one in parameters if one.default}
        complete = {**defaults, **self._source.understood(self._listed, arguments)}
        # in the order in which the tool has them
        return {one.key: complete[one.key] for one in parameters if one.key in complete} | complete

    async def call(
        self, arguments: dict[str, JsonValue], cancellation_token: CancellationToken
    ) -> Sequence[Piece]:
        """Call it with arguments that were checked; it is cancelled by the token, and with the caller's task.

        A ``ToolFailed`` says why it fails, in words for whoever wrote the call.
        """
        token = CancellationToken()
        _cancel_with(cancellation_token, token)
        try:
            return await until_cancelled(self._run(arguments, token), token)
        except asyncio.CancelledError:
            if not _asked_for(cancellation_token):
                raise ToolFailed("the tool was cancelled, and not by its caller") from None
            # a function in a thread can know only from its token
            _cancel(token)
            raise

    async def _run(
        self, arguments: dict[str, JsonValue], cancellation_token: CancellationToken
    ) -> Sequence[Piece]:
        try:
            return await self._source.call(self._listed, arguments, cancellation_token)
        except ToolFailed as failure:
            raise ToolFailed(error_text(str(failure))) from failure
        except (Exception, SystemExit) as error:  # whatever a tool raises; it must not end the host
            raise ToolFailed(error_text(describe_error(error))) from error


def _asked_for(cancellation_token: CancellationToken) -> bool:
    """Tell whether the token or the current task was cancelled, and not something within the tool."""
    return cancellation_token.is_cancelled() or is_being_cancelled()


class Offer:
    """Tools by the names that code has for them."""

    def __init__(self, tools: Sequence[OfferedTool]) -> None:
        self.tools = tools
        self.declarations = [tool.declared for tool in tools]
        """See :attr:`codeact_team.execution.HostTools.declarations`."""
        self._tools = {tool.name: tool for tool in tools}

    def find(self, name: str) -> OfferedTool | None:
        """Return the tool of this name."""
        return self._tools.get(name)

    def nearest(self, name: str) -> str:
        """Return the end of a sentence that names the tool most like ``name``, or nothing."""
        return did_you_mean(name[:_MAX_NAME], self._tools, cutoff=0.5)

    def describe(self) -> str:
        """Describe the tools for a prompt."""
        if not self._tools:
            return ""
        if len(self._tools) <= HANDFUL:
            intro = "These functions run outside the sandbox; call them as they are:"
            shown = "\n\n".join(tool.declaration.stub() for tool in self.tools)
        else:
            lines = [tool.declaration.line() for tool in self.tools[:_MAX_LINES]]
            if left := len(self._tools) - len(lines):
                lines.append(f"# and {left} more: dir(tools) tells which")
            example = f"help(tools.{self.tools[0].name})"
            intro = (
                f"These functions run outside the sandbox. Before you call one, read about it: `{example}`."
            )
            shown = "\n".join(lines)
        name = self.tools[0].name
        return (
            f"{intro}\n```python\n{make_inert(shown)}\n```\n"
            f"A call waits, and returns a value. To make several at once, use "
            f"`await asyncio.gather(tools.{name}.aio(...), tools.{name}.aio(...))`.\n"
            "A call that fails raises a `tools.ToolError`, which says why."
        )


def _cancel_with(parent: CancellationToken, token: CancellationToken) -> None:
    """Cancel ``token`` when ``parent`` is cancelled. ``parent`` does not keep it alive: a run makes thousands of calls."""
    reference = weakref.ref(token)

    def cancel() -> None:
        if (alive := reference()) is not None:
            _cancel(alive)

    parent.add_callback(cancel)


def _cancel(token: CancellationToken) -> None:
    try:
        token.cancel()
    except Exception:
        # what a tool has tied to its token is its own; AutoGen's McpWorkbench ties what cannot be cancelled
        logger.warning("what a tool does when it is cancelled has failed", exc_info=True)


def _check_strict(arguments: Mapping[str, JsonValue]) -> None:
    try:
        json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:
        raise ValueError(
            f"the arguments cannot be sent to the tool's server: {cut(str(error), 300)}"
        ) from None
