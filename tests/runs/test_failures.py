"""Each failure is seen as AutoGen really passes it on: raised by the real client, through a real team."""

from __future__ import annotations

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import TaskResult
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.models import ChatCompletionClient
from autogen_ext.models.openai import OpenAIChatCompletionClient
from autogen_ext.models.replay import ReplayChatCompletionClient
from support.openai_server import AnyReply, Cut, Garbage, HttpError, ScriptedServer, Slow, Text
from support.variations import mostly_long

from codeact_team.agents.code_executor import CodeExecutorAgent
from codeact_team.core.effects import Dispatcher
from codeact_team.errors import ConfigError, EngineError, SandboxError
from codeact_team.executors.docker import DockerCommandLineCodeExecutor
from codeact_team.journal.result import explain, is_transient, retry_after
from codeact_team.models.clients import wrap_client

KEY = "sk-proj-abc***********************wxyz"


async def failure_of(client: ChatCompletionClient, *, nested: int = 1, stream: bool = False) -> BaseException:
    """What ends a run with this model, where an agent fails alone, or inside so many teams."""
    with Dispatcher() as dispatcher:
        agent = AssistantAgent("coder", wrap_client(client), model_client_stream=stream)
        runner: AssistantAgent | RoundRobinGroupChat = agent
        for depth in range(nested):
            runner = RoundRobinGroupChat(
                [runner], termination_condition=MaxMessageTermination(2), name=f"team_{depth}"
            )
        with pytest.raises(Exception, match=r".") as caught:
            await result_of(runner)
        return dispatcher.original_of(caught.value)


async def result_of(runner: AssistantAgent | RoundRobinGroupChat) -> TaskResult:
    return await runner.run(task="A task")


@pytest.mark.parametrize(
    ("reply", "said"),
    mostly_long(
        [
            (
                HttpError(
                    401, f"Incorrect API key provided: {KEY}. You can find your API key at https://..."
                ),
                "the model's server at {url} does not accept the API key (401): check OPENAI_API_KEY",
            ),
            (HttpError(403, "Country not supported"), "refuses this (403): Country not supported; check"),
            (
                HttpError(404, "The model `x` does not exist"),
                "(404): The model `x` does not exist; check `model`",
            ),
            (
                HttpError(429, "Rate limit reached"),
                "too many requests for the model's server at {url} (429): Rate limit",
            ),
            (
                HttpError(429, "You exceeded your current quota"),
                "the account's quota with the model's server at {url} is used up (429): You",
            ),
            (
                HttpError(400, "This model's maximum context length is 8192 tokens."),
                "the conversation is longer than the model can read, says the model's server at {url}: This model's",
            ),
            (
                HttpError(413, "Too big"),
                "the request is larger than the model's server at {url} accepts (413): Too big",
            ),
            (HttpError(400, "Unknown parameter"), "refuses the request (400): Unknown parameter; check"),
            (HttpError(500, "Oops"), "the model's server at {url} failed (500): Oops; try again later"),
            (HttpError(502, body=b"<html>Bad gateway</html>"), "the model's server at {url} failed (502): "),
            (Cut(), "the connection to the model's server at {url} broke off (Server disconnected"),
            (Cut("Hel"), "the connection to the model's server at {url} broke off (peer closed connection"),
            (
                Garbage(),
                "the model's server at {url} answered with something that is not a chat completion: check `base_url`",
            ),
            (
                Garbage(b'{"model": "scripted-model"}', "application/json"),
                "is not a chat completion: check `base_url`",
            ),
            (Garbage(b"[]", "application/json"), "is not a chat completion: check `base_url`"),
            (Garbage(b"{not json", "application/json"), "is not a chat completion: check `base_url`"),
            (Garbage(b"", "application/json"), "is not a chat completion: check `base_url`"),
        ],
        usual=4,
    ),
)
async def test_what_a_model_server_does_wrong_is_one_clear_message(reply: AnyReply, said: str):
    async with ScriptedServer([reply]) as server:
        text = explain(await failure_of(server.client()))
    assert said.format(url=server.base_url) in text
    assert "\n" not in text
    assert "Traceback" not in text
    assert KEY not in text


@pytest.mark.parametrize("nested", [0, 2])
async def test_a_failure_is_known_however_many_teams_have_passed_it_on(nested: int):
    async with ScriptedServer([HttpError(404, "The model `x` does not exist")]) as server:
        text = explain(await failure_of(server.client(), nested=nested))
    known = "does not know the model, or the address (404): The model `x`"
    assert text.startswith(f"the model's server at {server.base_url} {known}")


@pytest.mark.filterwarnings("ignore:No text content or tool calls")
async def test_an_agent_of_autogen_s_own_that_streams_a_page_of_html_is_told_what_it_was():
    async with ScriptedServer([Garbage()]) as server:
        text = explain(await failure_of(server.client(), stream=True))
    assert text.startswith(
        f"the model's server at {server.base_url} answered with something that is not a streamed chat completion"
    )


async def test_a_server_that_is_not_there_is_named_by_its_setting():
    async with ScriptedServer([]) as server:
        text = explain(await failure_of(server.client(base_url="http://me:secret@127.0.0.1:1/v1?key=x")))
    assert text == (
        "the model's server at http://127.0.0.1:1/v1 cannot be reached (All connection attempts failed): check that it runs, and `base_url` of the "
        "model client (or OPENAI_BASE_URL)"
    )


@pytest.mark.parametrize("key", ["sk-\N{HORIZONTAL ELLIPSIS}0123456789abcdef", "sk-0123456789abcdef\n"])
async def test_a_key_that_was_copied_with_something_that_is_no_part_of_it(key: str):
    async with ScriptedServer([]) as server:
        failure = await failure_of(server.client(api_key=key))
    text = explain(failure, environ={})
    assert "check OPENAI_API_KEY" in text
    assert "0123456789abcdef" not in text
    assert not is_transient(failure)


async def test_a_server_that_is_too_slow():
    async with ScriptedServer([Slow(5, Text("late"))]) as server:
        text = explain(await failure_of(server.client(timeout=0.2)))
    assert text.startswith(f"the model's server at {server.base_url} did not answer in time")


async def test_a_recorded_conversation_that_is_over():
    text = explain(await failure_of(ReplayChatCompletionClient([])))
    assert text.startswith("the recorded conversation has no further answers")


async def test_an_engine_that_is_not_there_speaks_for_itself_through_the_team(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere")
    executor = DockerCommandLineCodeExecutor()
    with Dispatcher() as dispatcher:
        agent = CodeExecutorAgent("executor", executor)
        team = RoundRobinGroupChat([agent], termination_condition=MaxMessageTermination(2))
        with pytest.raises(RuntimeError) as caught:
            await team.run(task="```python\nprint(1)\n```")
        text = explain(dispatcher.original_of(caught.value))
    await executor.stop()
    assert text.startswith(
        "no container engine answers at unix:///nowhere (No such file or directory): start Docker"
    )
    assert "Traceback" not in text


def test_our_own_errors_are_told_as_they_are():
    assert (
        explain(EngineError("no engine; start one"))
        == "no engine; start one; more: codeact-team help platforms"
    )
    text = explain(ConfigError("unknown key", file="a.yaml", line=3, path="config.x"))
    assert text == "a.yaml:3: config.x: unknown key"


async def test_a_missing_key_is_told_with_the_variable_to_set(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(Exception, match="OPENAI_API_KEY") as caught:
        OpenAIChatCompletionClient(model="gpt-4o")
    assert "OPENAI_API_KEY" in explain(caught.value)


def test_what_nobody_foresaw_is_named_and_says_how_to_see_more():
    text = explain(RuntimeError("KeyError: 'x'\nTraceback:\nTraceback (most recent call last):\n  File ..."))
    assert text == "KeyError: 'x'; --log-level debug shows where it comes from"
    assert explain(RuntimeError("it broke")).startswith("RuntimeError: it broke; ")


def test_a_page_of_text_is_cut():
    assert len(explain(RuntimeError("x " * 10_000))) < 800


@pytest.mark.parametrize(
    "text",
    [
        "refused: Bearer abcdefgh12345678",
        "the key sk-abcdefgh12345678 is wrong",
        "cannot connect with the-key-of-my-gateway",
    ],
)
def test_secrets_are_taken_out(text: str):
    told = explain(EngineError(text), environ={"GATEWAY_API_KEY": "the-key-of-my-gateway", "HOME": "wrong"})
    assert "abcdefgh12345678" not in told
    assert "the-key-of-my-gateway" not in told


def test_what_is_no_secret_stays():
    told = explain(
        SandboxError("risk-assessment of key-value-stores in /home/me"), environ={"HOME": "/home/me"}
    )
    assert told == "risk-assessment of key-value-stores in /home/me"


@pytest.mark.parametrize(
    ("reply", "transient"),
    [
        (HttpError(429, "Rate limit reached"), True),
        (HttpError(429, "You exceeded your current quota"), False),
        (HttpError(500), True),
        (HttpError(503, body=b"<html>Service unavailable</html>"), True),
        (Cut(), True),
        (HttpError(401), False),
        (HttpError(404), False),
        (HttpError(400), False),
        (Garbage(), False),
    ],
)
async def test_what_may_go_well_a_little_later_is_known(reply: AnyReply, transient: bool):
    async with ScriptedServer([reply]) as server:
        assert is_transient(await failure_of(server.client())) is transient


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"Retry-After": "42"}, 42.0),
        ({"x-ratelimit-reset-requests": "1s", "x-ratelimit-reset-tokens": "6m0.5s"}, 360.5),
        (
            {
                "x-ratelimit-reset-requests": "20ms",
                "x-ratelimit-remaining-requests": "0",
                "x-ratelimit-reset-tokens": "6m0s",
                "x-ratelimit-remaining-tokens": "999",
            },
            0.02,
        ),
        ({"x-ratelimit-reset": "30"}, 30.0),
        # times that are over
        ({"x-ratelimit-reset": "1700000000"}, 0.0),
        ({"x-ratelimit-reset": "1700000000000"}, 0.0),
        ({"retry-after": "soon", "x-ratelimit-reset": "1 fortnight"}, None),
        ({}, None),
    ],
)
async def test_how_long_a_server_wants_no_more_is_known(headers: dict[str, str], seconds: float | None):
    async with ScriptedServer([HttpError(429, "slow down", headers=headers)]) as server:
        assert retry_after(await failure_of(server.client(), nested=0)) == seconds


async def test_a_server_that_is_away_or_too_slow_may_be_there_later():
    async with ScriptedServer([Slow(5, Text("late"))]) as server:
        assert is_transient(await failure_of(server.client(timeout=0.2)))
        assert is_transient(await failure_of(server.client(base_url="http://127.0.0.1:1/v1")))


def test_what_is_no_model_s_fault_is_not_transient():
    assert not is_transient(EngineError("no engine"))
    assert not is_transient(RuntimeError("it broke"))
