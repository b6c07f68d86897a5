"""Bad input and broken surroundings: one message with the fix, exit code 2, no traceback, nothing left running."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import (
    COMMAND,
    codeact_team,
    environment,
    in_this_process,
    lines,
    talker,
    without_advice,
)
from support.fork_server import start


def one_message(stderr: str) -> str:
    """The text of the only thing on stderr, which is an error."""
    stderr = without_advice(stderr)
    assert stderr.startswith("error: "), stderr
    assert stderr.count("\n") == 1, stderr
    assert "Traceback" not in stderr
    return stderr.removeprefix("error: ").rstrip()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["quickstrat", "x"], "no shipped config 'quickstrat'; did you mean 'quickstart'?"),
        (["nowhere.yaml", "x"], "nowhere.yaml: there is no such file"),
        (["broken.yaml", "x"], "broken.yaml:2: "),
        (["other.yaml", "x"], "other.yaml:1: provider: 'os.system' lies outside the allowed namespaces"),
        (["executor"], "there is no task: give it as the second argument, by --file FILE, or as `-`"),
        (["quickstart", "--file", "nowhere.txt"], "cannot be read from nowhere.txt: No such file"),
        (["quickstart", "x", "--file", "task.txt"], "the task is given twice"),
        (["quickstart", "--file", "latin1.txt"], "the task from latin1.txt is not UTF-8 text"),
        (["quickstart", "x", "-s", "config.nope.x=1"], "-s config.nope.x: config has no key 'nope'"),
        (["team", "x"], "OPENAI_API_KEY"),
        (["local-model", "x"], "the environment variable LOCAL_MODEL is not set"),
    ],
)
def test_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str):
    monkeypatch.chdir(tmp_path)
    for name in ("OPENAI_API_KEY", "LOCAL_MODEL"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "broken.yaml").write_text("provider: x\n  config: {\n")
    (tmp_path / "other.yaml").write_text("provider: os.system\nconfig: {}\n")
    (tmp_path / "task.txt").write_text("A task")
    (tmp_path / "latin1.txt").write_bytes(b"\xe4")
    result = in_this_process("run", *arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stderr.startswith("error: ")


def test_a_failure_is_the_result_for_programs_too(tmp_path: Path):
    result = codeact_team("run", "nowhere.yaml", "x", "--json", cwd=tmp_path)
    assert result.returncode == 2
    first, last = lines(result.stdout)
    assert (first["type"], first["version"]) == ("format", 4)
    assert (last["type"], last["exit_code"], last["ending"]) == ("result", 2, "failed")
    assert last["error"] == one_message(result.stderr) == "nowhere.yaml: there is no such file"


@pytest.mark.docker
def test_an_image_that_is_absent(tmp_path: Path):
    override = "config.code_executor.config={image: no.such.registry.invalid/image, pull: never}"
    result = codeact_team("run", "executor", "```sh\ntrue\n```", "-s", override, cwd=tmp_path)
    assert result.returncode == 2
    assert "no.such.registry.invalid/image" in one_message(result.stderr)


def test_what_is_behind_an_error_is_shown_to_who_asks(tmp_path: Path):
    result = codeact_team("--log-level", "debug", "run", "nowhere.yaml", "x", cwd=tmp_path)
    assert result.returncode == 2
    assert "Traceback" in result.stderr
    assert result.stderr.endswith("error: nowhere.yaml: there is no such file\n")


def test_a_log_is_added_to_a_file_that_only_its_user_reads_and_has_no_secrets(tmp_path: Path):
    secret = "a-word-that-nobody-may-read"
    (tmp_path / f"{secret}.yaml").write_text("[")
    for _ in range(2):
        command = ("--log-file", "it.log", "--log-level", "debug", "run", f"{secret}.yaml", "x")
        result = codeact_team(*command, cwd=tmp_path, SOME_API_KEY=secret)
        assert result.returncode == 2
        assert "Traceback" not in result.stderr
    log = (tmp_path / "it.log").read_text()
    assert log.count(" DEBUG ") == log.count(" codeact_team.runs.base: the run failed\n") == 2
    assert "${SOME_API_KEY}.yaml" in log
    assert secret not in log
    assert (tmp_path / "it.log").stat().st_mode & 0o077 == 0
    result = codeact_team("--log-file", "no/such/it.log", "runs", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "error: the log cannot be written to no/such/it.log: No such file or directory\n"


@pytest.mark.parametrize(
    "arguments", [pytest.param("schema", marks=pytest.mark.long), "run talker.json x --json", "run --help"]
)
def test_output_that_cannot_be_written_is_told_in_one_sentence(tmp_path: Path, arguments: str):
    talker(tmp_path, ["Hello."])
    command = [*COMMAND[1:], *arguments.split()]
    with (
        open("/dev/full", "wb") as full,
        start(command, cwd=tmp_path, environment=environment(), stdout=full.fileno()) as process,
    ):
        _, stderr = process.communicate(timeout=60)
        assert process.wait(60) == 2
    assert one_message(stderr.decode()) == "standard output cannot be written: No space left on device"
