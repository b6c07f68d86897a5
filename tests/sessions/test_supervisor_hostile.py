"""Code that lies, floods, breaks what it runs in, or will not end."""

from __future__ import annotations

import os
import time
from textwrap import dedent

import pytest
from support.supervisor import REPORTS, Ended, Supervised, wait_for

from codeact_team.session.protocol import ResultFrame

FORGED = "it sent something that is not a report of this block"
KIB = 1024


@pytest.mark.parametrize(
    "forgery",
    [
        "os.write(reports(), b'garbage' * 1000)",
        "write(65, b'x' * 16 + b'{}')",
        "write(65, b'')",
        "write(35, b'{}')",
        "os.write(reports(), struct.pack('>BI', 65, 0x7fffffff))",
        "os.write(reports(), struct.pack('>BI', 66, 0xffffffff))",
        "write(66, b'x' * 16 + b'{}')",
        "write(66, b'')",
    ],
    ids=["garbage", "token", "short", "kind", "length", "huge", "artifact", "empty artifact"],
)
def test_forged_frames_end_the_interpreter_and_nothing_else(supervisor: Supervised, forgery: str) -> None:
    supervisor.run(REPORTS)
    result = supervisor.run(f"print('before', flush=True)\n{forgery}\nimport time\ntime.sleep(600)")
    assert (result.lost, result.exit_code, result.report) == (FORGED, 137, None)
    assert result.output == b"before\n"
    assert supervisor.run("print(1)").text == "1\n"


def test_a_forged_report_between_two_blocks_does_not_reach_the_next(supervisor: Supervised) -> None:
    supervisor.run(REPORTS)
    supervisor.run("import threading\nthreading.Timer(0.1, write, [65, b'x' * 16 + b'{}']).start()")
    time.sleep(0.4)
    result = supervisor.run("print('must not run')")
    assert (result.lost, result.ran, result.output) == (FORGED, False, b"")


def test_a_second_report_of_a_block_is_refused(supervisor: Supervised) -> None:
    supervisor.run(REPORTS)
    result = supervisor.run("write(65, token() + bytes(1))")
    assert result.lost is None
    # it has lied about itself, as it may; its true report is one too many
    wait_for(lambda: supervisor.run("print(1)").ran)
    assert b"NameError" in supervisor.run("reports").output


def test_too_many_artifacts_end_the_interpreter(supervisor: Supervised) -> None:
    supervisor.run(REPORTS)
    result = supervisor.run('for _ in range(40): write(66, token() + b\'{"mime_type": "text/plain"}\\n\')')
    assert result.lost == FORGED
    assert len(result.artifacts) == 32


def test_too_large_artifacts_end_the_interpreter(supervisor: Supervised) -> None:
    supervisor.run(REPORTS)
    result = supervisor.run("for _ in range(8): write(66, token() + b'{}\\n' + bytes(7 << 20))")
    assert result.lost == FORGED
    assert len(result.artifacts) == 4


@pytest.mark.parametrize(
    "report", [b"\x01" * 500 * KIB, b"\xff\xfe", '{"a": "\u2028"}'.encode()], ids=["long", "bytes", "line"]
)
def test_whatever_a_report_says_it_arrives_behind_the_supervisors_own_account(
    supervisor: Supervised, report: bytes
) -> None:
    supervisor.run(REPORTS)
    supervisor.start(f"payload = {report!r}\nwrite(65, token() + payload)")
    while (came := supervisor.receive())[0] != 35:
        pass
    assert ResultFrame.unpack(came[1]).lost is None
    assert came[1].endswith(report)
    wait_for(lambda: supervisor.run("print(1)").ran)


def test_closed_descriptors_are_the_codes_own_problem(supervisor: Supervised) -> None:
    result = supervisor.run("import os\nos.closerange(0, 1000)")
    assert result.lost is None or result.lost.startswith("it ended itself")
    wait_for(lambda: supervisor.run("print(1)").ran)
    assert supervisor.run("print(1)").text == "1\n"


def test_a_pipe_that_the_code_makes_non_blocking_is_mended(supervisor: Supervised) -> None:
    supervisor.run("import os\nos.set_blocking(1, False)")
    assert len(supervisor.sh("head -c 20000000 /dev/zero").output) == 20_000_000


def test_a_fork_that_reports_like_its_parent_is_no_second_block(supervisor: Supervised) -> None:
    result = supervisor.run("import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\nprint('x', flush=True)")
    assert (result.lost, result.text) == (None, "x\nx\n")
    assert supervisor.run("print(1)").text == "1\n"


def test_a_zombie_first_thread_hides_nothing(supervisor: Supervised) -> None:
    code = """
        import ctypes, os, subprocess, sys, textwrap
        script = textwrap.dedent('''
            import ctypes, threading, time, os
            def stay():
                time.sleep(0.2)
                print(os.getpid(), flush=True)
                time.sleep(600)
            threading.Thread(target=stay).start()
            ctypes.CDLL(None).syscall(60, 0)
        ''')
        p = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
        p.wait()
    """
    supervisor.start(dedent(code))
    pid = int(supervisor.output_until(b"\n"))
    supervisor.kill()
    supervisor.result()
    assert not os.path.exists(f"/proc/{pid}")


# but for zombies
COUNT = """
import os
def state(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"
print(sum(state(pid) != "Z" for pid in os.listdir("/proc") if pid.isdigit()))
"""


def assert_clean(one: Supervised) -> None:
    """The container holds the supervisor, the interpreter, and perhaps what that was forked from, which other tests may end."""
    assert int(one.run(COUNT).text) <= 3


# says that it has as many processes as it may have
FULL = "try: {fork}\n  except OSError: os.write(1, b'fork')"


@pytest.mark.docker
@pytest.mark.parametrize(
    ("code", "language"),
    [
        (f"import os\nwhile True:\n  {FULL.format(fork='os.fork()')}", "python"),
        pytest.param(
            f"import os\nwhile True:\n  {FULL.format(fork='os.fork() or os.setsid()')}",
            "python",
            marks=pytest.mark.long,
        ),
        pytest.param("f() { f | f & }; f; sleep 600", "bash", marks=pytest.mark.long),
        pytest.param(
            "f() { setsid sh -c 'while :; do sleep 0.01 & done' & }; f; f; f; sleep 600",
            "sh",
            marks=pytest.mark.long,
        ),
    ],
    ids=["forks", "detached forks", "shell", "detached shells"],
)
def test_a_fork_bomb_loses(in_container: Supervised, code: str, language: str) -> None:
    one = in_container
    one.run("x = 1")
    one.start(code, language)
    one.output_until(b"fork")
    one.kill()
    result = one.result()
    assert result.exit_code == 137
    assert (result.fork_failures or 0) > 0
    assert_clean(one)
    assert one.run("x", "python").report is not None


@pytest.mark.long
@pytest.mark.docker
def test_an_interrupted_fork_bomb_loses(in_container: Supervised) -> None:
    code = """
        import os, signal, subprocess
        if not os.fork():
            os.setsid()
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            while True:
                try: os.fork()
                except OSError: pass
        print("go", flush=True)
        while True: pass
    """
    one = in_container
    one.start(dedent(code))
    one.output_until(b"go")
    time.sleep(0.3)
    one.interrupt()
    result = one.result()
    # so many copies of an interpreter may need more memory than there is
    assert (result.report and result.report["exit_code"] == 130) or result.oom_kills

    def is_alone() -> bool:
        counted = one.run(COUNT)
        # the kernel may have chosen the new interpreter, too
        assert counted.lost or int(counted.text) <= 3
        return bool(counted.text)

    wait_for(is_alone)


@pytest.mark.long
@pytest.mark.docker
def test_a_process_that_hops_from_fork_to_fork_does_not_outlive_its_block(in_container: Supervised) -> None:
    # each one forks and ends, so that none is there for long enough to be found
    hopper = "import os, signal\nsignal.signal(2, signal.SIG_IGN)\nos.setsid()\nwhile True:\n  if os.fork(): os._exit(0)"
    code = f"import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', {hopper!r}])\nprint('go', flush=True)\ntime.sleep(600)"
    one = in_container
    one.start(code)
    one.output_until(b"go")
    time.sleep(0.3)
    one.kill()
    try:
        assert one.result().exit_code == 137
    except Ended:
        # whoever owns the container ends it then
        return
    assert_clean(one)


@pytest.mark.docker
def test_memory_is_named_as_what_the_interpreter_was_lost_for(in_container: Supervised) -> None:
    one = in_container
    result = one.run("x = b'x' * (400 << 20)")
    assert (result.lost, result.exit_code) == ("it was killed for memory", 137)
    assert (result.oom_kills or 0) >= 1
    assert one.run("print(1)").text == "1\n"


@pytest.mark.docker
def test_when_memory_is_short_the_code_goes_first(in_container: Supervised) -> None:
    one = in_container
    assert one.sh("cat /proc/self/oom_score_adj /proc/$PPID/oom_score_adj").text == "1000\n0\n"
    assert one.run("print(open('/proc/self/oom_score_adj').read())").text == "1000\n\n"


@pytest.mark.docker
def test_a_child_killed_for_memory_leaves_the_interpreter(in_container: Supervised) -> None:
    one = in_container
    one.run("x = 1")
    result = one.sh("python3 -c \"x = b'x' * (400 << 20)\"")
    assert result.exit_code == 137
    assert (result.oom_kills or 0) >= 1
    assert one.run("x").text == "1\n"


@pytest.mark.docker
def test_a_full_place_for_files_can_be_cleared(in_container: Supervised) -> None:
    one = in_container
    assert one.run("open('/tmp/large', 'wb').write(bytes(100 << 20))").report is not None
    assert one.sh("rm /tmp/large; echo $?").text == "0\n"


@pytest.mark.docker
def test_no_process_left_for_a_shell_is_a_result(in_container: Supervised) -> None:
    one = in_container
    one.run("import subprocess\nps = []")
    one.run("for _ in range(100): ps.append(subprocess.Popen(['sleep', '600']))")
    result = one.sh("echo unreached")
    assert (result.exit_code, result.ran) == (126, False)
    assert b"unavailable" in result.output
    one.run("for p in ps: p.kill()")
    one.run("for p in ps: p.wait()")
    assert one.sh("echo here").text == "here\n"


@pytest.mark.docker
def test_killing_everything_leaves_the_supervisor(in_container: Supervised) -> None:
    one = in_container
    one.sh("kill -9 -1")
    assert one.sh("echo here").text == "here\n"
    one.run("import os, signal\nfor pid in os.listdir('/proc'):\n  if pid.isdigit(): os.kill(int(pid), 9)")
    assert one.run("print(1)").text == "1\n"
