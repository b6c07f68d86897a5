"""Agents of Microsoft's Agent Framework with the adapter, in the sandbox that the variable ``WHERE`` names.

It runs in the environment of ``test_agent_framework.py``, with the framework's own client of a scripted model.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, cast

import pytest
from agent_framework import (
    Agent,
    AgentResponse,
    AgentSession,
    Content,
    FunctionInvocationContext,
    Message,
    MiddlewareFailure,
    tool,
)
from agent_framework.openai import OpenAIChatCompletionClient
from support.openai_server import AnyReply, ScriptedServer, Text, ToolCalls

from codeact_team import Answer, Question, SettingError
from codeact_team.adapters.agent_framework import CodeActProvider, ExecuteCodeTool

WHERE = cast("Literal['docker', 'confined']", os.environ.get("WHERE", "docker"))

DONE = Text("Done.")
LOST = "The sandbox of the earlier calls is gone, with its variables and files."
# a point, as a PNG
POINT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="


def code(*blocks: str) -> ToolCalls:
    """The model calls ``execute_code`` for each of these, in one message."""
    return ToolCalls([("execute_code", {"code": block}) for block in blocks])


def steps(*blocks: str) -> list[AnyReply]:
    """The model runs these one after the other, and answers."""
    return [*map(code, blocks), DONE]


@asynccontextmanager
async def agent_of(replies: Sequence[AnyReply], **agent: Any) -> AsyncGenerator[tuple[Agent, ScriptedServer]]:
    async with ScriptedServer(replies) as server:
        client = OpenAIChatCompletionClient(model="scripted", api_key="-", base_url=server.base_url)
        yield Agent(client, "You are a clerk.", **agent), server


def results(response: AgentResponse[Any]) -> list[Content]:
    contents = [content for message in response.messages for content in message.contents]
    return [content for content in contents if content.type == "function_result"]


def texts(response: AgentResponse[Any]) -> list[str]:
    return [str(result.result).strip() for result in results(response)]


def attached(response: AgentResponse[Any]) -> list[tuple[str | None, str | None]]:
    items = [item for result in results(response) for item in result.items or ()]
    return [(item.media_type, item.name) for item in items if item.type == "data"]


async def test_variables_and_files_live_on_with_the_session() -> None:
    replies = [
        *steps("from fractions import Fraction\nhalf = Fraction(1, 2)\nopen('kept.txt', 'w').write('kept')"),
        *steps("1 / 0", "print(half + half, open('kept.txt').read())"),
        *steps("print('half' in globals())"),
    ]
    async with (
        CodeActProvider(WHERE) as codeact,
        agent_of(replies, context_providers=[codeact]) as (agent, _),
    ):
        session = agent.create_session()
        await agent.run("-", session=session)
        failed, later = texts(await agent.run("-", session=session))
        assert "ZeroDivisionError" in failed
        assert later == "1 kept"
        # another session has another sandbox
        assert texts(await agent.run("-", session=agent.create_session())) == ["False"]


async def test_calls_of_one_message_run_one_after_the_other() -> None:
    replies = [code("import time\ntime.sleep(0.3)\nx = 1", "x += 1\nprint(x)"), DONE]
    async with (
        CodeActProvider(WHERE) as codeact,
        agent_of(replies, context_providers=[codeact]) as (agent, _),
    ):
        assert texts(await agent.run("-"))[1].startswith("2\n")


async def test_code_calls_functions_of_the_host_with_what_the_run_gives_them() -> None:
    @tool(approval_mode="never_require")
    def get_order(number: int, ctx: FunctionInvocationContext) -> dict[str, Any]:
        """Look up an order."""
        assert ctx.session is not None
        return {"number": number, "user": ctx.kwargs["user"], "session": ctx.session.session_id}

    async def fail() -> None:
        raise ValueError("no such thing")

    async def scan() -> list[Content]:
        return [Content.from_text("page 1"), Content.from_data(b"\x00\x01", "application/pdf")]

    replies = steps(
        "order = tools.get_order(7)\nprint(order['number'] + 1, order['user'], order['session'])",
        "try:\n    tools.fail()\nexcept tools.ToolError as error:\n    print(error)",
        "page, scanned = tools.scan()\nprint(page, scanned.mime_type, scanned.data)",
        "try:\n    tools.get_order('x')\nexcept tools.ToolError as error:\n    print(error)",
    )
    async with (
        CodeActProvider(WHERE, tools=[get_order, fail, scan]) as codeact,
        agent_of(replies, context_providers=[codeact]) as (agent, server),
    ):
        session = agent.create_session()
        response = await agent.run("-", session=session, function_invocation_kwargs={"user": "Ada"})
        order, failure, scanned, refused = texts(response)
        assert order.startswith(f"8 Ada {session.session_id}")
        assert "no such thing" in failure
        assert "page 1 application/pdf b'\\x00\\x01'" in scanned
        assert "number" in refused
        system = server.requests[0]["messages"][0]["content"]
        assert "def tools.get_order(number: int) -> dict[str, Any]:" in system
        assert [each["function"]["name"] for each in server.requests[0]["tools"]] == ["execute_code"]


async def test_a_person_decides_on_each_guarded_call_while_the_code_waits() -> None:
    asked: list[dict[str, Any]] = []

    async def decide(question: Question) -> Answer:
        asked.append({"name": question.name, **question.arguments})
        return Answer(question.arguments["amount"] == 5, "too much")

    @tool(approval_mode="always_require")
    def refund(amount: int) -> str:
        """Pay back."""
        return f"paid {amount}"

    def look() -> str:
        return "looked"

    replies = steps(
        "for amount in (5, 500):\n    try:\n        print(tools.look(), tools.refund(amount))\n"
        "    except tools.ToolDenied as denial:\n        print(denial)"
    )
    async with (
        CodeActProvider(WHERE, tools=[refund, look], approval_handler=decide) as codeact,
        agent_of(replies, context_providers=[codeact]) as (agent, _),
    ):
        response = await agent.run("-")
        assert texts(response)[0].startswith("looked paid 5\nnot approved: too much")
        assert asked == [{"name": "refund", "amount": 5}, {"name": "refund", "amount": 500}]


async def test_without_a_handler_the_framework_asks_about_the_code() -> None:
    @tool(approval_mode="always_require")
    def refund(amount: int) -> str:
        """Pay back."""
        return f"paid {amount}"

    replies = steps("print(tools.refund(5))")
    async with (
        CodeActProvider(WHERE, tools=refund) as codeact,
        agent_of(replies, context_providers=[codeact]) as (agent, _),
    ):
        session = agent.create_session()
        response = await agent.run("-", session=session)
        (request,) = response.user_input_requests
        assert request.function_call is not None
        assert request.function_call.parse_arguments() == {"code": "print(tools.refund(5))"}
        approved = Message("user", [request.to_function_approval_response(True)])
        assert texts(await agent.run(approved, session=session)) == ["paid 5"]


async def test_new_files_and_pictures_are_attached() -> None:
    write = "open('output/{}', 'w').write({!r})"
    picture = f"from base64 import b64decode\nfrom pathlib import Path\npng = b64decode('{POINT}')"
    replies = steps(
        f"{write.format('a.csv', 'x')}\n{write.format('b.bin', 'y')}\nopen('scratch', 'w').close()",
        f"{write.format('a.csv', 'z')}\nopen('output/huge', 'w').truncate(6_000_000)",
        f"{picture}\nclass Drawn:\n    def _repr_png_(self):\n        return png\nDrawn()",
    )
    async with (
        CodeActProvider(WHERE) as codeact,
        agent_of(replies, context_providers=[codeact]) as (agent, _),
    ):
        response = await agent.run("-")
        assert attached(response) == [
            ("text/csv", "output/a.csv"),
            ("application/octet-stream", "output/b.bin"),
            ("text/csv", "output/a.csv"),
            ("image/png", None),
        ]
        first, second, third = texts(response)
        assert "Attached: output/a.csv" in first
        assert "Not attached (too large, too many, or not readable): output/huge" in second
        assert "ttached" not in third


async def test_the_model_is_told_when_its_sandbox_is_gone() -> None:
    replies = [
        *steps("x = 1"),
        *steps("y = 2"),
        *steps("print('x' in globals())"),
        *steps("print(1)", "print(2)"),
    ]
    async with agent_of(replies) as (agent, _):
        async with CodeActProvider(WHERE, max_sandboxes=1) as codeact:
            agent.context_providers = [codeact]
            first, second = agent.create_session(), agent.create_session()
            await agent.run("-", session=first)
            # which takes the room
            await agent.run("-", session=second)
            (text,) = texts(await agent.run("-", session=first))
            assert text.startswith(LOST)
            assert text.endswith("False")
        kept = AgentSession.from_dict(first.to_dict())
        # another process, as it were
        async with CodeActProvider(WHERE) as codeact:
            agent.context_providers = [codeact]
            told, not_again = texts(await agent.run("-", session=kept))
            assert told.startswith(LOST)
            assert not_again == "2"


async def test_without_a_session_each_call_has_a_sandbox_of_its_own() -> None:
    replies = steps("import six", "print('six' in globals())")
    async with (
        ExecuteCodeTool(WHERE, packages=["six"]) as execute_code,
        agent_of(replies, tools=[execute_code]) as (agent, _),
    ):
        assert "- Packages: six." in execute_code.build_instructions()
        imported, known = texts(await agent.run("-"))
        assert "Bound: six module" in imported
        assert known == "False"


async def test_wrong_use_is_said_at_once() -> None:
    with pytest.raises(TypeError, match="colour"):
        CodeActProvider(WHERE, colour="red")
    with pytest.raises(SettingError, match="kind"):
        CodeActProvider(cast("Any", "virtual"))
    with pytest.raises(SettingError, match="not a function"):
        CodeActProvider(WHERE, tools=[{"type": "web_search"}])
    async with agent_of([code("1")], context_providers=[CodeActProvider(WHERE)]) as (agent, _):
        with pytest.raises(MiddlewareFailure, match="async with"):
            await agent.run("-")
