"""Pictures that code has drawn, for models that see: checked byte by byte, bounded, and never decoded on this machine."""

from __future__ import annotations

import base64
import binascii
import json
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO

from autogen_core import Image
from PIL import Image as pillow
from pydantic import TypeAdapter, ValidationError

from codeact_team.execution import Artifact

PICTURES_KEY = "codeact_team.pictures"
"""The key of a message's metadata under which the latest pictures of the work travel, as JSON."""

MAX_EDGE = 4096
"""Pixels; models reduce what is larger than half of that."""
MAX_BYTES = 1 << 20

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEAD = struct.Struct(">IIBBBBB")
_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
"""The bits of a channel, by the type of colour."""
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_LAST_FILTER = 4
_PIECE = 1 << 20
_MOST = 32
"""How many pictures of one message are read."""
_LIST = TypeAdapter(list[str])


class Picture(Image):
    """A PNG picture as AutoGen's model clients take it, without AutoGen's decoding and encoding anew.

    Args:
        png: What :func:`read_picture` has made.
        width: In pixels.
        height: In pixels.
    """

    def __init__(self, png: bytes, width: int, height: int) -> None:
        # not AutoGen's, which decodes
        self.png = png
        self.width = width
        self.height = height

    @property
    def image(self) -> pillow.Image:  # pyright: ignore[reportIncompatibleVariableOverride]
        """For whoever wants the pixels: they are decoded when they are asked for."""
        return pillow.open(BytesIO(self.png), formats=["PNG"])

    def to_base64(self) -> str:
        return base64.b64encode(self.png).decode()


@dataclass(frozen=True)
class Drawn:
    """What can be shown of the pictures that code has drawn, and why others cannot."""

    pictures: Sequence[Picture] = ()
    problems: Sequence[str] = field(default=())


def read_drawn(artifacts: Sequence[Artifact]) -> Drawn:
    """Read the pictures among artifacts. Takes a while for large ones."""
    pictures: list[Picture] = []
    problems: list[str] = []
    for artifact in artifacts:
        if artifact.mime_type == "image/png":
            try:
                pictures.append(read_picture(artifact.data))
            except ValueError as error:
                problems.append(f"A picture cannot be shown: {error}.")
    return Drawn(pictures, problems)


def read_picture(data: bytes) -> Picture:
    """Read a PNG picture: all that a decoder relies on is checked, and what is not needed to show it is left out.

    A model's server may refuse a whole conversation for one broken picture.

    Raises:
        ValueError: If it is broken, too large, or of a kind that is not read, such as an interlaced one.
    """
    if len(data) > MAX_BYTES:
        raise ValueError(f"it has {len(data) / 1e6:.1f} MB, and {MAX_BYTES / 1e6:.1f} MB are the most")
    parts = list(_chunks(data))
    if parts[0][0] != b"IHDR" or len(parts[0][1]) != _HEAD.size:
        raise ValueError("it has no head")
    head = parts[0][1]
    width, height, depth, colours, compression, filtering, interlacing = _HEAD.unpack(head)
    if max(width, height) > MAX_EDGE:
        raise ValueError(f"it has {width} x {height} pixels, and {MAX_EDGE} x {MAX_EDGE} are the most")
    if not (width and height) or depth not in _DEPTHS.get(colours, ()) or compression or filtering:
        raise ValueError("its head is broken")
    if interlacing:
        raise ValueError("it is interlaced")
    palette = [body for kind, body in parts if kind == b"PLTE"]
    if colours == 3 and not (len(palette) == 1 and len(palette[0]) in range(3, 3 * 2**depth + 1, 3)):
        raise ValueError("its palette is broken")
    row = 1 + (width * _CHANNELS[colours] * depth + 7) // 8
    pixels = _checked(b"".join(body for kind, body in parts if kind == b"IDAT"), row, height)
    kept = [(b"IHDR", head), *((b"PLTE", one) for one in palette if colours == 3)]
    png = b"".join(_chunk(*one) for one in [*kept, (b"IDAT", pixels), (b"IEND", b"")])
    return Picture(_SIGNATURE + png, width, height)


def pictures_to_metadata(pictures: Sequence[Picture]) -> dict[str, str]:
    """Pictures as an entry for a message's metadata; nothing where there are none."""
    return {PICTURES_KEY: json.dumps([picture.to_base64() for picture in pictures])} if pictures else {}


def pictures_from_metadata(metadata: Mapping[str, str]) -> list[Picture]:
    """The pictures in a message's metadata, without what is none."""
    try:
        kept = _LIST.validate_json(metadata.get(PICTURES_KEY, "[]"))
    except ValidationError:
        return []
    found = map(picture_from_base64, kept[-_MOST:])
    return [picture for picture in found if picture is not None]


def picture_from_base64(text: str) -> Picture | None:
    """The picture that ``to_base64`` has made into this; ``None`` where it is none."""
    try:
        return read_picture(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        return None


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The parts of a PNG file, without those that it can be shown without."""
    if not data.startswith(_SIGNATURE):
        raise ValueError("it is no PNG")
    place, kind = len(_SIGNATURE), b""
    while kind != b"IEND":
        if place + 8 > len(data):
            raise ValueError("it is cut short")
        length, kind = struct.unpack_from(">I4s", data, place)
        body, end = place + 8, place + 8 + length
        if end + 4 > len(data):
            raise ValueError("it is cut short")
        if zlib.crc32(data[place + 4 : end]) != int.from_bytes(data[end : end + 4], "big"):
            raise ValueError("it is damaged")
        if kind in (b"IHDR", b"PLTE", b"IDAT", b"IEND"):
            yield kind, data[body:end]
        place = end + 4


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _checked(packed: bytes, row: int, rows: int) -> bytes:
    """The packed pixels, if they are so many rows of that many bytes, each with a filter that there is."""
    inflating, rest, size = zlib.decompressobj(), packed, 0
    try:
        while not inflating.eof:
            piece = inflating.decompress(rest, _PIECE)
            rest = inflating.unconsumed_tail
            if max(piece[-size % row :: row], default=0) > _LAST_FILTER:
                raise ValueError("its pixels are damaged")
            size += len(piece)
            if size > row * rows or not (piece or rest or inflating.eof):
                break
    except zlib.error:
        raise ValueError("its pixels are damaged") from None
    if not inflating.eof or size != row * rows:
        raise ValueError("its pixels are not as many as its head says")
    return packed[: len(packed) - len(inflating.unused_data)]
