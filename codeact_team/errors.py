"""Every exception this package raises on its own account.

    CodeActTeamError
    ├── SettingError            an argument is wrong, or cannot be written to a config
    ├── ConfigError             a config document is wrong: file, line and path in the document
    │   └── NotAllowedError     a component that the allow-list, or safety, keeps out
    ├── BudgetError             a limit of a team is reached, before more was spent
    ├── ModelError              a model's server answers with what is no answer
    │   └── AnswerCutOffError   a model's server ends its answer before the end
    ├── WorkbenchError          tools cannot be had, as their MCP server does not start
    └── SandboxError            code cannot run on this machine as asked
        ├── EngineError         the container engine, or an image, is missing or refuses
        ├── ForkError           a session cannot be copied as it is now
        └── ConfinementError    the kernel cannot enforce what confinement requires

Code that fails, a program that is killed and a model that answers nonsense are results, never exceptions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class CodeActTeamError(Exception):
    """Base of all errors of this package; its text says what is wrong and what to do.

    Attributes:
        guide: The topic of ``codeact-team help`` that tells more, or ``None``.
    """

    guide: ClassVar[str | None] = None


class SettingError(CodeActTeamError, ValueError):
    """An argument that cannot work, or that cannot be written to a config."""


class ConfigError(CodeActTeamError):
    """A config document that cannot be used.

    Args:
        message: What is wrong and what to do.
        file: The document's name, or the override that says it, such as ``-s config.max_turns``.
        line: Line in the document, counted from 1.
        path: Where in the document, such as ``config.participants.0.provider``, or in what the override sets.
        problems: What is wrong one by one, where this tells of several things.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        line: int | None = None,
        path: str | None = None,
        problems: Sequence[ConfigError] = (),
    ) -> None:
        place = ":".join(str(part) for part in (file, line) if part is not None)
        super().__init__(": ".join(part for part in (place, path, message) if part))
        self.message = message
        self.file = file
        self.line = line
        self.path = path
        self.problems: tuple[ConfigError, ...] = tuple(problems) or (self,)


class NotAllowedError(ConfigError):
    """A component or a dotted path that may not be loaded unless asked for."""

    guide = "security"


class BudgetError(CodeActTeamError):
    """A team has used up what it may spend, and its work was broken off before it spent more."""

    guide = "budgets"


class ModelError(CodeActTeamError, RuntimeError):
    """A model's server answers with what is no answer of a model."""


class AnswerCutOffError(ModelError):
    """A model's server has ended its answer before the end, which it may not do a little later.

    Args:
        what: What it has done.
    """

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}: a server that serves one request at a time does this while other requests wait; then run a batch with "
            "--concurrency 1. Try again; if it happens again, check the server, and any proxy in between"
        )


class WorkbenchError(CodeActTeamError, RuntimeError):
    """Tools cannot be had: a server does not start, has died, or offers what cannot be used."""

    guide = "tools"


class JournalError(CodeActTeamError, RuntimeError):
    """The journal of a run cannot be written or read, or is damaged."""


class RecordedError(CodeActTeamError, RuntimeError):
    """An error that is known from the journal of a run.

    Args:
        message: Its words.
        type_name: The full name of its class.
        status_code: What a server has answered with, where it told that.
    """

    def __init__(self, message: str, *, type_name: str = "", status_code: int | None = None) -> None:
        super().__init__(message)
        self.type_name = type_name
        self.status_code = status_code


class SandboxError(CodeActTeamError, RuntimeError):
    """Code cannot run on this machine as asked; nothing the code itself could mend."""


class EngineError(SandboxError):
    """The container engine cannot be reached, lacks the image, or refuses the container."""

    guide = "platforms"


class SandboxLostError(SandboxError):
    """A sandbox ended, or was out of reach, before any code ran in it: another one may do."""


class ForkError(SandboxError):
    """A session cannot be copied as it is now: its code holds something open that a copy could not have."""

    guide = "sessions"


class ConfinementError(SandboxError):
    """The kernel, or this machine, cannot enforce the confinement that is required."""

    guide = "platforms"
