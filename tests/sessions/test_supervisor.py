from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.processes import processes_below
from support.supervisor import Supervised, supervised, wait_for

from codeact_team.sandbox.base import RECEIVER
from codeact_team.sandbox.system.framing import frame
from codeact_team.session import shipping
from codeact_team.session.protocol import Kind


def test_says_that_it_is_guarded_and_which_interpreter_is_the_first(fresh_supervisor: Supervised) -> None:
    assert (fresh_supervisor.interpreter, fresh_supervisor.unguarded) == (1, None)


def test_numbers_its_interpreters_and_says_which_one_a_block_has_run_in(supervisor: Supervised) -> None:
    def ran_in(code: str, language: str = "python") -> tuple[int, int]:
        result = supervisor.run(code, language)
        return result.interpreter, result.present

    first = supervisor.interpreter
    second, third = first + 1, first + 2
    runs = [ran_in("1"), ran_in("import os; os._exit(1)"), ran_in("1")]
    assert runs == [(first, first), (first, second), (second, second)]
    supervisor.restart()
    assert [ran_in("1"), ran_in("echo", "sh")] == [(third, third), (0, third)]


def test_a_block_for_an_interpreter_that_is_not_there_does_not_run(supervisor: Supervised) -> None:
    present = supervisor.interpreter
    for number in (0, present - 1, present + 1):
        supervisor.interpreter = number
        result = supervisor.run("print('must not run')")
        assert (result.ran, result.output, result.present) == (False, b"", present)
    assert supervisor.run("print(1)").output == b"1\n"


def test_a_restart_where_no_interpreter_runs_numbers_on_as_well(fresh_supervisor: Supervised) -> None:
    one = fresh_supervisor
    interpreter = int(Path(f"/proc/{one.process.pid}/task/{one.process.pid}/children").read_text())
    os.kill(interpreter, signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{interpreter}").exists())
    # one that was never asked is not replaced before it is needed
    result = one.run("print('must not run')")
    assert (result.ran, result.present) == (False, 2)
    one.restart()
    assert one.interpreter == 3
    assert one.run("print(1)").output == b"1\n"


def test_a_short_block_is_one_frame(supervisor: Supervised) -> None:
    def is_one_frame() -> bool:
        supervisor.start("print(42)")
        kinds = [supervisor.receive()[0]]
        while kinds[-1] != Kind.RESULT:
            kinds.append(supervisor.receive()[0])
        return len(kinds) == 1

    # unless the machine is busy with other things
    wait_for(is_one_frame)


def test_a_background_process_that_floods_does_not_keep_a_block_from_ending(supervisor: Supervised) -> None:
    started = supervisor.run("import subprocess\np = subprocess.Popen(['yes'])\nprint('started')")
    assert b"started" in started.output
    assert b"42" in supervisor.run("print(42)").output
    # only so much is kept of what comes between two blocks
    time.sleep(0.2)
    assert b"are left out]" in supervisor.run("p.kill()").output


def test_what_a_lost_interpreter_has_started_is_ended(supervisor: Supervised) -> None:
    code = """
        import os, subprocess
        p = subprocess.Popen(["sleep", "600"], start_new_session=True)
        print(p.pid, flush=True)
        os._exit(1)
    """.replace("\n        ", "\n")
    assert _is_gone(int(supervisor.run(code).output))


def test_what_shells_have_left_running_survives_the_interpreter(supervisor: Supervised) -> None:
    pid = int(supervisor.sh("sleep 600 >/dev/null & echo $!").output)
    supervisor.run("import os; os._exit(1)")
    assert not _is_gone(pid)
    supervisor.restart()
    assert _is_gone(pid)


def test_nothing_is_left_of_an_interrupted_block(supervisor: Supervised) -> None:
    # a block that ignores the interrupt with a detached child, which is how a time-out is survived elsewhere
    code = """
        import os, signal, subprocess, time
        script = "trap '' INT TERM; sleep 600 & echo $! $$ > pids; wait"
        subprocess.run(["sh", "-c", f'setsid sh -c "{script}" &'.replace('$', '\\\\$')])
        while not os.path.exists("pids") or not open("pids").read().strip(): time.sleep(0.01)
        print(open("pids").read(), flush=True)
        time.sleep(600)
    """.replace("\n        ", "\n")
    kept = int(supervisor.sh("sleep 600 >/dev/null & echo $!").output)
    time.sleep(0.05)
    supervisor.start(code)
    pids = list(map(int, supervisor.output_until(b"\n").split()))
    assert len(pids) == 2
    supervisor.interrupt()
    supervisor.result()
    assert all(map(_is_gone, pids))
    assert not _is_gone(kept)


def test_interrupts_and_kills_without_a_block_do_nothing(supervisor: Supervised) -> None:
    supervisor.run("x = 1")
    supervisor.interrupt()
    supervisor.kill()
    assert supervisor.run("x").output == b"1\n"


def test_a_kill_ends_the_interpreter_and_everything_else(supervisor: Supervised) -> None:
    left = int(supervisor.sh("sleep 600 >/dev/null & echo $!").output)
    code = "import subprocess, time\np = subprocess.Popen(['sleep', '600'])\nprint(p.pid, flush=True)\ntime.sleep(600)"
    supervisor.start(code)
    started = int(supervisor.output_until(b"\n"))
    supervisor.kill()
    result = supervisor.result()
    assert (result.exit_code, result.lost) == (137, "it was killed")
    assert _is_gone(started)
    assert _is_gone(left)
    assert supervisor.run("print(1)").output == b"1\n"


def test_a_stopped_interpreter_can_be_killed_while_it_does_not_read(supervisor: Supervised) -> None:
    supervisor.run("import os, signal, threading\ndef stop(): os.kill(os.getpid(), signal.SIGSTOP)")
    supervisor.run("threading.Timer(0.1, stop).start()")
    time.sleep(0.3)
    supervisor.start("pass\n" + "#" * 2_000_000)
    supervisor.kill()
    assert supervisor.result().exit_code == 137
    assert supervisor.run("print(1)").output == b"1\n"


def test_everything_ends_with_the_host(tmp_path: Path) -> None:
    with supervised(tmp_path) as one:
        code = "import subprocess, os\np = subprocess.Popen(['sleep', '600'], start_new_session=True)\nprint(os.getpid(), p.pid)"
        pids = list(map(int, one.run(code).output.split()))
        assert one.process.stdin is not None
        one.process.stdin.close()
        assert one.ends()
    assert all(map(_is_gone, pids))


@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(b"\x00" * 64, id="zeros"),
        pytest.param(frame(Kind.READY, b"{}"), id="foreign"),
        pytest.param(frame(Kind.RUN, b"short"), id="run"),
        pytest.param(frame(Kind.SHELL, b"perl\nprint"), id="perl", marks=pytest.mark.long),
        pytest.param(frame(Kind.GET, b"{}"), id="get"),
        pytest.param(frame(Kind.PUT, b"{}"), id="put", marks=pytest.mark.long),
    ],
)
def test_ends_when_the_host_talks_nonsense(supervisor: Supervised, garbage: bytes) -> None:
    supervisor.send(garbage)
    assert supervisor.ends()


def test_ends_when_two_things_are_asked_at_once(supervisor: Supervised) -> None:
    supervisor.start("import time; time.sleep(600)")
    supervisor.send(frame(Kind.LIST))
    assert supervisor.ends()


def test_ignores_signals_from_outside(supervisor: Supervised) -> None:
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGUSR1,
        signal.SIGPIPE,
        signal.SIGALRM,
    ):
        supervisor.process.send_signal(number)
    assert supervisor.run("print(1)").output == b"1\n"


def test_programs_find_signals_as_usual(supervisor: Supervised) -> None:
    # a program that is started with an ignored SIGPIPE writes on for ever
    lines = "grep -E 'Sig(Blk|Ign)' /proc/self/status"
    # two signals are glibc's own, and subprocess of Python 3.13 starts programs that ignore them
    glibcs = 1 << 31 | 1 << 32
    masks = [int(line.split()[1], 16) & ~glibcs for line in supervisor.sh(lines).text.splitlines()]
    assert masks == [0, 0]


def test_without_ctypes_it_says_so_and_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-S", "-c", f"import sys; sys.modules['_ctypes'] = None\n{RECEIVER}"]
    ended = subprocess.run(
        command, input=shipping.payload(), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert ended.returncode == 1
    assert b"no ctypes" in ended.stdout


def test_its_processes_are_legible_in_a_list_of_processes(supervisor: Supervised) -> None:
    supervisor.run("1")
    for process in (supervisor.process.pid, *processes_below(supervisor.process.pid)):
        command = Path(f"/proc/{process}/cmdline").read_bytes()
        assert len(command) < 500
        assert b"codeact_team.session.runner" in command


def test_costs_nothing_while_nothing_happens(supervisor: Supervised) -> None:
    supervisor.run("1")
    before = Path(f"/proc/{supervisor.process.pid}/stat").read_text().rsplit(")")[1].split()[11:13]
    time.sleep(0.3)
    assert Path(f"/proc/{supervisor.process.pid}/stat").read_text().rsplit(")")[1].split()[11:13] == before


def test_neither_descriptors_nor_processes_pile_up(supervisor: Supervised) -> None:
    def everything() -> tuple[list[str], list[str]]:
        supervisor.run("1")
        return sorted(os.listdir("/proc/self/fd")), supervisor.sh("ls /proc/$PPID/task").text.split()

    before = everything()
    for _ in range(3):
        supervisor.sh("true & true")
        supervisor.run("import os; os._exit(0)")
        supervisor.run("1")
    assert everything() == before


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
