"""How a run ends that is not accepted, in a person's words, with lines that can be copied."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from support.command_line import (
    CODE,
    CONFINED,
    NO_PACKAGES,
    codeact_team,
    in_this_process,
    local_model,
    run_team,
    set_all,
    talker,
)
from support.openai_server import (
    AnyReply,
    Cut,
    HttpError,
    Refusal,
    ScriptedServer,
    Text,
    ToolCalls,
    Truncated,
)

ALONE = "config.code_executor={provider: codeact_team.ConfinedSessionCodeExecutor, config: {confinement: best_effort}}"
NO_RETRIES = "config.model_client.config.max_retries=0"
STEPS = [Text(f"```python\nprint({n})\n```") for n in range(1, 9)]


def variables(server: ScriptedServer) -> dict[str, str]:
    return {"OPENAI_API_KEY": "a-key", "OPENAI_BASE_URL": server.base_url}


ENDINGS: dict[str, tuple[AnyReply, str, str]] = {
    "cut off": (
        Truncated("```python\nprint(1"),
        "the model's replies were cut off at its token limit",
        "-s config.model_client.config.max_tokens=8192",
    ),
    "refused": (Refusal(), "the model declined, or its provider stopped the answer", "--model NAME"),
    "a tool": (
        ToolCalls([("python", {"code": "print(1)"})]),
        "the model called tools that it was not offered",
        "--model NAME",
    ),
    "empty": (Text(""), "the model gave no answer", "--model NAME"),
}


@pytest.mark.parametrize(
    ("reply", "sentence", "option"),
    [
        pytest.param(*ending, id=name, marks=() if name == "cut off" else pytest.mark.long)
        for name, ending in ENDINGS.items()
    ],
)
def test_an_ending_has_a_sentence_and_a_remedy(
    tmp_path: Path, reply: AnyReply, sentence: str, option: str
) -> None:
    with ScriptedServer.in_thread(lambda _: reply) as server:
        arguments = ("codeact", "A task", *set_all([ALONE, NO_RETRIES]))
        ran = codeact_team("run", *arguments, cwd=tmp_path, **variables(server))
    assert ran.returncode == 1
    assert f" s · coder: {sentence}\n" in ran.stdout
    assert "best answer so far" not in ran.stdout
    assert f"run it again with {option}" in ran.stderr
    assert "to go on" not in ran.stderr, "it would end the same way"
    # it came twice, or more often, and AutoGen's client warns of it
    match reply:
        case Refusal(refusal=words) | Truncated(text=words):
            assert ran.stdout.count(words) == 1
        case Text():
            assert ran.stdout.count("(The model gave no answer") == 1
        case _:
            pass
    assert "warning" not in ran.stderr


@pytest.mark.long
def test_verdicts_that_cannot_be_read_end_a_team_and_the_answer_is_the_coder_s(tmp_path: Path) -> None:
    unread = Text("Well, it looks fine.")
    replies = [Text(CODE), unread, unread, Text("It is 42."), unread, unread]
    with ScriptedServer.in_thread(replies) as server:
        ran = run_team(server.base_url, "Multiply.", cwd=tmp_path)
        assert server.unused == ()
    assert ran.returncode == 1
    assert "· 2 verdicts of reflection in a row could not be read\n" in ran.stdout
    assert ran.stdout.endswith("── best answer so far\nIt is 42.\n")
    assert (
        "a model with structured output may help: run it again with -s config.participants.2." in ran.stderr
    )


def test_a_broken_stream_is_no_server_that_is_not_there(tmp_path: Path) -> None:
    with ScriptedServer.in_thread(lambda _: Cut("It is 4")) as server:
        ran = codeact_team("run", talker(tmp_path), "A task", cwd=tmp_path, **local_model(server.base_url))
    assert ran.returncode == 75
    assert f"the connection to the model's server at {server.base_url} broke off" in ran.stderr


def test_a_model_that_its_server_does_not_know_is_named_anew(tmp_path: Path) -> None:
    refused = HttpError(404, "model 'scripted-model' not found")
    with ScriptedServer.in_thread([refused, Text("It is 42.")]) as server:
        served = local_model(server.base_url)
        ran = codeact_team("run", talker(tmp_path), "6 * 7?", cwd=tmp_path, **served)
        [line] = re.findall(
            r"^to go on with another model: codeact-team (.*model=)NAME$", ran.stderr, re.MULTILINE
        )
        assert "to go on: " not in ran.stderr, "it would be refused again"
        assert line.endswith(" -s config.model_client.config.model=")
        resumed = codeact_team(*shlex.split(f"{line}other-model"), cwd=tmp_path, **served)
        assert server.requests[-1]["model"] == "other-model"
    assert resumed.stdout.endswith("── answer\nIt is 42.\n")


@pytest.mark.long
@pytest.mark.parametrize(
    ("said", "setting"),
    [("The model `gpt-41` does not exist", "model=NAME"), ("404 page not found", "base_url=URL")],
)
def test_what_a_server_does_not_know_is_changed_in_all_clients_that_have_it(
    tmp_path: Path, said: str, setting: str
) -> None:
    sandbox = set_all([CONFINED, NO_PACKAGES])
    with ScriptedServer.in_thread([HttpError(404, said)]) as server:
        arguments = ("run", "team-confined", "A task", "--model", "gpt-41", *sandbox)
        ran = codeact_team(*arguments, cwd=tmp_path, **variables(server))
    clients = [f"-s config.participants.{n}.config.model_client.config.{setting}" for n in range(3)]
    assert ran.stderr.rstrip("\n").endswith(f" {' '.join(clients)}")


@pytest.mark.parametrize("command", ["resume", pytest.param("replay", marks=pytest.mark.long)])
def test_an_option_of_new_runs_is_answered_with_the_one_for_a_run(command: str) -> None:
    refused = in_this_process(command, "last", "--model", "gpt-4.1")
    assert refused.returncode == 2
    assert (
        "No such option: --model; a run keeps its models. -s changes one, such as -s config."
        in refused.stderr
    )
    assert "Possible options" not in refused.stderr


@pytest.mark.long
def test_the_line_that_raises_a_limit_has_all_that_it_needs_and_the_limit_stays_raised(
    tmp_path: Path,
) -> None:
    def command() -> list[str]:
        [line] = re.findall(r"^to go on with a higher limit: codeact-team (.*)$", ran.stderr, re.MULTILINE)
        return shlex.split(line)

    given = ["--allow", "shop", "--allow-unsafe", "-o", "the answer.md"]
    limited = set_all([ALONE, NO_RETRIES, "config.max_steps=1"])
    replies = [STEPS[0], Text("Not yet."), STEPS[1], Text("Not yet."), STEPS[2], Text("It is 3.")]
    with ScriptedServer.in_thread(replies) as server:
        ran = codeact_team("run", "codeact", "A task", *given, *limited, cwd=tmp_path, **variables(server))
        assert command()[2:] == [*given, "-s", "config.max_steps=2"]
        ran = codeact_team(*command(), cwd=tmp_path, **variables(server))
        shown = codeact_team("show", "last", cwd=tmp_path)
        asked = len(server.requests)
        again = codeact_team("resume", "last", *given[:3], cwd=tmp_path, **variables(server))
        assert (again.returncode, len(server.requests)) == (1, asked), "it comes to the same end"
        # twice the limit that holds now, not that of the config
        assert command()[-1] == "config.max_steps=4"
        assert f"--allow shop --allow-unsafe -s {command()[-1]}" in shown.stderr
        ran = codeact_team(*command(), cwd=tmp_path, **variables(server))
        assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "the answer.md").read_text() == "It is 3.\n"
    assert "to go on" not in ran.stderr


def test_a_key_that_was_given_to_resume_is_not_kept(tmp_path: Path) -> None:
    key = "sk-given-on-the-command-line-0123456789"
    with ScriptedServer.in_thread([HttpError(401), Text("It is 1.")]) as server:
        codeact_team("run", talker(tmp_path), "A task", cwd=tmp_path, **local_model(server.base_url))
        changes = set_all([f"config.model_client.config.api_key={key}", "config.description=Other"])
        resumed = codeact_team("resume", "last", *changes, cwd=tmp_path, **local_model(server.base_url))
    assert "── helper\nIt is 1.\n" in resumed.stdout, resumed.stderr
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert any(b"config.description=Other" in content for content in kept)
    assert not any(key.encode() in content for content in kept)


@pytest.mark.long
def test_in_another_directory_the_error_has_the_line_that_resumes_the_run(tmp_path: Path) -> None:
    here, there = tmp_path / "my work", tmp_path / "there"
    for directory in (here, there):
        directory.mkdir()
    with ScriptedServer.in_thread([HttpError(401), Text("It is 42.")]) as server:
        codeact_team("run", talker(here), "Multiply.", cwd=here, **local_model(server.base_url))
        runs = here / ".codeact-team" / "runs"
        refused = codeact_team("resume", "last", "--run-dir", str(runs), cwd=there)
        assert refused.returncode == 2
        [line] = re.findall(
            r"cd '.*' && codeact-team resume \.codeact-team/runs/\S+$", refused.stderr, re.MULTILINE
        )
        _, directory, _, _, *command = shlex.split(line)
        resumed = codeact_team(*command, cwd=Path(directory), **local_model(server.base_url))
    assert directory == str(here)
    assert "── helper\nIt is 42.\n" in resumed.stdout


def test_an_error_in_the_config_of_a_run_names_its_file(tmp_path: Path) -> None:
    with ScriptedServer.in_thread([HttpError(401)]) as server:
        config = shutil.copy(Path(__file__).parents[2] / "configs" / "codeact.yaml", tmp_path / "mine.yaml")
        limited = set_all([ALONE, NO_RETRIES, "config.tools=['shop:order']"])
        (tmp_path / "shop.py").write_text('def order() -> str:\n    """Order."""\n    return ""\n')
        shop = {"PYTHONPATH": str(tmp_path), **variables(server)}
        codeact_team("run", str(config), "A task", "--allow", "shop", *limited, cwd=tmp_path, **shop)
        refused = codeact_team("resume", "last", cwd=tmp_path, **shop)
    assert refused.returncode == 2
    assert re.match(r"error: \.codeact-team/runs/\S+/config\.yaml:\d+: config\.tools\.0: ", refused.stderr)
