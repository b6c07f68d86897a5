"""The agents: AutoGen chat agents that write, run, repair and judge code."""

from autogen_agentchat.agents import ApprovalFuncType, ApprovalRequest, ApprovalResponse

from codeact_team.agents.code_executor import CodeExecutorAgent
from codeact_team.agents.code_executor_config import CodeExecutorAgentConfig
from codeact_team.agents.codeact import CodeActAgent, CodeActAgentConfig
from codeact_team.agents.reflection_agent import ReflectionAgent, ReflectionAgentConfig
from codeact_team.agents.sandbox_knowledge import describe_sandbox
from codeact_team.agents.tool_settings import ToolLimits
from codeact_team.approval import ApprovalRule
from codeact_team.reflection import Verdict
from codeact_team.retry import RetryDecision

__all__ = [
    "ApprovalFuncType",
    "ApprovalRequest",
    "ApprovalResponse",
    "ApprovalRule",
    "CodeActAgent",
    "CodeActAgentConfig",
    "CodeExecutorAgent",
    "CodeExecutorAgentConfig",
    "ReflectionAgent",
    "ReflectionAgentConfig",
    "RetryDecision",
    "ToolLimits",
    "Verdict",
    "describe_sandbox",
]
