"""What the host and the sandbox say to each other: frames over one duplex byte stream.

A frame is a kind (one byte), the length of its payload (four bytes, big-endian), and the payload: JSON, unless
:class:`Kind` says otherwise. Between the host and the supervisor one request is under way at a time; only
``INTERRUPT``, ``KILL`` and ``ANSWER`` may come while a block runs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from enum import IntEnum

KIB = 1024
MIB = 1024 * KIB
MAX_FILE_BYTES = 64 * MIB
MAX_LISTED_FILES = 10_000
MAX_CODE_BYTES = 8 * MIB
MAX_ARTIFACTS, MAX_ARTIFACT_BYTES = 32, 32 * MIB
"""How many artifacts one block, or one call of several, may have, and how much these may hold together."""
MAX_CALL_BYTES, MAX_ANSWER_BYTES = 1 * MIB, 16 * MIB
"""How long the call of a tool, and the answer to one, may be."""
MAX_CALLS_AT_ONCE, MAX_CALL_BYTES_AT_ONCE = 64, 4 * MIB
"""How many calls of a block may be unanswered, and how long these may be together. The interpreter holds back what
exceeds it, so more are an attack."""

_MAX_REPORT_BYTES = 512 * KIB
_MAX_OUTPUT_BYTES = 1 * MIB

_HEADER = struct.Struct(">BI")
RUN_HEAD = struct.Struct(">II")
"""What precedes the code of a block: the number of the interpreter that is meant, and that of the block."""
RESULT_HEAD = struct.Struct(">II?hiiqHI")
"""What a result begins with; see :attr:`Kind.RESULT`."""
NONE = -1
"""Stands for a number that is not known."""


class Kind(IntEnum):
    """What a frame is."""

    # from the host
    RUN = 1
    """Run a block of Python: :data:`RUN_HEAD`, then the code. It runs in the interpreter with that number and in no other.
    The supervisor passes it on as it is. Answered by ``OUTPUT`` and ``ARTIFACT`` frames while it runs, and one
    ``RESULT``."""
    INTERRUPT = 2
    """Send SIGINT to the block that runs; without effect if none does. No payload, no answer of its own."""
    KILL = 3
    """End the block that runs, and all it has started; without effect if none does. No payload, no answer of its own."""
    RESTART = 4
    """End everything and start a fresh interpreter. No payload; answered by ``READY``."""
    PUT = 5
    """Write a file: its ``path`` in the workspace as a line of JSON, then its bytes. Answered by ``DONE`` or ``FAILED``."""
    GET = 6
    """Read the file ``path``. Answered by ``FILE`` frames and ``DONE``, or ``FAILED``."""
    LIST = 7
    """List the workspace. No payload; answered by ``DONE``."""
    TOOLS = 8
    """The functions of the host that Python blocks may call from now on, also in the interpreters to come: ``tools``, a
    list of declarations (see :attr:`codeact_team.execution.HostTools.declarations`). Comes between blocks; no answer."""
    ANSWER = 9
    """What came of a ``CALL``: its ``id``, and either ``content``, a list of objects that have a ``value``, or
    ``mime_type`` and ``data`` (base64); or ``error``, a message, and ``outcome``, a
    :class:`codeact_team.execution.CallOutcome`. Dropped where the block has ended."""
    SHELL = 10
    """Run a block in a shell: its name, ``sh`` or ``bash``, as a line, then the code. Answered like ``RUN``."""

    # from the supervisor
    READY = 33
    """The supervisor can be asked: ``interpreter`` (the number of the present one; they are numbered from 1),
    ``unguarded`` (why code could tamper with it, or null)."""
    OUTPUT = 34
    """Bytes that were written to stdout and stderr."""
    RESULT = 35
    """How a block ended: :data:`RESULT_HEAD`, which holds

    - the number of the interpreter that was to run the block, 0 for a shell, and that of the present one. If they
      differ, the block's is gone, and the next block can have the present one;
    - whether the code began to run; the exit code, ``NONE`` if the interpreter reports it;
    - how often, since the block began, a process was killed for memory, and could not be started: each ``NONE`` where
      nobody counts;
    - the microseconds of processor time that everything here has used since the last result, ``NONE`` if not known;
    - the lengths of the first two texts that follow: why the interpreter before the present one is gone; the last of
      the output; and the interpreter's report, if there is one, whatever it has sent as that."""
    FILE = 36
    """The next bytes of a file."""
    DONE = 37
    """A file request is done: ``files`` for ``LIST``, a list of pairs of path and size in bytes, as many as there is room
    for; else no payload."""
    FAILED = 38
    """A file request cannot be done: ``error``, the name of an ``OSError`` class or ``OSError``, and ``message``."""

    # from the interpreter to the supervisor, each payload preceded by the token of the block
    REPORT = 65
    """How a block ended, by the code's own account: the exit code (one byte), and, if there is more to say, ``names`` (a
    list of objects with ``name``, ``type``, ``size`` and ``preview``), ``omitted_names`` (how many more), ``answer``
    (what ``final_answer`` was called with, as text, or null), ``answer_is_json`` (whether that is the JSON of the value),
    ``answer_problem`` (why JSON does not have the value, or why the text is cut), ``denied`` (whether it ended with a
    call that was not approved)."""
    ARTIFACT = 66
    """A picture or the like: ``mime_type`` as a line of JSON, then its bytes. The supervisor passes it on, without the
    token."""
    CALL = 67
    """Call a function of the host: first ``id`` (a number not in use), ``name`` (as declared), ``arguments`` (an object).
    Passed on to the host, without the token, while the block runs; dropped otherwise. Answered by ``ANSWER``, in any
    order."""
    CANCEL = 68
    """Nobody waits for the answer to the call ``id`` any more; at most once for each. Passed on like that. It is answered
    all the same."""


TOKEN_BYTES = 16
"""How long the token is that belongs to each block, and that only its report may bear."""

FROM_HOST: Mapping[int, int] = {
    Kind.RUN: MAX_CODE_BYTES + 1 * KIB,
    Kind.SHELL: MAX_CODE_BYTES + 1 * KIB,
    Kind.INTERRUPT: 0,
    Kind.KILL: 0,
    Kind.RESTART: 0,
    Kind.PUT: MAX_FILE_BYTES + 64 * KIB,
    Kind.GET: 64 * KIB,
    Kind.LIST: 0,
    Kind.TOOLS: 4 * MIB,
    Kind.ANSWER: MAX_ANSWER_BYTES,
}
"""The frames that the host sends, with the size of the largest payload."""

FROM_SUPERVISOR: Mapping[int, int] = {
    Kind.READY: 64 * KIB,
    Kind.OUTPUT: _MAX_OUTPUT_BYTES,
    Kind.ARTIFACT: 8 * MIB,
    Kind.CALL: MAX_CALL_BYTES,
    Kind.CANCEL: 1 * KIB,
    Kind.RESULT: _MAX_OUTPUT_BYTES + _MAX_REPORT_BYTES + 128 * KIB,
    Kind.FILE: 1 * MIB,
    Kind.DONE: 4 * MIB,
    Kind.FAILED: 64 * KIB,
}
"""The frames that the supervisor sends, with the size of the largest payload."""

TO_INTERPRETER: Mapping[int, int] = {
    Kind.RUN: FROM_HOST[Kind.RUN] + TOKEN_BYTES,
    Kind.TOOLS: FROM_HOST[Kind.TOOLS] + TOKEN_BYTES,
}
"""The frames that the supervisor sends to the interpreter as commands; the token of the block, zeros where there is
none, precedes the payload."""

ANSWERS: Mapping[int, int] = {Kind.ANSWER: FROM_HOST[Kind.ANSWER] + TOKEN_BYTES}
"""The frames that the supervisor sends to the interpreter on a pipe of their own: a thread of it waits for them while a
block runs."""

FROM_INTERPRETER: Mapping[int, int] = {
    Kind.REPORT: _MAX_REPORT_BYTES + TOKEN_BYTES,
    **{kind: FROM_SUPERVISOR[kind] + TOKEN_BYTES for kind in (Kind.ARTIFACT, Kind.CALL, Kind.CANCEL)},
}
"""The frames that the interpreter sends, with the size of the largest payload, the token included."""


class ProtocolError(Exception):
    """Bytes that are no frame of those expected."""


def frame(kind: Kind, *payload: bytes) -> bytes:
    """A frame of ``kind``, its payload given in pieces."""
    return b"".join((_HEADER.pack(kind, sum(map(len, payload))), *payload))


class FrameReader:
    """Takes frames out of a byte stream that may hold anything.

    Holds back no more than one frame, and none that is not ``expected``: of another kind, or larger than said there.
    """

    def __init__(self, expected: Mapping[int, int]) -> None:
        self._expected = {int(kind): (Kind(kind), limit) for kind, limit in expected.items()}
        self._buffer = bytearray()

    @property
    def held(self) -> bytes:
        """What has come of a frame that is not complete yet."""
        return bytes(self._buffer)

    def feed(self, data: bytes) -> Iterator[tuple[Kind, bytes]]:
        """The frames that are complete with ``data``. To be read to the end.

        Raises:
            ProtocolError: If what comes is no frame of those expected.
        """
        held = self._buffer
        if held:
            held += data
        stream = held or data
        size, start = len(stream), 0
        try:
            while size - start >= _HEADER.size:
                number, length = _HEADER.unpack_from(stream, start)
                kind, limit = self._expected.get(number, (None, 0))
                if kind is None:
                    raise ProtocolError(f"no frame of kind {number} is expected")
                if length > limit:
                    raise ProtocolError(f"a frame of kind {number} has {length} bytes, more than {limit}")
                end = start + _HEADER.size + length
                if size < end:
                    break
                payload = bytes(stream[start + _HEADER.size : end])
                start = end
                yield kind, payload
        finally:
            if held:
                del held[:start]
            elif start < size:
                held += memoryview(data)[start:]
