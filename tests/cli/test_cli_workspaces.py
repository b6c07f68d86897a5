"""Where the files of a run are: in a workspace of its own, as long as the run is kept, or where its config says."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from support.command_line import COMMAND, codeact_team, environment, lines, run_code, set_all
from support.fork_server import start
from support.openai_server import ScriptedServer, Slow, Text
from test_cli_interrupts import wait_for_request

CONFINED = "config.code_executor={provider: codeact_team.ConfinedSessionCodeExecutor, config: {confinement: best_effort}}"
IN_CODING = f"{CONFINED[:-2]}, work_dir: coding}}}}"


# but for the code itself, which is a file there as well
LIST = "import glob\nprint('there:', sorted({*glob.glob('*')} - {*glob.glob('tmp_code_*')}))"


def python(code: str) -> Text:
    return Text(f"```python\n{code}\n```")


def keys(server: ScriptedServer) -> dict[str, str]:
    return {"OPENAI_API_KEY": "a-key", "OPENAI_BASE_URL": server.base_url}


def run(
    server: ScriptedServer, folder: Path, *arguments: str, override: str = CONFINED
) -> subprocess.CompletedProcess[str]:
    return codeact_team("run", "codeact", "Go.", *arguments, *set_all([override]), cwd=folder, **keys(server))


def files(folder: Path) -> list[str]:
    """The names of all files in workspaces of runs."""
    workspaces = folder / ".codeact-team" / "runs" / "workspaces"
    return sorted(path.name for path in workspaces.rglob("*") if path.is_file())


def test_a_run_finds_and_delivers_no_files_of_an_earlier_one(tmp_path: Path):
    (tmp_path / "sales.csv").write_text("north,1\n")
    spoil = "open('sales.csv', 'w').write('spoilt')\nopen('a.txt', 'w').close()"
    first = run_code(spoil, "--data", "sales.csv", "--json", cwd=tmp_path)
    second = run_code(LIST, "--data", "sales.csv", "--json", "--out", "out", cwd=tmp_path)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert "there: ['sales.csv']" in second.stdout
    assert [file["path"] for file in lines(first.stdout)[-1]["files"]] == ["a.txt", "sales.csv"]
    assert lines(second.stdout)[-1]["files"] == []
    assert files(tmp_path) == ["a.txt", "sales.csv", "sales.csv"]
    assert (tmp_path / "sales.csv").read_text() == "north,1\n"


def test_a_run_may_begin_with_the_files_of_an_earlier_one_but_not_with_what_its_links_lead_to(tmp_path: Path):
    (tmp_path / "secret.txt").write_text("secret")
    make = (
        f"import os\nopen('a.txt', 'w').write('a')\nos.mkdir('d')\nopen('d/b.txt', 'w').close()\n"
        f"open('.hidden', 'w').close()\nos.symlink({str(tmp_path / 'secret.txt')!r}, 'link.txt')"
    )
    assert run_code(make, cwd=tmp_path).returncode == 0
    second = run_code(LIST, "--continue-in", "last", cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    assert "there: ['a.txt', 'd']" in second.stdout


def test_what_a_pruned_run_has_made_goes_with_it(tmp_path: Path):
    assert run_code("open('a.txt', 'w').close()", cwd=tmp_path).returncode == 0
    assert files(tmp_path) == ["a.txt"]
    assert codeact_team("runs", "--older-than", "0", "--prune", cwd=tmp_path).returncode == 0
    assert files(tmp_path) == []


def test_a_work_dir_that_another_run_uses_is_refused_with_the_way_out(tmp_path: Path):
    command = [*COMMAND[1:], "run", "codeact", "Go.", *set_all([IN_CODING])]
    with (
        ScriptedServer.in_thread([Slow(60, Text("late")), python(LIST), Text("Done.")]) as server,
        start(
            command, cwd=tmp_path, environment=environment(**keys(server)), stdin=subprocess.DEVNULL
        ) as process,
    ):
        wait_for_request(server)
        refused = run(server, tmp_path, override=IN_CODING)
        unrecorded = run(server, tmp_path, "--no-record", override=IN_CODING)
        own = run(server, tmp_path)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(50)
    assert (refused.returncode, unrecorded.returncode) == (2, 2)
    assert "the work_dir coding is in use by the run 2" in unrecorded.stderr
    assert "the work_dir coding is in use by the run 2" in refused.stderr
    assert f"(process {process.pid})" in refused.stderr
    assert "-s config.code_executor.config.work_dir=null" in refused.stderr
    assert own.returncode == 0, own.stderr


@pytest.mark.long
def test_what_a_killed_run_has_made_is_there_when_it_is_resumed_and_counts_as_made(tmp_path: Path):
    make = python("open('a.txt', 'w').write('a')\nopen('large.bin', 'wb').truncate(65 << 20)")
    command = [*COMMAND[1:], "run", "codeact", "Go.", *set_all([CONFINED])]
    with ScriptedServer.in_thread([make, Slow(60, Text("late")), python(LIST), Text("Done.")]) as server:
        with start(
            command, cwd=tmp_path, environment=environment(**keys(server)), stdin=subprocess.DEVNULL
        ) as process:
            while len(server.requests) < 2:
                time.sleep(0.01)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(50)
        resumed = codeact_team("resume", "last", "--json", cwd=tmp_path, **keys(server))
    assert resumed.returncode == 0, resumed.stderr
    assert "there: ['a.txt', 'large.bin']" in resumed.stdout
    assert [file["path"] for file in lines(resumed.stdout)[-1]["files"]] == ["a.txt", "large.bin"]
