"""What is wrong with a call of a tool, in words for whoever wrote the code."""

from __future__ import annotations

from codeact_team.sessions.runner.interpreter.stack_frames import interruptible_module, library_first

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


interruptible_module(__name__)


class Problem(Exception):
    """An argument that cannot be.

    Args:
        kind: What the code gets to see.
        text: What is wrong, to follow the name of what it is wrong with.
        whole: Whether it is wrong with the arguments as a whole.
    """

    def __init__(self, kind: type[Exception], text: str, *, whole: bool = False) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text
        self.whole = whole
        self.path: tuple[str | int, ...] = ()

    def within(self, part: str | int) -> Problem:
        """The same, seen from the container that has the value at ``part``."""
        self.path = (part, *self.path)
        return self

    def error(self, function: str, names: Mapping[str, str]) -> Exception:
        """What the code gets to see.

        Args:
            function: What it has called.
            names: The names of the parameters by their keys.
        """
        if self.whole or not self.path:
            return self.kind(f"{function}(): the arguments {self.text}")
        first, *rest = self.path
        place = names.get(str(first), str(first)) + "".join(map(_step, rest))
        return self.kind(f"{function}(): {place} {self.text}")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The one of the ``known`` names that ``name`` may be meant to be."""
    with library_first():
        from difflib import get_close_matches

    return next(iter(get_close_matches(name, known, 1)), None)


def _step(part: str | int) -> str:
    if isinstance(part, str) and part.isidentifier():
        return f".{part}"
    return f"[{part!r}]"
