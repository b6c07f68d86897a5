"""The agent that acts by writing Python."""

from codeact_team.agents.codeact.agent import CodeActAgent
from codeact_team.agents.codeact.codeact_config import CodeActAgentConfig

__all__ = ["CodeActAgent", "CodeActAgentConfig"]
