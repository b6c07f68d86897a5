"""Both ends of a call from code in a sandbox to a tool of smolagents on the host: values as JSON, and the tools' names.

The sandbox gets the source of this file, which therefore knows the standard library only. A value of a type that JSON does
not have is an object with the type's name under the key ``":type"``. No name of a class ever leads to that class.
"""

from __future__ import annotations

import base64
import io
import json
import sys
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path, PurePath

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

_TYPE = ":type"
_type_of: Any = type
_NUMBERS = frozenset(f"{kind}{bits}" for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64))

_texts: dict[type, tuple[str, Callable[[Any], str], Callable[[str], Any]]] = {
    datetime: ("datetime", datetime.isoformat, datetime.fromisoformat),
    date: ("date", date.isoformat, date.fromisoformat),
    time: ("time", time.isoformat, time.fromisoformat),
    Decimal: ("Decimal", str, Decimal),
    timedelta: (
        "timedelta",
        lambda value: repr(value.total_seconds()),
        lambda text: timedelta(0, float(text)),
    ),
    complex: ("complex", repr, complex),
    PurePath: ("Path", str, Path),
}
_lists: dict[type, str] = {tuple: "tuple", set: "set", frozenset: "frozenset"}
_readers: dict[object, Callable[[Any], Any]] = {
    **{name: read for name, _, read in _texts.values()},
    "bytes": base64.b64decode,
    "image": lambda data: _read_image(base64.b64decode(data)),
    "tuple": lambda items: tuple(map(_from_plain, items)),
    "set": lambda items: set(map(_from_plain, items)),
    "frozenset": lambda items: frozenset(map(_from_plain, items)),
    "dict": lambda items: {_from_plain(key): _from_plain(value) for key, value in items},
    "ndarray": lambda content: _read_array(*content),
}


def dumps(value: Any) -> str:
    """Write a value as JSON.

    Raises:
        TypeError: If it has a type that cannot leave its side.
    """
    return json.dumps(_to_plain(value))


def loads(text: str, *, is_hostile: bool = False) -> Any:
    """Read what ``dumps`` has written.

    Args:
        text: What it has written, or any text. It makes no other objects.
        is_hostile: Whether it has to be read in time that is linear in its length.

    Raises:
        Exception: Of any type, if it is something else.
    """
    plain = json.loads(text)
    if is_hostile and _comparisons(plain) > _MOST_COMPARISONS:
        raise ValueError(
            "its sets, or the keys of its mappings, hold too many values other than texts and small numbers"
        )
    return _from_plain(plain)


_MOST_COMPARISONS = 10_000_000
"""So many take about a second."""
_LEAST_CHOSEN = 2**61 - 1
"""Python's hash of a number is the number modulo this, so that code can write many values with the same one."""


def _comparisons(plain: Any) -> int:
    """Return the number of comparisons if all values whose hashes code can choose had the same hash."""
    comparisons = 0
    waiting: list[Any] = [plain]
    while waiting:
        value = waiting.pop()
        kind = _type_of(value)
        if issubclass(kind, list):
            waiting += value
        elif issubclass(kind, dict):
            waiting += value.values()
            hashed: Any = value.get("value") if value.get(_TYPE) in ("set", "frozenset", "dict") else None
            if issubclass(_type_of(hashed), list):
                keys: list[Any] = [item[0] if value[_TYPE] == "dict" else item for item in hashed]
                comparisons += sum(map(_is_chosen, keys)) ** 2 // 2
    return comparisons


def _is_chosen(value: Any) -> bool:
    if isinstance(value, (int, float)):
        return not -_LEAST_CHOSEN < value < _LEAST_CHOSEN
    return value is not None and not isinstance(value, str)


def _to_plain(value: Any) -> Any:
    kind = _type_of(value)
    if value is None or issubclass(kind, (bool, int, float, str)):
        return value
    if issubclass(kind, list):
        return [_to_plain(item) for item in value]
    if issubclass(kind, dict):
        if all(type(key) is str for key in value) and _TYPE not in value:
            return {key: _to_plain(item) for key, item in value.items()}
        return _tagged("dict", [[_to_plain(key), _to_plain(item)] for key, item in value.items()])
    for base, name in _lists.items():
        if issubclass(kind, base):
            return _tagged(name, [_to_plain(item) for item in value])
    for base, (name, write, _) in _texts.items():
        if issubclass(kind, base):
            return _tagged(name, write(value))
    return _others_to_plain(value, kind)


def _others_to_plain(value: Any, kind: Any) -> Any:
    if issubclass(kind, (bytes, bytearray)):
        return _tagged("bytes", base64.b64encode(value).decode())
    if hasattr(kind, "__dataclass_fields__"):
        return {name: _to_plain(getattr(value, name)) for name in kind.__dataclass_fields__}
    # values of its types need its import
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and issubclass(kind, numpy.ndarray):
        return _tagged("ndarray", [str(value.dtype), _to_plain(value.tolist())])
    if numpy is not None and issubclass(kind, numpy.generic):
        return _to_plain(value.item())
    image: Any = sys.modules.get("PIL.Image")
    if image is not None and issubclass(kind, image.Image):
        file = io.BytesIO()
        value.save(file, format="PNG")
        return _tagged("image", base64.b64encode(file.getvalue()).decode())
    name = f"{kind.__module__}.{kind.__qualname__}"
    raise TypeError(
        f"a {name} cannot pass between the sandbox and a tool; pass texts, numbers, lists and the like"
    )


def _tagged(name: str, content: Any) -> dict[str, Any]:
    return {_TYPE: name, "value": content}


def _from_plain(value: Any) -> Any:
    kind = _type_of(value)
    if issubclass(kind, list):
        return [_from_plain(item) for item in value]
    if not issubclass(kind, dict):
        return value
    if _TYPE in value:
        return _readers[value[_TYPE]](value["value"])
    return {key: _from_plain(item) for key, item in value.items()}


def _read_image(data: bytes) -> Any:
    try:
        from PIL import Image
    except ImportError:
        return data
    return Image.open(io.BytesIO(data), formats=["PNG"])


def _read_array(kind: str, items: Any) -> Any:
    """An array, or its items without numpy."""
    try:
        import numpy
    except ImportError:
        return _from_plain(items)
    return numpy.array(_from_plain(items), dtype=kind if kind in _NUMBERS else None)


def bind(names: Sequence[str], variables: str, namespace: dict[str, Any]) -> None:
    """In the sandbox: give the code the tools by their names, and variables.

    Args:
        names: The tools.
        variables: A dictionary, as ``dumps`` has written it.
        namespace: The globals of the code.
    """
    namespace.update(loads(variables), **{name: _tool(name) for name in names})


def _tool(name: str) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        # the session makes this module
        answer: str | None = sys.modules["tools"].call(name, dumps([arguments, named]))
        if answer is None:
            # the final answer ends the code
            raise SystemExit
        return loads(answer)

    call.__name__ = call.__qualname__ = name
    return call
