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
context = Context(PollLoop(), {}, {}, is_plain=False)
script = "sleep 600 & sleep 600 & sleep 600"
context.start(["/bin/sh", "-c", script], environment=os.environb, output=os.open(os.devnull, os.O_WRONLY), inherited={})
# each look at the clock finds that other processes had the time in between
clock = itertools.count(step=10.0)
time.monotonic = lambda: next(clock)
print(context.processes.end_all())
"""


# killed processes take seconds to be gone, as they do where many others have the processors
SLOW_DEATH = """
import os, signal, threading
kill, dying = os.kill, set()
def kill_late(pid, number):
    if number != signal.SIGKILL:
        kill(pid, number)
    elif pid not in dying:
        dying.add(pid)
        threading.Timer(1.5 + len(dying) / 2, kill, (pid, number)).start()
os.kill = kill_late
"""


def test_killed_processes_are_waited_for_as_long_as_they_take() -> None:
    script = SLOW_DEATH + STARVED.replace("time.monotonic = lambda: next(clock)", "")
    said = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True)
    assert said.stdout == "True\n"


def test_a_machine_that_takes_the_time_away_does_not_keep_processes_from_being_ended() -> None:
    said = subprocess.run([sys.executable, "-c", STARVED], stdout=subprocess.PIPE, text=True, check=True)
    assert said.stdout == "True\n"
