"""Code in a hardened container. The only importer of a Docker client."""

from codeact_team.sandboxes.docker.config import DockerSandboxConfig
from codeact_team.sandboxes.docker.sandbox import DockerSandbox

__all__ = ["DockerSandbox", "DockerSandboxConfig"]
