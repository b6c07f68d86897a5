"""Reports of a block for the agent: its final answer, the names it has bound, and its artifacts."""

from __future__ import annotations

import builtins
import json
import os
import sys
from contextlib import suppress
from functools import wraps
from io import BytesIO
from itertools import islice
from types import CodeType, FunctionType, ModuleType
from warnings import filterwarnings

from codeact_team.session.protocol import MAX_ARTIFACTS, MAX_FILE_NAME, MIB, Kind
from codeact_team.session.runner.interpreter.channel import room
from codeact_team.session.runner.interpreter.user_code import interruptible, one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
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


_SHOWS_ITSELF = (("_repr_png_", "image/png"), ("_repr_html_", "text/html"))


class ShownFigures:
    """Draws the figures of matplotlib when the code shows them, since it may close or change them before the block ends.

    Also draws those that the code saves, to know at the end of the block which are as they were saved; makes matplotlib draw
    into memory, and not warn that ``show`` opens no window.
    """

    def __init__(self) -> None:
        self.drawn: list[tuple[int, bytes]] = []
        """The number and the picture of each figure, in order."""
        self._saved: dict[str, bytes] = {}
        """The picture of the figure that was last saved in a file, by the path of that."""
        os.environ.setdefault("MPLBACKEND", "Agg")
        filterwarnings("ignore", message="FigureCanvasAgg is non-interactive", category=UserWarning)
        sys.meta_path.insert(0, _PyplotWatcher(self._watch))

    def begin(self) -> None:
        """Forget the figures of the last block."""
        self.drawn.clear()
        self._saved.clear()

    def file_of(self, picture: bytes) -> str | None:
        """The file, by its path below the current directory, in which the code has saved a figure with this picture."""
        for path, saved in self._saved.items():
            if saved == picture and (name := _name_of_file(path)) is not None:
                return name
        return None

    def _watch(self, pyplot: Any) -> None:
        show = getattr(pyplot, "show", None)
        if show is None:
            return
        self._watch_saving(pyplot)

        @wraps(show)
        def show_and_draw(*arguments: Any, **settings: Any) -> Any:
            shown = show(*arguments, **settings)
            for number in pyplot.get_fignums():
                self._draw(pyplot, number)
            return shown

        pyplot.show = interruptible(show_and_draw)

    def _watch_saving(self, pyplot: Any) -> None:
        figures = pyplot.Figure
        savefig = figures.savefig

        @wraps(savefig)
        def save_and_draw(figure: Any, fname: Any, *arguments: Any, **settings: Any) -> Any:
            saved = savefig(figure, fname, *arguments, **settings)
            if isinstance(fname, str | os.PathLike) and pyplot.fignum_exists(getattr(figure, "number", None)):
                self._note_saved(pyplot, figure.number, os.fspath(fname))
            return saved

        figures.savefig = interruptible(save_and_draw)

    @interruptible
    def _note_saved(self, pyplot: Any, number: int, path: Any) -> None:
        # a figure without a picture counts as one that was not saved
        with suppress(Exception):
            path = os.path.abspath(path)
            if not os.path.exists(path):
                path = f"{path}.png"
            self._saved.pop(path, None)
            if len(self._saved) < MAX_ARTIFACTS:
                self._saved[path] = _drawn(pyplot, number)

    @interruptible
    def _draw(self, pyplot: Any, number: int) -> None:
        if len(self.drawn) >= MAX_ARTIFACTS:
            # only counted from now on
            self.drawn.append((number, b""))
            return
        # a failure is reported at the end of the block
        with suppress(Exception):
            data = _drawn(pyplot, number)
            if dict(self.drawn).get(number) != data:
                self.drawn.append((number, data))


class _PyplotWatcher:
    """Finds and loads ``matplotlib.pyplot`` as the others would, and calls ``watch`` with the module when it is loaded."""

    def __init__(self, watch: Callable[[Any], None]) -> None:
        self._watch = watch
        self._loader: Any = None

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "matplotlib.pyplot":
            return None
        others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((spec for spec in others if spec is not None), None)
        if spec is not None and spec.loader is not None:
            self._loader, spec.loader = spec.loader, self  # pyright: ignore[reportAttributeAccessIssue]
        return spec

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        # from now on the module looks as if this had never existed
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._watch(module)


class Artifacts:
    """Sends the artifacts of one block, each in two pieces, and reports those that are left out."""

    def __init__(
        self, send: Callable[[bytes, bytes], None], warn: Callable[[str], None], shown: ShownFigures
    ) -> None:
        self._send = send
        self._warn = warn
        self._shown = shown
        self._sent = 0
        self._surplus = 0

    def collect(self, value: object) -> None:
        """Send and close the figures that were shown or are open; then send what ``value``, the block's last value, shows."""
        for _, data in self._shown.drawn:
            self._add("image/png", lambda data=data: data, is_figure=True)
        for make in self._figures():
            self._add("image/png", make, is_figure=True)
        for method, mime_type in _SHOWS_ITSELF:
            # not of the object itself, which may have attributes of any name
            show = getattr(type(value), method, None)
            if show is not None:
                self._add(mime_type, lambda show=show: show(value))
        if self._surplus:
            self._warn(f"{self._surplus} more artifacts were left out: there are {self._sent} already\n")

    def _figures(self) -> Iterator[Callable[[], bytes | None]]:
        pyplot: Any = sys.modules.get("matplotlib.pyplot")
        if not hasattr(pyplot, "get_fignums"):
            # not imported, or only in part
            return
        sent = dict(self._shown.drawn)
        for number in pyplot.get_fignums():
            yield lambda number=number: _unless_sent(_drawn(pyplot, number), sent.get(number))
            pyplot.close(number)

    def _add(self, mime_type: str, make: Callable[[], Any], *, is_figure: bool = False) -> None:
        if self._sent == MAX_ARTIFACTS:
            self._surplus += 1
            return
        try:
            data: Any = make()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._warn(f"an artifact ({mime_type}) was left out: {one_line(error)}\n")
            return
        if isinstance(data, str):
            data = data.encode("utf-8", "replace")
        if not isinstance(data, bytes):
            # the value has nothing to show
            return
        about = {"mime_type": mime_type}
        if is_figure and (file := self._shown.file_of(data)) is not None:
            about["file"] = file
        head = json.dumps(about).encode() + b"\n"
        if len(head) + len(data) > room(Kind.ARTIFACT):
            self._warn(f"an artifact ({mime_type}) was left out: it has {len(data) / MIB:.1f} MiB\n")
            return
        self._send(head, data)
        self._sent += 1


def _drawn(pyplot: Any, number: int) -> bytes:
    buffer = BytesIO()
    pyplot.figure(number).savefig(buffer, format="png", bbox_inches="tight")
    return buffer.getvalue()


def _name_of_file(path: str) -> str | None:
    """The path of a file below the current directory; ``None`` if it is outside, hidden, or gone."""
    name = os.path.relpath(path)
    hidden = any(part.startswith(".") for part in name.split(os.sep))
    return None if hidden or len(name) > MAX_FILE_NAME or not os.path.isfile(name) else name


def _unless_sent(data: bytes, sent: bytes | None) -> bytes | None:
    return None if data == sent else data
