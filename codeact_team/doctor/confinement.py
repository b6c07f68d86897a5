"""Whether the kernel of this machine confines code."""

from __future__ import annotations

from collections.abc import Mapping

from codeact_team.doctor.checks import Check, State
from codeact_team.errors import SandboxError
from codeact_team.sandboxes.confined import ConfinedSandbox, ConfinedSandboxConfig
from codeact_team.sandboxes.confined.enforcement import REQUIRED, Enforced
from codeact_team.sandboxes.temporary import TemporaryDirectory

NAME = "confinement"


async def examine_confinement(config: ConfinedSandboxConfig) -> Check:
    """Find out what is enforced where code runs with these settings."""
    with TemporaryDirectory() as workspace:
        sandbox = ConfinedSandbox(config, workspace=workspace)
        try:
            await sandbox.start()
        except SandboxError as error:
            return Check(NAME, State.MISSING, str(error))
        finally:
            await sandbox.stop()
    enforced = [what.value for what in Enforced if what in sandbox.enforced]
    if sandbox.enforced >= REQUIRED:
        return Check(
            NAME,
            State.WORKS,
            f"the kernel enforces: {', '.join(enforced)}; {_group(sandbox.ungrouped)}",
        )
    missing = [what.value for what in Enforced if what not in sandbox.enforced]
    advice = "code that you do not trust needs Docker, or Linux 6.12 with Landlock"
    return Check(NAME, State.LIMITED, f"not enforced: {', '.join(missing)}; {advice}")


def _group(ungrouped: Mapping[str, str]) -> str:
    if not ungrouped:
        return "memory, processes and processor time are limited altogether, by a control group"
    reasons = ", ".join(f"{controller} ({reason})" for controller, reason in ungrouped.items())
    return (
        f"not limited altogether, as no control group can be made for it: {reasons}; on a machine with systemd, "
        "`systemd-run --user --scope codeact-team …` runs where it can"
    )
