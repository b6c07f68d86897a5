"""Converts the arguments of a tool to plain JSON values; errors name the place of the value."""

from __future__ import annotations

from enum import Enum

from codeact_team.session.protocol import KIB, MAX_CALL_BYTES
from codeact_team.session.runner.interpreter.channel import encode
from codeact_team.session.runner.interpreter.user_code import interruptible_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

interruptible_module(__name__)

MAX_DEPTH = 100
"""Levels of nesting, with the object of all arguments as the first."""
_MAX_DIGITS = 4_300
"""Digits of an integer that Python itself reads."""
_MAX_BYTES = MAX_CALL_BYTES - 1 * KIB
"""Leaves room for the id and the name."""
_CERTAIN_BITS = 14_000
"""An integer of so many bits has certainly fewer digits."""

_PLAIN: frozenset[object] = frozenset((bool, type(None)))
_LISTS: tuple[type, ...] = (list, tuple, set, frozenset)
_type_of: Any = type


class BadArgument(Exception):
    """A value cannot be sent to a tool."""

    def __init__(self, kind: type[Exception], text: str) -> None:
        super().__init__(text)
        self._kind = kind
        self._text = text
        self._path: tuple[str | int, ...] = ()

    def within(self, part: str | int) -> BadArgument:
        """Put a step before the place: the value is at ``part`` of a container. Returns itself."""
        self._path = (part, *self._path)
        return self

    def error(self, function: str, names: Mapping[str, str]) -> Exception:
        """Make the exception for the code that has called ``function``, whose parameters have these names by their keys."""
        place = "the arguments"
        if self._path:
            first, *rest = self._path
            place = names.get(str(first), str(first)) + "".join(map(_step, rest))
        return self._kind(f"{function}(): {place} {self._text}")


class _TooLarge(BadArgument):
    """The arguments are too large, all together."""

    def __init__(self, size: str) -> None:
        limit = f"{_MAX_BYTES:,}"
        super().__init__(
            ValueError, f"have {size} bytes, of at most {limit}: put the data into a file instead"
        )

    def within(self, part: str | int) -> BadArgument:
        return self


def plain(arguments: dict[str, Any]) -> dict[str, Any]:
    """Copy arguments as plain JSON values.

    Raises a :class:`BadArgument` if one cannot be sent; an ``Exception`` whatever the methods of a value raise.
    """
    return _Copy().of(arguments)


def encoded(arguments: dict[str, Any]) -> bytes:
    """Write plain arguments as JSON. Raises a :class:`BadArgument` if they are too large."""
    data = encode(arguments).encode()
    if len(data) > _MAX_BYTES:
        raise _TooLarge(f"{len(data):,}")
    return data


class _Copy:
    """Copies a value."""

    def __init__(self) -> None:
        self._size = 0
        self._within: list[int] = []

    def of(self, value: Any) -> Any:
        kind = _type_of(value)
        if kind in _PLAIN:
            return value
        if issubclass(kind, str):
            return self._text(str.__str__(value))
        if issubclass(kind, int):
            return _integer(int.__pos__(value))
        if issubclass(kind, float):
            return _number(float.__pos__(value))
        if issubclass(kind, (dict, *_LISTS)):
            return self._container(value)
        return self._other(value)

    def _container(self, value: Any) -> Any:
        # by identity: values may define equality as they like
        if id(value) in self._within:
            raise BadArgument(ValueError, "contains itself")
        if len(self._within) == MAX_DEPTH:
            raise BadArgument(ValueError, f"is nested too deeply: more than {MAX_DEPTH} levels")
        self._within.append(id(value))
        copy = self._object(value) if issubclass(_type_of(value), dict) else self._list(value)
        self._within.pop()
        return copy

    def _list(self, value: Iterable[Any]) -> list[Any]:
        items = list(value)
        self._count(2 * len(items) + 1)
        for index, item in enumerate(items):
            try:
                items[index] = self.of(item)
            except BadArgument as problem:
                raise problem.within(index) from None
        return items

    def _object(self, value: dict[Any, Any]) -> dict[str, Any]:
        copy: dict[str, Any] = {}
        for key, item in list(value.items()):
            name = self._key(key)
            if name in copy:
                raise BadArgument(ValueError, f"has two keys that JSON writes as {name!r:.80}")
            self._count(4)
            try:
                copy[name] = self.of(item)
            except BadArgument as problem:
                raise problem.within(name) from None
        return copy

    def _key(self, key: Any) -> str:
        """Return the text that JSON writes for a key."""
        if issubclass(_type_of(key), str):
            return self._text(str.__str__(key))
        try:
            plain = self.of(key)
        except BadArgument:
            plain = None
        if type(plain) in (int, str):
            return str(plain)
        raise BadArgument(TypeError, f"must have keys that are texts or whole numbers, not {key!r:.80}")

    def _text(self, value: str) -> str:
        self._count(len(value) + 2)
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as error:
                where = f"at index {error.start}"
                raise BadArgument(ValueError, f"has half a character (a surrogate) {where}") from None
        return value

    def _other(self, value: Any) -> Any:
        kind = _type_of(value)
        if issubclass(kind, Enum):
            return self.of(value.value)
        if hasattr(kind, "isoformat"):
            return self.of(value.isoformat())
        if hasattr(kind, "__dataclass_fields__"):
            from dataclasses import fields

            return self._container({field.name: getattr(value, field.name) for field in fields(value)})
        if hasattr(kind, "__fspath__"):
            return self.of(value.__fspath__())
        if hasattr(kind, "item") and hasattr(kind, "dtype") and value.shape == ():
            # a scalar of numpy, or of a library like it
            item = value.item()
            if _type_of(item) is not kind:
                return self.of(item)
        hint = "; its method tolist() makes a list" if hasattr(kind, "tolist") else ""
        raise BadArgument(TypeError, f"cannot be sent to a tool: it is of type {_name_of(kind)}{hint}")

    def _count(self, size: int) -> None:
        # the least size, in order to stop before all of it is copied
        self._size += size
        if self._size > _MAX_BYTES:
            raise _TooLarge(f"at least {self._size:,}")


def _integer(value: int) -> int:
    if value.bit_length() > _CERTAIN_BITS and abs(value) >= 10**_MAX_DIGITS:
        raise BadArgument(ValueError, f"is an integer of more than {_MAX_DIGITS:,} digits")
    return value


def _number(value: float) -> float:
    if value - value != 0:
        raise BadArgument(ValueError, f"is {value}, which JSON does not have")
    return value


def _name_of(kind: type) -> str:
    module = kind.__module__
    return kind.__qualname__ if module in ("builtins", "__main__") else f"{module}.{kind.__qualname__}"


def _step(part: str | int) -> str:
    if isinstance(part, str) and part.isidentifier():
        return f".{part}"
    return f"[{part!r}]"
