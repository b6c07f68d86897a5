from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.command_line import codeact_team, environment, with_index
from support.fork_server import start
from support.variations import mostly_long

ROOT = Path(__file__).parents[2]
HEAVY = (
    "autogen_core",
    "autogen_agentchat",
    "autogen_ext",
    "docker",
    "openai",
    "opentelemetry",
    "prompt_toolkit",
    "pydantic",
    "rich",
)


@pytest.mark.parametrize(
    "arguments", [["run", "--help"], pytest.param(["--version"], marks=pytest.mark.long)]
)
def test_help_and_version_import_nothing_heavy(arguments: list[str], tmp_path: Path):
    program = (
        "import sys\nfrom codeact_team.cli import main\n"
        "try:\n    main()\nfinally:\n    print(*sys.modules, file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert result.stdout
    imported = {name.partition(".")[0] for name in result.stderr.split()}
    assert imported.isdisjoint(HEAVY)


def test_help_names_every_command_whole(tmp_path: Path):
    result = codeact_team("--help", cwd=tmp_path)
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert [line for line in lines if re.fullmatch(r"[A-Z][\w, ]+:", line)] == [
        "Options:",
        "Run:",
        "Look at runs:",
        "Configs, guides and this machine:",
    ]
    commands = lines[lines.index("Run:") :]
    for line in filter(None, commands):
        assert re.fullmatch(r"[A-Z][\w, ]+:|  \w+ +[A-Z].{10,68}\.", line), line
    assert len(commands) == 16 + 3 + 2


def test_the_version_names_what_a_report_needs(tmp_path: Path):
    result = codeact_team("--version", cwd=tmp_path)
    assert re.fullmatch(
        r"codeact-team \S+ \((checkout \S+, )?AutoGen 0\.7\.\d+, Python 3\.\d+\.\d+, \w+ \S+ \w+\)\n",
        result.stdout,
    )


@pytest.mark.long
def test_the_version_names_the_commit_that_was_installed(tmp_path: Path):
    sources = tmp_path / "sources"
    shutil.copytree(ROOT / "codeact_team", sources / "codeact_team")
    for name in ("configs", "docs", "pyproject.toml", "README.md", "LICENSE"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, sources / name)

    def version(where: str) -> str:
        target = tmp_path / str(len(list(tmp_path.iterdir())))
        subprocess.run(
            [sys.executable, "-m", "uv", "pip", "install", "-q", "--no-deps", "--target", str(target), where],
            env=with_index(),
            check=True,
        )
        command = [sys.executable, "-m", "codeact_team", "--version"]
        variables = environment(PYTHONPATH=str(target))
        said = subprocess.run(
            command, cwd=tmp_path, env=variables, stdout=subprocess.PIPE, text=True, check=True
        )
        return said.stdout.partition("(")[2].partition(", AutoGen")[0]

    def git(*arguments: str) -> str:
        who = ("-c", "user.name=A", "-c", "user.email=a@example.org")
        command = ["git", "-C", str(sources), *who, *arguments]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()

    assert version(str(sources)) == "from a directory"
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "First")
    commit = git("rev-parse", "--short=8", "HEAD")
    assert version(f"git+file://{sources}") == f"commit {commit}"
    assert version(str(sources)) == f"from a checkout, now {commit}"
    (sources / "README.md").write_text("Changed.\n")
    assert version(str(sources)) == f"from a checkout, now {commit}-dirty"


@pytest.mark.parametrize(
    ("arguments", "said"),
    mostly_long(
        [
            (["rum"], "No such command 'rum'"),
            (["run"], "Missing argument 'CONFIG'"),
            (["run", "quickstart", "--jsn"], "No such option: --jsn"),
            (["validate"], "Missing argument 'CONFIG...'"),
        ]
    ),
)
def test_a_wrong_command_line_says_so_and_exits_with_2(arguments: list[str], said: str, tmp_path: Path):
    result = codeact_team(*arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert said in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("words", "offered"),
    mostly_long(
        [
            ("codeact-team show 2026", ["20261129-2", "20261129-1"]),
            ("codeact-team export --run-dir elsewhere l", ["last"]),
            ("codeact-team run quick", ["quickstart-codeact", "quickstart"]),
            ("codeact-team chat te", ["team-confined", "team", "team.yaml", "teams/"]),
            ("codeact-team validate teams/", ["teams/mine.json"]),
            ("codeact-team init --template quick", ["quickstart-codeact", "quickstart"]),
        ],
        usual=2,
    ),
)
def test_a_shell_completes_the_names_of_configs_files_and_runs(
    tmp_path: Path, words: str, offered: list[str]
):
    (tmp_path / "teams").mkdir()
    for run in ("20261129-1", "20261129-2", "workspaces"):
        (tmp_path / ".codeact-team" / "runs" / run).mkdir(parents=True)
        if run != "workspaces":
            (tmp_path / ".codeact-team" / "runs" / run / "run.json").touch()
    for file in ("team.yaml", "text.txt", "teams/mine.json"):
        (tmp_path / file).touch()
    place = str(len(words.split()) - 1)
    variables = {"COMP_WORDS": words, "COMP_CWORD": place, "_CODEACT_TEAM_COMPLETE": "complete_bash"}
    script = str(Path(sys.executable).with_name("codeact-team"))
    with start([script], cwd=tmp_path, environment=environment(**variables)) as process:
        stdout, stderr = process.communicate(timeout=30)
    assert stdout.decode().split() == offered, stderr
