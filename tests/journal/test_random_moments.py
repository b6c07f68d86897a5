"""Runs that are stopped at any moment in any way, also while they go on, end and deliver as those that were left alone.

There are as many moments as the variable MOMENTS of the environment says: ``MOMENTS=1000 pytest -m long`` with this file.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import stories
from killing import WAYS, alone, kill_and_resume, last_run
from stories import Story
from support.command_line import codeact_team
from support.openai_server import ScriptedServer

from codeact_team.journal.recorded_run import RecordedRun
from codeact_team.journal.result import RunResult

MOMENTS = int(os.environ.get("MOMENTS", "30"))
STORIES = {
    "session": stories.SESSION,
    "variables": stories.VARIABLES,
    "files with other names": stories.RENAMES,
    "team and files with other names": stories.TEAM_THAT_RENAMES,
    "calls side by side": stories.SIDE_BY_SIDE,
    "set back": stories.SET_BACK,
    "approvals": stories.APPROVED,
    "team": stories.TEAM,
    "nested teams": stories.NESTED,
    "selector": stories.SELECTOR,
    "swarm": stories.SWARM,
    "graph": stories.GRAPH,
    "tools": stories.TOOLS,
    "MCP server": stories.with_a_server,
    "session in a container": stories.DOCKER,
    "team with containers": stories.DOCKER_TEAM,
}

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture(scope="session")
def left_alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Story, range]]:
    """Tells of a story, when it was left alone, and in which milliseconds of its process it ran; each runs once."""
    # what forks programs takes its time with the first
    codeact_team("--version", cwd=tmp_path_factory.mktemp("first"))

    @functools.cache
    def told(name: str) -> tuple[Story, range]:
        made, folder = STORIES[name], tmp_path_factory.mktemp("alone") / "run"
        story = made if isinstance(made, Story) else made()
        with ScriptedServer.in_thread(story.reply) as server:
            began = time.time()
            story, _ = alone(folder, server, story)
        events = [*RecordedRun(last_run(folder)).events()]
        result = next(event for event in events if isinstance(event, RunResult))
        return story, range(*(round(1000 * (event.at - began)) for event in (events[0], result)))

    return told


@pytest.mark.parametrize(
    ("number", "name"), [(number, [*STORIES][number % len(STORIES)]) for number in range(MOMENTS)]
)
def test_it_ends_as_if_it_was_left_alone(
    tmp_path: Path, left_alone: Callable[[str], tuple[Story, range]], number: int, name: str
) -> None:
    moments, (story, milliseconds) = Random(number), left_alone(name)
    # one in three is stopped while it goes on, too
    times = moments.choice([1, 1, 1, 1, 2, 3])
    with ScriptedServer.in_thread(story.reply) as server:
        for attempt in range(20):
            # it may be slower or quicker than when it was left alone
            kills = [
                (round(moments.choice(milliseconds) * moments.uniform(0.7, 1.4)), moments.choice([*WAYS]))
                for _ in range(times)
            ]
            if kill_and_resume(tmp_path / str(attempt), server, story, *kills):
                return
    raise AssertionError("it was never stopped while it ran")
