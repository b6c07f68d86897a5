"""The packages that a config asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from codeact_team.doctor.checks import Check, State
from codeact_team.errors import EngineError, SandboxError, SettingError
from codeact_team.executors.settings import ExecutorConfig
from codeact_team.packages import Provision, Requested
from codeact_team.sandboxes.base import Sandbox


async def examine_packages(config: ExecutorConfig, make_sandbox: Callable[[Path], Sandbox]) -> Check | None:
    """Find out whether the packages of an executor are on this machine; nothing is got. ``None`` if it asks for none.

    Args:
        config: The executor's settings.
        make_sandbox: Makes its sandbox, which may use the given directory as its workspace.
    """
    file = config.packages_file
    try:
        requested = Requested(tuple(config.packages), None if file is None else Path(file))
        layer = await Provision(requested, make_sandbox).found() if requested else None
    except EngineError:
        # of which the engine's own findings tell
        return None
    except (SandboxError, SettingError) as error:
        return Check("packages", State.MISSING, str(error))
    if not requested:
        return None
    if layer is None:
        told = "this machine gets them on first use, for which it needs a package index"
        return Check("packages", State.LIMITED, f"{requested}: {told}")
    return Check("packages", State.WORKS, f"{requested}: here, with what they need", layer.packages)
