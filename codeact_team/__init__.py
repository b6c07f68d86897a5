"""A team of agents that writes code, runs it in a real sandbox, repairs it and reflects on the result."""

from __future__ import annotations

# as of typing, which is imported later: an interrupt before the command line begins would be a traceback
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from autogen_agentchat.agents import ApprovalRequest as ApprovalRequest
    from autogen_agentchat.agents import ApprovalResponse as ApprovalResponse

    from codeact_team.agents.agent_config import ToolLimits as ToolLimits
    from codeact_team.agents.code_executor import CodeExecutorAgent as CodeExecutorAgent
    from codeact_team.agents.code_executor import CodeExecutorAgentConfig as CodeExecutorAgentConfig
    from codeact_team.agents.codeact.agent import CodeActAgent as CodeActAgent
    from codeact_team.agents.codeact.config import CodeActAgentConfig as CodeActAgentConfig
    from codeact_team.agents.ledger import BudgetTermination as BudgetTermination
    from codeact_team.agents.ledger import BudgetTerminationConfig as BudgetTerminationConfig
    from codeact_team.agents.messages import describe_sandbox as describe_sandbox
    from codeact_team.agents.observations import Ending as Ending
    from codeact_team.agents.observations import ExecutionRecord as ExecutionRecord
    from codeact_team.agents.observations import result_from_metadata as result_from_metadata
    from codeact_team.agents.reflection_agent import ReflectionAgent as ReflectionAgent
    from codeact_team.agents.reflection_agent import ReflectionAgentConfig as ReflectionAgentConfig
    from codeact_team.agents.teams import ReflectionTermination as ReflectionTermination
    from codeact_team.agents.teams import ReflectionTerminationConfig as ReflectionTerminationConfig
    from codeact_team.agents.teams import round_robin_team as round_robin_team
    from codeact_team.batch.batch import run_batch as run_batch
    from codeact_team.batch.results import BatchBegan as BatchBegan
    from codeact_team.batch.results import BatchNoted as BatchNoted
    from codeact_team.batch.results import BatchResult as BatchResult
    from codeact_team.batch.results import JobResult as JobResult
    from codeact_team.batch.results import LineBroken as LineBroken
    from codeact_team.batch.results import TaskBegan as TaskBegan
    from codeact_team.batch.results import TaskEnded as TaskEnded
    from codeact_team.batch.results import TaskProgressed as TaskProgressed
    from codeact_team.batch.results import TaskRetried as TaskRetried
    from codeact_team.batch.throttle import BatchLimits as BatchLimits
    from codeact_team.config.dumping import dump_config as dump_config
    from codeact_team.config.loading import load_config as load_config
    from codeact_team.config.loading import validate_config as validate_config
    from codeact_team.config.open import open_pool as open_pool
    from codeact_team.config.overrides import ForEvery as ForEvery
    from codeact_team.core.attempt_events import AttemptBegan as AttemptBegan
    from codeact_team.core.attempt_events import AttemptEnded as AttemptEnded
    from codeact_team.core.attempt_events import ForkBegan as ForkBegan
    from codeact_team.core.attempt_events import ForkEnded as ForkEnded
    from codeact_team.core.attempt_events import PromotionBegan as PromotionBegan
    from codeact_team.core.attempt_events import PromotionEnded as PromotionEnded
    from codeact_team.core.effects import Dispatcher as Dispatcher
    from codeact_team.core.effects import Event as Event
    from codeact_team.core.effects import ListenerFailed as ListenerFailed
    from codeact_team.core.effects import OtherEffectBegan as OtherEffectBegan
    from codeact_team.core.effects import OtherEffectEnded as OtherEffectEnded
    from codeact_team.core.effects import OtherEvent as OtherEvent
    from codeact_team.core.events import AnyEvent as AnyEvent
    from codeact_team.core.events import Approval as Approval
    from codeact_team.core.events import ArtifactKept as ArtifactKept
    from codeact_team.core.events import BlockBegan as BlockBegan
    from codeact_team.core.events import BlockEnded as BlockEnded
    from codeact_team.core.events import BudgetSpent as BudgetSpent
    from codeact_team.core.events import ClockReadingBegan as ClockReadingBegan
    from codeact_team.core.events import ClockReadingEnded as ClockReadingEnded
    from codeact_team.core.events import Decision as Decision
    from codeact_team.core.events import Judged as Judged
    from codeact_team.core.events import MessageSent as MessageSent
    from codeact_team.core.events import ModelCallBegan as ModelCallBegan
    from codeact_team.core.events import ModelCallEnded as ModelCallEnded
    from codeact_team.core.events import ModelCallPutOff as ModelCallPutOff
    from codeact_team.core.events import Opened as Opened
    from codeact_team.core.events import Output as Output
    from codeact_team.core.events import QuestionAnswered as QuestionAnswered
    from codeact_team.core.events import QuestionAsked as QuestionAsked
    from codeact_team.core.events import RunBegan as RunBegan
    from codeact_team.core.events import RunEnded as RunEnded
    from codeact_team.core.events import RunParked as RunParked
    from codeact_team.core.events import RunResumed as RunResumed
    from codeact_team.core.events import ToolCallBegan as ToolCallBegan
    from codeact_team.core.events import ToolCallEnded as ToolCallEnded
    from codeact_team.core.events import ToolListingBegan as ToolListingBegan
    from codeact_team.core.events import ToolListingEnded as ToolListingEnded
    from codeact_team.core.events import TurnBegan as TurnBegan
    from codeact_team.core.events import TurnEnded as TurnEnded
    from codeact_team.core.events import Words as Words
    from codeact_team.core.execution import Artifact as Artifact
    from codeact_team.core.execution import BoundName as BoundName
    from codeact_team.core.execution import CallOutcome as CallOutcome
    from codeact_team.core.execution import ExecutionResult as ExecutionResult
    from codeact_team.core.execution import Outcome as Outcome
    from codeact_team.core.execution import SessionResult as SessionResult
    from codeact_team.core.executor_interface import Checkpoint as Checkpoint
    from codeact_team.core.executor_interface import SessionCodeExecutor as SessionCodeExecutor
    from codeact_team.core.executor_interface import StreamingCodeExecutor as StreamingCodeExecutor
    from codeact_team.core.network_events import RequestBegan as RequestBegan
    from codeact_team.core.network_events import RequestDenied as RequestDenied
    from codeact_team.core.network_events import RequestEnded as RequestEnded
    from codeact_team.core.process_events import ProcessBegan as ProcessBegan
    from codeact_team.core.process_events import ProcessEnded as ProcessEnded
    from codeact_team.core.providers import Policy as Policy
    from codeact_team.core.sandbox_events import BlocksRepeated as BlocksRepeated
    from codeact_team.core.sandbox_events import BlocksRepeating as BlocksRepeating
    from codeact_team.core.sandbox_events import DescriptionBegan as DescriptionBegan
    from codeact_team.core.sandbox_events import DescriptionEnded as DescriptionEnded
    from codeact_team.core.sandbox_events import FilesPutBack as FilesPutBack
    from codeact_team.core.sandbox_events import Replayed as Replayed
    from codeact_team.core.sandbox_events import SandboxLost as SandboxLost
    from codeact_team.core.sandbox_events import SandboxPreparing as SandboxPreparing
    from codeact_team.core.sandbox_events import SandboxStarted as SandboxStarted
    from codeact_team.core.sandbox_events import SandboxStarting as SandboxStarting
    from codeact_team.core.sandbox_events import SandboxStopped as SandboxStopped
    from codeact_team.core.scope import Scope as Scope
    from codeact_team.errors import AnswerCutOffError as AnswerCutOffError
    from codeact_team.errors import BudgetError as BudgetError
    from codeact_team.errors import CodeActTeamError as CodeActTeamError
    from codeact_team.errors import ConfigError as ConfigError
    from codeact_team.errors import ConfinementError as ConfinementError
    from codeact_team.errors import EngineError as EngineError
    from codeact_team.errors import ForkError as ForkError
    from codeact_team.errors import JournalError as JournalError
    from codeact_team.errors import ModelError as ModelError
    from codeact_team.errors import NotAllowedError as NotAllowedError
    from codeact_team.errors import RecordedError as RecordedError
    from codeact_team.errors import SandboxError as SandboxError
    from codeact_team.errors import SandboxLostError as SandboxLostError
    from codeact_team.errors import SettingError as SettingError
    from codeact_team.errors import WorkbenchError as WorkbenchError
    from codeact_team.executors.confined import (
        ConfinedCommandLineCodeExecutor as ConfinedCommandLineCodeExecutor,
    )
    from codeact_team.executors.confined import (
        ConfinedCommandLineCodeExecutorConfig as ConfinedCommandLineCodeExecutorConfig,
    )
    from codeact_team.executors.confined import ConfinedSessionCodeExecutor as ConfinedSessionCodeExecutor
    from codeact_team.executors.confined import (
        ConfinedSessionCodeExecutorConfig as ConfinedSessionCodeExecutorConfig,
    )
    from codeact_team.executors.docker import DockerCommandLineCodeExecutor as DockerCommandLineCodeExecutor
    from codeact_team.executors.docker import (
        DockerCommandLineCodeExecutorConfig as DockerCommandLineCodeExecutorConfig,
    )
    from codeact_team.executors.docker import DockerSessionCodeExecutor as DockerSessionCodeExecutor
    from codeact_team.executors.docker import (
        DockerSessionCodeExecutorConfig as DockerSessionCodeExecutorConfig,
    )
    from codeact_team.executors.pool import SandboxPool as SandboxPool
    from codeact_team.journal.result import RunEnding as RunEnding
    from codeact_team.journal.result import RunResult as RunResult
    from codeact_team.models.verdicts import RetryDecision as RetryDecision
    from codeact_team.models.verdicts import Verdict as Verdict
    from codeact_team.network.rules import Credential as Credential
    from codeact_team.network.rules import EgressRule as EgressRule
    from codeact_team.runs.opening import open_team as open_team
    from codeact_team.runs.programs import record_run as record_run
    from codeact_team.runs.replaying import replay_run as replay_run
    from codeact_team.sandbox.processes import ProcessOutput as ProcessOutput
    from codeact_team.sandbox.processes import ProcessResult as ProcessResult
    from codeact_team.sandbox.processes import TerminalSize as TerminalSize
    from codeact_team.session.processes import SandboxProcess as SandboxProcess
    from codeact_team.standalone.opening import open_sandbox as open_sandbox
    from codeact_team.standalone.sandbox import AsyncSandbox as AsyncSandbox
    from codeact_team.standalone.synchronous import SyncSandbox as SyncSandbox
    from codeact_team.tools.approval_rules import ApprovalRule as ApprovalRule
    from codeact_team.tools.approval_rules import Question as Question
    from codeact_team.tools.approvals import Answer as Answer
    from codeact_team.tools.approvals import ask_with as ask_with
    from codeact_team.tools.approvals import asking as asking
    from codeact_team.tools.autogen_parts import wrap as wrap

_HOME = {
    "codeact_team.journal.result": (
        "RunEnding",
        "RunResult",
    ),
    "codeact_team.core.network_events": (
        "RequestBegan",
        "RequestDenied",
        "RequestEnded",
    ),
    "codeact_team.core.process_events": (
        "ProcessBegan",
        "ProcessEnded",
    ),
    "codeact_team.core.attempt_events": (
        "AttemptBegan",
        "AttemptEnded",
        "ForkBegan",
        "ForkEnded",
        "PromotionBegan",
        "PromotionEnded",
    ),
    "codeact_team.core.events": (
        "AnyEvent",
        "Approval",
        "ArtifactKept",
        "BlockBegan",
        "BlockEnded",
        "BudgetSpent",
        "ClockReadingBegan",
        "ClockReadingEnded",
        "Decision",
        "Judged",
        "MessageSent",
        "ModelCallBegan",
        "ModelCallEnded",
        "ModelCallPutOff",
        "Opened",
        "Output",
        "QuestionAnswered",
        "QuestionAsked",
        "RunBegan",
        "RunEnded",
        "RunParked",
        "RunResumed",
        "ToolCallBegan",
        "ToolCallEnded",
        "ToolListingBegan",
        "ToolListingEnded",
        "TurnBegan",
        "TurnEnded",
        "Words",
    ),
    "codeact_team.core.sandbox_events": (
        "BlocksRepeated",
        "BlocksRepeating",
        "DescriptionBegan",
        "DescriptionEnded",
        "FilesPutBack",
        "Replayed",
        "SandboxLost",
        "SandboxPreparing",
        "SandboxStarted",
        "SandboxStarting",
        "SandboxStopped",
    ),
    "autogen_agentchat.agents": (
        "ApprovalRequest",
        "ApprovalResponse",
    ),
    "codeact_team.agents.agent_config": ("ToolLimits",),
    "codeact_team.agents.code_executor": (
        "CodeExecutorAgent",
        "CodeExecutorAgentConfig",
    ),
    "codeact_team.agents.codeact.agent": ("CodeActAgent",),
    "codeact_team.agents.codeact.config": ("CodeActAgentConfig",),
    "codeact_team.agents.ledger": (
        "BudgetTermination",
        "BudgetTerminationConfig",
    ),
    "codeact_team.agents.messages": ("describe_sandbox",),
    "codeact_team.agents.observations": (
        "Ending",
        "ExecutionRecord",
        "result_from_metadata",
    ),
    "codeact_team.agents.reflection_agent": (
        "ReflectionAgent",
        "ReflectionAgentConfig",
    ),
    "codeact_team.agents.teams": (
        "ReflectionTermination",
        "ReflectionTerminationConfig",
        "round_robin_team",
    ),
    "codeact_team.batch.batch": ("run_batch",),
    "codeact_team.batch.results": (
        "BatchBegan",
        "BatchNoted",
        "BatchResult",
        "JobResult",
        "LineBroken",
        "TaskBegan",
        "TaskEnded",
        "TaskProgressed",
        "TaskRetried",
    ),
    "codeact_team.batch.throttle": ("BatchLimits",),
    "codeact_team.config.dumping": ("dump_config",),
    "codeact_team.config.loading": (
        "load_config",
        "validate_config",
    ),
    "codeact_team.config.open": ("open_pool",),
    "codeact_team.config.overrides": ("ForEvery",),
    "codeact_team.core.effects": (
        "Dispatcher",
        "Event",
        "ListenerFailed",
        "OtherEffectBegan",
        "OtherEffectEnded",
        "OtherEvent",
    ),
    "codeact_team.core.execution": (
        "Artifact",
        "BoundName",
        "CallOutcome",
        "ExecutionResult",
        "Outcome",
        "SessionResult",
    ),
    "codeact_team.core.executor_interface": (
        "Checkpoint",
        "SessionCodeExecutor",
        "StreamingCodeExecutor",
    ),
    "codeact_team.core.providers": ("Policy",),
    "codeact_team.core.scope": ("Scope",),
    "codeact_team.errors": (
        "AnswerCutOffError",
        "BudgetError",
        "CodeActTeamError",
        "ConfigError",
        "ConfinementError",
        "EngineError",
        "ForkError",
        "JournalError",
        "ModelError",
        "NotAllowedError",
        "RecordedError",
        "SandboxError",
        "SandboxLostError",
        "SettingError",
        "WorkbenchError",
    ),
    "codeact_team.executors.confined": (
        "ConfinedCommandLineCodeExecutor",
        "ConfinedCommandLineCodeExecutorConfig",
        "ConfinedSessionCodeExecutor",
        "ConfinedSessionCodeExecutorConfig",
    ),
    "codeact_team.executors.docker": (
        "DockerCommandLineCodeExecutor",
        "DockerCommandLineCodeExecutorConfig",
        "DockerSessionCodeExecutor",
        "DockerSessionCodeExecutorConfig",
    ),
    "codeact_team.executors.pool": ("SandboxPool",),
    "codeact_team.models.verdicts": (
        "RetryDecision",
        "Verdict",
    ),
    "codeact_team.network.rules": (
        "Credential",
        "EgressRule",
    ),
    "codeact_team.runs.opening": ("open_team",),
    "codeact_team.runs.programs": ("record_run",),
    "codeact_team.runs.replaying": ("replay_run",),
    "codeact_team.sandbox.processes": (
        "ProcessOutput",
        "ProcessResult",
        "TerminalSize",
    ),
    "codeact_team.session.processes": ("SandboxProcess",),
    "codeact_team.standalone.opening": ("open_sandbox",),
    "codeact_team.standalone.sandbox": ("AsyncSandbox",),
    "codeact_team.standalone.synchronous": ("SyncSandbox",),
    "codeact_team.tools.approval_rules": (
        "ApprovalRule",
        "Question",
    ),
    "codeact_team.tools.approvals": (
        "Answer",
        "ask_with",
        "asking",
    ),
    "codeact_team.tools.autogen_parts": ("wrap",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted(_MODULE_OF)  # pyright: ignore[reportUnsupportedDunderAll] (which goes by the imports above)


def __getattr__(name: str) -> Any:
    # on demand: AutoGen and a model client take a second to import, and `codeact-team --help` needs neither
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
