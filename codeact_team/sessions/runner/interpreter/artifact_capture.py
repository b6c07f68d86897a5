"""What a block leaves beside text: figures of matplotlib, and a last value that can show itself."""

from __future__ import annotations

import json
import os
import sys
from io import BytesIO
from warnings import filterwarnings

from codeact_team.sessions.protocol import MAX_ARTIFACTS, MIB, Kind
from codeact_team.sessions.runner.interpreter.channel import room
from codeact_team.sessions.runner.interpreter.tracebacks import one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

_SHOWS_ITSELF = (("_repr_png_", "image/png"), ("_repr_html_", "text/html"))


def prepare() -> None:
    """Have matplotlib draw into memory, and not warn that ``show`` opens no window: figures are shown."""
    os.environ.setdefault("MPLBACKEND", "Agg")
    filterwarnings("ignore", message="FigureCanvasAgg is non-interactive", category=UserWarning)


class Artifacts:
    """Sends the artifacts of one block, each in two pieces, and tells of those that are left out."""

    def __init__(self, send: Callable[[bytes, bytes], None], tell: Callable[[str], None]) -> None:
        self._send = send
        self._tell = tell
        self._sent = 0
        self._surplus = 0

    def collect(self, value: object) -> None:
        """Send the figures that are open, and close them; then what ``value``, the block's last, has to show."""
        for make in self._figures():
            self._add("image/png", make)
        for method, mime_type in _SHOWS_ITSELF:
            # not of the object itself, which may answer to any name
            show = getattr(type(value), method, None)
            if show is not None:
                self._add(mime_type, lambda show=show: show(value))
        if self._surplus:
            self._tell(f"{self._surplus} more artifacts were left out: there are {self._sent} already\n")

    def _figures(self) -> Iterator[Callable[[], bytes]]:
        pyplot: Any = sys.modules.get("matplotlib.pyplot")
        if not hasattr(pyplot, "get_fignums"):
            # not imported, or not to the end
            return
        for number in pyplot.get_fignums():
            yield lambda number=number: _drawn(pyplot, number)
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
