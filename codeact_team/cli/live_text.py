"""Text that comes in pieces, fit to be shown."""

from __future__ import annotations

_MAX_CHARS = 100_000
"""How much of a text is shown; the rest is counted."""


class LiveText:
    """A text that comes in pieces; the message of that id, if it is known, will have all of it."""

    def __init__(self, source: str, message_id: str | None) -> None:
        self.source, self.message_id = source, message_id
        self.at_line_start = True
        self.left_out = 0
        self._room = _MAX_CHARS
        self._after_return = False

    def take(self, piece: str) -> str:
        """What of ``piece`` to show."""
        if self._after_return and piece.startswith("\n"):
            # the second half of a line break, whose first half has ended the line already
            piece = piece[1:]
        self._after_return = piece.endswith("\r")
        shown = piece[: self._room]
        self._room -= len(shown)
        self.left_out += len(piece) - len(shown)
        if shown:
            self.at_line_start = shown.endswith(("\n", "\r"))
        return shown
