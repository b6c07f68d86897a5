"""What the tests of the public sandbox share."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from support.executing import KINDS

from codeact_team import AsyncSandbox

SandboxKind = Literal["docker", "confined"]


each_kind = pytest.mark.parametrize(
    "kind", [pytest.param("docker", marks=pytest.mark.docker), "confined"], indirect=True
)
"""For a usual test in which the kinds of sandboxes differ."""


def held(kind: SandboxKind) -> set[str]:
    """What this process keeps running for its sandboxes."""
    return KINDS[f"{kind}-session"].held()


async def output(sandbox: AsyncSandbox, code: str, **settings: Any) -> str:
    """What code prints that does not fail."""
    result = await sandbox.run_python(code, **settings)
    assert result.exit_code == 0, result.output
    return result.output
