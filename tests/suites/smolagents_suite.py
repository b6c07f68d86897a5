"""The tests that smolagents' Docker executor has to pass, unmodified, over our executor.

It runs in the environment of that suite, beside the tests of the source distribution; see ``test_smolagents.py``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.test_remote_executors import (  # pyright: ignore[reportMissingImports]
    CommonDockerExecutorIntegration,  # pyright: ignore[reportUnknownVariableType]
)

from codeact_team import open_sandbox
from codeact_team.adapters.smolagents import CodeactPythonExecutor

WHERE = "docker" if os.environ["WHERE"] == "docker" else "confined"


class TestExecutor(CommonDockerExecutorIntegration):  # pyright: ignore[reportUntypedBaseClass]
    @pytest.fixture
    def custom_executor(self) -> Iterator[CodeactPythonExecutor]:
        with open_sandbox(WHERE, packages=["pillow", "numpy"]) as sandbox:
            yield CodeactPythonExecutor(sandbox)
