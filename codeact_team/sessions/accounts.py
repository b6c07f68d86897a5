"""How a block ended, as the sandbox tells it: checked, bounded, and never believed further than that."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from codeact_team.sessions.protocol import MAX_LISTED_FILES


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

    exit_code: int = Field(ge=0, le=255)
    interrupted: bool = False
    names: list[Name] = Field(default_factory=list[Name], max_length=100)
    omitted_names: int = Field(0, ge=0)
    answer: str | None = None
    denied: bool = False


class Account(BaseModel):
    """The supervisor's account of a block; see ``Kind.RESULT``."""

    model_config = ConfigDict(extra="ignore", strict=True)

    exit_code: int | None
    ran: bool = True
    lost: str | None = None
    oom_kills: int | None = None
    fork_failures: int | None = None
    _report: bytes = PrivateAttr(b"")

    @classmethod
    def read(cls, payload: bytes) -> Self:
        """The account that ``payload`` is.

        Raises:
            ValidationError: If it is none.
        """
        head, _, report = payload.partition(b"\n")
        account = cls.model_validate_json(head)
        account._report = report
        return account

    def read_report(self) -> Report | None:
        """The interpreter's account, or ``None`` where there is none that can be read."""
        try:
            return Report.model_validate_json(self._report) if self._report else None
        except ValidationError:
            return None


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


class Greeting(BaseModel):
    """What the supervisor says of itself; see ``Kind.READY``."""

    model_config = ConfigDict(extra="ignore", strict=True)

    python: str
    unguarded: str | None = None
