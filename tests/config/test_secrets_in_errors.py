"""What a reference stands for is in no error, whoever worded it."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from codeact_team.config.loading import load_config
from codeact_team.errors import ConfigError

Write = Callable[..., Path]

AGENT = """\
provider: codeact_team.CodeExecutorAgent
config:
  name: agent
  code_executor:
    provider: codeact_team.DockerCommandLineCodeExecutor
    config: {image: "python:3-slim"}
"""
SESSION = """\
provider: codeact_team.DockerSessionCodeExecutor
config: {%s}
"""
CLIENT = """\
provider: OpenAIChatCompletionClient
config: {model: gpt-4o, api_key: k, base_url: "%s"}
"""
SECRET = "hunter22-Xy.9z!"


def refused(source: Path, **environ: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_config(source, environ=environ)
    return caught.value


@pytest.mark.parametrize(
    "document",
    [
        "provider: ${SECRET}\nconfig: {}\n",
        "provider: codeact_team.${SECRET}\nconfig: {}\n",
        f"{AGENT}component_type: ${{SECRET}}\n",
        f"{AGENT}  approval_func: ${{SECRET}}\n",
        f"{AGENT}  default_language: ${{SECRET}}\n",
        f"{AGENT}  supported_languages: ['${{SECRET}}']\n  default_language: python\n",
        f"{AGENT}  tools: ['${{SECRET}}']\n",
        AGENT.replace("python:3-slim", "${SECRET}").replace("image", "workspace"),
        SESSION % "timeout: '${SECRET}'",
        SESSION % "modules: {np: '${SECRET}'}",
        SESSION % "extra_volumes: {/data: {bind: /data, mode: '${SECRET}'}}",
        CLIENT % "http://localhost:${SECRET}",
    ],
)
def test_an_error_shows_the_reference_and_never_what_it_stands_for(write: Write, document: str) -> None:
    error = refused(write(document), SECRET=SECRET)
    # as an uncaught exception is printed
    told = "".join(traceback.format_exception(error))
    assert SECRET not in told
    assert "hunter22" not in told
    assert "${SECRET}" in str(error)


def test_a_part_of_a_value_is_not_told_either(write: Write) -> None:
    # the first part of a path is what would have to be allowed
    told = str(refused(write("provider: ${SECRET}\nconfig: {}\n"), SECRET="hunt.er.two"))
    assert "hunt" not in told
    assert "pass --allow ${SECRET}" in told
    # a password with a slash ends in the place of a port
    told = str(refused(write(CLIENT % "http://me:${SECRET}@localhost/v1"), SECRET="pa/ss"))
    assert "Invalid port: '${SECRET}'" in told


def test_a_short_value_is_not_taken_for_every_word_that_is_like_it(write: Write) -> None:
    told = str(refused(write(SESSION % "timeout: '${LEAST}', cpus: -1"), LEAST="1"))
    assert "cpus: has to be greater than 0" in told
    # a part of the address of a server is not what an error elsewhere is about
    told = str(refused(write(f"{AGENT}  description: '${{URL}}'\n  tool: []\n"), URL="http://host/tools"))
    assert "config.tool: unknown key; did you mean 'tools'?" in told


def test_a_cause_that_quotes_nothing_is_kept(write: Write) -> None:
    error = refused(write(AGENT.replace("name: agent", "name: '${NAME}'")), NAME="not a name")
    assert isinstance(error.__cause__, ValueError)


def test_an_override_that_cannot_be_read_is_told_without_its_value(write: Write) -> None:
    for value in ("{sk-a: 1, sk-a: 2}", "!!int sk-a", "*sk-a"):
        with pytest.raises(ConfigError) as caught:
            load_config(write(AGENT), overrides=[f"config.name={value}"])
        assert str(caught.value) == "-s config.name: the value cannot be read as YAML; text may need quotes"
