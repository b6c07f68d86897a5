"""Processes that a program runs in the sandbox of an executor, as effects that go through the dispatcher."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import JsonValue, PlainSerializer, PlainValidator, TypeAdapter, ValidationError
from pydantic_core import to_json

from codeact_team.core.component_effects import WorkspaceEffect
from codeact_team.core.effects import Begin, End, error_text
from codeact_team.core.events import ProcessBegan, ProcessEnded
from codeact_team.errors import JournalError, SandboxError, SandboxLostError

_UNKNOWN = (
    "the run was interrupted while the process {!r} ran. Its effects are not known, and it was not run again: find out "
    "before you do"
)
_Kind: TypeAlias = Literal["OSError", "LookupError", "SandboxLostError", "SandboxError"]


def _to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _from_base64(text: object) -> bytes:
    return base64.b64decode(str(text), validate=True)


Bytes = Annotated[bytes, PlainSerializer(_to_base64), PlainValidator(_from_base64)]
"""Bytes that are base64 in JSON."""


@dataclass(frozen=True)
class ProcessFailure:
    """The error of a process whose end is not known.

    Attributes:
        kind: The class of the exception.
        text: Its text; for an ``OSError``, the system's message.
        errno: The error number of an ``OSError``.
        filename: The file that an ``OSError`` names, if it does.
    """

    kind: _Kind
    text: str
    errno: int | None = None
    filename: str | None = None

    @classmethod
    def of(cls, error: OSError | LookupError | SandboxLostError) -> ProcessFailure:
        """Describe an exception."""
        if isinstance(error, OSError):
            filename = None if error.filename is None else str(error.filename)
            return cls("OSError", error.strerror or str(error), error.errno, filename)
        return cls("LookupError" if isinstance(error, LookupError) else "SandboxLostError", str(error))

    def exception(self) -> Exception:
        """The exception, once more. The class of an ``OSError`` follows from its number."""
        match self.kind:
            case "OSError" if self.errno is None:
                return OSError(self.text)
            case "OSError" if self.filename is None:
                return OSError(self.errno, self.text)
            case "OSError":
                return OSError(self.errno, self.text, self.filename)
            case "LookupError":
                return LookupError(self.text)
            case "SandboxLostError":
                return SandboxLostError(self.text)
            case "SandboxError":
                return SandboxError(self.text)


@dataclass(frozen=True)
class ProcessOutcome:
    """The end of a process.

    Attributes:
        returncode: Its exit code, negative for a signal; ``None`` if it has none that is known.
        stdout: The newest bytes that it has written, as far as the program has asked for them.
        stderr: The newest bytes of its stderr.
        stdout_omitted: The number of bytes before them that were dropped.
        stderr_omitted: The same for stderr.
        limit: The limit of the sandbox that it ran into, in a sentence.
        timed_out: Whether its time was over.
        failure: Why it could not start, or its end is not known.
    """

    returncode: int | None = None
    stdout: Bytes = b""
    stderr: Bytes = b""
    stdout_omitted: int = 0
    stderr_omitted: int = 0
    limit: str | None = None
    timed_out: bool = False
    failure: ProcessFailure | None = None

    @property
    def is_lost(self) -> bool:
        """Whether its sandbox has ended before it."""
        return self.failure is not None and self.failure.kind == "SandboxLostError"


_FORM = TypeAdapter(ProcessOutcome)


def outcome_of(data: JsonValue) -> ProcessOutcome:
    """The outcome that was dumped.

    Raises:
        JournalError: If it is none, such as where its output has a placeholder for a credential.
    """
    try:
        return _FORM.validate_python(data)
    except ValidationError as error:
        raise JournalError(
            "the outcome of a process cannot be read: its output had a credential that was not kept, or the journal is damaged"
        ) from error


class ProcessEffect(WorkspaceEffect[ProcessOutcome]):
    """A process in the sandbox of an executor.

    Its request has of variables their names and of the input its size. Who records it tells requests apart by a digest.

    Args:
        executor: The executor.
        settings: All that the process is started with, as JSON, except for variables and input. It has ``argv`` and ``cwd``.
        env: Its variables.
        input: The content of its stdin; ``None`` if that is empty, or not known yet.
    """

    form = _FORM
    is_job: ClassVar[bool] = False
    fails_undone = True

    def __init__(
        self,
        executor: object,
        settings: Mapping[str, JsonValue],
        env: Mapping[str, str] | None = None,
        input: bytes | None = None,
    ) -> None:
        self.part = executor
        self._settings = dict(settings)
        self._names = sorted(env or {})
        self._input_size = None if input is None else len(input)
        self.hidden: bytes | None = (
            to_json(sorted((env or {}).items())) + (input or b"") if env or input else None
        )
        """The values of the variables, and the input, which may be secrets."""

    @property
    def _argv(self) -> Sequence[str]:
        argv = self._settings["argv"]
        assert isinstance(argv, list), "a program and its arguments"
        return [str(one) for one in argv]

    def request(self) -> JsonValue:
        return {**self._settings, "variables": [*self._names], "input_size": self._input_size}

    def load(self, data: JsonValue) -> ProcessOutcome:
        return outcome_of(data)

    def unknown(self) -> ProcessOutcome:
        return ProcessOutcome(failure=ProcessFailure("SandboxError", _UNKNOWN.format(self._argv[0])))

    @classmethod
    def began(cls, begin: Begin) -> ProcessBegan:
        return ProcessBegan(
            argv=begin.request["argv"],
            cwd=begin.request.get("cwd"),
            is_job=cls.is_job,
            variables=begin.request["variables"],
            input_size=begin.request["input_size"],
        )

    @classmethod
    def ended(cls, end: End) -> ProcessEnded:
        event = ProcessEnded(error=end.error)
        if end.outcome is not None:
            event.returncode, event.limit = end.outcome["returncode"], end.outcome["limit"]
            if (failed := end.outcome["failure"]) is not None:
                event.error = error_text(ProcessFailure(**failed).exception())
            elif end.outcome["timed_out"]:
                event.error = "TimeoutExpired: its time was up"
        return event


class ProcessRun(ProcessEffect):
    """A process that runs to its end."""

    kind = "process"


class ProcessJob(ProcessEffect):
    """A process that runs while other things happen: an effect from its start until it ends or is closed."""

    kind = "job"
    is_job = True
