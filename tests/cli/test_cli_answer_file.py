"""``codeact-team run -o FILE``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.command_line import (
    ACCEPT,
    CODE,
    CONFINED,
    NO_HTTP_RETRIES,
    codeact_team,
    limited_talker,
    run_code,
    run_team,
)
from support.openai_server import Json, ScriptedServer, Text

ANSWER = {**ACCEPT, "answer": "It is 42: \ud83d\ude00."}


def test_an_accepted_answer_replaces_the_file_at_once(tmp_path: Path):
    (tmp_path / "answer.txt").write_text("An older answer, which is longer than the new one.")
    with ScriptedServer.in_thread([Text(CODE), Json(ANSWER)]) as server:
        result = run_team(server.base_url, "A task", "-o", "answer.txt", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "answer.txt").read_text() == "It is 42: \U0001f600.\n"
    assert sorted(file.name for file in tmp_path.iterdir()) == [".codeact-team", "answer.txt"]


def test_work_that_is_not_accepted_leaves_the_file_as_it_is(tmp_path: Path):
    (tmp_path / "answer.txt").write_text("An older answer.")
    command = ["run", limited_talker(tmp_path, "It is 42."), "A task", "-o", "answer.txt"]
    result = codeact_team(*command, cwd=tmp_path)
    assert result.returncode == 1, result.stderr
    assert result.stdout.endswith("\n── best answer so far\nIt is 42.\n")
    assert "warning: answer.txt is not written: the run did not come to an answer\n" in result.stderr
    assert (tmp_path / "answer.txt").read_text() == "An older answer."


@pytest.mark.parametrize(
    ("file", "why"),
    [
        ("nowhere/answer.txt", "No such file or directory"),
        (".", "it is not a file"),
        ("pipe", "it is not a file"),
        ("file/answer.txt", "Not a directory"),
        ("link.txt", "it is a link: name its target"),
        ("links/answer.txt", "links is a link to /etc, which code may have planted: name its target"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_a_model_is_asked(
    tmp_path: Path, file: str, why: str
):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    (tmp_path / "link.txt").symlink_to("file")
    (tmp_path / "links").symlink_to("/etc")
    result = codeact_team("run", "quickstart", "-o", file, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"error: the answer cannot be written to {file}: {why}\n"


def test_a_link_that_code_has_put_in_the_file_s_place_is_not_followed(tmp_path: Path):
    # nor does the directory lead elsewhere that it has put in place of the file's
    for name in ("victim", "work/sub/answer.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("old")
    plant = (
        "import os\nos.remove('sub/answer.txt')\nos.symlink('../../victim', 'sub/answer.txt')\n"
        "os.rename('sub', 'moved')\nos.symlink('..', 'sub')\nprint('done')"
    )
    result = run_code(plant, "-o", "work/sub/answer.txt", cwd=tmp_path, work_dir="work")
    assert (result.returncode, "done\n" in result.stdout) == (2, True), result.stderr
    assert (
        "error: the answer cannot be written to work/sub/answer.txt: work/sub is a link to .."
        in result.stderr
    )
    assert (tmp_path / "victim").read_text() == "old"
    assert not (tmp_path / "answer.txt").exists()
    assert os.readlink(tmp_path / "work/moved/answer.txt") == "../../victim"


@pytest.mark.long
def test_a_directory_that_is_gone_at_the_end_is_told_as_what_it_is(tmp_path: Path):
    (tmp_path / "work" / "sub").mkdir(parents=True)
    inside = CONFINED.replace("{confinement", "{work_dir: work, confinement")
    with ScriptedServer.in_thread(
        [Text("```python\nimport os\nos.rmdir('sub')\nprint('done')\n```"), Json(ANSWER)]
    ) as server:
        command = ("A task", "-o", "work/sub/answer.txt")
        result = run_team(server.base_url, *command, cwd=tmp_path, overrides=[inside, NO_HTTP_RETRIES])
    assert result.returncode == 2
    told = "the answer cannot be written to work/sub/answer.txt: No such file or directory; to try again: codeact-team resume "
    assert told in result.stderr
