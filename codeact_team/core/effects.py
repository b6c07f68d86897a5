"""The one door for effects: what a run does to the world passes it, and what happens is told there.

A model call, a code block, the call of a host tool, a question to a person and a reading of the clock that decides
something are each an :class:`Effect`, performed by :func:`perform`. What stands in the door is the run's choice. By
default nothing does, and the effect is just performed. A :data:`Handler` may watch, record, count, answer instead, or
refuse. A :data:`Listener` is told :class:`Event` after :class:`Event`, when things happen.
"""

from __future__ import annotations

import logging
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, Generic, Self, TypeVar

from autogen_core import MessageHandlerContext
from pydantic import JsonValue, TypeAdapter

logger = logging.getLogger(__name__)

T = TypeVar("T")

_MAX_FAILURES = 20

_door: ContextVar[Door | None] = ContextVar("codeact_team_door", default=None)
_span: ContextVar[int | None] = ContextVar("codeact_team_span", default=None)
_agent: ContextVar[str | None] = ContextVar("codeact_team_agent", default=None)


@dataclass(kw_only=True)
class Event:
    """Something that happened. The concrete ones are in :mod:`codeact_team.core.events`.

    Attributes:
        type: The name of the class as JSON has it, such as ``run_began``.
        at: When, in seconds since the epoch.
        parent: The span that it belongs to: a run, an agent's turn, or an effect that is under way.
    """

    kinds: ClassVar[dict[str, type[Event]]] = {}
    """All of them, by their type."""
    type: ClassVar[str]
    at: float = 0.0
    parent: int | None = None

    def __init_subclass__(cls, type: str | None = None) -> None:
        cls.type = type or re.sub(r"(?<!^)([A-Z])", r"_\1", cls.__name__).lower()
        cls.kinds[cls.type] = cls


@dataclass(kw_only=True)
class ListenerFailed(Event):
    """A listener has raised, and is told nothing more."""

    listener: str
    error: str
    essential: bool


class Numbers:
    """Numbers for the turns and effects of a run, each given once."""

    def __init__(self) -> None:
        self._last = 0

    def next(self) -> int:
        """The next one."""
        self._last += 1
        return self._last

    def skip(self, last: int) -> None:
        """Give none up to ``last``: a run that is resumed has given these."""
        self._last = max(self._last, last)


class Effect(ABC, Generic[T]):
    """Something that a run asks of the world.

    Attributes:
        span: Its number in events, spans and the journal, once it is performed.
        kind: What sort of effect it is, by a name that stays.
        form: How pydantic writes the outcome as JSON, and reads it.
        part: The component that is asked, such as a model client, where it is known.
    """

    kind: ClassVar[str]
    form: TypeAdapter[T]
    part: object = None
    span: int = 0

    @cached_property
    def source(self) -> str:
        """Who asks: the name of an agent. It takes a while to find out, and is not always asked."""
        return speaker()

    @abstractmethod
    def request(self) -> JsonValue:
        """What is asked, whole: two effects with equal requests ask the same."""

    def dump(self, outcome: T) -> JsonValue:
        """The outcome as JSON."""
        return self.form.dump_python(outcome, mode="json")

    def load(self, data: JsonValue) -> T:
        """The outcome that was dumped."""
        return self.form.validate_python(data)

    def unknown(self) -> T | None:
        """The outcome for whoever asks where nobody knows if it was done; ``None`` where it can just be done again."""
        return None

    async def skip(self) -> None:
        """Let whoever would do it be as if it was done: a journal answers instead."""

    @abstractmethod
    def began(self, span: int) -> Event:
        """What is told when it begins."""

    @abstractmethod
    def ended(self, span: int, outcome: T | None, error: BaseException | None) -> Event:
        """What is told when it has ended, by an outcome or by an error."""


def error_text(error: BaseException | None) -> str | None:
    """What an event tells of an error."""
    return None if error is None else f"{type(error).__name__}: {error}"


Perform = Callable[[], Awaitable[Any]]
Handler = Callable[[Effect[Any], Perform], Awaitable[Any]]
"""Stands in the door: is given an effect and what performs it, and returns the outcome."""
Listener = Callable[[Event], None]
"""Is told what happens. It must not block."""


class Door:
    """Where the effects of a run pass. A context manager, within which it is the current one.

    Args:
        handlers: What stands in it; the first is the outermost.
        outer: Another door, which each effect passes after this one, and at which everything is told, too.
    """

    def __init__(self, *handlers: Handler, outer: Door | None = None) -> None:
        self._handlers = handlers if outer is None else (*handlers, outer._stand)
        self._listeners: dict[Listener, bool] = {} if outer is None else {outer.tell: False}
        self.numbers = Numbers() if outer is None else outer.numbers
        self._failures: list[BaseException] = []
        self.sent: set[str] = set() if outer is None else outer.sent
        """Ids of the messages that were emitted."""
        self.streamed: set[str] = set() if outer is None else outer.streamed
        """Ids of the messages whose text was emitted piece by piece."""
        self._broken: BaseException | None = None

    def put_outside(self, handler: Handler) -> None:
        """Let ``handler`` stand before all others, for the effects that are asked for from now on."""
        self._handlers = (handler, *self._handlers)

    def put_inside(self, handler: Handler) -> None:
        """Let ``handler`` stand behind all others, past those that answer instead, as :meth:`put_outside`."""
        self._handlers = (*self._handlers, handler)

    def take_out(self, handler: Handler) -> None:
        """Let ``handler``, if it is there, stand in it no more."""
        self._handlers = tuple(other for other in self._handlers if other is not handler)

    def listen(self, listener: Listener, *, essential: bool = False) -> None:
        """Tell ``listener`` what happens from now on.

        Args:
            listener: One that raises is dropped, and the others are told of it.
            essential: Whether it must not miss anything: if it raises, the run stops before the next effect.
        """
        self._listeners[listener] = essential

    def tell(self, event: Event) -> None:
        """Tell every listener of an event, now. Raises nothing."""
        event.at = time.time()
        if event.parent is None:
            event.parent = _span.get()
        for listener, essential in list(self._listeners.items()):
            try:
                listener(event)
            except Exception as error:
                self._drop(listener, error, essential=essential)

    def _drop(self, listener: Listener, error: Exception, *, essential: bool) -> None:
        del self._listeners[listener]
        if essential:
            self._broken = self._broken or error
        else:
            logger.warning("a listener failed, and is told nothing more: %r", error, exc_info=error)
        self.tell(ListenerFailed(listener=repr(listener), error=repr(error), essential=essential))

    def check(self) -> None:
        """Stop here if an essential listener has failed.

        Raises:
            Exception: What it raised.
        """
        if self._broken is not None:
            raise self._broken

    async def perform(self, effect: Effect[T], do: Callable[[], Awaitable[T]]) -> T:
        """Perform an effect, past whatever stands in the door, and tell its begin and its end.

        Args:
            effect: What is asked.
            do: Really does it. Not called where a handler answers instead.

        Raises:
            Exception: What ``do`` or a handler raises, or what an essential listener has raised before.
        """
        self.check()
        outcome, failure = None, None
        with self.span(effect.began, lambda span: effect.ended(span, outcome, failure)) as effect.span:
            try:
                outcome = await self._stand(effect, do)
            except BaseException as error:
                failure = error
                raise
            return outcome

    async def _stand(self, effect: Effect[Any], do: Perform) -> Any:
        self.check()
        for handler in reversed(self._handlers):
            do = partial(handler, effect, do)
        return await do()

    @contextmanager
    def span(self, began: Callable[[int], Event], ended: Callable[[int], Event]) -> Generator[int]:
        """Within it, whatever is told belongs to a span: a run, or an agent's turn.

        Args:
            began: Makes the event that is told at the begin, given the number of the span.
            ended: Makes the one that is told at the end.
        """
        span = self.numbers.next()
        if self._listeners:
            self.tell(began(span))
        token = _span.set(span)
        try:
            yield span
        except BaseException as error:
            self.note_failure(error)
            raise
        finally:
            _span.reset(token)
            if self._listeners:
                self.tell(ended(span))

    def note_failure(self, error: BaseException) -> None:
        """Note an exception that ended an effect or a turn: AutoGen's teams pass it on as text only."""
        if isinstance(error, Exception) and error not in self._failures:
            self._failures = [*self._failures[1 - _MAX_FAILURES :], error]

    def original_of(self, error: BaseException) -> BaseException:
        """The exception behind what a team of AutoGen's has raised, where it is known; else ``error`` itself."""
        if type(error) is RuntimeError:
            for failure in reversed(self._failures):
                # as AutoGen's SerializableException writes it
                if f"{type(failure).__name__}: {failure}" in str(error):
                    return failure
        return error

    def __enter__(self) -> Self:
        self._token = _door.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _door.reset(self._token)
        self._listeners.clear()
        self._handlers = ()
        self._failures.clear()


@contextmanager
def remembered(door: Door) -> Generator[None]:
    """Within it, components that are made remember this door, which goes on afterwards."""
    token = _door.set(door)
    try:
        yield
    finally:
        _door.reset(token)


def current_door() -> Door | None:
    """The door that a component made now has to remember: runtimes and threads may not inherit the context."""
    return _door.get()


async def perform(effect: Effect[T], do: Callable[[], Awaitable[T]], door: Door | None = None) -> T:
    """Perform an effect, through the current door, or that which a component remembers, if there is one.

    Raises:
        Exception: As :meth:`Door.perform`.
    """
    if (door := _door.get() or door) is None:
        return await do()
    return await door.perform(effect, do)


def tell(event: Event, door: Door | None = None) -> None:
    """Tell an event at the current door, or that which a component remembers, if there is one."""
    if (door := _door.get() or door) is not None:
        door.tell(event)


@contextmanager
def speaking(agent: str) -> Generator[None]:
    """Within it, effects are the agent's."""
    token = _agent.set(agent)
    try:
        yield
    finally:
        _agent.reset(token)


def speaker() -> str:
    """The agent at work: as :func:`speaking` says, or the one whose message AutoGen's runtime handles; or nobody, ``""``."""
    if (name := _agent.get()) is not None:
        return name
    try:
        agent = MessageHandlerContext.agent_id()
    except RuntimeError:
        return ""
    # group chats register a participant under its name and the team's id, which is the key
    return agent.type.removesuffix(f"_{agent.key}")
