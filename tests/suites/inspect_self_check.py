"""Inspect's self checks, unmodified, in the sandbox that the variable ``WHERE`` names.

They run in the environment of that suite, where Inspect finds the sandbox by its entry point; see ``test_inspect.py``.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator

import pytest
from inspect_ai.util import SandboxEnvironment
from inspect_ai.util._sandbox import self_check
from inspect_ai.util._sandbox.registry import registry_find_sandboxenv

KIND = f"codeact-{os.environ.get('WHERE', 'docker')}"

globals().update({name: getattr(self_check, name) for name in self_check.__all__})


@pytest.fixture
async def sandbox_env() -> AsyncGenerator[SandboxEnvironment]:
    provider = registry_find_sandboxenv(KIND)
    environments = await provider.sample_init("self_check", None, {})
    yield environments["default"]
    await provider.sample_cleanup("self_check", None, environments, False)
