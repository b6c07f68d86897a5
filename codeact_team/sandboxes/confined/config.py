"""Settings of processes that run hostile code confined: safe by default, every loosening a field."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from codeact_team.sandboxes.limits import above_default


class ConfinedSandboxConfig(BaseModel):
    """How code is confined. Memory and sizes are in MiB."""

    model_config = ConfigDict(extra="forbid")

    confinement: Literal["required", "best_effort"] = "required"
    """Whether to refuse where the kernel cannot enforce everything, or to go on with what it can and say so."""
    memory_mib: int = Field(default=1024, ge=64)
    """Memory limit in MiB: altogether where this machine delegates a control group, else for each process."""
    pids: int = Field(default=256, ge=8)
    """How many processes there may be at once; with their threads, where this machine delegates a control group."""
    cpus: float = Field(default=1.0, gt=0)
    """How many processors' worth of time the code may take, where this machine delegates a control group."""
    tmpfs_mib: int = Field(default=256, ge=1)
    """Size of the private temporary directory, in MiB. It counts as memory."""
    readable: list[str] = Field(default_factory=list)
    """More files or directories of this machine that the code may read."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables of the code's environment. The code can read them all: no place for secrets."""

    @property
    def loosenings(self) -> tuple[str, ...]:
        """Each field that grants more than its default, as ``field: value``."""
        found = [] if self.confinement == "required" else ["confinement: best_effort"]
        if self.readable:
            found.append(f"readable: {', '.join(self.readable)}")
        return (*found, *above_default(self, "memory_mib", "pids", "cpus", "tmpfs_mib"))
