"""Has an engine that cannot enforce all limits accepted, as by a config that names them."""

from __future__ import annotations

import os

from codeact_team.sandbox.docker import creation


def accept_if_asked() -> None:
    """Accept it in this process if the environment says so, as that of ``tests/platforms/row`` does for such an engine."""
    if os.environ.get("CODEACT_TEAM_ACCEPT_UNENFORCED") == "1":

        def accept(*_: object) -> None: ...

        creation.refusal = accept
