"""The connection that AutoGen's ``McpWorkbench`` has to its server.

All that is private of AutoGen 0.7 is here: the workbench's actor, which holds the session. The session can be used from
any task of the same event loop, and that is how calls run side by side.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from autogen_ext.tools.mcp import McpWorkbench, StdioServerParams
from mcp import ClientSession

from codeact_team.aio import to_the_end

T = TypeVar("T")

logger = logging.getLogger(__name__)

_CLOSE_SECONDS = 5
"""How long a server may take to be closed before the connection is cut."""
_LAST_WORDS_SECONDS = 0.2
"""How long an error may take to come after the connection has ended."""
_ACTOR_LOGGER = logging.getLogger("autogen_ext.tools.mcp._actor")
_ACTOR_FAILED = "Exception in MCP actor task"


class McpSession:
    """The session of a workbench.

    Args:
        workbench: It may have been started by somebody else.
    """

    def __init__(self, workbench: McpWorkbench) -> None:
        self._workbench = workbench
        self._asked: set[asyncio.Future[Any]] = set()
        self._left_to_actor: set[asyncio.Future[Any]] = set()
        """What nobody waits for any more, and the actor still has to answer."""

    @property
    def is_open(self) -> bool:
        """Whether the workbench was started, and not stopped; its server may have died."""
        return self._workbench._actor is not None

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked, as far as is known without asking."""
        return (actor := self._workbench._actor) is not None and actor._active

    @property
    def server_name(self) -> str:
        """What the server calls itself."""
        result = self._workbench.initialize_result
        return "" if result is None else result.serverInfo.name

    async def open(self) -> None:
        """Start the workbench, and wait until the server has answered.

        Raises:
            Exception: Whatever goes wrong. Nothing is left running then.
        """
        params = self._workbench.server_params
        # for a program, the time-out of each request is limit enough
        seconds = None if isinstance(params, StdioServerParams) else params.timeout
        with _not_logged():
            try:
                async with asyncio.timeout(seconds):
                    await self._workbench.start()
                    await self._session()
            except BaseException:
                await to_the_end(self.close())
                raise

    async def close(self) -> None:
        """Stop the workbench, also one whose server does not answer. Idempotent."""
        if (actor := self._workbench._actor) is None:
            return
        running = actor._actor_task
        stopping = asyncio.ensure_future(self._workbench.stop())
        if actor.initialize_result is not None:
            await asyncio.wait({stopping}, timeout=_CLOSE_SECONDS)
        if running is not None and not running.done():
            running.cancel()
            await asyncio.wait({running})
        await asyncio.wait({stopping}, timeout=_LAST_WORDS_SECONDS)
        if not stopping.done():
            # it waits for what the actor, now gone, would have said
            stopping.cancel()
            await asyncio.wait({stopping})
        elif (error := stopping.exception()) is not None:
            logger.info("an MCP server's connection was closed with an error: %s", type(error).__name__)
        if self.is_open:
            # it only forgets the actor now
            await self._workbench.stop()
        # no actor is there any more that could crash over it
        self._asked |= self._left_to_actor
        await self.release()

    async def request(
        self,
        ask: Callable[[ClientSession], Coroutine[Any, Any, T]],
        call_off: Callable[[ClientSession], Coroutine[Any, Any, None]] | None = None,
    ) -> T:
        """Ask the server.

        Args:
            ask: Sends a request and waits for the answer.
            call_off: Tells the server that nobody waits any more.

        Raises:
            ConnectionError: If the connection is closed.
            Exception: Whatever goes wrong.
        """
        session, ended = await self._session(), self._ended()
        asking = asyncio.ensure_future(request := ask(session))
        self._track(asking)
        try:
            # a session whose connection ends does not tell those who wait
            await _first_of(asking, ended)
        except asyncio.CancelledError:
            if inspect.getcoroutinestate(request) == inspect.CORO_CREATED:
                asking.cancel()
            elif call_off is not None and not asking.done():
                # What waits for an answer is not cancelled itself: if that comes at this very moment, MCP's client
                # would close the connection.
                self._track(asyncio.ensure_future(call_off(session)))
            raise
        if not asking.done():
            asking.cancel()
            raise ConnectionError("the connection has ended")
        return asking.result()

    async def release(self) -> None:
        """Wait no longer for answers that nobody wants any more."""
        if self._asked:
            await asyncio.wait(self._asked, timeout=_LAST_WORDS_SECONDS)
        if asked := set(self._asked):
            for asking in asked:
                asking.cancel()
            await asyncio.wait(asked)

    def _track(self, asking: asyncio.Future[Any]) -> None:
        self._asked.add(asking)
        asking.add_done_callback(self._forget)

    def _forget(self, asking: asyncio.Future[Any]) -> None:
        self._asked.discard(asking)
        if not asking.cancelled():
            # it may be that nobody else looks at it
            asking.exception()

    async def _session(self) -> ClientSession:
        """The session, as soon as the server has introduced itself."""
        actor = self._workbench._actor
        if actor is None or not actor._active:
            raise ConnectionError("there is no connection")
        # The actor answers with a coroutine that it has not begun, bound to the session. To be cancelled while it is
        # about to answer would crash it.
        answer: asyncio.Future[Any] = asyncio.ensure_future(actor.call("list_tools"))
        ended = self._ended()
        try:
            await _first_of(answer, ended)
        except asyncio.CancelledError:
            self._left_to_actor.add(answer)
            answer.add_done_callback(self._drop)
            raise
        if not answer.done():
            answer.cancel()
            raise ConnectionError("the connection has ended")
        listing = cast("Coroutine[Any, Any, Any]", answer.result())
        session = inspect.getcoroutinelocals(listing)["self"]
        listing.close()
        return session

    def _drop(self, answer: asyncio.Future[Any]) -> None:
        self._left_to_actor.discard(answer)
        self._asked.discard(answer)
        if not answer.cancelled() and answer.exception() is None:
            answer.result().close()

    def _ended(self) -> set[asyncio.Task[Any]]:
        actor = self._workbench._actor
        return set() if actor is None or actor._actor_task is None else {actor._actor_task}


async def _first_of(asked: asyncio.Future[Any], ended: set[asyncio.Task[Any]]) -> None:
    """Wait until ``asked`` is done, or will never be."""
    await asyncio.wait({asked, *ended}, return_when=asyncio.FIRST_COMPLETED)
    if not asked.done():
        await asyncio.wait({asked}, timeout=_LAST_WORDS_SECONDS)


@contextmanager
def _not_logged() -> Generator[None]:
    """Keep AutoGen from logging a failure, with a traceback that may hold secrets: it becomes an error."""

    def passes(record: logging.LogRecord) -> bool:
        return record.msg != _ACTOR_FAILED

    _ACTOR_LOGGER.addFilter(passes)
    try:
        yield
    finally:
        _ACTOR_LOGGER.removeFilter(passes)
