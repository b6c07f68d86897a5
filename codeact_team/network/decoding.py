"""Bodies that come compressed, though it was asked that they do not."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from codeact_team.network.http import HttpError

_LARGEST = 1 << 16
"""Bytes of a piece that comes out at once, however small what went in."""
_GZIP, _ZLIB, _DEFLATE = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS


class Decoder:
    """Decompresses a body as it comes, in pieces of at most 64 KiB.

    Args:
        encoding: The encoding that the answer names, such as ``gzip``; ``identity`` or nothing for none.

    Raises:
        HttpError: It is none of these, or several.
    """

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding.strip().lower()
        if self._encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise HttpError(
                502,
                f"the answer is encoded as {self._encoding[:40]!r}, which is not read here, though the request has asked "
                "for it as it is: only gzip and deflate are",
            )
        self._stream = zlib.decompressobj(_GZIP)
        self._began = self._is_open = False
        self._first_byte = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Decompress what has come. Each piece is made when it is asked for.

        Raises:
            HttpError: The body is damaged.
        """
        if self._encoding in ("", "identity"):
            yield data
            return
        try:
            yield from self._decompressed(data)
        except zlib.error as error:
            raise HttpError(502, f"the answer is no well-formed {self._encoding}: {error}") from None

    def end(self) -> None:
        """Say that nothing more comes.

        Raises:
            HttpError: The body ends in the middle.
        """
        if self._first_byte or self._is_open:
            raise HttpError(502, f"the answer ends in the middle of its {self._encoding}")

    def _decompressed(self, data: bytes) -> Iterator[bytes]:
        data, self._first_byte = self._first_byte + data, b""
        # what has been read may give more than fits into one piece
        is_full = False
        while data or is_full:
            if not self._is_open:
                if len(data) < 2:
                    self._first_byte = data
                    return
                self._open(data)
            if piece := self._stream.decompress(data, _LARGEST):
                yield piece
            data = self._stream.unconsumed_tail or self._stream.unused_data
            self._is_open = not self._stream.eof
            is_full = self._is_open and len(piece) == _LARGEST

    def _open(self, data: bytes) -> None:
        if self._encoding != "deflate":
            # it may have several members
            self._stream = zlib.decompressobj(_GZIP)
        elif self._began:
            raise zlib.error("more bytes follow its end")
        else:
            # many servers leave out the head, which is a multiple of 31
            has_head = data[0] & 0x0F == 8 and int.from_bytes(data[:2], "big") % 31 == 0
            self._stream = zlib.decompressobj(_ZLIB if has_head else _DEFLATE)
        self._began = self._is_open = True
