"""The results of code: outcome, output, names, pictures, and missing modules."""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from io import BytesIO
from typing import Any

from autogen_core import Image
from autogen_core.code_executor import CodeResult
from PIL import Image as pillow
from pydantic import JsonValue, TypeAdapter, ValidationError

from codeact_team.core.showing import bundle_of_artifact, bundle_of_result, few_words, in_few_words


class Outcome(StrEnum):
    """The end of an execution of code blocks."""

    COMPLETED = "completed"
    """The code ran to its own end, with whatever exit code."""
    TIMED_OUT = "timed_out"
    """The time limit stopped it."""
    CANCELLED = "cancelled"
    """The caller stopped it."""
    DENIED = "denied"
    """It was not approved and did not run."""
    NOT_RUN = "not_run"
    """It could not be run: an unusable file name or an unknown language."""
    LOST = "lost"
    """The sandbox ended under it; the next call gets a fresh one."""


@dataclass(frozen=True, repr=False)
class Artifact:
    """Output of a block that is more than text, in one or more forms, such as ``image/png`` and ``text/html``; hostile data.

    Attributes:
        mime_type: The type of its best form, such as ``image/png``.
        data: The content of that form.
        file: The file in which the code has saved it itself, by its path in the workspace, if it has.
        other_forms: Its other forms by their types, at most nine. ``text/plain`` is what the block has printed of it.
    """

    mime_type: str
    data: bytes
    file: str | None = None
    other_forms: Mapping[str, bytes] = field(default_factory=dict[str, bytes], hash=False)

    @property
    def forms(self) -> dict[str, bytes]:
        """All its forms by their types, the best one first."""
        return {self.mime_type: self.data, **self.other_forms}

    @property
    def size(self) -> int:
        """The bytes of all its forms."""
        return len(self.data) + sum(map(len, self.other_forms.values()))

    def __repr__(self) -> str:
        told = {
            "mime_type": self.mime_type,
            "size": self.size,
            "file": self.file,
            "other_forms": [*self.other_forms],
        }
        return in_few_words(self, {name: told[name] for name in told if told[name]})

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return bundle_of_artifact(repr(self), self.forms)


Bytes = Callable[[str], bytes | None]
"""Returns an artifact by its SHA-256; ``None`` where it is gone."""


def bare_type(mime_type: str) -> str:
    """A MIME type that code has given, in lower case and without its parameters."""
    return mime_type.partition(";")[0].strip().lower()


@dataclass(frozen=True)
class FormReference:
    """A form of an artifact without its bytes.

    Attributes:
        mime_type: Its type, such as ``image/png``.
        size: The number of its bytes.
        sha256: The digest of these in hexadecimal digits.
    """

    mime_type: str
    size: int
    sha256: str


@dataclass(frozen=True)
class ArtifactReference(FormReference):
    """An artifact without its bytes: its best form, and what else is known of it.

    Attributes:
        file: The file in which the code has saved it itself, by its path in the workspace, if it has.
        other_forms: Its other forms.
    """

    file: str | None = None
    other_forms: Sequence[FormReference] = ()

    @classmethod
    def of(cls, artifact: Artifact) -> ArtifactReference:
        """The reference to an artifact."""
        best, *others = ((kind, len(data), sha256(data).hexdigest()) for kind, data in artifact.forms.items())
        return cls(*best, artifact.file, [FormReference(*other) for other in others])


@dataclass(repr=False)
class ExecutionResult(CodeResult):
    """AutoGen's ``CodeResult`` with more fields.

    Attributes:
        exit_code: 0 for success; of the last block that ran.
        output: What the blocks wrote, stdout and stderr in order, bounded; hostile data.
        outcome: How it ended.
        code_file: Host path of the first block's file where the workspace is a directory of the host; a name only,
            never to be opened without refusing symbolic links.
        limit: The limit that stopped the code, and the config field that sets it.
        omitted_bytes: How many bytes of output were dropped from the middle.
        seconds: Wall-clock time from the first block's start to the last block's end, without the time that a person takes.
        processor_seconds: Processor time of the sandbox since the previous call; ``None`` if that is not known.
        missing_module: The missing Python module that ended the code, by its last output.
        files: The sizes in bytes of the files that the code has made or changed, by their paths in the workspace, if an agent
            has asked for them; a hundred at most.
        saved_pictures: The pictures among them, if an agent has read them.
    """

    outcome: Outcome = Outcome.COMPLETED
    code_file: str | None = None
    limit: str | None = None
    omitted_bytes: int = 0
    seconds: float = 0.0
    processor_seconds: float | None = None
    missing_module: str | None = None
    files: dict[str, int] = field(default_factory=dict[str, int])
    saved_pictures: list[Artifact] = field(default_factory=list[Artifact])

    def __repr__(self) -> str:
        return few_words(self)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        rest = few_words(self, without=("output", "artifacts", "saved_pictures"))
        return bundle_of_result(repr(self), rest, self.output, [one.forms for one in self._shown])

    @property
    def _shown(self) -> Sequence[Artifact]:
        return self.saved_pictures


@dataclass(frozen=True, repr=False)
class BoundName:
    """A global name that a block has bound; hostile data.

    Attributes:
        name: The name.
        type: The name of its value's type, such as ``ndarray``.
        size: The value's shape or length in words, such as ``(3, 4)`` or ``10 items``, if it has one.
        preview: The beginning of the value's text, if that is known without running its code.
    """

    name: str
    type: str
    size: str | None = None
    preview: str | None = None

    def __repr__(self) -> str:
        return few_words(self)


@dataclass(repr=False)
class SessionResult(ExecutionResult):
    """A result of code that runs in a living interpreter.

    Attributes:
        state_lost: Whether the interpreter that held the variables is gone; the next block gets a fresh one.
        names: The names bound by the blocks, at most a few dozen.
        omitted_names: The number of further names.
        artifacts: Figures, pictures and tables, in order.
        answer: What the code called ``final_answer`` with, as text; the first call counts. ``None`` if it did not.
        answer_is_json: Whether that text is the JSON of the value; if not, the value is that text, or there is a problem.
        answer_problem: Why the value is none that JSON has, or is not whole in that text.
        denied: Whether a denied call of a tool ended the code, by the code's own account.
        output_file: The file of the workspace with the whole output, if an agent has kept it.
    """

    state_lost: bool = False
    names: list[BoundName] = field(default_factory=list[BoundName])
    omitted_names: int = 0
    artifacts: list[Artifact] = field(default_factory=list[Artifact])
    answer: str | None = None
    answer_is_json: bool = False
    answer_problem: str = ""
    denied: bool = False
    output_file: str | None = None

    @property
    def _shown(self) -> Sequence[Artifact]:
        return [*self.artifacts, *self.saved_pictures]


class CallOutcome(StrEnum):
    """The outcome of a tool call."""

    OK = "ok"
    """The tool returned."""
    FAILED = "failed"
    """The tool had an error."""
    TIMED_OUT = "timed_out"
    """The tool's time limit stopped it."""
    DENIED = "denied"
    """It was not approved, and the tool was not called."""
    REFUSED = "refused"
    """The tool was not called: it is not offered, the arguments are wrong, or a limit is reached."""
    CANCELLED = "cancelled"
    """The block ended, or nobody waited for it any more."""


@dataclass(frozen=True)
class CallAnswer:
    """The answer to a tool call."""

    outcome: CallOutcome = CallOutcome.OK
    content: Sequence[JsonValue | Artifact] = ()
    """The tool's result: one value, or for MCP several pieces, such as media."""
    error: str = ""
    """The error for the model, unless the outcome is ``OK``."""


class HostTools(ABC):
    """The functions of the host that the code of one execution may call."""

    @property
    @abstractmethod
    def declarations(self) -> Sequence[Mapping[str, JsonValue]]:
        """The declarations for the sandbox. The same object as long as they are the same.

        ``name``: the dotted path below ``tools`` by which code calls it, at most two identifiers; ``doc``: its
        docstring; ``parameters``: a list of objects with ``name`` (an identifier), ``key`` (its name in the arguments),
        ``annotation`` (as it is shown), ``required``, ``default`` (a value, if it has one) and ``keyword_only``;
        ``returns``: an annotation or null; ``takes_others``: whether it may be called with other keywords, too.
        """

    @property
    @abstractmethod
    def max_parallel(self) -> int:
        """The most calls that run at the same time."""

    @property
    def rights(self) -> object:
        """Agents share an interpreter only if their rights are equal (``==``). Default: nobody shares."""
        return self

    @abstractmethod
    async def call(
        self,
        name: str,
        arguments: dict[str, JsonValue],
        *,
        pause: Callable[[], AbstractContextManager[None]],
    ) -> CallAnswer:
        """Call a tool. Errors are answers; only a cancellation is raised.

        Args:
            name: The name, which hostile code may have made up.
            arguments: The arguments, unchecked.
            pause: A context manager in which the time of the block stops, as while a person is asked.
        """


WELL_KNOWN = tuple(
    """
    numpy pandas polars pyarrow duckdb scipy statsmodels sympy scikit-learn xgboost lightgbm torch tensorflow
    transformers matplotlib seaborn plotly pillow networkx opencv-python-headless opencv-python openpyxl
    xlrd fastexcel xlsxwriter python-docx pypdf tabulate beautifulsoup4 lxml pyyaml requests httpx sqlalchemy pydantic pytest
    """.split()
)
"""Packages that models know well."""

_PACKAGES = {
    "PIL": "pillow",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "docx": "python-docx",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
_MAX_LAST_WORDS = 4000
_LAST_WORDS = re.compile(
    r"^(?:ModuleNotFoundError|ImportError): (.*(?:\n(?: - |A suitable |Trying to |Please install ).*)*)\Z",
    re.MULTILINE,
)
"""An error of an import at the end of an output. Those of pandas and polars may have several lines."""
_WORDINGS = re.compile(
    "|".join(
        wording.replace("NAME", r"([A-Za-z_][\w.-]{0,99})")
        for wording in (
            "No module named 'NAME'",
            "Missing optional dependency 'NAME'",
            "`?Import NAME`? failed",
            "requires 'NAME'",
            "requires (?:the )?(?:(?:package|library|module|optional dependency) )?NAME (?:to be installed|package|library|module)",
            "^NAME not found, please install",
            "^NAME is required for",
            "(?:pip|conda) install ['\"]?NAME",
        )
    ),
    re.ASCII,
)


def missing_module(output: str) -> str | None:
    """The missing module that has ended a program, by the error at the end of its output, which may be hostile."""
    last = _LAST_WORDS.search(output.rstrip()[-_MAX_LAST_WORDS:])
    found = None if last is None else _WORDINGS.search(last[1])
    if found is None:
        return None
    module = str(found[found.lastindex or 0]).partition(".")[0]
    return None if module in sys.stdlib_module_names else module


def advice(module: str) -> str:
    """Advice for the person who is to add a module. Only well-known packages are named, as code can ask for any."""
    package = _PACKAGES.get(module, module.lower())
    name = package if package in WELL_KNOWN else "NAME"
    return (
        f"`--package {name}` on the command line, `packages: [{name}]` in the settings of the executor, or an image that "
        "has it"
    )


def remark(module: str, *, has_network: bool) -> str:
    """The remark for the model below the output."""
    no_way = "" if has_network else ", and nothing can be installed from inside: there is no network"
    return (
        f"The sandbox has no module {module!r}{no_way}. Use what is there. If that is not enough, say so: the user can add "
        f"it by {advice(module)}."
    )


PICTURES_KEY = "codeact_team.pictures"
"""The metadata key for the latest pictures of the work, as JSON."""

MAX_EDGE = 4096
"""Pixels; models reduce what is larger than half of that."""
MAX_BYTES = 1 << 20

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEAD = struct.Struct(">IIBBBBB")
_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
"""Valid bits per channel, by the type of colour."""
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_LAST_FILTER = 4
_PIECE = 1 << 20
_MOST = 32
"""Pictures of one message that are read."""
_LIST = TypeAdapter(list[str])


class Picture(Image):
    """A PNG picture, as :func:`read_picture` made it, for AutoGen's model clients without decoding and encoding it."""

    def __init__(self, png: bytes, width: int, height: int) -> None:
        # not AutoGen's, which decodes
        self.png = png
        self.width = width
        self.height = height

    @property
    def image(self) -> pillow.Image:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The picture with pixels, decoded on access."""
        return pillow.open(BytesIO(self.png), formats=["PNG"])

    def to_base64(self) -> str:
        return base64.b64encode(self.png).decode()


@dataclass(frozen=True)
class Drawn:
    """The readable pictures among artifacts, and the problems of the others."""

    pictures: Sequence[Picture] = ()
    problems: Sequence[str] = field(default=())


def read_drawn(artifacts: Sequence[Artifact]) -> Drawn:
    """Read the pictures among artifacts. Takes a while for large ones."""
    pictures: list[Picture] = []
    problems: list[str] = []
    for artifact in artifacts:
        if (data := artifact.forms.get("image/png")) is not None:
            try:
                pictures.append(read_picture(data))
            except ValueError as error:
                problems.append(f"A picture cannot be shown: {error}.")
    return Drawn(pictures, problems)


def read_picture(data: bytes) -> Picture:
    """Read a PNG picture: all fields that a decoder relies on are checked, and chunks not needed are left out.

    A model's server may refuse a whole conversation for one broken picture.

    Raises:
        ValueError: If it is broken, too large, or of an unsupported kind, such as interlaced.
    """
    if len(data) > MAX_BYTES:
        raise ValueError(f"it has {len(data) / 1e6:.1f} MB; at most {MAX_BYTES / 1e6:.1f} MB are possible")
    parts = list(_chunks(data))
    if parts[0][0] != b"IHDR" or len(parts[0][1]) != _HEAD.size:
        raise ValueError("it has no header")
    head = parts[0][1]
    width, height, depth, colours, compression, filtering, interlacing = _HEAD.unpack(head)
    if max(width, height) > MAX_EDGE:
        raise ValueError(f"it has {width} x {height} pixels; at most {MAX_EDGE} x {MAX_EDGE} are possible")
    if not (width and height) or depth not in _DEPTHS.get(colours, ()) or compression or filtering:
        raise ValueError("its header is broken")
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
    """Pictures as an entry for a message's metadata; nothing if there are none."""
    return {PICTURES_KEY: json.dumps([picture.to_base64() for picture in pictures])} if pictures else {}


def pictures_from_metadata(metadata: Mapping[str, str]) -> list[Picture]:
    """The valid pictures in a message's metadata."""
    try:
        kept = _LIST.validate_json(metadata.get(PICTURES_KEY, "[]"))
    except ValidationError:
        return []
    found = map(picture_from_base64, kept[-_MOST:])
    return [picture for picture in found if picture is not None]


def picture_from_base64(text: str) -> Picture | None:
    """Decode what ``to_base64`` returned; ``None`` if it is no picture."""
    try:
        return read_picture(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        return None


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The chunks of a PNG file that are needed to show it."""
    if not data.startswith(_SIGNATURE):
        raise ValueError("it is not a PNG")
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
    """Check that packed pixels are ``rows`` rows of ``row`` bytes with known filters, and return them."""
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
        raise ValueError("the number of its pixels differs from what its header says")
    return packed[: len(packed) - len(inflating.unused_data)]
