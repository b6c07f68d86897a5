"""Which global names a block has bound, found and described without running any code of the values."""

from __future__ import annotations

import sys
from contextlib import suppress
from itertools import islice
from types import CodeType, FunctionType, ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

MAX_NAMES = 20
MAX_PREVIEW = 80
_MAX_WORD = 100
_MAX_ITEMS = 10
_MAX_DEPTH = 2
_MAX_INT_BITS = 256

_CO_VARARGS = 0x04
_CO_VARKEYWORDS = 0x08

_ABSENT = object()
_ABSENT_ID = id(_ABSENT)
_BRACKETS: dict[object, str] = {list: "[]", tuple: "()", set: "{}", frozenset: "{}", dict: "{}"}
_SHOWN: frozenset[object] = frozenset((bool, int, float, complex, str, bytes, type(None), *_BRACKETS))
_UNITS: dict[object, str] = {str: "character", bytes: "byte", **dict.fromkeys(_BRACKETS, "item")}
_WITH_SHAPE = frozenset(
    (
        "numpy",
        "pandas",
        "polars",
        "pyarrow",
        "scipy",
        "torch",
        "tensorflow",
        "jax",
        "jaxlib",
        "cupy",
        "xarray",
    )
)
_type_of: Callable[[object], Any] = type
# a class can have an attribute that hides these
_name_of = type.__dict__["__name__"].__get__
_module_of = type.__dict__["__module__"].__get__


class Names:
    """Sees what a block binds: the names that its code mentions, and those that came into the namespace.

    Made before the block runs. What it costs does not depend on how many names there are already.
    """

    def __init__(self, namespace: dict[str, Any], parts: Iterable[CodeType]) -> None:
        self._namespace = namespace
        # no references: they would keep values alive that the block replaces
        self._before = {name: id(namespace.get(name, _ABSENT)) for part in parts for name in _mentioned(part)}
        # everything that is bound for the first time comes after it
        self._newest: str | None = None
        with suppress(RuntimeError):  # a thread binds names meanwhile
            self._newest = next((name for name in reversed(namespace) if name not in self._before), None)

    def describe(self) -> tuple[list[dict[str, str | None]], int]:
        """The first names bound since, or bound anew, with what is known of their values, and how many more there are.

        Those with a leading underscore do not count.
        """
        bound: list[str] = []
        for name, before in self._before.items():
            now = id(self._namespace.get(name, _ABSENT))
            if now != before and now != _ABSENT_ID and name[0] != "_":
                bound.append(name)
        if self._newest in self._namespace:
            bound += self._later()
        described = [_described(name, self._namespace.get(name)) for name in bound[:MAX_NAMES]]
        return described, max(0, len(bound) - MAX_NAMES)

    def _later(self) -> list[str]:
        later: list[str] = []
        with suppress(RuntimeError):  # a thread binds names meanwhile
            for name in reversed(self._namespace):
                if name is self._newest:
                    break
                if type(name) is str and name not in self._before and not name.startswith("_"):
                    later.append(name)
        later.reverse()
        return later


def _mentioned(code: CodeType) -> list[str]:
    names = list(code.co_names)
    for constant in code.co_consts:
        if type(constant) is CodeType:
            names += _mentioned(constant)
    return names


def _described(name: str, value: object) -> dict[str, str | None]:
    kind: str = _name_of(type(value))
    shown = {"size": _size(value), "preview": _preview(value)}
    return {"name": name[:_MAX_WORD], "type": kind[:_MAX_WORD], **shown}


def _size(value: Any) -> str | None:
    kind = _type_of(value)
    unit = _UNITS.get(kind)
    if unit is not None:
        count = len(value)
        return f"{count} {unit}" if count == 1 else f"{count} {unit}s"
    shape = _shape(value)
    return str(shape)[:_MAX_WORD] if shape else None


def _shape(value: Any) -> tuple[int, ...]:
    kind = _type_of(value)
    module = _module_of(kind)
    if type(module) is not str or module.partition(".")[0] not in _WITH_SHAPE:
        return ()
    if getattr(sys.modules.get(module), _name_of(kind), None) is not kind:
        # a class that only says it is from there
        return ()
    try:
        shape: Any = value.shape
        sizes: list[Any] = list(shape) if tuple in type(shape).__mro__ else []
        return tuple(sizes) if all(type(size) is int for size in sizes) else ()
    except Exception:
        # the library's own trouble, and of no use to who reads this
        return ()


def _preview(value: Any) -> str | None:
    kind = _type_of(value)
    text = None
    if kind is FunctionType:
        text = _signature(value)
    elif kind is ModuleType:
        name = value.__dict__.get("__name__")
        text = name if type(name) is str else None
    elif kind in _SHOWN:
        text = _shown(value, _MAX_DEPTH)
    return text[: MAX_PREVIEW - 1] + "…" if text and len(text) > MAX_PREVIEW else text


def _shown(value: Any, depth: int) -> str:
    kind = _type_of(value)
    if kind in _BRACKETS:
        return _shown_items(value, depth)
    if kind is str or kind is bytes:
        return repr(value[:MAX_PREVIEW])
    if kind is int and value.bit_length() > _MAX_INT_BITS:
        return f"<an integer of {value.bit_length()} bits>"
    if kind in _SHOWN:
        return repr(value)
    return f"<{_name_of(kind)[:_MAX_WORD]}>"


def _shown_items(value: Any, depth: int) -> str:
    kind = _type_of(value)
    opening, closing = _BRACKETS[kind]
    if not value:
        return repr(value)
    if not depth:
        return f"{opening}…{closing}"
    try:
        if kind is dict:
            pairs: list[tuple[Any, Any]] = list(islice(value.items(), _MAX_ITEMS))
            texts = [f"{_shown(key, depth - 1)}: {_shown(item, depth - 1)}" for key, item in pairs]
        else:
            texts = [_shown(item, depth - 1) for item in islice(value, _MAX_ITEMS)]
    except RuntimeError:
        # a thread changes it meanwhile
        texts = ["…"]
    if len(value) > _MAX_ITEMS:
        texts.append("…")
    elif kind is tuple and len(texts) == 1:
        texts.append("")
    text = f"{opening}{', '.join(texts).rstrip()}{closing}"
    return f"frozenset({text})" if kind is frozenset else text


def _signature(function: FunctionType) -> str | None:
    code = function.__code__
    defaults = function.__defaults__ or ()
    named_defaults = function.__kwdefaults__ or {}
    if type(defaults) is not tuple or type(named_defaults) is not dict:
        # of a class that may do anything when it is read
        return None
    names = iter(code.co_varnames)
    parameters = list(islice(names, code.co_argcount))
    keyword_only = list(islice(names, code.co_kwonlyargcount))
    for place, default in enumerate(defaults, len(parameters) - len(defaults)):
        parameters[place] += f"={_shown(default, 0)}"
    if code.co_posonlyargcount:
        parameters.insert(code.co_posonlyargcount, "/")
    if code.co_flags & _CO_VARARGS:
        parameters.append(f"*{next(names)}")
    elif keyword_only:
        parameters.append("*")
    for name in keyword_only:
        default = f"={_shown(named_defaults[name], 0)}" if name in named_defaults else ""
        parameters.append(name + default)
    if code.co_flags & _CO_VARKEYWORDS:
        parameters.append(f"**{next(names)}")
    return f"{str.__str__(function.__name__)}({', '.join(parameters)})"
