"""Tells the user's code from libraries and the runner: in stack frames, tracebacks and imports."""

from __future__ import annotations

import importlib
import linecache
import os
import sys
from importlib.machinery import PathFinder
from traceback import TracebackException
from types import CodeType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any, TypeVar

    F = TypeVar("F", bound=Callable[..., Any])
    from collections.abc import Iterator
    from importlib.machinery import ModuleSpec
    from traceback import StackSummary


# the file names of the runner inside a sandbox
_RUNNER = f"<{__name__.partition('.')[0]}."
_NOT_THE_USERS = (_RUNNER, "<frozen ", os.path.dirname(os.__file__) + os.sep)
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")

_interruptible: set[CodeType] = set()
_interruptible_files: set[str] = set()


def is_users(filename: str) -> bool:
    """Whether code of this file is the user's, and not the runner's or a library's."""
    return not filename.startswith(_NOT_THE_USERS) and not any(part in filename for part in _INSTALLED)


def runs_users(frame: FrameType | None, base: CodeType | None = None) -> bool:
    """Whether user code runs in ``frame``, or in one of its callers up to ``base``."""
    while frame is not None and frame.f_code is not base:
        if is_users(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False


_shells: list[Callable[[], Any]] = []


def offer_shell(shell: Callable[[], Any]) -> None:
    """Let :func:`get_ipython` return what ``shell`` returns."""
    _shells[:] = [shell]


def get_ipython() -> Any:
    """Return the object that runs magics, for code of the user. A library would take it for that of a notebook, and gets ``None``."""
    asks = is_users(sys._getframe(1).f_code.co_filename)  # pyright: ignore[reportPrivateUsage]
    return _shells[0]() if asks else None


def interruptible(function: F) -> F:
    """Mark a function of the runner in which a ``KeyboardInterrupt`` may be raised anywhere."""
    _interruptible.add(function.__code__)
    return function


interruptible(get_ipython)


def interruptible_module(name: str) -> None:
    """Mark all functions of a module of the runner; see :func:`interruptible`."""
    _interruptible_files.add(f"<{name}>")


def can_interrupt(code: CodeType) -> bool:
    """Whether a ``KeyboardInterrupt`` may be raised anywhere in ``code``."""
    if not code.co_filename.startswith(_RUNNER):
        return True
    return code in _interruptible or code.co_filename in _interruptible_files


_MAX_ENTRIES = 20
"""The most entries of one stack that are shown, from both its ends."""


class _Short:
    """A stack that is printed without its middle."""

    def __init__(self, stack: StackSummary) -> None:
        self._stack = stack

    def __len__(self) -> int:
        return len(self._stack)

    def format(self, **options: Any) -> list[str]:
        entries = self._stack.format(**options)
        omitted = len(entries) - _MAX_ENTRIES
        if omitted > 0:
            half = _MAX_ENTRIES // 2
            entries[half:-half] = [f"  [{omitted} more entries]\n"]
        return entries


def formatted(error: BaseException) -> str:
    """The traceback of ``error`` as Python prints it, with the user's frames only, whatever the methods of the error do."""
    try:
        if isinstance(error, SyntaxError):
            _add_line(error)
        summary = TracebackException(type(error), error, error.__traceback__, compact=True)
        for part in _parts(summary):
            part.stack[:] = [frame for frame in part.stack if is_users(frame.filename)]
            part.stack = _Short(part.stack)  # pyright: ignore[reportAttributeAccessIssue]
        return "".join(summary.format())
    except BaseException as second:
        # including the interrupt of a __str__ that does not end
        return f"{_name(error)}: <its traceback cannot be shown: {_name(second)}>\n"


_OF_DEBUGGERS = ("last_type", "last_value", "last_traceback", "last_exc")


def keep_for_debuggers(error: BaseException) -> None:
    """Let ``pdb.pm`` and the like find an error, where Python's own prompt puts it."""
    # not of the error itself, whose class may have anything of that name
    trace = BaseException.__dict__["__traceback__"].__get__(error)
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_RUNNER):
        trace = trace.tb_next
    sys.__dict__.update(zip(_OF_DEBUGGERS, (type(error), error, trace, error), strict=True))


def forget_for_debuggers() -> None:
    """Let go of the last error, and so of all variables of the functions that it was raised in."""
    for name in _OF_DEBUGGERS:
        sys.__dict__.pop(name, None)


def one_line(error: BaseException) -> str:
    """The class name and the text of ``error`` on one line. Raises a ``KeyboardInterrupt`` that comes meanwhile."""
    try:
        text = " ".join(str(error).split())
    except KeyboardInterrupt:
        raise
    except BaseException as second:
        text = f"<its text cannot be shown: {_name(second)}>"
    return f"{_name(error)}: {text}" if text else _name(error)


def _name(error: BaseException) -> str:
    return type.__dict__["__name__"].__get__(type(error))


def _add_line(error: SyntaxError) -> None:
    # errors that the compiler finds after parsing come without it
    if error.text is None and error.filename and error.lineno:
        error.text = linecache.getline(error.filename, error.lineno) or None


def _parts(summary: TracebackException) -> Iterator[TracebackException]:
    waiting: list[TracebackException | None] = [summary]
    while waiting:
        part = waiting.pop()
        if part is not None:
            yield part
            # groups came with 3.11
            waiting += (part.__cause__, part.__context__, *(getattr(part, "exceptions", None) or ()))


_IMPORT_SYSTEM = ("<frozen importlib", os.path.dirname(importlib.__file__) + os.sep)


class LibraryFinder:
    """Finds modules of the standard library nowhere else, unless the user's own code imports them.

    The runner and libraries import modules at unexpected moments, for example while a traceback is formatted. The workspace
    comes first on the path, and earlier code may have left modules there.
    """

    def __init__(self) -> None:
        # directories that are added later do not belong to it
        self._places = [
            place
            for place in sys.path
            if (place + os.sep).startswith(os.path.dirname(os.__file__) + os.sep)
            or os.path.basename(place) == "lib-dynload"
        ]

    def install(self) -> None:
        """Use it from now on, after the finders of modules that are not files."""
        later = (number for number, finder in enumerate(sys.meta_path) if finder is PathFinder)
        sys.meta_path.insert(next(later, 0), self)  # pyright: ignore[reportArgumentType]

    @interruptible
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in sys.stdlib_module_names or user_imports():
            return None
        if (spec := PathFinder.find_spec(name, self._places)) is None:
            # for example a module for another operating system
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return spec


@interruptible
def user_imports() -> bool:
    """Whether the finder of modules that calls this is asked because of an import in the user's code."""
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and frame.f_code.co_filename.startswith(_IMPORT_SYSTEM):
        frame = frame.f_back
    return frame is not None and is_users(frame.f_code.co_filename)
