"""Small things of what is printed: whole lines, plural and singular, sentences that end once."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.command_line import environment, in_this_process
from support.fork_server import start
from support.openai_server import HttpError, ScriptedServer

from codeact_team.cli.notices import print_notices
from codeact_team.cli.screen import Screen
from codeact_team.core.events import RunResumed
from codeact_team.journal.result import explain

PRINTS = """
from codeact_team.cli.screen import Screen
screen = Screen()
screen.text("the last words (4096).", end="")
screen.notice("error", "the disk is full")
"""


def test_a_notice_begins_a_line_of_its_own_where_it_is_printed_among_the_output(tmp_path: Path) -> None:
    (tmp_path / "prints.py").write_text(PRINTS)
    command = [str(tmp_path / "prints.py")]
    with start(command, cwd=tmp_path, environment=environment(), stderr=subprocess.STDOUT) as together:
        stdout, _ = together.communicate(timeout=60)
    assert stdout == b"the last words (4096).\nerror: the disk is full\n"
    with start(command, cwd=tmp_path, environment=environment()) as apart:
        told = apart.communicate(timeout=60)
    assert told == (b"the last words (4096).", b"error: the disk is full\n")
    assert (together.returncode, apart.returncode) == (0, 0)


@pytest.mark.parametrize(
    ("answered", "repeated", "said"),
    [
        ({"model_call": 1}, 0, "1 answer of a model is known from r\n"),
        (
            {"model_call": 3, "tool_call": 1},
            0,
            "3 answers of models and 1 result of a tool are known from r\n",
        ),
        ({}, 1, "r continues; before other code runs, 1 block runs again, which took 2.0 s\n"),
        (
            {"part_call": 2},
            2,
            "2 results of tools are known from r; before other code runs, 2 blocks run again, ",
        ),
    ],
)
def test_a_resumed_run_says_what_is_known_and_nothing_of_what_is_not(
    answered: dict[str, int], repeated: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_notices(Screen(), RunResumed(record="r", answered=answered, repeated=repeated, seconds=2.0))
    assert capsys.readouterr().err.startswith(said)


def test_a_task_that_is_not_quoted_is_told_so() -> None:
    refused = in_this_process("run", "quickstart", "What", "is", "6?")
    assert refused.returncode == 2
    assert (
        'extra argument(s) (is 6?); quote an argument that has spaces or a *, such as "What is 6 * 7?"'
        in refused.stderr
    )


@pytest.mark.parametrize(
    ("message", "said"),
    [("", "(404): it does not say why; check"), ("No such model.", "(404): No such model; check")],
)
async def test_the_words_of_a_server_are_part_of_a_sentence(message: str, said: str) -> None:
    async with ScriptedServer([HttpError(404, message)]) as server:
        with pytest.raises(Exception, match="404") as refused:
            await server.client().create([])
    assert said in explain(refused.value)
