"""Traces of the command, as a real receiver of OTLP gets them."""

from __future__ import annotations

import signal
import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.command_line import COMMAND, codeact_team, environment, lines, local_model, talker
from support.fork_server import start
from support.openai_server import ScriptedServer, Slow, Text
from support.otlp_receiver import Received, Receiver, receiving
from test_cli_interrupts import wait_for_request

CONTENTS = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
RUN = "invoke_workflow talker"


def named(receiver: Receiver, name: str) -> list[Received]:
    return [span for span in receiver.spans if span.name == name]


@contextmanager
def nothing_listens() -> Generator[str]:
    """Where nothing listens, nor may begin to."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_a_run_arrives_as_one_trace_without_a_word_of_what_was_said(tmp_path: Path):
    with receiving() as receiver:
        config = talker(tmp_path, ["a secret answer"])
        result = codeact_team(
            "run",
            config,
            "A private task",
            "--json",
            cwd=tmp_path,
            OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint,
            OTEL_RESOURCE_ATTRIBUTES="team.name=blue",
        )
    assert lines(result.stdout)[-1]["answer"] == "a secret answer"
    assert result.stderr == ""
    (run,), (chat,), (agent,) = (
        named(receiver, name) for name in (RUN, "chat ReplayChatCompletionClient", "invoke_agent helper")
    )
    assert (run.parent, agent.parent, chat.parent) == ("", run.id, agent.id)
    assert {run.trace, agent.trace} == {chat.trace}
    assert (agent.scope, chat.scope) == ("autogen-core", "codeact_team")
    assert receiver.service["service.name"] == "codeact-team"
    assert receiver.service["team.name"] == "blue"
    assert chat.attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert b"secret answer" not in receiver.body
    assert b"private task" not in receiver.body


TEAM = """\
provider: autogen_agentchat.teams.RoundRobinGroupChat
config:
  participants:
  - provider: autogen_agentchat.agents.AssistantAgent
    config:
      name: helper
      description: Talks.
      reflect_on_tool_use: false
      tool_call_summary_format: "{result}"
      model_client:
        provider: autogen_ext.models.replay.ReplayChatCompletionClient
        config: {chat_completions: [a secret answer]}
  max_turns: 1
"""


@pytest.mark.parametrize("contents", [pytest.param("", marks=pytest.mark.long), "span_only"])
def test_messages_are_in_spans_on_request_only_and_once_and_never_a_credential(tmp_path: Path, contents: str):
    (tmp_path / "team.yaml").write_text(TEAM)
    variables = {CONTENTS: contents, "SHOP_PASSWORD": "correct-horse"}
    with receiving() as receiver:
        codeact_team(
            "run",
            "team.yaml",
            "My password is correct-horse",
            cwd=tmp_path,
            OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint,
            **variables,
        )
    # AutoGen's hold every message
    assert any(span.name.startswith("autogen process helper") for span in receiver.spans)
    assert not any("message" in span.attributes for span in receiver.spans)
    assert receiver.body.count(b"a secret answer") == bool(contents)
    assert (b"My password is ${SHOP_PASSWORD}" in receiver.body) == bool(contents)
    assert b"correct-horse" not in receiver.body


def test_the_wait_for_a_receiver_that_hangs_can_be_interrupted_and_the_run_stays_what_it_was(tmp_path: Path):
    with receiving(hangs=True) as receiver:
        variables = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
            # nothing is sent before the end
            "OTEL_BSP_SCHEDULE_DELAY": "600000",
        }
        arguments = [*COMMAND[1:], "run", talker(tmp_path, ["Hello."]), "Hi"]
        with start(arguments, cwd=tmp_path, environment=environment(**variables)) as process:
            receiver.asked.wait(60)
            process.send_signal(signal.SIGINT)
            stdout, stderr = process.communicate(timeout=60)
            code = process.wait(60)
    assert code == codeact_team("run", "talker.json", "Hi", cwd=tmp_path).returncode
    assert b"Hello." in stdout
    assert stderr == b"warning: not all traces could be sent: interrupted\n"


@pytest.mark.parametrize("receiver", ["missing", pytest.param("broken", marks=pytest.mark.long)])
def test_a_receiver_that_takes_nothing_costs_a_warning_and_not_the_run(tmp_path: Path, receiver: str):
    with receiving(400) as broken, nothing_listens() as nowhere:
        endpoint = nowhere if receiver == "missing" else broken.endpoint
        result = codeact_team(
            "run", talker(tmp_path, ["Hello."]), "Hi", cwd=tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint
        )
    plain = codeact_team("run", "talker.json", "Hi", cwd=tmp_path)
    assert result.returncode == plain.returncode
    assert result.stdout.count("Hello.") == plain.stdout.count("Hello.")
    (warning,) = result.stderr.splitlines()
    assert warning.startswith("warning: not all traces could be sent: ")


def test_an_interrupted_run_arrives_with_what_was_under_way(tmp_path: Path):
    with receiving() as receiver, ScriptedServer.in_thread([Slow(600, Text("Too late."))]) as server:
        variables = local_model(server.base_url) | {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint}
        with start(
            [*COMMAND[1:], "run", talker(tmp_path), "Hi"], cwd=tmp_path, environment=environment(**variables)
        ) as process:
            wait_for_request(server)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
            assert process.wait(60) == 130
    for name in (RUN, "chat scripted-model"):
        (span,) = named(receiver, name)
        assert span.failed
        assert span.attributes["error.type"] == "CancelledError"


def test_each_message_of_a_chat_is_a_trace(tmp_path: Path):
    with receiving() as receiver:
        result = codeact_team(
            "chat",
            talker(tmp_path, ["One.", "Two."]),
            cwd=tmp_path,
            stdin="first\nsecond\n",
            OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint,
        )
    assert result.returncode == 0, result.stderr
    runs = named(receiver, RUN)
    assert len({run.trace for run in runs}) == len(runs) == 2
    assert {chat.trace for chat in named(receiver, "chat ReplayChatCompletionClient")} == {
        run.trace for run in runs
    }


def test_an_exporter_that_is_not_there_is_named_and_the_run_goes_on(tmp_path: Path):
    result = codeact_team(
        "run", talker(tmp_path, ["Hello."]), "Hi", cwd=tmp_path, OTEL_TRACES_EXPORTER="zipkin"
    )
    assert "Hello." in result.stdout
    (warning,) = result.stderr.splitlines()
    assert "no exporter 'zipkin'" in warning
