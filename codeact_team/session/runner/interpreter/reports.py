"""Reports of a block for the agent: its final answer, and the names it has bound."""

from __future__ import annotations

import builtins
import json
import sys
from contextlib import suppress
from itertools import islice
from types import CodeType, FunctionType, ModuleType

from codeact_team.session.runner.interpreter.user_code import interruptible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any


_MAX_ANSWER = 100_000
"""Characters of an answer; the middle of a longer one is left out."""

_SHORT_ANSWER = 40_000
"""Characters of an answer that fits into a report however it is encoded."""

_MAX_PROBLEM = 1_000

_SETS = (set, frozenset)
_OF_JSON = (bool, int, float, type(None), dict, list, tuple, *_SETS)
_NOT_JSON = "JSON has dicts, lists, strings, finite numbers, booleans and None only; convert it to these"


class FinalAnswer:
    """The argument of the running block's call of ``final_answer``."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget the last block's answer, and restore the function ``final_answer``."""
        self.text: str | None = None
        self._is_json = False
        self._problem = ""
        setattr(builtins, "final_answer", self.final_answer)  # noqa: B010 - no such name is known to type checkers

    @interruptible
    def final_answer(self, value: object) -> None:
        """Give the answer. If a block calls this several times, the first call counts."""
        if self.text is not None:
            return
        text, is_json, problem = _read(value)
        self._is_json, self._problem = is_json, problem
        self._set(text, _MAX_ANSWER)

    def shorten(self) -> None:
        """Cut it so that it fits into a report."""
        if self.text is not None:
            self._set(self.text, _SHORT_ANSWER)

    def report(self) -> dict[str, object]:
        return {"answer": self.text, "answer_is_json": self._is_json, "answer_problem": self._problem}

    def _set(self, text: str, limit: int) -> None:
        self.text = _cut(text, limit)
        if len(text) > limit:
            self._is_json = False
            self._problem = self._problem or f"it has {len(text)} characters; {limit} are possible"


@interruptible
def _read(value: object) -> tuple[str, bool, str]:
    """Convert a value to text. Returns the text, whether it is JSON, and why the value has no JSON.

    A string stays as it is; other values become JSON if possible, otherwise what Python shows.
    """
    if isinstance(value, str):
        return str.__str__(value), False, ""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_refuse), True, ""
    except (TypeError, ValueError, RecursionError) as error:
        problem = _cut(str(error), _MAX_PROBLEM)
    return _text(value), False, problem


def _refuse(value: object) -> object:
    raise TypeError(f"{_name(type(value))}: {_NOT_JSON}")


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _text(value: object) -> str:
    if issubclass(type(value), _OF_JSON):
        try:
            return json.dumps(value, ensure_ascii=False, default=_as_json)
        except (TypeError, ValueError, RecursionError):
            pass
    return str(value)


def _as_json(value: object) -> object:
    if issubclass(type(value), _SETS):
        return list(value)  # pyright: ignore[reportArgumentType, reportUnknownVariableType, reportCallIssue]
    return str(value)


def _cut(text: str, limit: int) -> str:
    """Cut the middle out of a text with more than ``limit`` characters."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} of {len(text)} characters left out]\n{text[-half:]}"


_MAX_NAMES = 20
_MAX_PREVIEW = 80
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
# a class may have attributes that hide these
_name_of = type.__dict__["__name__"].__get__
_module_of = type.__dict__["__module__"].__get__


class Names:
    """Finds the names that a block binds: among those that its code mentions, and those that are new in the namespace.

    No code of the values runs. Must be made before the block runs. Its cost does not depend on the number of existing names.
    """

    def __init__(self, namespace: dict[str, Any], parts: Iterable[CodeType]) -> None:
        self._namespace = namespace
        # no references, which would keep values alive that the block replaces
        self._before = {name: id(namespace.get(name, _ABSENT)) for part in parts for name in _mentioned(part)}
        # every new name comes after it
        self._newest: str | None = None
        with suppress(RuntimeError):  # a thread binds names meanwhile
            self._newest = next((name for name in reversed(namespace) if name not in self._before), None)

    def describe(self) -> tuple[list[dict[str, str | None]], int]:
        """Describe the first names that were bound or rebound, and count the others. Ignores names with a leading underscore."""
        bound: list[str] = []
        for name, before in self._before.items():
            now = id(self._namespace.get(name, _ABSENT))
            if now != before and now != _ABSENT_ID and name[0] != "_":
                bound.append(name)
        if self._newest in self._namespace:
            bound += self._later()
        described = [_described(name, self._namespace.get(name)) for name in bound[:_MAX_NAMES]]
        return described, max(0, len(bound) - _MAX_NAMES)

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
        # a class that only claims to be from there
        return ()
    try:
        shape: Any = value.shape
        sizes: list[Any] = list(shape) if tuple in type(shape).__mro__ else []
        return tuple(sizes) if all(type(size) is int for size in sizes) else ()
    except Exception:
        # an error of the library, of no interest here
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
    return text[: _MAX_PREVIEW - 1] + "…" if text and len(text) > _MAX_PREVIEW else text


def _shown(value: Any, depth: int) -> str:
    kind = _type_of(value)
    if kind in _BRACKETS:
        return _shown_items(value, depth)
    if kind is str or kind is bytes:
        return repr(value[:_MAX_PREVIEW])
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
        # a thread has changed it meanwhile
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
        # an object of a class that may do anything when it is read
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
