"""The agents: AutoGen chat agents that write, run, repair and judge code."""

from autogen_agentchat.agents import ApprovalFuncType, ApprovalRequest, ApprovalResponse

from codeact_team.agents.code_executor import CodeExecutorAgent
from codeact_team.agents.codeact import CodeActAgent
from codeact_team.agents.codeact_settings import CodeActAgentConfig
from codeact_team.agents.reflection import ReflectionAgent, ReflectionAgentConfig
from codeact_team.agents.settings import CodeExecutorAgentConfig
from codeact_team.reflection import Verdict
from codeact_team.retry import RetryDecision

__all__ = [
    "ApprovalFuncType",
    "ApprovalRequest",
    "ApprovalResponse",
    "CodeActAgent",
    "CodeActAgentConfig",
    "CodeExecutorAgent",
    "CodeExecutorAgentConfig",
    "ReflectionAgent",
    "ReflectionAgentConfig",
    "RetryDecision",
    "Verdict",
]
