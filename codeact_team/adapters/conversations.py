"""A sandbox for each conversation of an agent: opened when it is first needed, closed when too many are open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self
from uuid import uuid4

from codeact_team.core.aio import to_the_end
from codeact_team.errors import SandboxError

if TYPE_CHECKING:
    from codeact_team import AsyncSandbox


@dataclass(eq=False)
class ConversationSandbox:
    """The sandbox of a conversation.

    Attributes:
        sandbox: The sandbox, which is open.
        id: A name that no other sandbox has, on any machine.
    """

    sandbox: AsyncSandbox
    id: str = field(default_factory=lambda: uuid4().hex)


@dataclass(eq=False)
class _Place:
    """The place for the sandbox of a conversation, before and after it is opened."""

    closing: AsyncExitStack = field(default_factory=AsyncExitStack)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0
    opened: ConversationSandbox | None = None


class ConversationSandboxes:
    """Sandboxes by the keys of conversations, to be used within ``async with``, whose end closes all of them.

    Args:
        open_one: Makes the context manager of a new sandbox.
        most: How many unused ones stay open. Beyond that, the one that was used the longest time ago is closed.
    """

    def __init__(self, open_one: Callable[[], AbstractAsyncContextManager[AsyncSandbox]], most: int) -> None:
        self._open_one = open_one
        self._most = most
        self._places: dict[str, _Place] = {}
        """The last used is the last."""
        self._is_entered = False

    async def __aenter__(self) -> Self:
        self._is_entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_entered = False
        places, self._places = self._places, {}
        async with AsyncExitStack() as all_of_them:
            for place in places.values():
                all_of_them.push_async_exit(place.closing)

    @asynccontextmanager
    async def of(self, key: str | None) -> AsyncGenerator[ConversationSandbox]:
        """Use the sandbox of a conversation; others who want to use it wait.

        Args:
            key: The conversation; ``None`` for a sandbox that is closed after this use.

        Raises:
            SandboxError: If these are not used within ``async with``, or the sandbox does not start.
            SettingError: If it cannot be opened with its settings.
        """
        self._check()
        if key is None:
            async with self._open_one() as sandbox:
                yield ConversationSandbox(sandbox)
            return
        place = self._places[key] = self._places.pop(key, None) or _Place()
        place.users += 1
        try:
            async with place.turn:
                if place.opened is None:
                    self._check()
                    sandbox = await place.closing.enter_async_context(self._open_one())
                    self._check()
                    place.opened = ConversationSandbox(sandbox)
                yield place.opened
        finally:
            place.users -= 1
            if not self._is_entered:
                # it may have opened since all were closed
                await to_the_end(place.closing.aclose())
            await self._close_unused()

    def _check(self) -> None:
        if not self._is_entered:
            raise SandboxError("sandboxes are opened within 'async with' only")

    async def _close_unused(self) -> None:
        unused = [key for key, place in self._places.items() if not place.users]
        for key in unused[: max(0, len(unused) - self._most)]:
            await to_the_end(self._places.pop(key).closing.aclose())
