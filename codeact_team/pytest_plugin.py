"""A fixture for pytest, which finds it by itself where this package is installed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def replay_run() -> Callable[..., None]:
    """Replays a recorded run, and fails the test with the first difference.

    One line is a test, such as ``replay_run("tests/runs/report", overrides=["config.code_executor.config.image=new"])``. The
    arguments are as for :func:`codeact_team.replay_run`, which tests that are async await instead. The run may have been
    recorded by somebody else: a test is trusted, and so are the runs that it names.
    """

    def replay(run: str | os.PathLike[str], *built: Any, **options: Any) -> None:
        # pytest loads this file in every test session of an environment
        from codeact_team.errors import CodeActTeamError
        from codeact_team.runs.replaying import replay_run

        options.setdefault("trusted", True)
        try:
            found = asyncio.run(replay_run(run, *built, **options))
        except CodeActTeamError as error:
            pytest.fail(str(error), pytrace=False)
        if found.difference is not None:
            pytest.fail(f"{run} did not give the recorded result: \n{found.difference}", pytrace=False)

    return replay
