"""What can confine the code of a sandbox on this machine, found by trial."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

import hardening
from cgroups import ControlGroup
from loaded import LoadedProgram
from view import View

from codeact_team.sandbox.system import landlock


class Means(NamedTuple):
    """What confines the code of one sandbox.

    Attributes:
        group: Its control group, where there are any.
        no_namespaces: Why namespaces cannot be had, or ``None``.
        sandlock: The module, or why it cannot be used; ``None`` where the kernel alone confines.
        program: What was loaded ahead, if anything.
    """

    group: ControlGroup | None
    no_namespaces: str | None
    sandlock: Any
    program: LoadedProgram | None


class Machine:
    """What there is here.

    Args:
        sandlock: Loads the module, or says why it cannot be used; for where the kernel alone is not enough.
        program: What was loaded ahead, if anything.
    """

    def __init__(self, sandlock: Callable[[], Any], program: LoadedProgram | None) -> None:
        self._load_sandlock = cache(sandlock)
        self._program = program
        self._has_namespaces = False
        """Whether that is known, as it has worked once."""

    def means_for(self, settings: Mapping[str, Any], group: ControlGroup | None) -> Means:
        """What confines in a sandbox with these settings."""
        no_namespaces = None
        if group is not None and not self._has_namespaces:
            no_namespaces = hardening.failure_of(entering(settings, None))
            self._has_namespaces = no_namespaces is None
        is_bounded = group is not None and not BOUNDING & group.missing.keys()
        if is_bounded and no_namespaces is None and landlock.abi() >= landlock.ABI_OF_SCOPES:
            return Means(group, None, None, self._program)
        return Means(group, no_namespaces, self._load_sandlock(), self._program)


BOUNDING = {"memory", "pids"}
"""The controllers without which the kernel does not bound what all programs of a sandbox use together."""


def entering(settings: Mapping[str, Any], group: ControlGroup | None) -> Callable[..., None]:
    """See :func:`hardening.enter_namespaces`, with what is to be seen there."""
    view = View(
        settings["readable"],
        settings["workspace"],
        settings["workspace_identity"],
        settings["private"],
        settings["tmpfs_mib"],
    )
    moved = () if group is None else group.mounts
    return partial(hardening.enter_namespaces, partial(view.enter, moved))
