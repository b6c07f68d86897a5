from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import subprocess
import sys
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from support.command_line import CONFINED, codeact_team, in_this_process, lines
from support.executing import wait_until
from support.forwarding import ROOTLESS, engine_with
from support.openai_server import ScriptedServer
from support.serving import LISTING_SERVER
from support.terminal import on_a_terminal
from test_cli_interrupts import end, running, sleepers, sleeps

from codeact_team.executors.confined import ConfinedSessionCodeExecutor
from codeact_team.sandbox.docker.address import engine_url
from codeact_team.sandbox.docker.container import LABEL, owner_label
from codeact_team.sandbox.docker.engine import connect

SECRET = "a-key-that-must-not-be-told"


def test_doctor_tells_what_is_missing_and_what_to_do(tmp_path: Path):
    result = codeact_team("doctor", cwd=tmp_path, DOCKER_HOST="unix:///nowhere")
    assert result.returncode == 0, result.stdout
    assert "✓ python " in result.stdout
    assert (
        "✗ engine      no container engine answers at unix:///nowhere (No such file or directory): start Docker"
        in result.stdout
    )
    assert "; the configs `team-confined` and `codeact-confined` need none\n" in result.stdout
    assert "✗ key         OPENAI_API_KEY is not set" in result.stdout
    assert (
        "✓ configs     codeact-confined, codeact, executor, local-model, quickstart-codeact, quickstart, team-confined, "
        "team, tools\n" in result.stdout
    )
    # what is missing here, the quickstart does not need
    assert result.stdout.endswith("\n\n── quickstart can run here\n")
    assert result.stderr == ""


def test_doctor_s_lines_fit_the_terminal(tmp_path: Path):
    with on_a_terminal("doctor", cwd=tmp_path, DOCKER_HOST="unix:///nowhere", COLUMNS="60") as terminal:
        assert terminal.end() == 0
    assert (
        "\n              `dockerd`), or point DOCKER_HOST at a running\n              one; " in terminal.text
    )
    assert [line for line in terminal.text.splitlines() if len(line) > 60] == []


@pytest.mark.docker
def test_doctor_tells_programs_the_same_and_no_key(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    result = in_this_process("doctor", "--json")
    assert result.returncode == 0
    states = {check["name"]: check["state"] for check in lines(result.stdout)}
    assert list(states) == [
        "python",
        "confinement",
        "engine",
        "limits",
        "image",
        "containers",
        "directories",
        "key",
        "configs",
    ]
    assert (states["engine"], states["image"], states["key"]) == ("works", "works", "works")
    assert SECRET not in result.stdout + result.stderr


@pytest.mark.docker
@pytest.mark.long
def test_doctor_removes_what_a_killed_run_has_left():
    ended = subprocess.Popen(["true"])
    ended.wait()
    owner = f"{owner_label().rpartition(':')[0]}:{ended.pid}"
    with closing(connect(engine_url())) as client:
        left: str = client.create_container("python:3-slim", ["sleep", "60"], labels={LABEL: owner})["Id"]
        # one that never started is removed by any start, such as that of another test
        client.start(left)
        name: str = client.inspect_container(left)["Name"].lstrip("/")
        assert name in in_this_process("doctor").stdout
        result = in_this_process("doctor", "--clean", "--json")
        assert not client.containers(all=True, filters={"id": left})
    assert result.returncode == 0
    assert f"removed {name} (" in result.stderr
    checks = {check["name"]: check["detail"] for check in map(json.loads, result.stdout.splitlines())}
    assert name not in checks["containers"]


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """The id of a process that has ended; there is no engine, and ``tmp_path`` is where temporary directories are."""
    process = subprocess.Popen(["true"])
    process.wait()
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return process.pid


def test_doctor_removes_the_directories_of_processes_that_have_ended_and_no_others(
    tmp_path: Path, ended: int
):
    left, mine, others = (
        tmp_path / f"codeact-team-{name}"
        for name in (f"{ended}-abcdefgh", f"{os.getpid()}-abcdefgh", "examples")
    )
    for directory in (left, mine, others):
        directory.mkdir()
    # as the process does that it belongs to
    descriptor = os.open(mine, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    result = in_this_process("doctor", "--clean", "--json")
    os.close(descriptor)
    assert f"removed {left}" in result.stderr.replace("\n", "")
    assert result.stderr.count("removed ") == 1
    assert {check["name"]: check["state"] for check in lines(result.stdout)}["directories"] == "works"
    assert {*tmp_path.iterdir()} == {mine, others}


@pytest.mark.long
def test_doctor_removes_the_directories_of_runs_that_were_killed_and_no_others(tmp_path: Path):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    (mine := temporary / "codeact-team-examples").mkdir()
    with ExitStack() as stack:
        server = stack.enter_context(ScriptedServer.in_thread([sleeps("68.25"), sleeps("68.25")]))
        killed, alive = (
            stack.enter_context(
                running(
                    server.base_url, "--no-record", cwd=tmp_path, overrides=[CONFINED], TMPDIR=str(temporary)
                )
            )
            for _ in range(2)
        )
        # what is shown of the code comes before the sandbox
        wait_until(lambda: len(sleepers("68.25")) == 2, seconds=60)
        killed.kill()
        killed.wait(60)
        arguments = ("doctor", "--clean", "--json")
        places = {"TMPDIR": str(temporary), "DOCKER_HOST": "unix:///nowhere"}
        result = codeact_team(*arguments, cwd=tmp_path, **places)
        kept = {path.name.split("-")[2] for path in temporary.iterdir()}
        assert kept == {"examples", str(alive.pid)}
        alive.terminate()
        end(alive)
    assert result.stderr.count("removed ") >= 1
    checks = {check["name"]: check["state"] for check in map(json.loads, result.stdout.splitlines())}
    assert (checks["directories"], checks["engine"]) == ("works", "missing")
    assert list(temporary.iterdir()) == [mine]


CONTAINER = "config.code_executor.config"


@pytest.mark.docker
def test_doctor_tells_of_a_config_whether_its_model_its_key_and_its_image_are_there(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    result = in_this_process("doctor", "codeact", "--json")
    assert result.returncode == 0, result.stdout
    checks = {check["name"]: check for check in lines(result.stdout)}
    assert list(checks) == ["python", "model", "key", "engine", "limits", "image", "packages"]
    assert checks["model"]["detail"].startswith("gpt-4.1, with vision, function_calling")
    assert checks["key"]["detail"] == "OPENAI_API_KEY is set"
    # of its packages a person reads a line, and a program all
    assert "python:3-slim is here: CPython 3." in checks["image"]["detail"]
    assert isinstance(checks["image"]["packages"], dict)
    assert SECRET not in result.stdout + result.stderr
    missing = ("-s", f"{CONTAINER}.image=no-such-image:1", "-s", f"{CONTAINER}.pull=never")
    result = in_this_process("doctor", "codeact", *missing)
    assert result.returncode == 2
    assert "✗ image " in result.stdout
    assert "no-such-image:1" in result.stdout


@pytest.mark.long
@pytest.mark.docker
async def test_doctor_does_not_promise_that_a_rootless_docker_enforces_limits_before_a_container_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    async with engine_with(ROOTLESS, monkeypatch, tmp_path):
        result = await asyncio.to_thread(codeact_team, "doctor", cwd=tmp_path, DOCKER_HOST=engine_url())
    assert (
        "✓ limits      memory_mib, cpus and pids are enforced, unless the engine belongs to " in result.stdout
    )


def test_doctor_tells_what_a_config_lacks_and_asks_no_model(tmp_path: Path):
    result = codeact_team("doctor", "team", cwd=tmp_path, DOCKER_HOST="unix:///nowhere")
    assert result.returncode == 2
    assert "✗ key         the model needs a key, and OPENAI_API_KEY is not set: " in result.stdout
    assert "✗ engine      no container engine answers at unix:///nowhere" in result.stdout
    assert result.stdout.endswith("\n\n── team cannot run here · it lacks: key, engine\n")
    with ScriptedServer.in_thread([]) as server:
        options = ("--model", "qwen3", "--base-url", server.base_url.replace("://", "://me:secret@"))
        command = ("doctor", "team-confined", *options, "-s", CONFINED)
        result = codeact_team(*command, cwd=tmp_path)
        assert not server.requests
    assert result.returncode == 0, result.stdout
    assert f"✓ model       qwen3 at {server.base_url}, with function_calling, json_output\n" in result.stdout
    assert "✓ key         none is sent\n" in result.stdout
    assert "confinement" in result.stdout
    assert "engine" not in result.stdout
    assert "the model 'qwen3': it is taken for one with" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense"], "no shipped config 'nonsense'"),
        (["--model", "gpt-4.1"], "there is no config to change: name one"),
    ],
)
def test_doctor_refuses_what_it_cannot_examine(arguments: list[str], said: str, tmp_path: Path):
    result = codeact_team("doctor", *arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert said in result.stderr
    assert result.stdout == ""


def test_doctor_reports_on_a_config_that_lacks_a_variable_and_names_the_option_for_it():
    result = in_this_process("doctor", "local-model", "-s", CONFINED)
    assert result.returncode == 2
    reports = {line.split()[1]: line for line in result.stdout.splitlines() if line}
    assert "LOCAL_MODEL is not set" in reports["config"]
    assert "name the model by --model NAME" in reports["config"]
    assert reports["model"].startswith("✗ model       ${LOCAL_MODEL} at http://localhost:11434/v1")
    assert reports["key"] == "✓ key         none is sent"
    assert in_this_process("doctor", "local-model", "-s", CONFINED, "--model", "qwen3").returncode == 0


def test_doctor_counts_what_killed_runs_have_left_and_names_a_few(tmp_path: Path, ended: int):
    for number in range(46):
        (tmp_path / f"codeact-team-{ended}-{number:08}").mkdir()
    [line] = [line for line in in_this_process("doctor").stdout.splitlines() if " directories " in line]
    assert "46 left by runs that were killed: " in line
    assert "and 43 more; `codeact-team doctor --clean` removes them" in line
    assert line.count("codeact-team-") == 3


@pytest.mark.parametrize(
    "url", [pytest.param("localhost:11434/v1", marks=pytest.mark.long), "http://[::1/v1"]
)
def test_doctor_tells_that_a_server_has_no_url(url: str, tmp_path: Path):
    result = codeact_team("doctor", "team-confined", "-s", CONFINED, cwd=tmp_path, OPENAI_BASE_URL=url)
    assert result.returncode == 2
    assert "✗ model       gpt-4.1 has no server: the URL of a server begins with http://" in result.stdout


@pytest.mark.long
@pytest.mark.usefixtures("offline_packages")
def test_doctor_tells_whether_the_packages_of_a_config_are_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    command = ("doctor", "codeact-confined", "-s", f"{CONTAINER}.confinement=best_effort", "--json")

    def told() -> tuple[str, dict[str, str]]:
        result = in_this_process(*command)
        assert result.returncode == 0, result.stderr
        check = lines(result.stdout)[-1]
        assert check["name"] == "packages"
        return check["state"], check.get("packages", {})

    # looking gets nothing
    assert told() == told() == ("limited", {})
    executor = ConfinedSessionCodeExecutor(packages=["pandas", "matplotlib"], confinement="best_effort")
    asyncio.run(executor.prepare())
    assert told() == ("works", {"matplotlib": "1.0", "pandas": "1.0"})


def test_validate_tells_beside_its_verdict_what_a_config_lacks_here(tmp_path: Path):
    command = ("validate", "team", "quickstart", "--json")
    result = codeact_team(*command, cwd=tmp_path, DOCKER_HOST="unix:///nowhere")
    assert result.returncode == 0
    assert [line["valid"] for line in lines(result.stdout)] == [True, True]
    key, engine = result.stderr.splitlines()
    assert key.startswith("warning: team: the model needs a key, and OPENAI_API_KEY is not set: ")
    assert engine.startswith("warning: team: no container engine answers at unix:///nowhere")


LATE = """
from autogen_ext.models.openai import OpenAIChatCompletionClient

class LateClient(OpenAIChatCompletionClient):
    def __init__(self, **config):
        import a_package_that_is_missing
"""


@pytest.mark.long
def test_doctor_tries_servers_and_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Validating starts nothing, so that it cannot know."""
    (tmp_path / "late_client.py").write_text(LATE)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    told = json.dumps(["desk", [[{"name": "look", "inputSchema": {"type": "object"}}]]])
    servers = [
        {"type": "StdioServerParams", "command": sys.executable, "args": [LISTING_SERVER, told]},
        {"type": "StdioServerParams", "command": "no-such-server", "args": ["--key", SECRET]},
    ]
    config = {
        "provider": "codeact_team.CodeActAgent",
        "config": {
            "name": "coder",
            "model_client": {
                "provider": "late_client.LateClient",
                "config": {"model": "gpt-4o", "api_key": SECRET},
            },
            "code_executor": {
                "provider": "codeact_team.ConfinedSessionCodeExecutor",
                "config": {"confinement": "best_effort"},
            },
            "workbench": [
                {"provider": "autogen_ext.tools.mcp.McpWorkbench", "config": {"server_params": server}}
                for server in servers
            ],
        },
    }
    (tmp_path / "coder.json").write_text(json.dumps(config))
    options = (str(tmp_path / "coder.json"), "--allow-unsafe", "--allow", "late_client")
    assert in_this_process("validate", *options).returncode == 0
    result = in_this_process("doctor", *options)
    assert result.returncode == 2
    assert "No module named 'a_package_that_is_missing'" in result.stdout
    assert re.search(r"✓ tools +MCP server .* has 1 tool\n", result.stdout)
    assert re.search(r"✗ tools +MCP server 'no-such-server' does not start: .*installed", result.stdout)
    assert SECRET not in result.stdout + result.stderr


def test_a_client_of_autogen_that_lacks_its_package_is_found_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # where it is installed, too
    monkeypatch.setitem(sys.modules, "azure", None)
    monkeypatch.delitem(sys.modules, "autogen_ext.auth.azure", raising=False)
    provider = "autogen_ext.models.openai.AzureOpenAIChatCompletionClient"
    settings = {"model": "gpt-4o", "azure_endpoint": "http://nowhere.invalid", "api_key": SECRET}
    settings |= {"azure_deployment": "d", "api_version": "2024-06-01"}
    client = {"provider": provider, "config": settings}
    agent = {"name": "helper", "description": "Talks.", "model_client": client}
    agent |= {"reflect_on_tool_use": False, "tool_call_summary_format": "{result}"}
    config = {"provider": "autogen_agentchat.agents.AssistantAgent", "config": agent}
    (tmp_path / "azure.json").write_text(json.dumps(config))
    for command in ("validate", "doctor"):
        result = in_this_process(command, str(tmp_path / "azure.json"))
        assert result.returncode == 2
        said = result.stdout + result.stderr
        assert "it needs the package 'azure', which is not installed" in said
        assert "✓ model" not in said
        assert SECRET not in said


CONFINED_WAY = {
    "egress": ["pypi.org", "api.example.org"],
    "credentials": [{"name": "TOKEN_OF_A_TEST", "hosts": ["api.example.org"]}],
    "confinement": "best_effort",
}


def test_doctor_tells_whether_there_is_a_way_out_and_the_keys_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = {"provider": "codeact_team.ConfinedSessionCodeExecutor", "config": CONFINED_WAY}
    (tmp_path / "alone.json").write_text(json.dumps(config))
    monkeypatch.setenv("TOKEN_OF_A_TEST", SECRET)
    result = in_this_process("doctor", str(tmp_path / "alone.json"))
    assert "✓ credentials TOKEN_OF_A_TEST is set, for api.example.org\n" in result.stdout
    assert "✓ egress      The network reaches only pypi.org, api.example.org.\n" in result.stdout
    assert SECRET not in result.stdout + result.stderr
    monkeypatch.delenv("TOKEN_OF_A_TEST")
    result = in_this_process("doctor", str(tmp_path / "alone.json"))
    assert result.returncode == 2
    assert "✗ credentials the credential TOKEN_OF_A_TEST is a variable that is not set" in result.stdout
    result = in_this_process("validate", str(tmp_path / "alone.json"))
    assert (result.returncode, "TOKEN_OF_A_TEST is a variable that is not set" in result.stderr) == (0, True)


@pytest.mark.docker
def test_doctor_tells_of_an_engine_that_can_give_no_way_out(tmp_path: Path):
    settings = {"egress": ["pypi.org"], "runtime": "runsc"}
    config = {"provider": "codeact_team.DockerSessionCodeExecutor", "config": settings}
    (tmp_path / "alone.json").write_text(json.dumps(config))
    assert "✗ egress      `egress` needs a socket of this machine in the container, which gVisor" in (
        in_this_process("doctor", str(tmp_path / "alone.json")).stdout
    )
