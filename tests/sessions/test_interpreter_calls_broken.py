from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.calling import answer, works
from support.declarations import ECHO
from support.interpreter import RunningInterpreter

from codeact_team.sandbox.system.framing import frame
from codeact_team.session.protocol import TOKEN_BYTES, Kind


def prepared(interpreter: RunningInterpreter) -> RunningInterpreter:
    interpreter.declare(ECHO)
    interpreter.run("import asyncio, os, signal, sys, threading, time\nkept = 'kept'")
    return interpreter


@pytest.fixture
def interpreter(interpreter: RunningInterpreter) -> RunningInterpreter:
    return prepared(interpreter)


@pytest.fixture
def fresh_interpreter(fresh_interpreter: RunningInterpreter) -> RunningInterpreter:
    return prepared(fresh_interpreter)


def test_answers_that_nobody_waits_for_are_dropped(interpreter: RunningInterpreter) -> None:
    interpreter.start("tools.echo(1)")
    old = interpreter.next_call().number
    answer_of_old = {"id": old, "content": [{"value": "old"}]}
    interpreter.send_answer(answer_of_old)
    assert interpreter.finish().output == "'old'\n"
    interpreter.start("tools.echo(1)")
    call = interpreter.next_call()
    interpreter.send_answer(answer_of_old)
    interpreter.answer(call.number + 1, "not made yet")
    interpreter.send_answer({"id": call.number, "content": []}, token=os.urandom(TOKEN_BYTES))
    interpreter.answer(call.number, "new")
    interpreter.answer(call.number, "twice")
    assert interpreter.finish().output == "'new'\n"
    assert works(interpreter)


@pytest.mark.parametrize(
    "rest",
    [
        b',"content":[{"value":' + b"[" * 100_000 + b"]" * 100_000 + b"}]}",
        b',"content":[{"value":' + b"1" * 5000 + b"}]}",
        b',"content":[{"mime_type":"image/png","data":"abc"}]}',
        b',"content":[{"neither":1}]}',
        b',"content":7}',
        b"}",
        b", what is this?",
        b',"content":"\xff"}',
    ],
)
def test_an_answer_that_cannot_be_read_fails_its_call(interpreter: RunningInterpreter, rest: bytes) -> None:
    interpreter.start("tools.echo(1)")
    interpreter.send_answer(b'{"id":%d' % interpreter.next_call().number + rest)
    last = interpreter.finish().output.splitlines()[-1]
    assert last.startswith("tools.ToolError: the result of the tool cannot be read here: ")
    assert works(interpreter)


@pytest.mark.parametrize("garbage", [b"", b"[]", b"null", b'{"id":"x"}', b'{"id":{}}', b"\xff", b'{"id":-1}'])
def test_answers_that_belong_to_no_call_do_no_harm(interpreter: RunningInterpreter, garbage: bytes) -> None:
    interpreter.start("tools.echo(1)")
    call = interpreter.next_call()
    interpreter.send_answer(garbage)
    answer(interpreter, call)
    assert interpreter.finish().output == "1\n"


def test_what_is_no_answer_at_all_fails_the_calls(fresh_interpreter: RunningInterpreter) -> None:
    fresh_interpreter.start("tools.echo(1)")
    fresh_interpreter.next_call()
    fresh_interpreter.send_answer_raw(frame(Kind.RUN, b"{}"))
    failed = "tools.ToolError: tools cannot be called any more: ProtocolError: no frame of kind 1 is expected"
    assert fresh_interpreter.finish().output.splitlines()[-1] == failed
    assert fresh_interpreter.run("tools.echo(1)").output.splitlines()[-1] == failed
    assert fresh_interpreter.run("kept").output == "'kept'\n"


def test_a_forked_child_cannot_call(interpreter: RunningInterpreter) -> None:
    interpreter.start(
        # Python 3.12 warns of the fork, in the midst of what the child says
        "import warnings; warnings.simplefilter('ignore')\ntools.echo(0)\npid = os.fork()\nif not pid:\n    try: tools.echo(1)\n"
        "    except tools.ToolError as error: print(error)\n    os._exit(0)\nos.waitpid(pid, 0)[1]"
    )
    answer(interpreter, interpreter.next_call())
    assert interpreter.finish().output == "tools can be called only by the session's own process\n0\n"
    assert works(interpreter)


def test_a_child_that_is_forked_while_calls_wait_sends_nothing(interpreter: RunningInterpreter) -> None:
    interpreter.start(
        "task = asyncio.create_task(tools.echo.aio(1))\nawait asyncio.sleep(0.01)\npid = os.fork()\n"
        "if not pid:\n    task.cancel()\n    await asyncio.sleep(0)\n    os._exit(0)\n"
        "os.waitpid(pid, 0)\nawait task"
    )
    call = interpreter.next_call()
    assert interpreter.unanswered() == []
    answer(interpreter, call)
    assert interpreter.finish().output.endswith("1\n")
    assert interpreter.cancelled == []


_ANSWERS = (
    "import fcntl, stat\nfound = [fd for fd in map(int, os.listdir('/proc/self/fd')) if fd > 2 and "
    "os.path.exists(f'/proc/self/fd/{fd}') and stat.S_ISFIFO(os.fstat(fd).st_mode) and "
    "fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY]\n"
    "assert len(found) == 2, found\n_, answers = sorted(found)\n"
)


_CLOSED = "os.close(answers)"
_OF_A_FILE = "os.dup2(os.open('/dev/null', os.O_RDONLY), answers)"
_OF_ANOTHER_PIPE = "os.dup2(os.pipe()[0], answers)"


@pytest.mark.parametrize(
    ("before", "breaking"),
    [
        ("", _CLOSED),
        ("tools.echo(0)\n", _OF_ANOTHER_PIPE),
        pytest.param("", _OF_A_FILE, marks=pytest.mark.long),
        pytest.param("", _OF_ANOTHER_PIPE, marks=pytest.mark.long),
        pytest.param("tools.echo(0)\n", _CLOSED, marks=pytest.mark.long),
        pytest.param("tools.echo(0)\n", _OF_A_FILE, marks=pytest.mark.long),
    ],
)
def test_without_the_pipe_of_the_answers_calls_fail(
    fresh_interpreter: RunningInterpreter, before: str, breaking: str
) -> None:
    fresh_interpreter.start(before + _ANSWERS + breaking + "\ntools.echo(1)")
    if before:
        answer(fresh_interpreter, fresh_interpreter.next_call())
    ran = fresh_interpreter.finish()
    assert "tools.ToolError: tools cannot be called any more: " in ran.output
    assert "which is not the code's, was closed" in ran.output
    assert "was closed" in fresh_interpreter.run("tools.echo(1)").output
    assert fresh_interpreter.run("kept").output == "'kept'\n"


def test_a_pipe_that_is_closed_under_a_call_fails_the_calls_after_the_answer(
    fresh_interpreter: RunningInterpreter, tmp_path: Path
) -> None:
    (waiting := tmp_path / "waiting").touch()
    fresh_interpreter.start(
        f"{_ANSWERS}def close():\n    while os.path.exists({str(waiting)!r}): time.sleep(0.001)\n    os.close(answers)\n"
        "closing = threading.Thread(target=close)\nclosing.start()\ntools.echo(1)\nclosing.join()\ntools.echo(2)"
    )
    call = fresh_interpreter.next_call()
    fresh_interpreter.unanswered()
    waiting.unlink()
    answer(fresh_interpreter, call)
    assert "was closed" in fresh_interpreter.finish().output


def test_calls_survive_what_the_code_does_to_libraries(fresh_interpreter: RunningInterpreter) -> None:
    fresh_interpreter.start(
        "import json\nfor name in ('dumps', 'loads', 'JSONEncoder', 'JSONDecoder'): setattr(json, name, None)\n"
        "for name in ('json', 'asyncio', 'difflib', 're', 'io', 'collections'): sys.modules[name] = None\n"
        "tools.echo({'x': [1]})"
    )
    answer(fresh_interpreter, fresh_interpreter.next_call())
    assert fresh_interpreter.finish().output == "{'x': [1]}\n"
