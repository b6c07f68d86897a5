"""A team of agents that writes code, runs it in a real sandbox, repairs it and reflects on the result."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from codeact_team.agents import (
        ApprovalRequest,
        ApprovalResponse,
        ApprovalRule,
        CodeActAgent,
        CodeExecutorAgent,
        ReflectionAgent,
        RetryDecision,
        ToolLimits,
        Verdict,
    )
    from codeact_team.autogen_parts import wrap
    from codeact_team.config import dump_config, load_config, open_team, validate_config
    from codeact_team.effects import Door, Event
    from codeact_team.errors import (
        CodeActTeamError,
        ConfigError,
        ConfinementError,
        EngineError,
        ModelError,
        NotAllowedError,
        SandboxError,
        SettingError,
        WorkbenchError,
    )
    from codeact_team.execution import (
        Artifact,
        BoundName,
        CallOutcome,
        ExecutionResult,
        Outcome,
        SessionResult,
    )
    from codeact_team.executor_interface import SessionCodeExecutor, StreamingCodeExecutor
    from codeact_team.executors import (
        ConfinedCommandLineCodeExecutor,
        ConfinedSessionCodeExecutor,
        DockerCommandLineCodeExecutor,
        DockerSessionCodeExecutor,
    )
    from codeact_team.scope import Scope
    from codeact_team.teams import ReflectionTermination, round_robin_team

_HOME = {
    "agents": (
        "ApprovalRequest",
        "ApprovalResponse",
        "ApprovalRule",
        "CodeActAgent",
        "CodeExecutorAgent",
        "ReflectionAgent",
        "RetryDecision",
        "ToolLimits",
        "Verdict",
    ),
    "autogen_parts": ("wrap",),
    "config": ("dump_config", "load_config", "open_team", "validate_config"),
    "effects": ("Door", "Event"),
    "errors": (
        "CodeActTeamError",
        "ConfigError",
        "ConfinementError",
        "EngineError",
        "ModelError",
        "NotAllowedError",
        "SandboxError",
        "SettingError",
        "WorkbenchError",
    ),
    "execution": (
        "Artifact",
        "BoundName",
        "CallOutcome",
        "ExecutionResult",
        "Outcome",
        "SessionResult",
    ),
    "executor_interface": ("SessionCodeExecutor", "StreamingCodeExecutor"),
    "executors": (
        "ConfinedCommandLineCodeExecutor",
        "ConfinedSessionCodeExecutor",
        "DockerCommandLineCodeExecutor",
        "DockerSessionCodeExecutor",
    ),
    "scope": ("Scope",),
    "teams": ("ReflectionTermination", "round_robin_team"),
}
_MODULE_OF = {name: f"codeact_team.{module}" for module, names in _HOME.items() for name in names}

__all__ = [
    "ApprovalRequest",
    "ApprovalResponse",
    "ApprovalRule",
    "Artifact",
    "BoundName",
    "CallOutcome",
    "CodeActAgent",
    "CodeActTeamError",
    "CodeExecutorAgent",
    "ConfigError",
    "ConfinedCommandLineCodeExecutor",
    "ConfinedSessionCodeExecutor",
    "ConfinementError",
    "DockerCommandLineCodeExecutor",
    "DockerSessionCodeExecutor",
    "Door",
    "EngineError",
    "Event",
    "ExecutionResult",
    "ModelError",
    "NotAllowedError",
    "Outcome",
    "ReflectionAgent",
    "ReflectionTermination",
    "RetryDecision",
    "SandboxError",
    "Scope",
    "SessionCodeExecutor",
    "SessionResult",
    "SettingError",
    "StreamingCodeExecutor",
    "ToolLimits",
    "Verdict",
    "WorkbenchError",
    "dump_config",
    "load_config",
    "open_team",
    "round_robin_team",
    "validate_config",
    "wrap",
]


def __getattr__(name: str) -> Any:
    # on demand: AutoGen and a model client take a second to import, and `codeact-team --help` needs neither
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
