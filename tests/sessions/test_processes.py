"""Ending what was started, by the supervisor's own means; in a process of its own, as its guard cannot be undone."""

from __future__ import annotations

import subprocess
import sys

STARVED = """
import itertools, os, time
from codeact_team.sandbox.system.kernel import adopt_orphans
from codeact_team.session.runner.supervisor.interpreter_process import Context
from codeact_team.session.runner.supervisor.streams import PollLoop

adopt_orphans()
context = Context(PollLoop(), {}, is_plain=False)
script = "sleep 600 & sleep 600 & sleep 600"
context.start(["/bin/sh", "-c", script], environment=os.environb, output=os.open(os.devnull, os.O_WRONLY), inherited={})
# each look at the clock finds that other processes had the time in between
clock = itertools.count(step=10.0)
time.monotonic = lambda: next(clock)
print(context.processes.end_all())
"""


def test_a_machine_that_takes_the_time_away_does_not_keep_processes_from_being_ended() -> None:
    said = subprocess.run([sys.executable, "-c", STARVED], stdout=subprocess.PIPE, text=True, check=True)
    assert said.stdout == "True\n"
