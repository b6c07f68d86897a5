"""AutoGen's input functions, asked for approval."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from autogen_core import CancellationToken

from codeact_team.tools.approval_rules import ApprovalRule, Question
from codeact_team.tools.approvals import Answer, Approvals, ask_with, read_answer

QUESTION = Question("helper", "tool", "refund", {"order": "A-17"}, reason="money")
PROMPT = (
    'helper wants to call refund:\n| order: "A-17"\nYou are asked because: money\n'
    "Allow? y (yes), n (no; a reason may follow), a (always: refund with any arguments): "
)


class Inputs:
    """What was prompted, and the input functions that note it."""

    def __init__(self, *entered: str) -> None:
        self.prompts: list[str] = []
        self.tokens: list[object] = []
        self._entered = list(entered)

    def plain(self, prompt: str) -> str:
        self.prompts.append(prompt)
        return self._entered.pop(0)

    def with_default(self, prompt: str, timeout: float = 1.0) -> str:
        assert timeout == 1.0
        return self.plain(prompt)

    def with_token(self, prompt: str, cancellation_token: CancellationToken | None) -> str:
        self.tokens.append(cancellation_token)
        return self.plain(prompt)

    async def plain_async(self, prompt: str) -> str:
        return self.plain(prompt)

    def around_async(self, prompt: str) -> Awaitable[str]:
        return self.plain_async(prompt)

    async def with_token_async(self, prompt: str, token: CancellationToken | None) -> str:
        return self.with_token(prompt, token)

    async def __call__(self, prompt: str, cancellation_token: CancellationToken | None = None) -> str:
        return self.with_token(prompt, cancellation_token)


def functions(inputs: Inputs) -> dict[str, Callable[..., Any]]:
    return {
        "plain": inputs.plain,
        "with a default": inputs.with_default,
        "with a token": inputs.with_token,
        "async": inputs.plain_async,
        "async with a token": inputs.with_token_async,
        "an object": inputs,
        "a partial": functools.partial(inputs.with_token_async, token=None),
        "a plain one around an async one": inputs.around_async,
    }


@pytest.mark.parametrize("kind", functions(Inputs()))
async def test_every_kind_of_input_function_is_asked(kind: str):
    inputs = Inputs("y")
    assert await ask_with(functions(inputs)[kind])(QUESTION) == Answer(True)
    assert inputs.prompts == [PROMPT]
    has_token = kind in ("with a token", "async with a token", "an object")
    assert [type(token) for token in inputs.tokens if token] == [CancellationToken] * has_token


@pytest.mark.parametrize(
    ("entered", "answer"),
    [
        ("y", Answer(True)),
        (" YES \n", Answer(True)),
        ("a", Answer(True, always=True)),
        ("Always", Answer(True, always=True)),
        ("n", Answer(False)),
        ("No  not that\tone ", Answer(False, "not that\tone")),
        ("n\ttab", Answer(False, "tab")),
        ("", None),
        ("yes please", None),
        ("nope", None),
        ("a lot", None),
        ("ok", None),
    ],
)
def test_what_an_answer_means(entered: str, answer: Answer | None):
    assert read_answer(entered) == answer


async def test_what_is_no_answer_is_asked_again_three_times_in_all():
    inputs = Inputs("what?", "n later")
    assert await ask_with(inputs.plain)(QUESTION) == Answer(False, "later")
    assert inputs.prompts == [PROMPT, "Please answer y, n or a: "]
    inputs = Inputs("", "x", "yes, all", "y")
    assert await ask_with(inputs.plain)(QUESTION) == Answer(False, "the answer was neither yes nor no")
    assert len(inputs.prompts) == 3


async def test_agents_that_work_side_by_side_do_not_share_a_prompt():
    at_once: list[str] = []

    async def enter(prompt: str) -> str:
        at_once.append(prompt)
        assert len(at_once) == 1
        await asyncio.sleep(0.01)
        at_once.clear()
        return "y"

    handler = ask_with(enter)
    answers = await asyncio.gather(*(handler(QUESTION) for _ in range(3)))
    assert answers == [Answer(True)] * 3


async def test_a_question_that_is_cancelled_cancels_the_token_and_frees_the_prompt():
    tokens: list[CancellationToken] = []
    entered = asyncio.Event()

    async def enter(prompt: str, cancellation_token: CancellationToken) -> str:
        tokens.append(cancellation_token)
        entered.set()
        if len(tokens) == 1:
            await asyncio.Event().wait()
        return "y"

    handler = ask_with(enter)
    asking = asyncio.ensure_future(handler(QUESTION))
    await entered.wait()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert asking.cancelled()
    assert tokens[0].is_cancelled()
    assert await handler(QUESTION) == Answer(True)
    assert not tokens[1].is_cancelled()


async def test_an_input_that_fails_denies():
    def closed(prompt: str) -> str:
        raise EOFError("EOF when reading a line")

    approvals = Approvals([ApprovalRule(tool="*", decision="ask")], ask_with(closed), "helper")
    record = await approvals.call("refund", {})
    assert not record.allowed
    assert record.reason == "the approval handler failed: EOFError: EOF when reading a line"
