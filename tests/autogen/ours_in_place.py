"""A pytest plugin that puts our classes where AutoGen's are, before the tests import them."""

from __future__ import annotations

import autogen_agentchat.agents
import autogen_ext.code_executors.docker

import codeact_team

autogen_agentchat.agents.CodeExecutorAgent = codeact_team.CodeExecutorAgent  # type: ignore[misc]
autogen_ext.code_executors.docker.DockerCommandLineCodeExecutor = codeact_team.DockerCommandLineCodeExecutor  # type: ignore[misc]


def pytest_report_header() -> str:
    agent = autogen_agentchat.agents.CodeExecutorAgent
    executor = autogen_ext.code_executors.docker.DockerCommandLineCodeExecutor
    return f"in place: {agent.__module__}, {executor.__module__}"
