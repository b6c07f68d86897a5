"""All side effects of a run go through one dispatcher, which also emits the run's events.

A model call, a code block, the call of a host tool, a question to a person and a reading of the clock that decides
something are each an :class:`Effect`, and :func:`perform` performs it. An :data:`Interceptor` of the dispatcher may
observe an effect, record it, count it, answer it or refuse it; without one the effect is just performed. A
:data:`Listener` receives every :class:`Event` as it happens.
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

_dispatcher: ContextVar[Dispatcher | None] = ContextVar("codeact_team_dispatcher", default=None)
_span: ContextVar[int | None] = ContextVar("codeact_team_span", default=None)
_agent: ContextVar[str | None] = ContextVar("codeact_team_agent", default=None)


@dataclass(kw_only=True)
class Event:
    """Something that happened; the concrete events are in :mod:`codeact_team.core.events`.

    Attributes:
        type: The name of the class as JSON has it, such as ``run_began``.
        at: Seconds since the epoch.
        parent: The span that it belongs to: a run, an agent's turn, or an effect.
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
class SpanEvent(Event):
    """The begin or the end of an agent's turn or of an effect; both have the same ``span``."""

    span: int = 0
    agent: str = ""


@dataclass(kw_only=True)
class EffectBegan(SpanEvent):
    """An effect begins."""


@dataclass(kw_only=True)
class EffectEnded(SpanEvent):
    """An effect has ended."""


@dataclass(kw_only=True)
class ListenerFailed(Event):
    """A listener has raised, and was removed.

    Attributes:
        listener: Its representation.
        error: The exception that it has raised.
        essential: Whether it must not miss anything: then the run stops before the next effect.
    """

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
        """Give no number up to ``last``: a resumed run has given these."""
        self._last = max(self._last, last)


class Effect(ABC, Generic[T]):
    """A request of a run to the world.

    Attributes:
        span: Its number in events, spans and the journal, once it is performed.
        kind: A name that stays.
        form: How pydantic writes and reads the outcome as JSON.
        part: The component that performs it, if that is known.
        fails_undone: Whether an error says that nothing was done. What has failed last is tried again then.
    """

    kind: ClassVar[str]
    form: TypeAdapter[T]
    part: object = None
    fails_undone: ClassVar[bool] = False
    span: int = 0
    _end: tuple[EffectEnded, object, BaseException | None] | None = None

    @cached_property
    def source(self) -> str:
        """The agent that requests it. It takes a while to find out, and is not always needed."""
        return speaker()

    @abstractmethod
    def request(self) -> JsonValue:
        """The whole request: effects with equal requests are the same."""

    def dump(self, outcome: T) -> JsonValue:
        """The outcome as JSON."""
        return self.form.dump_python(outcome, mode="json")

    def load(self, data: JsonValue) -> T:
        """The outcome that was dumped."""
        return self.form.validate_python(data)

    def unknown(self) -> T | None:
        """The outcome for the caller if it is unknown whether the effect was performed; ``None`` to perform it again."""
        return None

    async def skip(self) -> None:
        """Advance the component as if the effect had run: its recorded outcome is used."""

    @abstractmethod
    def began(self) -> EffectBegan:
        """The event of its begin, without span and agent."""

    @abstractmethod
    def ended(self, outcome: T | None, error: BaseException | None) -> EffectEnded:
        """The event of its end by an outcome or an error, without span and agent."""

    def begin(self, span: int) -> EffectBegan:
        """The event that is emitted when it begins under this number."""
        event = self.began()
        self.span = event.span = span
        event.agent = self.source
        return event

    def end(self, outcome: T | None, error: BaseException | None) -> EffectEnded:
        """The event that is emitted when it has ended, the same one for the same outcome."""
        if self._end is None or self._end[1] is not outcome or self._end[2] is not error:
            event = self.ended(outcome, error)
            event.span, event.agent = self.span, self.source
            self._end = event, outcome, error
        return self._end[0]


def now() -> float:
    """The time of an event, in seconds since the epoch, in whole microseconds."""
    return round(time.time(), 6)


def error_text(error: BaseException | None) -> str | None:
    """An error as events have it: its type and its text."""
    return None if error is None else f"{type(error).__name__}: {error}"


Perform = Callable[[], Awaitable[Any]]
Interceptor = Callable[[Effect[Any], Perform], Awaitable[Any]]
"""Receives an effect and the function that performs it, and returns the outcome."""
Listener = Callable[[Event], None]
"""Receives events. It must not block."""


class Dispatcher:
    """Performs the effects of a run and emits its events. A context manager, within which it is the current one.

    Args:
        interceptors: Each effect passes through them; the first is the outermost.
        outer: Another dispatcher, whose interceptors follow, and whose listeners receive every event as well.
    """

    def __init__(self, *interceptors: Interceptor, outer: Dispatcher | None = None) -> None:
        self._interceptors = interceptors if outer is None else (*interceptors, outer._intercept)
        self._listeners: dict[Listener, bool] = {} if outer is None else {outer.emit: False}
        self.numbers = Numbers() if outer is None else outer.numbers
        self._failures: list[BaseException] = []
        self.sent: set[str] = set() if outer is None else outer.sent
        """Ids of the messages that were emitted."""
        self.streamed: set[str] = set() if outer is None else outer.streamed
        """Ids of the messages whose text was emitted piece by piece."""
        self._broken: BaseException | None = None

    def add_outermost(self, interceptor: Interceptor) -> None:
        """Add an interceptor before all others, for the effects from now on."""
        self._interceptors = (interceptor, *self._interceptors)

    def add_innermost(self, interceptor: Interceptor) -> None:
        """Add an interceptor after all others, for what is really done: those before it may answer instead."""
        self._interceptors = (*self._interceptors, interceptor)

    def remove(self, interceptor: Interceptor) -> None:
        """Remove an interceptor, if it is there."""
        self._interceptors = tuple(other for other in self._interceptors if other is not interceptor)

    def listen(self, listener: Listener, *, essential: bool = False) -> None:
        """Send every event from now on to ``listener``.

        Args:
            listener: If it raises, it is removed, and the others receive a :class:`codeact_team.core.effects.ListenerFailed`.
            essential: Whether it must not miss anything: if it raises, the run stops before the next effect.
        """
        self._listeners[listener] = essential

    def emit(self, event: Event) -> None:
        """Send an event to every listener, now. Raises nothing."""
        event.at = event.at or now()
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
            logger.warning("a listener failed, and receives no more events: %r", error, exc_info=error)
        self.emit(ListenerFailed(listener=repr(listener), error=repr(error), essential=essential))

    def check(self) -> None:
        """Raise what an essential listener has raised, if one has failed."""
        if self._broken is not None:
            raise self._broken

    async def perform(self, effect: Effect[T], do: Callable[[], Awaitable[T]]) -> T:
        """Perform an effect through the interceptors, and emit its begin and its end.

        Raises:
            Exception: Of ``do``, of an interceptor, or earlier of an essential listener.
        """
        self.check()
        outcome, failure = None, None
        with self.span(effect.begin, lambda _: effect.end(outcome, failure)) as effect.span:
            try:
                outcome = await self._intercept(effect, do)
            except BaseException as error:
                failure = error
                raise
            return outcome

    def _intercept(self, effect: Effect[Any], do: Perform) -> Awaitable[Any]:
        self.check()
        for interceptor in reversed(self._interceptors):
            do = partial(interceptor, effect, do)
        return do()

    @contextmanager
    def span(self, began: Callable[[int], Event], ended: Callable[[int], Event]) -> Generator[int]:
        """Within it, every event belongs to a span, whose events are made of its number."""
        span = self.numbers.next()
        if self._listeners:
            self.emit(began(span))
        token = _span.set(span)
        try:
            yield span
        except BaseException as error:
            self.note_failure(error)
            raise
        finally:
            _span.reset(token)
            if self._listeners:
                self.emit(ended(span))

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
        self._token = _dispatcher.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _dispatcher.reset(self._token)
        self._listeners.clear()
        self._interceptors = ()
        self._failures.clear()


@contextmanager
def remembered(dispatcher: Dispatcher) -> Generator[None]:
    """Within it, components that are made remember this dispatcher, which stays usable afterwards."""
    token = _dispatcher.set(dispatcher)
    try:
        yield
    finally:
        _dispatcher.reset(token)


def current_dispatcher() -> Dispatcher | None:
    """The dispatcher that a component made now has to remember: runtimes and threads may not inherit the context."""
    return _dispatcher.get()


def perform(
    effect: Effect[T], do: Callable[[], Awaitable[T]], dispatcher: Dispatcher | None = None
) -> Awaitable[T]:
    """Perform an effect by the current dispatcher, else by the one that a component remembers, if there is one."""
    if (dispatcher := _dispatcher.get() or dispatcher) is None:
        return do()
    return dispatcher.perform(effect, do)


def emit(event: Event, dispatcher: Dispatcher | None = None) -> None:
    """Emit an event by the current dispatcher, else by the one that a component remembers, if there is one."""
    if (dispatcher := _dispatcher.get() or dispatcher) is not None:
        dispatcher.emit(event)


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
