"""How code runs: AutoGen code executors over the sandboxes."""

from codeact_team.executors.confined import (
    ConfinedCommandLineCodeExecutor,
    ConfinedCommandLineCodeExecutorConfig,
)
from codeact_team.executors.docker import DockerCommandLineCodeExecutor, DockerCommandLineCodeExecutorConfig

__all__ = [
    "ConfinedCommandLineCodeExecutor",
    "ConfinedCommandLineCodeExecutorConfig",
    "DockerCommandLineCodeExecutor",
    "DockerCommandLineCodeExecutorConfig",
]
