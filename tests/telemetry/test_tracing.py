"""Spans of runs: whose children they are, when they begin and end, and what they tell."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Generator
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import Team
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.models import UserMessage
from autogen_core.tools import FunctionTool
from autogen_ext.models.replay import ReplayChatCompletionClient
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode
from support.codeact import agent_of, own_session, py
from support.openai_server import HttpError, Json, ScriptedServer, Text
from support.variations import mostly_long
from tracing_support import NUMBER, Spans, begin_of, context_of, end_of, told_of, tracing

from codeact_team.core.effects import Dispatcher, Effect, Event, Perform, current_dispatcher, perform
from codeact_team.core.events import BlockBegan, RunBegan, RunEnded, ToolCallBegan
from codeact_team.journal.result import RunEnding
from codeact_team.models.clients import wrap_client
from codeact_team.network.control import EgressAsked
from codeact_team.network.requests import NetworkRequest, RequestOutcome
from codeact_team.runs.opening import open_team
from codeact_team.runs.run import TeamRun
from codeact_team.telemetry import spans as telemetry
from codeact_team.tools.approval_rules import Question
from codeact_team.tools.approvals import Answer
from codeact_team.tools.autogen_parts import wrap

CONTENTS = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
CONFINED = (
    "config.participants.executor.config.code_executor="
    "{provider: codeact_team.ConfinedCommandLineCodeExecutor, config: {confinement: best_effort}}"
)
RUN = "invoke_workflow local-model"
FAILS = Text("```python\nprint('a ' + 'word')\n1 / 0\n```")
WORKS = Text("```python\nprint(6 * 7)\n```")
RETRY = Json({"reason": "Multiply.", "retry": True})
ACCEPT = Json({"problems": [], "accepted": True, "next_step": ""})


@pytest.fixture(name="spans")
def _spans(monkeypatch: pytest.MonkeyPatch) -> Generator[Spans]:
    with tracing(monkeypatch) as spans:
        yield spans


def runner(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, *overrides: str) -> TeamRun:
    monkeypatch.setenv("LOCAL_MODEL", "scripted-model")
    monkeypatch.setenv("LOCAL_BASE_URL", server.base_url)
    no_retries = "config.participants.coder.config.model_client.config.max_retries=0"
    return TeamRun("local-model", overrides=[CONFINED, no_retries, *overrides])


def no_text_of(spans: Spans, *words: str) -> bool:
    told = "".join(span.to_json() for span in spans.ours)
    return not any(word in told for word in words)


async def test_a_run_is_one_trace_of_agents_in_autogen_s_spans_with_their_calls_and_blocks(
    spans: Spans, monkeypatch: pytest.MonkeyPatch
):
    before = time.time_ns()
    async with ScriptedServer([FAILS, RETRY, WORKS, ACCEPT]) as server:
        result = await runner(server, monkeypatch).run_once("Multiply six by seven")
    assert result.ending is RunEnding.ACCEPTED
    run = spans.one(RUN)
    assert run.parent is None
    names = [(spans.path(span)[1:-1], span.name) for span in spans.ours]
    assert names == [
        ([], RUN),
        # AutoGen's own agent is told of by AutoGen alone
        ([], "chat scripted-model"),
        ([], "invoke_agent executor"),
        (["invoke_agent executor"], "execute_tool execute_code"),
        (["invoke_agent executor"], "chat scripted-model"),
        (["invoke_agent executor"], "chat scripted-model"),
        (["invoke_agent executor"], "execute_tool execute_code"),
        ([], "invoke_agent reflection"),
        (["invoke_agent reflection"], "chat scripted-model"),
    ]
    # the spans of AutoGen's runtime, and its own of the agent, are in between
    for agent, own in [("coder", "chat scripted-model"), ("executor", "invoke_agent executor")]:
        publish, process, *rest = spans.path(spans.named(own)[0], ours_only=False)[1:]
        assert publish.startswith(f"autogen publish {agent}_")
        assert process.startswith(f"autogen process {agent}_")
        assert rest == [f"invoke_agent {agent}", own]
    for span in spans.ours:
        assert (
            before - 1000 <= begin_of(run) <= begin_of(span) <= end_of(span) <= end_of(run) <= time.time_ns()
        )


async def test_spans_tell_what_the_conventions_ask_for_and_no_contents(
    spans: Spans, monkeypatch: pytest.MonkeyPatch
):
    async with ScriptedServer([FAILS, RETRY, WORKS, ACCEPT]) as server:
        await runner(server, monkeypatch).run_once("Multiply six by seven")
    chat, *_ = spans.named("chat scripted-model")
    assert chat.kind is SpanKind.CLIENT
    assert told_of(chat) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "scripted-model",
        "gen_ai.agent.name": "coder",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 10,
    }
    failed, worked = spans.named("execute_tool execute_code")
    assert told_of(failed) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "execute_code",
        "gen_ai.agent.name": "executor",
        "process.exit.code": 1,
        "error.type": "exit_code",
    }
    assert (failed.status.status_code, worked.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
    assert told_of(spans.one("invoke_agent executor")) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "executor",
    }
    assert told_of(spans.one(RUN)) == {
        "gen_ai.operation.name": "invoke_workflow",
        "gen_ai.workflow.name": "local-model",
    }
    (verdict,) = spans.one("invoke_agent reflection").events
    assert verdict.name == "gen_ai.evaluation.result"
    assert dict(verdict.attributes or {}) == {
        "gen_ai.evaluation.name": "review",
        "gen_ai.evaluation.score.label": "accepted",
        "gen_ai.evaluation.score.value": 1.0,
    }
    assert no_text_of(spans, "Multiply", "print", "a word", "Traceback")


async def test_contents_are_told_on_request_without_credentials(
    spans: Spans, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(CONTENTS, "SPAN_ONLY")
    monkeypatch.setenv("SHOP_API_KEY", 'quote"and-more')
    code = Text("```python\nprint('quote\"and-more', 6 * 7)\n```")
    refuse = Json({"problems": ['quote"and-more is a key'], "accepted": False, "next_step": ""})
    async with ScriptedServer([code, refuse]) as server:
        await runner(
            server, monkeypatch, "config.termination_condition.config.conditions.1.config.max_messages=4"
        ).run_once('Multiply, with quote"and-more')
    hidden = "${SHOP_API_KEY}"
    (task,) = json.loads(str(told_of(spans.one(RUN))["gen_ai.input.messages"]))
    assert task == {"role": "user", "parts": [{"type": "text", "content": f"Multiply, with {hidden}"}]}
    chat = told_of(spans.named("chat scripted-model")[0])
    roles = [message["role"] for message in json.loads(str(chat["gen_ai.input.messages"]))]
    assert roles == ["system", "user"]
    (answer,) = json.loads(str(chat["gen_ai.output.messages"]))
    assert (answer["role"], answer["finish_reason"]) == ("assistant", "stop")
    assert hidden in answer["parts"][0]["content"]
    block = told_of(spans.one("execute_tool execute_code"))
    arguments, result = (
        json.loads(str(block[f"gen_ai.tool.call.{what}"])) for what in ("arguments", "result")
    )
    assert arguments["blocks"][0]["language"] == "python"
    assert result == {"exit_code": 0, "output": f"{hidden} 42\n"}
    assert no_text_of(spans, "and-more")


async def test_a_model_that_fails_is_an_error_of_its_span_and_of_all_around(
    spans: Spans, monkeypatch: pytest.MonkeyPatch
):
    async with ScriptedServer([WORKS, *[HttpError(400, "the words of the server")] * 4]) as server:
        await runner(server, monkeypatch).run_once("A task")
    for name in ("chat scripted-model", "invoke_agent reflection", RUN):
        span = spans.named(name)[-1]
        assert span.status.status_code is StatusCode.ERROR, name
        assert told_of(span)["error.type"] == "BadRequestError", name
    assert no_text_of(spans, "words of the server")


async def test_tools_that_code_calls_side_by_side_are_children_of_its_block(spans: Spans):
    async def price(article: str) -> float:
        """The price of an article."""
        await asyncio.sleep(0)
        if article == "none":
            raise ValueError("no such article")
        return 2.5

    code = (
        "import asyncio, tools\n"
        "print(await asyncio.gather(*(tools.price.aio(one) for one in 'abc')))\n"
        "tools.price('none')"
    )
    began: list[int] = []
    with Dispatcher() as dispatcher:
        telemetry.trace(dispatcher, str)
        dispatcher.listen(
            lambda event: began.append(event.span) if isinstance(event, ToolCallBegan) else None
        )
        async with (
            own_session() as executor,
            ScriptedServer([Text(py(code)), Text(py("print(1)")), Text("2")]) as server,
        ):
            agent = agent_of(server, executor, tools=[FunctionTool(price, "The price of an article.")])
            await agent.run(task="What do they cost?")
    block = spans.named("execute_tool execute_code")[0]
    calls = spans.named("execute_tool price")
    assert [(call.attributes or {})[NUMBER] for call in calls] == began
    assert [spans.path(call)[-2] for call in calls] == ["execute_tool execute_code"] * 4
    assert [told_of(call).get("error.type") for call in calls] == [None, None, None, "failed"]
    assert all(begin_of(block) <= begin_of(call) <= end_of(call) <= end_of(block) for call in calls)
    assert told_of(calls[0]) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "price",
        "gen_ai.tool.type": "function",
        "gen_ai.agent.name": "coder",
    }
    assert no_text_of(spans, "no such article")


@pytest.mark.long
async def test_attempts_side_by_side_are_spans_with_their_calls_and_blocks(spans: Spans):
    with Dispatcher() as dispatcher:
        telemetry.trace(dispatcher, str)
        replies = [Text(py("print(1)")), Text(py("print(1)")), Text("1"), Text("1")]
        async with own_session() as executor, ScriptedServer(replies) as server:
            await agent_of(server, executor, attempts=2).run(task="What is it?")
    attempts = spans.named("attempt")
    assert {told_of(one)["codeact_team.attempt"] for one in attempts} == {1, 2}
    inner = [*spans.named("chat scripted-model"), *spans.named("execute_tool execute_code")]
    assert len(inner) == 6
    assert {tuple(spans.path(one)[:-1]) for one in inner} == {("invoke_agent coder", "attempt")}
    assert {context_of(attempt).span_id for attempt in attempts} == {
        one.parent.span_id for one in inner if one.parent is not None
    }


async def test_the_arguments_and_results_of_tools_are_told_on_request(
    spans: Spans, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(CONTENTS, "true")
    long = "x" * 1000

    def echo(text: str) -> str:
        """Say it again."""
        return f"{text}!"

    code = f"import tools\ntools.echo({long!r})"
    with Dispatcher() as dispatcher:
        telemetry.trace(dispatcher, str)
        async with own_session() as executor, ScriptedServer([Text(py(code)), Text("Done.")]) as server:
            await agent_of(server, executor, tools=[FunctionTool(echo, "Say it again.")]).run(task="Echo.")
    call = told_of(spans.one("execute_tool echo"))
    assert json.loads(str(call["gen_ai.tool.call.arguments"])) == {"text": long}
    assert f"{long}!" in str(call["gen_ai.tool.call.result"])


def nested(*replies: str) -> Team:
    """A team whose only member is a team whose only member answers so."""
    client = wrap(ReplayChatCompletionClient(list(replies)))
    inner = RoundRobinGroupChat(
        [AssistantAgent("talker", client)], termination_condition=MaxMessageTermination(2), name="inner"
    )
    return RoundRobinGroupChat([inner], termination_condition=MaxMessageTermination(2), name="outer")


async def test_a_nested_team_is_within_its_run(spans: Spans):
    with Dispatcher() as dispatcher:
        telemetry.trace(dispatcher, str, "nested")
        with dispatcher.span(lambda span: RunBegan(span=span, task="t"), lambda span: RunEnded(span=span)):
            await nested("Hello.").run(task="Say hello.")
    chat = spans.one("chat ReplayChatCompletionClient")
    assert spans.path(chat) == ["invoke_workflow nested", chat.name]
    whole = spans.path(chat, ours_only=False)
    assert whole[-2] == "invoke_agent talker"
    assert len(whole) > 6


async def test_runs_side_by_side_are_traces_of_their_own(spans: Spans, monkeypatch: pytest.MonkeyPatch):
    async with ScriptedServer([Text("Hello."), Text("Hello.")]) as server:
        client = server.client()

        async def run(name: str) -> None:
            with Dispatcher() as dispatcher:
                telemetry.trace(dispatcher, str, name)
                with dispatcher.span(
                    lambda span: RunBegan(span=span, task=name), lambda span: RunEnded(span=span)
                ):
                    agent = AssistantAgent(name, wrap_client(client, "m"))
                    await RoundRobinGroupChat([agent], termination_condition=MaxMessageTermination(2)).run(
                        task="Say hello."
                    )

        await asyncio.gather(run("first"), run("second"))
    assert sorted(spans.path(chat)[0] for chat in spans.named("chat m")) == [
        "invoke_workflow first",
        "invoke_workflow second",
    ]
    assert trace.get_current_span() is trace.INVALID_SPAN


async def test_an_embedded_team_is_within_the_span_of_its_program(spans: Spans):
    tracer = spans.provider.get_tracer("a program")
    with tracer.start_as_current_span("handle a request"):
        async with open_team("quickstart-codeact") as team:
            await team.run(task="What did the bakery sell?")
    chat, *_ = spans.named("chat ReplayChatCompletionClient")
    whole = spans.path(chat, ours_only=False)
    assert whole == ["handle a request", "invoke_agent coder", "invoke_agent coder", chat.name]


@pytest.mark.long
async def test_a_dispatcher_of_one_s_own_tells_spans_once_however_many_teams_are_opened(spans: Spans):
    with Dispatcher():
        for _ in range(2):
            async with open_team("quickstart-codeact") as team:
                await team.run(task="What did the bakery sell?")
    assert len(spans.named("invoke_agent coder")) == 2


async def test_without_a_tracer_provider_nothing_stands_in_the_dispatcher(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    async with open_team("quickstart-codeact"):
        assert current_dispatcher() is None


async def test_what_a_handler_answers_instead_or_refuses_has_no_span(spans: Spans):
    async def answer(effect: Effect[Any], do: Perform) -> Any:
        text = str(effect.request())
        if "refuse" in text:
            raise RuntimeError("Refused.")
        return await do() if "ask" in text else effect.load(recorded)

    recorded: dict[str, Any] = {
        "finish_reason": "stop",
        "content": "As before.",
        "usage": {"prompt_tokens": 1, "completion_tokens": 1},
        "cached": False,
    }
    with Dispatcher(answer) as dispatcher:
        telemetry.trace(dispatcher, str, "again")
        client = wrap_client(ReplayChatCompletionClient(["Hello."]), "m")
        with dispatcher.span(lambda span: RunBegan(span=span, task="t"), lambda span: RunEnded(span=span)):
            for said, answered in [("repeat", "As before."), ("ask", "Hello.")]:
                asked = [UserMessage(content=said, source="user")]
                assert (await client.create(asked)).content == answered
            with pytest.raises(RuntimeError):
                await client.create([UserMessage(content="refuse", source="user")])
    assert [span.name for span in spans.ours] == ["invoke_workflow again", "chat m"]
    assert trace.get_current_span() is trace.INVALID_SPAN


async def test_words_that_come_piece_by_piece_tell_when_the_first_came(spans: Spans):
    async with ScriptedServer([Text("Hello there.")]) as server:
        with Dispatcher() as dispatcher:
            telemetry.trace(dispatcher, str)
            client = wrap_client(server.client(), "m")
            said = [one async for one in client.create_stream([UserMessage(content="Hi.", source="user")])]
    assert len(said) > 2
    chat = spans.one("chat m")
    told = told_of(chat)
    assert told["gen_ai.request.stream"] is True
    first = told["gen_ai.response.time_to_first_chunk"]
    assert isinstance(first, float)
    assert 0 <= first <= (end_of(chat) - begin_of(chat)) / 1e9


async def test_a_question_to_a_person_is_a_span_and_its_answer_an_event(spans: Spans):
    async def agree(question: Question) -> Answer:
        await asyncio.sleep(0)
        return Answer(allowed=True)

    with Dispatcher() as dispatcher:
        telemetry.trace(dispatcher, str)
        async with own_session() as executor, ScriptedServer([Text(py("print(1)")), Text("1")]) as server:
            agent = agent_of(
                server, executor, approval=[{"code": "*", "decision": "ask"}], approval_handler=agree
            )
            await agent.run(task="Print.")
    assert spans.path(spans.one("ask_person")) == ["invoke_agent coder", "ask_person"]
    (approval,) = spans.one("invoke_agent coder").events
    assert dict(approval.attributes or {})["codeact_team.tools.approvals.decision"] == "allowed"


@pytest.mark.parametrize("contents", mostly_long([False, True]))
async def test_a_process_of_a_program_is_a_span(
    spans: Spans, contents: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(CONTENTS, "true" if contents else "false")
    with Dispatcher() as dispatcher:
        telemetry.trace(dispatcher, str)
        async with own_session() as executor:
            await executor.processes.run(["sh", "-c", "exit 3"])
            async with await executor.processes.start(["true"]) as job:
                await job.wait()
    failed, ended = spans.named("run_process")
    known = dict(failed.attributes or {})
    assert (known["process.exit.code"], known["error.type"]) == (3, "exit_code")
    assert failed.status.status_code is StatusCode.ERROR
    assert ended.status.status_code is StatusCode.UNSET
    assert json.loads(str(known.get("process.command_args", "null"))) == (
        ["sh", "-c", "exit 3"] if contents else None
    )


async def test_a_request_of_code_is_a_span_without_what_may_be_secret(spans: Spans):
    async def perform_one(url: str, outcome: RequestOutcome, method: str = "GET") -> None:
        scheme, _, rest = url.rpartition("://")
        host, _, path = rest.partition("/")
        asked = EgressAsked(1, 1, "s0", method, scheme, host, 443, f"/{path}" if scheme else "")

        async def send() -> RequestOutcome:
            return outcome

        await perform(NetworkRequest(asked, None, "coder"), send)

    with Dispatcher() as dispatcher:
        telemetry.trace(dispatcher, str)
        await perform_one("https://a.test/x?q=1&key=abc&token", RequestOutcome(status=404, received=12))
        await perform_one("https://a.test/y", RequestOutcome(error="it was lost"))
        await perform_one("b.test", RequestOutcome(sent=3), "CONNECT")
    found, lost, connected = spans.ours
    assert found.kind is SpanKind.CLIENT
    known = dict(found.attributes or {})
    del known[NUMBER], known["gen_ai.agent.name"]
    assert (found.name, known) == (
        "GET",
        {
            "http.request.method": "GET",
            "url.full": "https://a.test/x?q=REDACTED&key=REDACTED&REDACTED",
            "server.address": "a.test",
            "server.port": 443,
            "http.request.body.size": 0,
            "http.response.body.size": 12,
            "http.response.status_code": 404,
            "error.type": "404",
        },
    )
    assert found.status.status_code is lost.status.status_code is StatusCode.ERROR
    known = dict(connected.attributes or {})
    assert (connected.name, known["server.address"], "url.full" in known) == ("CONNECT", "b.test", False)
    assert connected.status.status_code is StatusCode.UNSET


@pytest.mark.long
async def test_work_that_is_cancelled_ends_its_spans(spans: Spans):
    with Dispatcher() as dispatcher:
        telemetry.trace(dispatcher, str)
        async with own_session() as executor, ScriptedServer([Text(py("while True: pass"))]) as server:
            work = asyncio.ensure_future(agent_of(server, executor).run(task="Wait."))

            def cancel(event: Event) -> None:
                if isinstance(event, BlockBegan):
                    work.cancel()

            dispatcher.listen(cancel)
            with pytest.raises(asyncio.CancelledError):
                await work
    for name in ("execute_tool execute_code", "invoke_agent coder"):
        assert spans.one(name).status.status_code is StatusCode.ERROR
    assert trace.get_current_span() is trace.INVALID_SPAN
