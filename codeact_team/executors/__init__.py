"""How code runs: AutoGen code executors over the sandboxes."""

from codeact_team.executors.confined import (
    ConfinedCommandLineCodeExecutor,
    ConfinedCommandLineCodeExecutorConfig,
    ConfinedSessionCodeExecutor,
    ConfinedSessionCodeExecutorConfig,
)
from codeact_team.executors.docker import (
    DockerCommandLineCodeExecutor,
    DockerCommandLineCodeExecutorConfig,
    DockerSessionCodeExecutor,
    DockerSessionCodeExecutorConfig,
)
from codeact_team.executors.pool import SandboxPool

__all__ = [
    "ConfinedCommandLineCodeExecutor",
    "ConfinedCommandLineCodeExecutorConfig",
    "ConfinedSessionCodeExecutor",
    "ConfinedSessionCodeExecutorConfig",
    "DockerCommandLineCodeExecutor",
    "DockerCommandLineCodeExecutorConfig",
    "DockerSessionCodeExecutor",
    "DockerSessionCodeExecutorConfig",
    "SandboxPool",
]
