"""Functions of the host, as the tests of sessions and executors offer them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from pydantic import JsonValue

from codeact_team.core.execution import CallAnswer, CallOutcome, HostTools

Pause = Callable[[], AbstractContextManager[None]]
Function = Callable[..., Awaitable[CallAnswer]]


def declaration(name: str, *parameters: str) -> dict[str, JsonValue]:
    """A function whose parameters may be anything."""
    declared: list[JsonValue] = [
        {
            "name": one,
            "key": one,
            "annotation": "Any",
            "required": False,
            "default": None,
            "keyword_only": True,
        }
        for one in parameters
    ]
    return {
        "name": name,
        "doc": f"The function {name}.",
        "parameters": declared,
        "returns": None,
        "takes_others": False,
    }


class Offered(HostTools):
    """Functions by their names; each gets the arguments, and ``pause`` where it wants it.

    Attributes:
        began: The name and the arguments of each call, as it began.
        running: How many run.
        most: How many ran at the same time.
        cancelled: How many calls were cancelled while they ran.
    """

    def __init__(self, max_parallel: int = 20, **functions: Function) -> None:
        self._max_parallel = max_parallel
        self._functions = functions
        self._declarations = [declaration(name, "value") for name in functions]
        self.began: list[tuple[str, dict[str, JsonValue]]] = []
        self.running = self.most = self.cancelled = 0

    @property
    def declarations(self) -> Sequence[Mapping[str, JsonValue]]:
        return self._declarations

    @property
    def max_parallel(self) -> int:
        return self._max_parallel

    async def call(self, name: str, arguments: dict[str, JsonValue], *, pause: Pause) -> CallAnswer:
        self.began.append((name, arguments))
        if (function := self._functions.get(name)) is None:
            return CallAnswer(CallOutcome.REFUSED, error=f"there is no tool {name[:50]!r}")
        with self._counted():
            return await function(arguments.get("value"), pause)

    @contextmanager
    def _counted(self) -> Generator[None]:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            yield
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1


async def echo(value: Any, _: Pause) -> CallAnswer:
    """Returns what it gets."""
    return CallAnswer(content=[value])


async def forever(_value: Any, _: Pause) -> CallAnswer:
    """Does not return."""
    await asyncio.Event().wait()
    raise AssertionError
