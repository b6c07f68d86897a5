"""A run directory is input from strangers: it exhausts nothing, and nothing of it is done that nobody has confirmed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
import stories
from pydantic import JsonValue
from support.command_line import codeact_team, environment, talker

from codeact_team.core.events import ArtifactReference, BlockEnded, RunBegan, dump
from codeact_team.errors import JournalError
from codeact_team.journal.log import decode, encode, read_log
from codeact_team.journal.recorder import Recorder
from codeact_team.journal.run_directory import About, RunDirectory, digest_of
from codeact_team.journal.seal import user_key
from codeact_team.runs.foreign_runs import ForeignRun, shown_to
from codeact_team.runs.opening import open_team

KEY = "a-key-of-this-machine-0123456789"
MIB = 1 << 20
MEASURED = Path(__file__).parent.parent / "support" / "measured_program.py"
CONFIG = "provider: autogen_agentchat.agents.UserProxyAgent\nconfig: {name: you}\n"

CALL: dict[str, JsonValue] = {
    "at": 1,
    "begin": "model_call",
    "span": 1,
    "agent": "a",
    "place": "b",
    "key": "k",
}


def described(run: Path, config: str = CONFIG) -> None:
    run.mkdir(parents=True)
    about = About(
        id=run.name, task="Look.", config="c", working_directory="/nowhere", versions={}, nonce="0000"
    )
    (run / "config.yaml").write_text(config)
    (run / "run.json").write_text(
        about.model_copy(update={"config_digest": digest_of(config)}).model_dump_json()
    )
    (run / "journal.jsonl").write_bytes(b"")


def blob(run: Path, data: bytes) -> dict[str, JsonValue]:
    digest = sha256(data).hexdigest()
    path = run / "blobs" / digest[:2] / digest[2:]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return {"$blob": digest, "size": len(data)}


def doubling(run: Path) -> None:
    named = blob(run, b'{"type": "run_began"}')
    for _ in range(34):
        named = blob(run, json.dumps([named, named]).encode())
    (run / "journal.jsonl").write_bytes(
        encode({**CALL, "request": named})
        + encode({"type": "run_began", "at": 1, "span": 2, "task": named})
        + encode({"type": "run_began", "at": 1, "span": 3, "task": named})
    )


def sparse_blob(run: Path) -> None:
    named = blob(run, b"[]")
    digest = str(named["$blob"])
    os.truncate(run / "blobs" / digest[:2] / digest[2:], 200_000 * MIB)
    (run / "journal.jsonl").write_bytes(
        encode({**CALL, "request": named}) + encode({"type": "run_began", "at": 1, "span": 2, "task": named})
    )


def small_lists(run: Path) -> None:
    named = blob(run, b"[" + b"[]," * (10 * MIB) + b"[]]")
    (run / "journal.jsonl").write_bytes(encode({"type": "run_began", "at": 1, "span": 2, "task": named}))


def sparse_journal(run: Path) -> None:
    os.truncate(run / "journal.jsonl", 100_000 * MIB)


def sparse_behind_a_line(run: Path) -> None:
    (run / "journal.jsonl").write_bytes(encode({"at": 1, "resumed": {}}))
    os.truncate(run / "journal.jsonl", 900 * MIB)


def long_line(run: Path) -> None:
    with (run / "journal.jsonl").open("wb") as file:
        file.write(b'{"type":"run_began","at":1,"task":"')
        for _ in range(300):
            file.write(b"x" * MIB)
        file.write(b'"}\n')


def deep_line(run: Path) -> None:
    (run / "journal.jsonl").write_bytes(
        encode({"type": "run_began", "at": 1}).replace(b'"at":1', b'"at":' + b"[" * MIB + b"]" * MIB)
    )


def unknown_events(run: Path) -> None:
    with (run / "journal.jsonl").open("wb") as file:
        for n in range(1, 400_001):
            file.write(encode({"at": 1, "type": "of_another_version", "n": n}))


def valid_events(run: Path) -> None:
    began = dump(RunBegan(span=1, task="Look.", bypassing_parts=[], record=None))
    with (run / "journal.jsonl").open("wb") as file:
        file.write(encode(began) * 200_000)


def many_effects(run: Path) -> None:
    with (run / "journal.jsonl").open("wb") as file:
        for n in range(1, 200_001):
            file.write(encode({**CALL, "span": n, "request": []}))


def large_text_in_many_lines(run: Path, mib: int = 12) -> None:
    named = blob(run, json.dumps("x" * (mib * MIB)).encode())
    lines = [encode({"type": "run_began", "at": 1, "span": n, "task": named}) for n in range(100)]
    lines += [encode({**CALL, "span": n, "request": named}) for n in range(100)]
    lines += [encode({"at": 1, "end": "model_call", "span": n, "outcome": named}) for n in range(100)]
    (run / "journal.jsonl").write_bytes(b"".join(lines))


def too_large_text_in_many_lines(run: Path) -> None:
    large_text_in_many_lines(run, 50)


def large_picture_in_many_lines(run: Path) -> None:
    data = b"\x89PNG" + b"x" * (40 * MIB)
    digest = str(blob(run, data)["$blob"])
    picture = ArtifactReference(mime_type="image/png", size=len(data), sha256=digest)
    ended = BlockEnded(span=1, agent="a", exit_code=0, output="", artifacts=[picture])
    lines = [encode(dump(ended)) for _ in range(200)]
    (run / "journal.jsonl").write_bytes(b"".join(lines))


def alias_bomb(run: Path) -> None:
    lists = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    shutil.rmtree(run)
    described(run, "\n".join([CONFIG, "a0: &a0 [x, x, x, x, x, x, x, x, x, x]", *lists, ""]))


def work_dir_of_the_host(run: Path) -> None:
    shutil.rmtree(run)
    config = stories.coder(settings={"work_dir": "/etc", "confinement": "best_effort"}, tools=[])
    described(run, json.dumps(config))


def of(name: str) -> Callable[[Path], None]:
    return lambda run: os.truncate(run / name, 200_000 * MIB)


DIRECTORIES: dict[str, Callable[[Path], None]] = {
    "blobs that double": doubling,
    "a sparse blob": sparse_blob,
    "many small lists": small_lists,
    "a sparse journal": sparse_journal,
    "a sparse end": sparse_behind_a_line,
    "a long line": long_line,
    "a deep line": deep_line,
    "events of another version": unknown_events,
    "events without end": valid_events,
    "effects without end": many_effects,
    "a large text in many lines": large_text_in_many_lines,
    "a text too large in many lines": too_large_text_in_many_lines,
    "a large picture in many lines": large_picture_in_many_lines,
    "an alias bomb": alias_bomb,
    "a work_dir of the host": work_dir_of_the_host,
    "a sparse description": of("run.json"),
    "a sparse config": of("config.yaml"),
}
COMMANDS = {
    "show": ["show", "foreign"],
    "html": ["show", "foreign", "--html", "page.html"],
    "runs": ["runs"],
    "export": ["export", "foreign"],
    "replay": ["replay", "foreign"],
    "resume": ["resume", "foreign"],
    "answer": ["answer", "foreign"],
}


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("directory", DIRECTORIES)
def test_no_directory_exhausts_whoever_looks_at_it(tmp_path: Path, directory: str) -> None:
    run = tmp_path / "made" / ".codeact-team" / "runs" / "foreign"
    described(run)
    DIRECTORIES[directory](run)
    for command in COMMANDS:
        # takes no room for what is sparse
        subprocess.run(["cp", "-a", "--sparse=always", tmp_path / "made", tmp_path / command], check=True)
    commands = json.dumps([[str(tmp_path / command), words] for command, words in COMMANDS.items()])
    result = subprocess.run(
        [sys.executable, str(MEASURED), commands],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=True,
    )
    for command, used in zip(COMMANDS, json.loads(result.stdout), strict=True):
        told = f"{command}: {used['told']}"
        assert used["code"] in (0, 1, 2), told
        assert "Traceback" not in told
        assert "MemoryError" not in told
        if used["code"] == 2:
            assert "error: " in told
        # Inspect alone takes more than anything else here
        assert used["mib"] <= (600 if command == "export" else 300), told
        assert used["seconds"] <= 10, told


def recorded(folder: Path) -> Path:
    """A run of this user's that has failed, and names a key."""
    folder.mkdir(exist_ok=True)
    name = talker(folder, ["Hello."])
    stopped = codeact_team(
        "run", name, f"Say {KEY}.", "-s", "config.model_client.config.chat_completions=[]", cwd=folder,
        MY_API_KEY=KEY,
    )  # fmt: skip
    assert stopped.returncode == 2, stopped.stderr
    [run] = (folder / ".codeact-team" / "runs").glob("2*")
    return run


def resumed(run: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    folder = run.parent.parent.parent
    return codeact_team("resume", run.name, cwd=folder, MY_API_KEY=KEY, **variables)


def is_refused(result: subprocess.CompletedProcess[str]) -> bool:
    return result.returncode == 2 and "was not recorded by you on this machine" in result.stderr


def test_a_run_of_this_user_goes_on_also_as_a_copy(tmp_path: Path) -> None:
    run = recorded(tmp_path / "there")
    assert KEY not in (run / "run.json").read_text()
    assert "was not recorded" not in resumed(run).stderr
    shutil.copytree(run, run.with_name("20990101-copy"))
    assert "was not recorded" not in resumed(run.with_name("20990101-copy")).stderr


def test_a_run_of_another_user_is_refused_with_what_it_asks_for(tmp_path: Path) -> None:
    run = recorded(tmp_path / "there")
    told = resumed(run, XDG_STATE_HOME=str(tmp_path / "other"))
    assert is_refused(told)
    assert "components: autogen_agentchat.agents.AssistantAgent" in told.stderr
    assert "LOCAL_MODEL" not in told.stderr
    replayed = codeact_team(
        "replay", run.name, cwd=tmp_path / "there", XDG_STATE_HOME=str(tmp_path / "other"), MY_API_KEY=KEY
    )
    assert is_refused(replayed)


def content_of(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


async def test_a_refused_run_is_as_it_was_and_its_owner_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, run = tmp_path / talker(tmp_path, ["First.", "Second."]), tmp_path / "kept"
    async with open_team(config, record=run) as agent:
        await agent.run(task="Go on.")
    with (run / "journal.jsonl").open("ab") as file:
        # as a kill may leave it
        file.write(b'{"n":')
    before = content_of(run)
    with monkeypatch.context() as another:
        another.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
        for _ in range(2):
            with pytest.raises(JournalError, match="was not recorded by you"):
                async with open_team(config, record=run):
                    pass
    assert content_of(run) == before
    async with open_team(config, record=run) as agent:
        results = [await agent.run(task="Go on.") for _ in range(2)]
    said = [result.messages[-1].to_text() for result in results]  # pyright: ignore[reportAttributeAccessIssue]
    assert said == ["First.", "Second."]


async def test_a_run_whose_parts_act_past_its_journal_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    config, run = tmp_path / talker(tmp_path, ["First."]), tmp_path / "kept"
    async with open_team(config, record=run) as agent:
        await agent.run(task="Go on.")
    before = content_of(run)
    team = stories.team(
        json.loads(config.read_text()),
        termination_condition=stories.component(
            "autogen_agentchat.conditions.TimeoutTermination", timeout_seconds=60
        ),
    )
    with pytest.raises(JournalError, match=r"these bypass its journal.*: TimeoutTermination"):
        async with open_team(team, record=run):
            pass
    assert content_of(run) == before


def change_line(run: Path) -> None:
    lines = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    entry = decode(lines[2])
    assert entry is not None
    lines[2] = encode({**entry, "at": 5})
    (run / "journal.jsonl").write_bytes(b"".join(lines))


def drop_line(run: Path) -> None:
    lines = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (run / "journal.jsonl").write_bytes(b"".join(lines[:2] + lines[3:]))


def lines_of_another(run: Path) -> None:
    other = recorded(run.parent.parent.parent.parent / "another")
    shutil.copy(other / "journal.jsonl", run / "journal.jsonl")


def other_task(run: Path) -> None:
    about = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(about | {"task": "Send me all."}))


def other_config(run: Path) -> None:
    config = (run / "config.yaml").read_text() + "# more\n"
    (run / "config.yaml").write_text(config)
    about = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(about | {"config_digest": digest_of(config)}))


@pytest.mark.parametrize("change", [change_line, drop_line, lines_of_another, other_task, other_config])
def test_a_run_that_was_changed_is_somebody_elses(tmp_path: Path, change: Callable[[Path], None]) -> None:
    run = recorded(tmp_path / "there")
    change(run)
    assert is_refused(resumed(run))


def test_an_answer_to_a_changed_run_does_not_make_it_ones_own(tmp_path: Path) -> None:
    run = recorded(tmp_path / "there")
    change_line(run)
    recorder, history = Recorder.reopen(RunDirectory(run), {})
    assert history.chain is None
    recorder.write(resumed={})
    recorder.close()
    assert "mac" not in list(read_log(run / "journal.jsonl"))[-1]


@pytest.mark.long
def test_the_key_is_made_once_and_for_its_owner_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    program = "from codeact_team.journal.seal import user_key; print(user_key().secret.hex())"
    made = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    assert {process.communicate()[0].strip() for process in made} == {user_key().secret.hex()}
    [file] = (tmp_path / "codeact-team").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_key_that_others_can_read_seals_nothing(tmp_path: Path) -> None:
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    file = tmp_path / "state" / "codeact-team" / "run-key"
    codeact_team("run", talker(tmp_path, ["Hello."]), "Greet.", cwd=tmp_path, **state)
    file.chmod(0o644)
    told = codeact_team("run", talker(tmp_path, ["Hello."]), "Greet.", cwd=tmp_path, **state)
    assert "Hello." in told.stdout
    assert "is not a key that only you can read" in " ".join(told.stderr.split())


WITH_A_KEY = """\
provider: codeact_team.ConfinedSessionCodeExecutor
config:
  egress: [collector.example]
  credentials: [{name: TOKEN_OF_A_TEST, hosts: [collector.example]}]
  extra_ca: [/tmp/ours.pem]
"""


def test_a_key_of_this_machine_goes_to_the_hosts_of_a_config_only_if_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described(tmp_path / "foreign", WITH_A_KEY)
    directory = RunDirectory(tmp_path / "foreign")
    monkeypatch.setenv("TOKEN_OF_A_TEST", KEY)
    told: list[ForeignRun] = []
    assert shown_to(directory, lambda run: told.append(run) or run.names) == ["TOKEN_OF_A_TEST"]
    wanted = " ".join(told[0].wanted)
    assert "config.egress: " in wanted
    assert "config.credentials: " in wanted
    assert "config.extra_ca: " in wanted
    with pytest.raises(
        JournalError, match=r"sends TOKEN_OF_A_TEST to .*collector\.example.*, which was not allowed"
    ):
        shown_to(directory, lambda _: ())
