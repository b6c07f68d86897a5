"""Who is asked before code runs, with what, and what a denial means."""

from __future__ import annotations

import asyncio
import json

import pytest
from autogen_agentchat.agents import ApprovalRequest, ApprovalResponse
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from autogen_core.models import UserMessage
from support.agents import (
    GIVE_UP,
    PRINTS_42,
    Foreign,
    answer,
    calls_of,
    replay,
    turn,
    user,
    yes,
)
from support.openai_server import Json, ScriptedServer

from codeact_team.agents.code_executor import CodeExecutorAgent
from codeact_team.core.providers import Policy, using
from codeact_team.errors import ConfigError, NotAllowedError


async def yes_later(request: ApprovalRequest) -> ApprovalResponse:
    await asyncio.sleep(0)
    return yes(request)


class Reviewer:
    """An object that is called, and whose call is to be awaited: not a coroutine function by its looks."""

    def __init__(self, approved: bool) -> None:
        self.requests: list[ApprovalRequest] = []
        self._approved = approved

    async def __call__(self, request: ApprovalRequest) -> ApprovalResponse:
        self.requests.append(request)
        return ApprovalResponse(approved=self._approved, reason="as I see it")


reviewer = Reviewer(approved=True)


async def test_code_with_a_fence_in_it_is_shown_as_one_block():
    review = Reviewer(approved=True)
    code = 'text = """\n```\n"""\nimport shutil\n'
    agent = CodeExecutorAgent("executor", Foreign(), approval_func=review)
    await agent.execute_code_block([CodeBlock(code=code, language="python")], CancellationToken())
    assert review.requests[0].code == f"````python\n{code}\n````"


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("python", "# coding: utf-7\n# +AAo-print(1)+AAo-"),
        ("python", "if x:\n    pass\n    \fprint(1)"),
        ("python", "allowed = 'a\u202eb'"),
        ("sh", "echo hi\xa0# ; rm -rf x"),
        ("sh", "echo hi \u200d# ; rm -rf x"),
        ("sh", "echo rm -rf \\ \n/home"),
        ("sh", "# a comment\rrm -rf x"),
    ],
)
async def test_code_that_is_not_what_it_looks_like_is_denied_unasked(language: str, code: str):
    review, executor = Reviewer(approved=True), Foreign()
    agent = CodeExecutorAgent("executor", executor, approval_func=review)
    blocks = [CodeBlock(code="print(1)", language="python"), CodeBlock(code=code, language=language)]
    result = await agent.execute_code_block(blocks, CancellationToken())
    assert result.output.startswith("Code execution was not approved. Reason: ")
    assert (review.requests, executor.executed) == ([], [])


async def test_emoji_and_other_scripts_are_no_reason_to_deny():
    review = Reviewer(approved=True)
    agent = CodeExecutorAgent("executor", Foreign(), approval_func=review)
    code = "print('⚠️ 👩‍👩‍👧 日本 ü')\r\n"
    await agent.execute_code_block([CodeBlock(code=code, language="python")], CancellationToken())
    assert len(review.requests) == 1


async def test_an_import_path_names_the_function_that_is_asked():
    reviewer.requests.clear()
    with using(Policy(frozenset({"test_code_executor_approval"}))):
        agent = CodeExecutorAgent("executor", Foreign(), approval_func="test_code_executor_approval:reviewer")
    await turn(agent, user(PRINTS_42))
    assert len(reviewer.requests) == 1


async def test_an_import_path_is_what_can_be_dumped_and_loaded():
    # approval functions stopped the whole team from being dumped
    policy = Policy(frozenset({"autogen_core", "codeact_team", "support", "test_code_executor_approval"}))
    with using(policy):
        agent = CodeExecutorAgent(
            "executor", Foreign(), approval_func="test_code_executor_approval:yes_later"
        )
        dumped = agent.dump_component()
        assert dumped.config["approval_func"] == "test_code_executor_approval:yes_later"
        loaded = CodeExecutorAgent.load_component(dumped)
    assert loaded.dump_component() == dumped
    assert (await answer(loaded, user(PRINTS_42))).content == "42\n"


def test_a_function_outside_the_allow_list_is_refused_when_a_config_is_loaded():
    with using(Policy(frozenset({"test_code_executor_approval", "support", "autogen_core"}))):
        dumped = CodeExecutorAgent(
            "executor", Foreign(), approval_func="test_code_executor_approval:yes_later"
        ).dump_component()
    with pytest.raises(NotAllowedError, match="test_code_executor_approval"):
        CodeExecutorAgent.load_component(dumped)


@pytest.mark.parametrize(
    "path",
    ["os:system", "codeact_team.agents.block_calls:os.system", "codeact_team.agents.block_calls:asyncio"],
)
def test_a_path_to_something_else_is_refused(path: str):
    with pytest.raises(ConfigError):
        CodeExecutorAgent("executor", Foreign(), approval_func=path)


async def test_what_the_reviewer_does_to_the_request_does_not_reach_the_conversation():
    def meddling(request: ApprovalRequest) -> ApprovalResponse:
        request.context.clear()
        return yes(request)

    client = replay(PRINTS_42, "It is 42.", json.dumps(GIVE_UP))
    agent = CodeExecutorAgent("executor", Foreign(), model_client=client, approval_func=meddling)
    await turn(agent)
    assert calls_of(client) == 2
    assert len(await agent.model_context.get_messages()) == 4


async def test_a_model_can_be_the_reviewer():
    async with ScriptedServer([Json(ApprovalResponse(approved=False, reason="It deletes files."))]) as server:
        client = server.client()

        async def ask_a_model(request: ApprovalRequest) -> ApprovalResponse:
            question = UserMessage(content=f"May this run?\n{request.code}", source="user")
            result = await client.create([*request.context, question], json_output=True)
            assert isinstance(result.content, str)
            return ApprovalResponse.model_validate_json(result.content)

        agent = CodeExecutorAgent("executor", Foreign(), approval_func=ask_a_model)
        message = await answer(agent, user(PRINTS_42))
    assert message.content == "Code execution was not approved. Reason: It deletes files."
