"""Figures of matplotlib: drawn when the code shows them, since it may close or change them before the block ends."""

from __future__ import annotations

import os
import sys
from functools import wraps
from io import BytesIO
from weakref import ref

from codeact_team.session.protocol import MAX_ARTIFACTS, MAX_FILE_NAME
from codeact_team.session.runner.interpreter.user_code import interruptible_module, one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    class _Artifacts(Protocol):
        """What :class:`Artifacts` has for figures."""

        @property
        def is_full(self) -> bool: ...
        def add(self, forms: dict[str, bytes]) -> None: ...
        def leave_out(self) -> None: ...
        def remark(self, text: str) -> None: ...


interruptible_module(__name__)


class Figures:
    """Draws figures for ``artifacts``: those that are shown, and at the end of a block those that are open.

    Also draws those that the code saves, to know at the end of the block which are as they were saved.
    """

    def __init__(self, artifacts: _Artifacts) -> None:
        self._artifacts = artifacts
        self._class: type | None = None
        self._closed: list[ref[Any]] = []
        """The figures of earlier blocks, which a block may change and show again."""
        self.begin()

    def begin(self) -> None:
        """Forget the last block."""
        self._drawn: list[tuple[Any, bytes]] = []
        """The figures that are drawn, with their pictures."""
        self._saved: dict[str, bytes] = {}
        """The picture of the figure that was last saved in a file, by the path of that."""

    def is_one(self, value: object) -> bool:
        """Whether a value is a figure."""
        return self._class is not None and isinstance(value, self._class)

    def watch(self, module: Any) -> None:
        """Draw what is shown or saved by the functions of ``module``, one of matplotlib's."""
        if module.__name__ == "matplotlib.pyplot":
            self._watch_show(module)
        elif hasattr(module, "Figure"):
            self._class = module.Figure
            self._watch_figures(module.Figure)

    def _watch_show(self, pyplot: Any) -> None:
        show = getattr(pyplot, "show", None)
        if show is None:
            return

        @wraps(show)
        def show_and_draw(*arguments: Any, **settings: Any) -> Any:
            shown = show(*arguments, **settings)
            changed = [figure for figure in self._earlier() if getattr(figure, "stale", False)]
            for figure in changed + _open(pyplot):
                self.draw(figure)
            return shown

        pyplot.show = show_and_draw

    def _watch_figures(self, kind: Any) -> None:
        savefig, show = kind.savefig, kind.show

        @wraps(savefig)
        def save_and_draw(figure: Any, fname: Any, *arguments: Any, **settings: Any) -> Any:
            saved = savefig(figure, fname, *arguments, **settings)
            if isinstance(fname, str | os.PathLike) and self._may_be_shown(figure):
                self._note_saved(figure, os.fspath(fname))
            return saved

        # as it is, it refuses a figure that pyplot has not made
        @wraps(show)
        def draw(figure: Any, *_: Any, **__: Any) -> None:
            self.draw(figure)

        kind.savefig, kind.show = save_and_draw, draw

    def _earlier(self) -> list[Any]:
        return [figure for known in self._closed if (figure := known()) is not None]

    def _may_be_shown(self, figure: Any) -> bool:
        return any(figure is one for one in _open(sys.modules.get("matplotlib.pyplot")) + self._earlier())

    def _note_saved(self, figure: Any, path: Any) -> None:
        path = os.path.abspath(path)
        if not os.path.exists(path):
            path = f"{path}.png"
        self._saved.pop(path, None)
        if len(self._saved) < MAX_ARTIFACTS:
            try:
                self._saved[path] = _picture(figure)
            except Exception:
                # it counts as one that was not saved
                return

    def file_of(self, picture: bytes) -> str | None:
        """The file, by its path below the current directory, in which the code has saved a figure with this picture."""
        for path, saved in self._saved.items():
            if saved == picture and (name := _name_of_file(path)) is not None:
                return name
        return None

    def draw(self, figure: Any) -> None:
        """Show a figure, unless it is as it was when it was last shown in this block."""
        last = next((drawn for one, drawn in reversed(self._drawn) if one is figure), None)
        if self._artifacts.is_full:
            if last is None or figure.stale:
                self._artifacts.leave_out()
            return
        try:
            picture = _picture(figure)
            text = repr(figure)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._artifacts.remark(f"an artifact (image/png) was left out: {one_line(error)}")
            return
        if picture != last:
            self._drawn.append((figure, picture))
            self._artifacts.add({"image/png": picture, "text/plain": text.encode("utf-8", "replace")})

    def close(self) -> None:
        """The block has ended: draw the open figures, and close them."""
        pyplot: Any = sys.modules.get("matplotlib.pyplot")
        for figure in _open(pyplot):
            self.draw(figure)
            pyplot.close(figure.number)
            self._closed = [known for known in self._closed if known() is not None]
            self._closed.append(ref(figure))


def _open(pyplot: Any) -> list[Any]:
    if not hasattr(pyplot, "get_fignums"):
        # not imported, or only in part
        return []
    current = pyplot.gcf() if pyplot.get_fignums() else None
    figures = [pyplot.figure(number) for number in pyplot.get_fignums()]
    if current is not None:
        pyplot.figure(current.number)
    return figures


def _picture(figure: Any) -> bytes:
    buffer = BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight")
    # the picture itself has set and restored what makes it differ from the screen
    figure.stale = False
    return buffer.getvalue()


def _name_of_file(path: str) -> str | None:
    """The path of a file below the current directory; ``None`` if it is outside, hidden, or gone."""
    name = os.path.relpath(path)
    hidden = any(part.startswith(".") for part in name.split(os.sep))
    return None if hidden or len(name) > MAX_FILE_NAME or not os.path.isfile(name) else name
