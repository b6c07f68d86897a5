"""A tool as code sees it: a function with a signature and a docstring, and a coroutine function beside it."""

from __future__ import annotations

from codeact_team.session.runner.interpreter.arguments import Problem, encoded, plain
from codeact_team.session.runner.interpreter.channel import encode
from codeact_team.session.runner.interpreter.parameters import Parameters
from codeact_team.session.runner.interpreter.user_code import interruptible_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from inspect import Signature
    from typing import Any

    from codeact_team.session.runner.interpreter.pending_calls import Calls

interruptible_module(__name__)


class Tool:
    """A function of the host. Waits for what it returns; ``await`` its ``aio(...)`` to do other things meanwhile."""

    def __init__(self, declaration: dict[str, Any], calls: Calls) -> None:
        self._path: str = declaration["name"]
        group, _, name = self._path.rpartition(".")
        self.__name__ = self.__qualname__ = name
        self.__module__ = f"tools.{group}" if group else "tools"
        self.__doc__ = declaration["doc"]
        self._parameters = Parameters(self._path, declaration)
        self._head = f'"name":{encode(self._path)},"arguments":'.encode()
        self._calls = calls

    def __call__(self, /, *arguments: Any, **named: Any) -> Any:
        return self._calls.call(self._request(arguments, named))

    async def aio(self, /, *arguments: Any, **named: Any) -> Any:
        """The same, to be awaited."""
        return await self._calls.call_async(self._request(arguments, named))

    def __get__(self, instance: object, owner: object = None) -> Tool:
        """By this ``inspect`` and ``help`` take it for a function, which a class may have; it is not bound to it."""
        return self

    def __repr__(self) -> str:
        return f"<tool {self.usage()}>"

    @property
    def __signature__(self) -> Signature:
        """For ``inspect``."""
        return self._parameters.signature()

    def usage(self) -> str:
        """How it is called, in short."""
        return f"tools.{self._path}({self._parameters})"

    def summary(self) -> str:
        """What it does, in short."""
        lines = (self.__doc__ or "").strip().splitlines()
        return lines[0] if lines else ""

    def _request(self, arguments: Sequence[Any], named: dict[str, Any]) -> bytes:
        try:
            return self._checked(arguments, named)
        except KeyboardInterrupt as interrupt:
            # what it came upon is not the code's
            raise interrupt from None

    def _checked(self, arguments: Sequence[Any], named: dict[str, Any]) -> bytes:
        try:
            copies = plain(self._parameters.bind(arguments, named))
            return b"%s%s}" % (self._head, encoded(copies))
        except Problem as problem:
            raise problem.error(self._path, self._parameters.names) from None
