"""Calls of host tools on their way through the supervisor, by blocks that speak for the interpreter."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.supervisor import REPORTS, Supervised, wait_for

from codeact_team.sandbox.system.framing import frame
from codeact_team.session.protocol import MAX_ANSWER_BYTES, MAX_CALL_BYTES, MIB, Kind, ResultFrame

DEAF = "it did not read the answers to its calls"
FORGED = "it sent something that is not a report of this block"
CALL = b'{"id":1,"name":"x","arguments":{}}'


@pytest.fixture
def supervisor(supervisor: Supervised) -> Supervised:
    supervisor.run(REPORTS)
    return supervisor


def call(payload: bytes = CALL) -> str:
    """Code that calls."""
    return f"write({Kind.CALL:d}, token() + {payload!r})\n"


_UNUSUAL = [
    pytest.param(kind, payload, marks=pytest.mark.long)
    for kind in (Kind.CALL, Kind.CANCEL)
    for payload in ("bytes(16) + b'{}'", "b''")
]


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (Kind.CALL, "b'x' * 16 + b'{}'"),
        (Kind.CANCEL, "token()[:15]"),
        pytest.param(Kind.CALL, "token()[:15]", marks=pytest.mark.long),
        pytest.param(Kind.CANCEL, "b'x' * 16 + b'{}'", marks=pytest.mark.long),
        *_UNUSUAL,
    ],
)
def test_calls_with_another_token_are_dropped(supervisor: Supervised, kind: Kind, payload: str) -> None:
    result = supervisor.run(f"for _ in range(1000): write({kind:d}, {payload})\nprint('on')")
    assert (result.lost, result.text) == (None, "on\n")


def test_a_call_that_is_too_large_ends_the_interpreter(supervisor: Supervised) -> None:
    supervisor.start(f"write({Kind.CALL:d}, token() + bytes({MAX_CALL_BYTES}))")
    assert supervisor.expect(Kind.CALL) == bytes(MAX_CALL_BYTES)
    assert supervisor.result().lost is None
    assert supervisor.run(f"write({Kind.CALL:d}, token() + bytes({MAX_CALL_BYTES + 1}))").lost == FORGED


LATE = f"""
import threading, time
def late(whose):
    while not os.path.exists("go"):
        time.sleep(0.01)
    for _ in range(100):
        write({Kind.CALL:d}, whose + {CALL!r})
    open("done", "w").close()
threading.Thread(target=late, args=[token()]).start()
"""


@pytest.mark.parametrize("language", ["python", "sh"])
def test_a_thread_that_calls_while_another_block_runs_is_not_heard(
    supervisor: Supervised, language: str
) -> None:
    supervisor.run(LATE)
    wait = {
        "python": "open('go', 'w').close()\nwhile not os.path.exists('done'): time.sleep(0.01)",
        "sh": "touch go; while ! [ -e done ]; do sleep 0.01; done",
    }
    result = supervisor.run(wait[language], language)
    assert (result.lost, result.output) == (None, b"")


def test_a_thread_that_calls_between_two_blocks_is_not_heard(supervisor: Supervised, workspace: Path) -> None:
    supervisor.run(LATE)
    (workspace / "go").touch()
    wait_for((workspace / "done").exists)
    assert supervisor.run("print(1)").text == "1\n"


def test_an_answer_after_the_end_reaches_nobody(supervisor: Supervised) -> None:
    supervisor.start(call())
    supervisor.expect(Kind.CALL)
    supervisor.result()
    supervisor.answer(1, "late")
    shell = "while ! [ -e go ]; do sleep 0.01; done"
    supervisor.start(shell, "sh")
    supervisor.answer(1, "to a shell")
    # answered after that
    supervisor.interrupt()
    supervisor.result()
    assert supervisor.run("import select\nselect.select([answers()], [], [], 0)[0]").text == "[]\n"


def test_no_answer_after_the_end_spoils_what_is_asked_for_next(supervisor: Supervised) -> None:
    for _ in range(100):
        supervisor.start(call())
        supervisor.expect(Kind.CALL)
        supervisor.answer(1, "may be in time or not")
        assert supervisor.result().lost is None
    assert supervisor.put("x", b"data") is None
    assert supervisor.get("x") == b"data"


@pytest.mark.parametrize(
    ("count", "size"),
    [
        pytest.param(4000, 100, id="many"),
        pytest.param(6, MAX_ANSWER_BYTES, id="large", marks=pytest.mark.long),
    ],
)
def test_answers_that_are_never_read_cost_the_interpreter(
    supervisor: Supervised, count: int, size: int
) -> None:
    supervisor.start(f"{call()}time = __import__('time'); time.sleep(600)")
    supervisor.expect(Kind.CALL)
    for _ in range(count):
        supervisor.send(frame(Kind.ANSWER, bytes(size)))
    result = supervisor.result()
    assert (result.lost, result.exit_code) == (DEAF, 137)
    assert supervisor.run("print(1)").text == "1\n"


def test_unread_answers_of_a_few_calls_cost_nothing(supervisor: Supervised, workspace: Path) -> None:
    supervisor.start(f"{call()}import time\nwhile not os.path.exists('go'): time.sleep(0.01)")
    supervisor.expect(Kind.CALL)
    for _ in range(64):
        supervisor.send(frame(Kind.ANSWER, bytes(MIB // 2)))
    (workspace / "go").touch()
    assert supervisor.result().lost is None
    # what the pipe has not taken yet waits there
    assert supervisor.run("[len(answer()[2]) for _ in range(64)] == [2**19] * 64").text == "True\n"


def test_a_block_that_does_not_read_its_answers_can_be_interrupted(supervisor: Supervised) -> None:
    supervisor.start(f"{call()}time = __import__('time'); time.sleep(600)")
    supervisor.expect(Kind.CALL)
    supervisor.send(frame(Kind.ANSWER, bytes(8 * MIB)))
    supervisor.interrupt()
    result = supervisor.result()
    assert (result.lost, result.report and result.report["exit_code"]) == (None, 130)


def test_closed_answers_are_the_codes_own_problem(supervisor: Supervised) -> None:
    supervisor.start(
        f"os.close(answers())\n{call()}import sys; sys.stdin.read()\nimport time; time.sleep(0.2)"
    )
    supervisor.expect(Kind.CALL)
    for number in range(10):
        supervisor.answer(number, "x" * 100_000)
    assert supervisor.result().lost is None
    assert supervisor.run("print(1)").text == "1\n"


def test_a_flood_of_calls_reaches_the_host_and_can_be_ended(supervisor: Supervised) -> None:
    supervisor.start(f"while True: {call()}")
    for _ in range(1000):
        assert supervisor.expect(Kind.CALL) == CALL
    supervisor.kill()
    # the block may get to say that nobody takes its calls any more
    while (received := supervisor.receive())[0] in (Kind.CALL, Kind.OUTPUT):
        pass
    assert received[0] == Kind.RESULT
    assert ResultFrame.unpack(received[1]).lost == "it was killed"


def test_calls_leave_no_descriptor_open(supervisor: Supervised) -> None:
    def descriptors() -> int:
        return len(os.listdir(f"/proc/{supervisor.process.pid}/fd"))

    before = descriptors()
    for _ in range(3):
        supervisor.start(f"{call()}answer()\n")
        supervisor.expect(Kind.CALL)
        supervisor.answer(1, None)
        supervisor.result()
        supervisor.run("import os; os._exit(0)")
        supervisor.run(REPORTS)
    assert descriptors() == before
