"""Each conversation has a sandbox of its own, as long as there is room for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager

import pytest
from support.executing import KINDS, why_not_confined

from codeact_team import AsyncSandbox, SandboxError, open_sandbox
from codeact_team.adapters.conversations import ConversationSandboxes


@pytest.fixture(autouse=True)
def nothing_is_left() -> Generator[None]:
    if (reason := why_not_confined()) is not None:
        pytest.skip(reason)
    before = KINDS["confined-session"].held()
    yield
    assert KINDS["confined-session"].held() == before


def sandboxes(most: int = 10) -> ConversationSandboxes:
    return ConversationSandboxes(lambda: open_sandbox("confined"), most)


async def run(conversations: ConversationSandboxes, key: str | None, code: str) -> str:
    async with conversations.of(key) as there:
        return (await there.sandbox.run_python(code)).output.strip()


async def test_a_conversation_keeps_its_sandbox_and_shares_it_with_no_other() -> None:
    async with sandboxes() as conversations:
        assert await run(conversations, "a", "x = 1") == ""
        assert await run(conversations, "a", "x") == "1"
        assert await run(conversations, "b", "'x' in globals()") == "False"
        assert await run(conversations, None, "y = 1") == ""
        assert await run(conversations, None, "'y' in globals()") == "False"


async def test_the_longest_unused_one_makes_room() -> None:
    async with sandboxes(2) as conversations:
        for key in ("a", "b", "a", "c"):
            await run(conversations, key, "x = 1")
        # b had to go
        assert await run(conversations, "a", "'x' in globals()") == "True"
        assert await run(conversations, "c", "'x' in globals()") == "True"
        assert await run(conversations, "b", "'x' in globals()") == "False"


async def test_one_that_is_used_is_not_closed_for_another() -> None:
    async with sandboxes(0) as conversations, conversations.of("a") as used:
        assert await run(conversations, "b", "1") == "1"
        assert (await used.sandbox.run_python("2")).output.strip() == "2"


async def test_uses_of_one_conversation_queue_and_those_of_several_do_not() -> None:
    async with sandboxes() as conversations:
        async with conversations.of("a"):
            waiting = asyncio.create_task(run(conversations, "a", "1"))
            assert await run(conversations, "b", "2") == "2"
            assert not waiting.done()
        assert await waiting == "1"


async def test_one_that_opens_while_all_are_closed_is_closed_too() -> None:
    opens, may_open = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def slow() -> AsyncGenerator[AsyncSandbox]:
        opens.set()
        await may_open.wait()
        async with open_sandbox("confined") as sandbox:
            yield sandbox

    async with ConversationSandboxes(slow, 10) as conversations:
        late = asyncio.create_task(run(conversations, "a", "1"))
        await opens.wait()
    may_open.set()
    # that it is closed, the fixture sees
    with pytest.raises(SandboxError, match="async with"):
        await late
    with pytest.raises(SandboxError, match="async with"):
        await run(conversations, "a", "1")
