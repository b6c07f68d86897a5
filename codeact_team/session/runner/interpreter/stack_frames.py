"""Whose code a frame runs: the user's, a library's, or the runner's."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType
    from typing import Any, TypeVar

    F = TypeVar("F", bound=Callable[..., Any])

# the names under which the runner is compiled where it runs
_RUNNER = f"<{__name__.partition('.')[0]}."
_NOT_THE_USERS = (_RUNNER, "<frozen ", os.path.dirname(os.__file__) + os.sep)
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")

_interruptible: set[CodeType] = set()
_interruptible_files: set[str] = set()


def is_users(filename: str) -> bool:
    """Whether code of this file is the user's: neither the runner's, nor a library's."""
    return not filename.startswith(_NOT_THE_USERS) and not any(part in filename for part in _INSTALLED)


def runs_users(frame: FrameType | None, base: CodeType | None = None) -> bool:
    """Whether the user's code runs in ``frame``, or has called what runs there, itself called by ``base``."""
    while frame is not None and frame.f_code is not base:
        if is_users(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False


def interruptible(function: F) -> F:
    """Mark a function of the runner in which a ``KeyboardInterrupt`` may be raised at any point."""
    _interruptible.add(function.__code__)
    return function


def interruptible_module(name: str) -> None:
    """Mark all functions of a module of the runner; see :func:`interruptible`."""
    _interruptible_files.add(f"<{name}>")


def can_interrupt(code: CodeType) -> bool:
    """Whether a ``KeyboardInterrupt`` may be raised at any point of ``code``."""
    if not code.co_filename.startswith(_RUNNER):
        return True
    return code in _interruptible or code.co_filename in _interruptible_files
