"""A team of agents that writes code, runs it in a real sandbox, repairs it and reflects on the result."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from codeact_team.agents import ApprovalRequest as ApprovalRequest
    from codeact_team.agents import ApprovalResponse as ApprovalResponse
    from codeact_team.agents import ApprovalRule as ApprovalRule
    from codeact_team.agents import CodeActAgent as CodeActAgent
    from codeact_team.agents import CodeExecutorAgent as CodeExecutorAgent
    from codeact_team.agents import ReflectionAgent as ReflectionAgent
    from codeact_team.agents import RetryDecision as RetryDecision
    from codeact_team.agents import ToolLimits as ToolLimits
    from codeact_team.agents import Verdict as Verdict
    from codeact_team.agents import describe_sandbox as describe_sandbox
    from codeact_team.autogen_parts import wrap as wrap
    from codeact_team.batch import BatchLimits as BatchLimits
    from codeact_team.batch import BatchResult as BatchResult
    from codeact_team.batch import TaskResult as TaskResult
    from codeact_team.batch import run_batch as run_batch
    from codeact_team.config import ForEvery as ForEvery
    from codeact_team.config import dump_config as dump_config
    from codeact_team.config import load_config as load_config
    from codeact_team.config import open_pool as open_pool
    from codeact_team.config import validate_config as validate_config
    from codeact_team.effects import Door as Door
    from codeact_team.effects import Event as Event
    from codeact_team.errors import BudgetError as BudgetError
    from codeact_team.errors import CodeActTeamError as CodeActTeamError
    from codeact_team.errors import ConfigError as ConfigError
    from codeact_team.errors import ConfinementError as ConfinementError
    from codeact_team.errors import EngineError as EngineError
    from codeact_team.errors import ForkError as ForkError
    from codeact_team.errors import ModelError as ModelError
    from codeact_team.errors import NotAllowedError as NotAllowedError
    from codeact_team.errors import SandboxError as SandboxError
    from codeact_team.errors import SettingError as SettingError
    from codeact_team.errors import WorkbenchError as WorkbenchError
    from codeact_team.execution import Artifact as Artifact
    from codeact_team.execution import BoundName as BoundName
    from codeact_team.execution import CallOutcome as CallOutcome
    from codeact_team.execution import ExecutionResult as ExecutionResult
    from codeact_team.execution import Outcome as Outcome
    from codeact_team.execution import SessionResult as SessionResult
    from codeact_team.executor_interface import Checkpoint as Checkpoint
    from codeact_team.executor_interface import SessionCodeExecutor as SessionCodeExecutor
    from codeact_team.executor_interface import StreamingCodeExecutor as StreamingCodeExecutor
    from codeact_team.executors import ConfinedCommandLineCodeExecutor as ConfinedCommandLineCodeExecutor
    from codeact_team.executors import ConfinedSessionCodeExecutor as ConfinedSessionCodeExecutor
    from codeact_team.executors import DockerCommandLineCodeExecutor as DockerCommandLineCodeExecutor
    from codeact_team.executors import DockerSessionCodeExecutor as DockerSessionCodeExecutor
    from codeact_team.executors import SandboxPool as SandboxPool
    from codeact_team.ledger import BudgetTermination as BudgetTermination
    from codeact_team.runs import replay_run as replay_run
    from codeact_team.runs.opening import open_team as open_team
    from codeact_team.scope import Scope as Scope
    from codeact_team.teams import ReflectionTermination as ReflectionTermination
    from codeact_team.teams import round_robin_team as round_robin_team

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
        "describe_sandbox",
    ),
    "autogen_parts": ("wrap",),
    "batch": ("BatchLimits", "BatchResult", "TaskResult", "run_batch"),
    "config": ("ForEvery", "dump_config", "load_config", "open_pool", "validate_config"),
    "effects": ("Door", "Event"),
    "errors": (
        "BudgetError",
        "CodeActTeamError",
        "ConfigError",
        "ConfinementError",
        "EngineError",
        "ForkError",
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
    "executor_interface": ("Checkpoint", "SessionCodeExecutor", "StreamingCodeExecutor"),
    "executors": (
        "ConfinedCommandLineCodeExecutor",
        "ConfinedSessionCodeExecutor",
        "DockerCommandLineCodeExecutor",
        "DockerSessionCodeExecutor",
        "SandboxPool",
    ),
    "ledger": ("BudgetTermination",),
    "runs": ("replay_run",),
    "runs.opening": ("open_team",),
    "scope": ("Scope",),
    "teams": ("ReflectionTermination", "round_robin_team"),
}
_MODULE_OF = {name: f"codeact_team.{module}" for module, names in _HOME.items() for name in names}

__all__ = sorted(_MODULE_OF)  # pyright: ignore[reportUnsupportedDunderAll] (which goes by the imports above)


def __getattr__(name: str) -> Any:
    # on demand: AutoGen and a model client take a second to import, and `codeact-team --help` needs neither
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
