"""What the supervisor in a sandbox replies: checked, bounded, and never believed further than that."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from codeact_team.sessions.protocol import MAX_LISTED_FILES, NONE, RESULT_HEAD, ProtocolError


class Name(BaseModel):
    """A global name that the block has bound, by the code's own account."""

    model_config = ConfigDict(extra="ignore", strict=True)

    name: str = Field(max_length=1000)
    type: str = Field(max_length=1000)
    size: str | None = Field(None, max_length=1000)
    preview: str | None = Field(None, max_length=1000)


class Report(BaseModel):
    """The interpreter's account of a block."""

    model_config = ConfigDict(extra="ignore", strict=True)

    exit_code: int = 0
    names: tuple[Name, ...] = Field(default=(), max_length=100)
    omitted_names: int = Field(default=0, ge=0)
    answer: str | None = None
    answer_is_json: bool = False
    answer_problem: str = Field(default="", max_length=10_000)
    denied: bool = False


@dataclass(slots=True)
class Account:
    """The supervisor's account of a block; see ``Kind.RESULT``.

    Attributes:
        interpreter: The number of the interpreter that was to run it; 0 for a shell.
        present: The number of the present interpreter.
        ran: Whether the code began to run.
        exit_code: ``None`` if the interpreter reports it.
        oom_kills: Since the block began; ``None`` where nobody counts.
        fork_failures: The same.
        processor_seconds: What everything inside has used since the last account; ``None`` if not known.
        loss: Why the interpreter before the present one is gone.
        output: The last of the block's output.
    """

    interpreter: int
    present: int
    ran: bool
    exit_code: int | None
    oom_kills: int | None
    fork_failures: int | None
    processor_seconds: float | None
    loss: str
    output: bytes
    _report: bytes

    @property
    def lost(self) -> str | None:
        """Why the interpreter of the block is gone, if it is."""
        return self.loss if self.interpreter not in (0, self.present) else None

    @classmethod
    def read(cls, payload: bytes) -> Self:
        """The account that ``payload`` is.

        Raises:
            ProtocolError: If it is none.
        """
        try:
            (
                interpreter,
                present,
                ran,
                code,
                kills,
                failures,
                microseconds,
                of_loss,
                of_output,
            ) = RESULT_HEAD.unpack_from(payload)
        except struct.error:
            raise ProtocolError("it is no result") from None
        output = RESULT_HEAD.size + of_loss
        report = output + of_output
        if report > len(payload):
            raise ProtocolError("a result is cut short")
        return cls(
            interpreter,
            present,
            ran,
            None if code == NONE else code,
            None if kills == NONE else kills,
            None if failures == NONE else failures,
            None if microseconds < 0 else microseconds / 1_000_000,
            payload[RESULT_HEAD.size : output].decode(errors="replace") if of_loss else "",
            payload[output:report],
            payload[report:],
        )

    def read_report(self) -> Report | None:
        """The interpreter's account, or ``None`` where there is none that can be read."""
        if not self._report:
            return None
        code, more = self._report[0], self._report[1:]
        if not more:
            return _plain_report(code)
        try:
            report = Report.model_validate_json(more)
        except ValidationError:
            return None
        report.exit_code = code
        return report


@cache
def _plain_report(exit_code: int) -> Report:
    return Report(exit_code=exit_code)


class ArtifactHead(BaseModel):
    """What precedes the bytes of an artifact; see ``Kind.ARTIFACT``."""

    mime_type: str = Field(max_length=100)


class Listing(BaseModel):
    """The files of a workspace, with their sizes in bytes; see ``Kind.DONE``."""

    files: list[tuple[str, int]] = Field(max_length=MAX_LISTED_FILES)


class Failure(BaseModel):
    """Why a file request failed; see ``Kind.FAILED``."""

    error: str
    message: str


class Forked(BaseModel):
    """Whether a session was forked; see ``Kind.FORKED``."""

    refused: str | None = Field(max_length=10_000)


class Greeting(BaseModel):
    """What the supervisor says of itself; see ``Kind.READY``."""

    model_config = ConfigDict(extra="ignore", strict=True)

    interpreter: int = Field(ge=1, lt=2**32)
    unguarded: str | None = None
