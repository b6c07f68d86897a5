"""All side effects of a run go through one dispatcher, which also emits the run's events.

A model call, a code block, the call of a host tool, a question to a person and a reading of the clock that decides
something are each an :class:`Effect`, and :func:`perform` performs it. An :data:`Interceptor` of the dispatcher may
observe an effect, record it, count it, answer it or refuse it; without one the effect is just performed. A
:data:`Listener` receives every :class:`Event` as it happens.
"""

# the name of a class says which of the types it has
# pyright: reportIncompatibleVariableOverride=false

from __future__ import annotations

import logging
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Self, TypeVar

from autogen_core import MessageHandlerContext
from autogen_core.models import LLMMessage
from pydantic import JsonValue, TypeAdapter

logger = logging.getLogger(__name__)

T = TypeVar("T")

_MAX_FAILURES = 20

_dispatcher: ContextVar[Dispatcher | None] = ContextVar("codeact_team_dispatcher", default=None)


class _Here(NamedTuple):
    """The span within which something happens, and the agent that does it."""

    span: int | None = None
    agent: str | None = None


_here: ContextVar[_Here] = ContextVar("codeact_team_here", default=_Here())  # noqa: B039 - it cannot be changed


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

    @classmethod
    def fields_in(cls, data: Mapping[str, Any]) -> dict[str, Any]:
        """What of ``data`` is a field: another version may have more."""
        return {field.name: data[field.name] for field in fields(cls) if field.name in data}


@dataclass(kw_only=True)
class SpanEvent(Event):
    """The begin or the end of an agent's turn, of an effect, or of code that runs again; both have the same ``span``."""

    span: int = 0
    agent: str = ""


@dataclass(kw_only=True)
class EffectBegan(SpanEvent):
    """An effect begins; each kind that a screen tells apart has a class of its own."""


@dataclass(kw_only=True)
class EffectEnded(SpanEvent):
    """An effect has ended; ``told`` is what came of it in a sentence, which people get in place of the rest."""

    told: ClassVar[str | None] = None


@dataclass(kw_only=True)
class OtherEffectBegan(EffectBegan):
    """An effect of a kind without a class of its own begins.

    Attributes:
        kind: The kind of the effect.
        request: The request.
    """

    type: ClassVar[Literal["other_effect_began"]]
    kind: str
    request: JsonValue = None


@dataclass(kw_only=True)
class OtherEffectEnded(EffectEnded):
    """An effect of a kind without a class of its own has ended.

    Attributes:
        kind: The kind of the effect.
        outcome: The outcome.
        error: Why it has none; ``told`` is empty where another event tells it.
    """

    type: ClassVar[Literal["other_effect_ended"]]
    kind: str
    outcome: JsonValue = None
    error: str | None = None
    told: str | None = None


@dataclass(kw_only=True)
class OtherEvent(Event):
    """Something of another version that is read from its journal.

    Attributes:
        name: The type of an event, the kind of an effect, or what else the entry is.
        data: All of an event of an unknown type; of any other entry, the fields that are not known.
    """

    type: ClassVar[Literal["other_event"]]
    name: str
    data: dict[str, JsonValue]


@dataclass(kw_only=True)
class ListenerFailed(Event):
    """A listener has raised, and was removed.

    Attributes:
        listener: Its representation.
        error: The exception that it has raised.
        essential: Whether it must not miss anything: then the run stops before the next effect.
    """

    type: ClassVar[Literal["listener_failed"]]
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


@dataclass(frozen=True)
class EffectFailure:
    """The error of an effect without an outcome.

    Attributes:
        type: The class of the exception, with its module.
        text: Its text.
        status: The status of a server that has refused it.
    """

    type: str
    text: str
    status: int | None = None

    @classmethod
    def of(cls, error: BaseException) -> EffectFailure:
        """Describe an exception."""
        kind, status = type(error), getattr(error, "status_code", None)
        name = f"{kind.__module__}.{kind.__qualname__}"
        return cls(name, str(error), status if isinstance(status, int) else None)

    @property
    def is_cancellation(self) -> bool:
        """Whether it was stopped from outside."""
        return self.type.endswith(".CancelledError")

    def __str__(self) -> str:
        return f"{self.type.rpartition('.')[2]}: {self.text}"


NO_FACTS: Mapping[str, Any] = MappingProxyType({})


@dataclass(kw_only=True)
class Begin:
    """The entry with which an effect begins in the list of entries that a run is.

    Attributes:
        kind: The kind of the effect.
        span: Its number.
        parent: The number of the run, turn or effect that it belongs to.
        at: When, in seconds since the epoch.
        agent: Who asks for it.
        request: What is asked, as JSON, without the messages for a model.
        facts: What is known beside the request, as JSON.
    """

    kind: str
    span: int
    parent: int | None
    at: float
    agent: str
    request: Any
    facts: Mapping[str, Any]

    @property
    def event(self) -> EffectBegan:
        """The event of the begin. Raises an error of Python's where somebody else has made the entry."""
        event = Effect.kinds.get(self.kind, Effect).began(self)
        event.span, event.parent, event.at, event.agent = self.span, self.parent, self.at, self.agent
        return event


@dataclass(kw_only=True)
class End:
    """The entry with which an effect ends.

    Attributes:
        begin: The entry of its begin.
        at: When, in seconds since the epoch.
        outcome: What came of it, as JSON; ``None`` if nothing did.
        failure: Why nothing came of it.
        facts: What is known beside the outcome, as JSON.
    """

    begin: Begin
    at: float
    outcome: Any = None
    failure: EffectFailure | None = None
    facts: Mapping[str, Any]

    @property
    def request(self) -> Any:
        """The request of the effect."""
        return self.begin.request

    @property
    def error(self) -> str | None:
        """The error in words; ``None`` if the effect has an outcome."""
        return None if self.failure is None else str(self.failure)

    @property
    def event(self) -> EffectEnded:
        """The event of the end. Raises an error of Python's where somebody else has made the entry."""
        event = Effect.kinds.get(self.begin.kind, Effect).ended(self)
        event.span, event.parent = self.begin.span, self.begin.parent
        event.at, event.agent = self.at, self.begin.agent
        return event


class Effect(ABC, Generic[T]):
    """A request of a run to the world.

    Its request and its outcome are JSON for whoever is not its caller: a journal keeps them, and the events of its begin and
    its end are made of them, now or whenever the journal is read.

    Attributes:
        kinds: The classes of effects, by their kinds.
        span: Its number in events, spans and the journal, once it is performed.
        kind: A name that stays.
        form: How pydantic writes and reads the outcome as JSON.
        messages: The conversation with which a model is asked, which is a part of the request.
        entry: The entry of its begin, once it has begun.
        part: The component that performs it, if that is known.
        fails_undone: Whether an error says that nothing was done. What has failed last is tried again then.
        asks_person: Whether a person is asked, whose time is nobody's expense.
        spends: The items of a team's budget of which it takes something.
    """

    kinds: ClassVar[dict[str, type[Effect[Any]]]] = {}
    kind: ClassVar[str]
    form: TypeAdapter[T]
    messages: Sequence[LLMMessage] = ()
    part: object = None
    fails_undone: ClassVar[bool] = False
    asks_person: ClassVar[bool] = False
    spends: ClassVar[Sequence[str]] = ()
    span: int = 0
    entry: Begin | None = None
    _end: tuple[End, object, BaseException | None] | None = None
    _dumped: tuple[object, JsonValue] | None = None

    def __init_subclass__(cls) -> None:
        if "kind" in vars(cls):
            # further classes of a kind, such as of one sort of tool, look alike from outside
            cls.kinds.setdefault(cls.kind, cls)

    @cached_property
    def source(self) -> str:
        """The agent that requests it. It takes a while to find out, and is not always needed."""
        return speaker()

    @abstractmethod
    def request(self) -> JsonValue:
        """The whole request: effects with equal requests are the same."""

    def request_without_messages(self) -> JsonValue:
        """The request without :attr:`messages`."""
        return self.request()

    def facts(self) -> Mapping[str, JsonValue]:
        """Return the fields of the begin event besides the request, as JSON."""
        return NO_FACTS

    def facts_at_end(self, outcome: T | None, error: BaseException | None) -> Mapping[str, JsonValue]:
        """Return the fields of the end event besides request and outcome, as JSON."""
        return NO_FACTS

    @classmethod
    def began(cls, begin: Begin) -> EffectBegan:
        """The event of the begin of an effect of this kind, with what its entry has only for this kind."""
        return OtherEffectBegan(kind=begin.kind, request=begin.request)

    @classmethod
    def ended(cls, end: End) -> EffectEnded:
        """The event of the end of an effect of this kind, with what its entry has only for this kind."""
        return OtherEffectEnded(
            kind=end.begin.kind, outcome=end.outcome, error=end.error, told=end.facts.get("told")
        )

    def amounts(self, outcome: T) -> Mapping[str, int]:
        """How much it has taken of those items of a budget that are not counted one by one."""
        return NO_FACTS

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

    def dumped(self, outcome: T) -> JsonValue:
        """The outcome as JSON, made once."""
        if self._dumped is None or self._dumped[0] is not outcome:
            self._dumped = outcome, self.dump(outcome)
        return self._dumped[1]

    def begin(self, span: int) -> Begin:
        """Begin under this number; returns the entry."""
        self.span, parent = span, _here.get().span
        self.entry = Begin(
            kind=self.kind,
            span=span,
            # without a listener it begins within its own span
            parent=None if parent == span else parent,
            at=now(),
            agent=self.source,
            request=self.request_without_messages(),
            facts=self.facts(),
        )
        return self.entry

    def end(self, outcome: T | None, error: BaseException | None) -> End:
        """End by an outcome or an error; returns the entry, the same one for the same outcome."""
        if self._end is None or self._end[1] is not outcome or self._end[2] is not error:
            end = End(
                # a listener may have come since
                begin=self.entry or self.begin(self.span),
                at=now(),
                outcome=None if outcome is None else self.dumped(outcome),
                failure=None if error is None else EffectFailure.of(error),
                facts=self.facts_at_end(outcome, error),
            )
            self._end = end, outcome, error
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
Listener = Callable[[Any], None]
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
        self.numbers: Numbers = Numbers() if outer is None else outer.numbers
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
            event.parent = _here.get().span
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
        with self.span(lambda n: effect.begin(n).event, lambda _: effect.end(outcome, failure).event) as span:
            effect.span = span
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
        try:
            with within(span):
                yield span
        except BaseException as error:
            self.note_failure(error)
            raise
        finally:
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


@contextmanager
def _with(here: _Here) -> Generator[None]:
    token = _here.set(here)
    try:
        yield
    finally:
        _here.reset(token)


def within(span: int) -> AbstractContextManager[None]:
    """Within it, events and effects belong to a span that has begun elsewhere."""
    return _with(_here.get()._replace(span=span))


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


def speaking(agent: str) -> AbstractContextManager[None]:
    """Within it, effects are the agent's."""
    return _with(_here.get()._replace(agent=agent))


def speaker() -> str:
    """The agent at work: as :func:`speaking` says, or the one whose message AutoGen's runtime handles; or nobody, ``""``."""
    if (name := _here.get().agent) is not None:
        return name
    try:
        agent = MessageHandlerContext.agent_id()
    except RuntimeError:
        return ""
    # group chats register a participant under its name and the team's id, which is the key
    return agent.type.removesuffix(f"_{agent.key}")
