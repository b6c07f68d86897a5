"""Code in a process of this machine that the kernel confines. The only importer of sandlock."""

from codeact_team.sandboxes.confined.config import ConfinedSandboxConfig
from codeact_team.sandboxes.confined.enforcement import Enforced
from codeact_team.sandboxes.confined.sandbox import ConfinedSandbox

__all__ = ["ConfinedSandbox", "ConfinedSandboxConfig", "Enforced"]
