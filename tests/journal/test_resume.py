"""A run that was killed goes on, and ends as one that was left alone."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from random import Random

import pytest
import stories
from killing import (
    alone,
    begun_and_ended,
    check,
    ends_of_blocks,
    kill_and_resume,
    last_run,
    resume,
    start,
    told_as_unknown,
)
from stories import SESSION, TEAM, Story
from support.openai_server import ScriptedServer

from codeact_team.journal.log import read_log

STORIES = [
    pytest.param(SESSION, id="session"),
    pytest.param(TEAM, id="team"),
    pytest.param(stories.NESTED, id="nested-teams"),
    pytest.param(stories.DOCKER, id="session-in-a-container", marks=pytest.mark.docker),
    pytest.param(stories.VARIABLES, id="variables"),
    pytest.param(stories.SIDE_BY_SIDE, id="calls-side-by-side"),
    pytest.param(stories.SET_BACK, id="set back"),
    pytest.param(stories.ATTEMPTS, id="attempts"),
    pytest.param(stories.APPROVED, id="approvals"),
    pytest.param(stories.DOCKER_TEAM, id="team-with-containers", marks=pytest.mark.docker),
    pytest.param(stories.SELECTOR, id="selector"),
    pytest.param(stories.SWARM, id="swarm"),
    pytest.param(stories.GRAPH, id="graph"),
    pytest.param(stories.TOOLS, id="tools"),
    pytest.param(stories.WORKBENCH, id="workbench"),
    pytest.param(stories.with_a_server, id="mcp-server"),
]
each_story = pytest.mark.parametrize("story", STORIES, indirect=True)


@pytest.fixture
def story(request: pytest.FixtureRequest) -> Story:
    """One that is given, or one that can be made only within a test."""
    return request.param if isinstance(request.param, Story) else request.param()


def moments(entries: int, most: int | None) -> range:
    """With which entries a run is stopped: with each of its own, or with so many, evenly spread, as all are of the same kinds."""
    return range(2, entries + 1, 1 if most is None else -(-entries // most))


@pytest.mark.parametrize(
    ("story", "part"),
    # at these, all code has run: what it has made is delivered all the same
    [
        pytest.param(SESSION, 0.93, id="session"),
        pytest.param(TEAM, 0.85, id="team", marks=pytest.mark.long),
    ],
)
def test_a_run_that_is_killed_goes_on_to_the_same_end(tmp_path: Path, story: Story, part: float) -> None:
    with ScriptedServer.in_thread(story.reply) as server:
        story, entries = alone(tmp_path / "alone", server, story)
        kill_and_resume(tmp_path / "killed", server, story, (round(entries * part), "torn"))


@pytest.mark.long
@pytest.mark.timeout(1800)
@each_story
def test_it_goes_on_from_whatever_entry_was_the_last(tmp_path: Path, story: Story) -> None:
    with ScriptedServer.in_thread(story.reply) as server:
        most = None if story is SESSION else 14
        story, entries = alone(tmp_path / "alone", server, story)
        for nth in moments(entries, most):
            kill_and_resume(tmp_path / str(nth), server, story, (nth, "torn"))


@pytest.mark.long
@pytest.mark.timeout(1800)
@each_story
def test_it_may_be_killed_again_while_it_goes_on(tmp_path: Path, story: Story) -> None:
    moments, rounds = Random(7), 8 if story in (SESSION, TEAM) else 2
    with ScriptedServer.in_thread(story.reply) as server:
        story, entries = alone(tmp_path / "alone", server, story)
        for round_ in range(rounds):
            kills = [
                (moments.randint(2, entries), moments.choice(["before", "torn", "after"])) for _ in range(3)
            ]
            kill_and_resume(tmp_path / str(round_), server, story, *kills)


@pytest.mark.long
@pytest.mark.timeout(1800)
@each_story
def test_it_goes_on_from_wherever_a_signal_has_stopped_it(tmp_path: Path, story: Story) -> None:
    with ScriptedServer.in_thread(story.reply) as server:
        most = None if story is SESSION else 8
        story, entries = alone(tmp_path / "alone", server, story)
        for nth, how in zip(moments(entries, most), cycle(("INT", "TERM")), strict=False):
            kill_and_resume(tmp_path / str(nth), server, story, (nth, how))


@pytest.mark.parametrize("repeatable", [[], pytest.param(["b*"], marks=pytest.mark.long)])
def test_a_call_that_was_under_way_is_unknown_unless_it_may_be_made_twice(
    tmp_path: Path, repeatable: list[str]
) -> None:
    story = replace(SESSION, config=stories.coder(tool_limits={"repeatable": repeatable}))
    with ScriptedServer.in_thread(story.reply) as server:
        (tmp_path / "alone").mkdir()
        start(tmp_path / "alone", server, story, 0)
        run = last_run(tmp_path / "alone")
        entries = list(read_log(run.lines))
        _, answered = begun_and_ended(entries, "tool_call")
        killed = tmp_path / "killed"
        killed.mkdir()
        start(killed, server, story, answered, "before")
        resume(killed, server)
    effects = (killed / "effects.txt").read_text().split()
    assert (told_as_unknown(killed), effects) == ((0, ["5", "5", "3"]) if repeatable else (1, ["5"]))


def test_a_run_that_has_its_answer_has_nothing_to_go_on_with(tmp_path: Path) -> None:
    with ScriptedServer.in_thread(SESSION.reply) as server:
        alone(tmp_path / "alone", server, SESSION)
        code, _, stderr = resume(tmp_path / "alone", server)
    assert code == 2
    assert "has ended with an answer: there is nothing to go on with" in stderr


@pytest.mark.long
def test_files_that_somebody_has_changed_since_are_not_overwritten(tmp_path: Path) -> None:
    with ScriptedServer.in_thread(TEAM.reply) as server:
        _, entries = alone(tmp_path / "alone", server, TEAM)
        folder = tmp_path / "changed"
        folder.mkdir()
        start(folder, server, TEAM, entries // 2)
        log = folder / "work" / "log.txt"
        log.write_text("mine\n")
        code, _, stderr = resume(folder, server)
    assert code == 2
    assert "somebody has changed or removed log.txt" in stderr
    assert log.read_text() == "mine\n"


@pytest.mark.long
def test_files_that_somebody_has_added_since_stay(tmp_path: Path) -> None:
    with ScriptedServer.in_thread(SESSION.reply) as server:
        (tmp_path / "alone").mkdir()
        start(tmp_path / "alone", server, SESSION, 0)
        run = last_run(tmp_path / "alone")
        # the first block has ended
        killed = ends_of_blocks([*read_log(run.lines)])[0] + 1
        folder = tmp_path / "killed"
        folder.mkdir()
        start(folder, server, SESSION, killed)
        (folder / "work" / "notes.txt").write_text("mine\n")
        check(folder, SESSION, *resume(folder, server))
    assert (folder / "work" / "notes.txt").read_text() == "mine\n"


def test_a_run_of_which_a_part_acts_past_the_journal_says_so_and_is_not_gone_on_with(tmp_path: Path) -> None:
    by_the_clock = stories.component("autogen_agentchat.conditions.TimeoutTermination", timeout_seconds=60)
    config = stories.team(
        stories.assistant("You write code."),
        stories.runner(),
        termination_condition=by_the_clock,
        max_turns=1,
    )
    with ScriptedServer.in_thread(TEAM.reply) as server:
        _, _, stderr = start(tmp_path, server, replace(TEAM, config=config), 0)
        assert "this run cannot be resumed, as these bypass its journal: TimeoutTermination" in stderr
        code, _, stderr = resume(tmp_path, server)
    assert code == 2
    assert (
        "error: the run cannot go on: these bypass its journal, so nobody knows what they have done: TimeoutTermination"
        in stderr
    )


@pytest.mark.long
def test_how_code_that_ran_again_has_come_to_something_else_is_told(tmp_path: Path) -> None:
    chance = stories.Story(
        stories.coder(),
        stories.step_by_step(
            stories.python("import uuid\nmade = uuid.uuid4()\nprint('begin')\nprint(f'made {made}')"),
            stories.python("print('go on')"),
            stories.python("final_answer('done')"),
        ),
        "done",
    )
    with ScriptedServer.in_thread(chance.reply) as server:
        _, entries = alone(tmp_path / "alone", server, chance)
        (tmp_path / "killed").mkdir()
        start(tmp_path / "killed", server, chance, round(entries * 0.6))
        code, stdout, stderr = resume(tmp_path / "killed", server)
    assert (code, stdout.strip()) == (0, "done"), stderr
    assert "blocks that ran again, 1 printed something else than before; the agents keep" in stderr
    assert re.search(r"^\|  begin\n\| -made \S+\n\| \+made \S+$", stderr, re.MULTILINE), stderr
