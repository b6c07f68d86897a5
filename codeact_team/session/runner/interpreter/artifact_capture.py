"""What a block leaves beside text: figures of matplotlib, and a last value that can show itself."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from functools import wraps
from io import BytesIO
from warnings import filterwarnings

from codeact_team.session.protocol import MAX_ARTIFACTS, MIB, Kind
from codeact_team.session.runner.interpreter.channel import room
from codeact_team.session.runner.interpreter.stack_frames import interruptible
from codeact_team.session.runner.interpreter.tracebacks import one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

_SHOWS_ITSELF = (("_repr_png_", "image/png"), ("_repr_html_", "text/html"))


class ShownFigures:
    """The figures of matplotlib as they are when the code shows them: before the block ends, it may close or change them.

    Once made, matplotlib draws into memory, and does not warn that ``show`` opens no window.
    """

    def __init__(self) -> None:
        self.drawn: list[tuple[int, bytes]] = []
        """The number of each figure, and the picture, in order."""
        os.environ.setdefault("MPLBACKEND", "Agg")
        filterwarnings("ignore", message="FigureCanvasAgg is non-interactive", category=UserWarning)
        sys.meta_path.insert(0, _PyplotFinder(self._watch))

    def _watch(self, pyplot: Any) -> None:
        """Have ``show`` draw what it shows."""
        show = getattr(pyplot, "show", None)
        if show is None:
            return

        @wraps(show)
        def show_and_draw(*arguments: Any, **settings: Any) -> Any:
            shown = show(*arguments, **settings)
            for number in pyplot.get_fignums():
                self._draw(pyplot, number)
            return shown

        pyplot.show = interruptible(show_and_draw)

    @interruptible
    def _draw(self, pyplot: Any, number: int) -> None:
        if len(self.drawn) >= MAX_ARTIFACTS:
            # only counted
            self.drawn.append((number, b""))
            return
        # what cannot be drawn is told at the end of the block
        with suppress(Exception):
            data = _drawn(pyplot, number)
            if dict(self.drawn).get(number) != data:
                self.drawn.append((number, data))


class _PyplotFinder:
    """Finds ``matplotlib.pyplot`` as it would be found, and calls ``watch`` with the module when it is there."""

    def __init__(self, watch: Callable[[Any], None]) -> None:
        self._watch = watch

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "matplotlib.pyplot":
            return None
        others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((spec for spec in others if spec is not None), None)
        if spec is not None and spec.loader is not None:
            loader: Any = _WatchingLoader(spec.loader, self._watch)
            spec.loader = loader
        return spec


class _WatchingLoader:
    def __init__(self, loader: Any, watch: Callable[[Any], None]) -> None:
        self._loader = loader
        self._watch = watch

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        # from now on it is as if this one had never been there
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._watch(module)


class Artifacts:
    """Sends the artifacts of one block, each in two pieces, and tells of those that are left out."""

    def __init__(
        self, send: Callable[[bytes, bytes], None], tell: Callable[[str], None], shown: ShownFigures
    ) -> None:
        self._send = send
        self._tell = tell
        self._shown = shown
        self._sent = 0
        self._surplus = 0

    def collect(self, value: object) -> None:
        """Send the figures that were shown or are open, and close them; then what ``value``, the block's last, has to show."""
        for _, data in self._shown.drawn:
            self._add("image/png", lambda data=data: data)
        for make in self._figures():
            self._add("image/png", make)
        for method, mime_type in _SHOWS_ITSELF:
            # not of the object itself, which may answer to any name
            show = getattr(type(value), method, None)
            if show is not None:
                self._add(mime_type, lambda show=show: show(value))
        if self._surplus:
            self._tell(f"{self._surplus} more artifacts were left out: there are {self._sent} already\n")

    def _figures(self) -> Iterator[Callable[[], bytes | None]]:
        pyplot: Any = sys.modules.get("matplotlib.pyplot")
        if not hasattr(pyplot, "get_fignums"):
            # not imported, or not to the end
            return
        sent = dict(self._shown.drawn)
        for number in pyplot.get_fignums():
            yield lambda number=number: _unless_sent(_drawn(pyplot, number), sent.get(number))
            pyplot.close(number)

    def _add(self, mime_type: str, make: Callable[[], Any]) -> None:
        if self._sent == MAX_ARTIFACTS:
            self._surplus += 1
            return
        try:
            data: Any = make()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._tell(f"an artifact ({mime_type}) was left out: {one_line(error)}\n")
            return
        if isinstance(data, str):
            data = data.encode("utf-8", "replace")
        if not isinstance(data, bytes):
            # it has nothing to show
            return
        head = json.dumps({"mime_type": mime_type}).encode() + b"\n"
        if len(head) + len(data) > room(Kind.ARTIFACT):
            self._tell(f"an artifact ({mime_type}) was left out: it has {len(data) / MIB:.1f} MiB\n")
            return
        self._send(head, data)
        self._sent += 1


def _drawn(pyplot: Any, number: int) -> bytes:
    buffer = BytesIO()
    pyplot.figure(number).savefig(buffer, format="png", bbox_inches="tight")
    return buffer.getvalue()


def _unless_sent(data: bytes, sent: bytes | None) -> bytes | None:
    return None if data == sent else data
