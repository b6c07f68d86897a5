"""The host's half of a session against whatever may come out of a sandbox."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import AbstractContextManager, nullcontext

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.host_tools import Offered, echo, forever
from support.liar import READY, RESULT, Liar, result

from codeact_team.core.execution import Artifact, CallAnswer, HostTools
from codeact_team.errors import SandboxError
from codeact_team.sandbox import base
from codeact_team.sandbox.base import Exit
from codeact_team.sandbox.processes import ProcessRequest
from codeact_team.sandbox.system.framing import frame
from codeact_team.session import host
from codeact_team.session.connection import Report, read_report
from codeact_team.session.host import Session
from codeact_team.session.protocol import (
    FROM_SUPERVISOR,
    MAX_CALLS_AT_ONCE,
    MAX_FILE_BYTES,
    MIB,
    OF_PROCESSES,
    PROCESS_HEAD,
    ExitedFrame,
    Kind,
    ProgressFrame,
    ResultFrame,
)

GARBLED = "it sent something that could not be understood"


class Control:
    """Gives a block so many seconds."""

    def __init__(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self.stop: asyncio.Future[None] = loop.create_future()
        self.deadline = loop.time() + seconds
        self.block_ended = False
        self._timer = loop.call_at(self.deadline, self.stop.cancel)

    def paused(self) -> AbstractContextManager[None]:
        return nullcontext()


async def drop(_: object) -> None:
    """Wants no output."""


async def ask(
    says: bytes, *, ends: bool = True, greets: bytes = READY, tools: HostTools | None = None
) -> list[bytes | Artifact | ResultFrame | Exit]:
    """What the host makes of a block's answer. No task is left after it."""
    sandbox = Liar(says, ends=ends, greets=greets)
    session = Session(sandbox)
    try:
        async with asyncio.timeout(20):
            await session.start()
            output: list[bytes] = []

            async def take(data: bytes) -> None:
                output.append(data)

            ending, artifacts = await session.run("python", "1", Control(10), take, tools)
            return [*output, *artifacts, ending]
    finally:
        await session.aclose()
        await sandbox.stop()
        assert asyncio.all_tasks() == {asyncio.current_task()}


frames = st.builds(
    frame,
    st.sampled_from(Kind),
    st.one_of(
        st.binary(max_size=200),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=20),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(["interpreter", "mime_type", "id", "name", "arguments"]),
                    inner,
                    max_size=6,
                )
            ),
            max_leaves=8,
        ).map(lambda value: json.dumps(value).encode()),
    ),
)
i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
streams = st.lists(frames | st.binary(max_size=64), max_size=8).map(b"".join)


@example(b"")
@example(b"\xff" * 100)
@example(frame(Kind.RESULT, b"short"))
@example(frame(Kind.RESULT, b"\xff" * 100_000))
@example(RESULT[:-1] + b"\0[")
@example(frame(Kind.ARTIFACT, b"no newline"))
@example(frame(Kind.ARTIFACT, b'{"mime_type":"a","others":[["b",9]]}\nshort'))
@example(frame(Kind.ARTIFACT, b'{"mime_type":"a","others":[["a",1],["b",-1]]}\nshort'))
@example(frame(Kind.ARTIFACT, b'{"mime_type":"a","others":[%s]}\n' % b",".join([b'["b",0]'] * 10)))
@example(b"\x22\xff\xff\xff\xff")
@example(frame(Kind.CALL, b'{"id":1,"name":"x","arguments":{}}') * 2)
@given(streams)
def test_whatever_comes_is_an_ending(says: bytes) -> None:
    *others, ending = asyncio.run(ask(says, tools=Offered(x=echo)))
    assert isinstance(ending, ResultFrame | Exit)
    assert all(isinstance(item, bytes | Artifact) for item in others)


@example(frame(Kind.OUTPUT, b'{"interpreter":1}'))
@given(streams)
def test_whatever_comes_first_is_a_start_or_an_error_that_says_it(greets: bytes) -> None:
    try:
        asyncio.run(ask(b"", greets=greets))
    except SandboxError as error:
        said = str(error)
    else:
        assert greets.startswith(frame(Kind.READY)[:1])
        return
    assert "no interpreter can be started" in said


@given(streams)
def test_whatever_answers_a_request_for_a_file_is_an_error_or_its_content(says: bytes) -> None:
    async def get() -> None:
        sandbox = Liar(says, ends=True)
        session = Session(sandbox)
        try:
            async with asyncio.timeout(20):
                await session.start()
                await session.get_file("x")
        except (OSError, SandboxError) as error:
            failed = error
        else:
            failed = None
        finally:
            await session.aclose()
            await sandbox.stop()
        assert not isinstance(failed, TimeoutError)

    asyncio.run(get())


def progress(ended: bool, omitted: int, length: int, data: bytes) -> bytes:
    return ProgressFrame.HEAD.pack(ended, omitted, 0, length) + data


about_processes = st.builds(
    frame,
    st.sampled_from(sorted(OF_PROCESSES)),
    st.sampled_from([b"", *(PROCESS_HEAD.pack(number) for number in (0, 0, 0, 1, 2**32 - 1))]),
    st.one_of(
        st.binary(max_size=64),
        st.builds(ExitedFrame.HEAD.pack, i32, st.booleans(), st.booleans(), i32, i32, i64),
        st.builds(
            progress, st.booleans(), st.integers(0, 2**64 - 1), st.integers(0, 20), st.binary(max_size=20)
        ),
        st.sampled_from([b'{"errno": 2, "message": "no", "about": 0}', b'{"errno": "x"}']),
    ),
)


@example(frame(Kind.PROGRESS, PROCESS_HEAD.pack(0), ProgressFrame.HEAD.pack(True, 0, 0, 0)), False)
@given(st.lists(about_processes | frames | st.binary(max_size=64), max_size=8).map(b"".join), st.booleans())
def test_whatever_is_said_of_a_process_is_its_end_or_an_error(says: bytes, starts: bool) -> None:
    async def run() -> None:
        sandbox = Liar(says, ends=True)
        session = Session(sandbox)
        try:
            async with asyncio.timeout(20):
                await session.start()
                request = ProcessRequest(["true"])
                if not starts:
                    assert -64 <= (await session.processes.run(request)).returncode <= 255
                    return
                async with await session.processes.start(request) as process:
                    while await process.read():
                        pass
                    assert -64 <= await process.wait() <= 255
        except (OSError, SandboxError) as error:
            failed = error
        else:
            failed = None
        finally:
            await session.aclose()
            await sandbox.stop()
            assert asyncio.all_tasks() == {asyncio.current_task()}
        assert not isinstance(failed, TimeoutError)

    asyncio.run(run())


@pytest.mark.parametrize(("excess", "fits"), [(0, True), (1, False)])
@pytest.mark.parametrize("limit", [3 * MIB + 1, pytest.param(MAX_FILE_BYTES, marks=pytest.mark.long)])
async def test_a_file_that_grows_beyond_what_may_be_got_ends_the_session(
    monkeypatch: pytest.MonkeyPatch, limit: int, excess: int, fits: bool
) -> None:
    monkeypatch.setattr(host, "MAX_FILE_BYTES", limit)
    # the host would have taken in whatever comes
    piece = FROM_SUPERVISOR[Kind.FILE]
    full, rest = divmod(limit + excess, piece)
    says = b"".join(frame(Kind.FILE, bytes(size)) for size in (*[piece] * full, rest)) + frame(Kind.DONE)
    sandbox = Liar(says, ends=False)
    session = Session(sandbox)
    await session.start()
    if fits:
        assert len(await session.get_file("x")) == limit
    else:
        with pytest.raises(SandboxError, match="could not be understood"):
            await session.get_file("x")
    await session.aclose()
    await sandbox.stop()


async def test_frames_may_come_in_pieces_and_together() -> None:
    answer = [
        frame(Kind.OUTPUT, b"one"),
        frame(Kind.OUTPUT, b"two"),
        result(b"end"),
    ]
    *output, ending = await ask(b"".join(answer))
    assert output == [b"one", b"two", b"end"]
    assert isinstance(ending, ResultFrame)
    assert (ending.exit_code, ending.lost, read_report(ending.report)) == (None, None, Report(exit_code=0))


async def test_a_frame_longer_than_its_kind_may_be_ends_the_session() -> None:
    [ending] = await ask(b"\x22\x7f\xff\xff\xff" + bytes(100), ends=False)
    assert isinstance(ending, Exit)
    assert ending.lost == "it sent something that could not be understood"


async def test_a_flood_of_bytes_before_the_greeting_is_cut_short() -> None:
    with pytest.raises(SandboxError) as caught:
        await ask(b"", greets=b"python3: not found " * 100_000)
    assert len(str(caught.value)) < 3000


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "KILL_TIMEOUT", 0.2)


async def test_a_supervisor_that_takes_long_to_end_a_block_keeps_its_session(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(host, "INTERRUPT_GRACE", 0.02)
    monkeypatch.setattr(base, "_SLOW_AFTER", 0.5)
    sandbox = Liar(b"", ends=False)
    session = Session(sandbox)
    await session.start()
    reading = asyncio.ensure_future(session.run("python", "1", Control(0.01), drop))
    await asyncio.sleep(1.2)
    await sandbox.say(RESULT)
    assert isinstance((await reading)[0], ResultFrame)
    assert session.alive
    assert "have not ended after 0.5 s, perhaps as the machine" in caplog.text
    await session.aclose()
    await sandbox.stop()


@pytest.mark.usefixtures("impatient")
async def test_silence_ends_when_the_time_is_over() -> None:
    sandbox = Liar(b"", ends=False)
    session = Session(sandbox)
    await session.start()
    ending, _ = await session.run("python", "1", Control(0.1), drop)
    assert isinstance(ending, Exit)
    assert not session.alive
    await sandbox.stop()


def call(number: int, name: str = "x", rest: bytes = b"") -> bytes:
    return frame(Kind.CALL, b'{"id":%d,"name":"%s","arguments":{}}' % (number, name.encode()), rest)


@pytest.mark.parametrize(
    "says",
    [
        frame(Kind.CALL, b""),
        frame(Kind.CALL, b'{"name":"x","arguments":{}}'),
        frame(Kind.CALL, b'{"id":-1,"name":"x","arguments":{}}'),
        frame(Kind.CALL, b'{"id":' + b"9" * 100_000 + b"}"),
        frame(Kind.CALL, b"[" * 1_000_000),
        frame(Kind.CANCEL, b"x"),
        frame(Kind.CANCEL, b'{"id":1}') * 1000,
        call(1) * 2,
        b"".join(call(number) for number in range(MAX_CALLS_AT_ONCE + 1)),
        b"".join(call(number, rest=b" " * 1_000_000) for number in range(10)),
        b"\x43\x7f\xff\xff\xff",
        frame(Kind.ANSWER, b"{}"),
        frame(Kind.TOOLS, b"{}"),
    ],
)
async def test_calls_that_no_honest_supervisor_passes_on_end_the_session_and_all_calls(says: bytes) -> None:
    tools = Offered(x=forever, max_parallel=100)
    [ending] = await ask(says, ends=False, tools=tools)
    assert isinstance(ending, Exit)
    assert ending.lost == GARBLED
    assert tools.running == 0


async def test_calls_that_cannot_be_answered_any_more_are_cancelled() -> None:
    tools = Offered(x=forever)
    [ending] = await ask(b"".join(call(number) for number in range(30)), tools=tools)
    assert isinstance(ending, Exit)
    assert ending.lost == "its supervising process ended"
    assert tools.running == 0
    tools = Offered(x=forever)
    [ending] = await ask(b"".join(call(number) for number in range(30)) + RESULT, tools=tools)
    assert isinstance(ending, ResultFrame)
    assert tools.running == 0


async def test_a_call_while_no_block_runs_ends_the_session() -> None:
    sandbox = Liar(call(1), ends=False)
    session = Session(sandbox)
    await session.start()
    with pytest.raises(SandboxError, match=GARBLED):
        await session.list_files()
    assert not session.alive
    await sandbox.stop()


async def test_calls_where_nothing_is_offered_or_that_say_nonsense_harm_nobody() -> None:
    for tools in (None, Offered(y=echo)):
        [ending] = await ask(
            call(1) + call(2, rest=b"nonsense") + frame(Kind.CALL, b'{"id":3,"name":[]}') + RESULT,
            tools=tools,
        )
        assert isinstance(ending, ResultFrame)


async def test_an_answer_that_nobody_takes_ends_the_session_once_the_block_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answered = asyncio.Event()

    async def much(*_: object) -> CallAnswer:
        answered.set()
        return CallAnswer(content=["x" * 10 * MIB])

    monkeypatch.setattr(host, "REQUEST_TIMEOUT", 0.2)
    sandbox = Liar(call(1), ends=False)
    session = Session(sandbox)
    await session.start()
    tools = Offered(x=much)
    reading = asyncio.ensure_future(session.run("python", "1", Control(60), drop, tools))
    await answered.wait()
    await asyncio.sleep(0.05)
    await sandbox.say(RESULT)
    assert isinstance((await reading)[0], ResultFrame)
    assert session.ending is not None
    assert session.ending.lost == "it did not take the answer to a call"
    await sandbox.stop()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.usefixtures("impatient")
async def test_an_answer_that_nobody_takes_does_not_keep_a_block_from_ending_in_time() -> None:
    async def much(*_: object) -> CallAnswer:
        return CallAnswer(content=["x" * 10 * MIB])

    sandbox = Liar(call(1) + call(2, "y"), ends=False)
    session = Session(sandbox)
    await session.start()
    tools = Offered(x=much, y=forever)
    ending, _ = await session.run("python", "1", Control(0.1), drop, tools)
    assert isinstance(ending, Exit)
    assert tools.running == 0
    await sandbox.stop()
    assert asyncio.all_tasks() == {asyncio.current_task()}


def garbage(chance: random.Random) -> bytes:
    """Frames and noise, each piece damaged as often as not."""
    pieces: list[bytes] = []
    for _ in range(chance.randrange(6)):
        kind = Kind(chance.choice(list(Kind)))
        body = chance.choice(
            [
                RESULT[5:],
                b'{"mime_type": "x"}\n',
                b'{"id":1,"name":"x","arguments":{}}',
                b"[[[[",
                chance.randbytes(300),
            ]
        )
        piece = bytearray(frame(kind, body))
        for _ in range(chance.randrange(4)):
            piece[chance.randrange(len(piece))] = chance.randrange(256)
        pieces.append(bytes(piece[: chance.choice([len(piece), chance.randrange(len(piece))])]))
    return b"".join(pieces)


@pytest.mark.long
def test_all_garbage_ends_a_block() -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    for _ in range(3_000):
        *_, ending = asyncio.run(ask(garbage(chance), tools=Offered(x=echo)))
        assert isinstance(ending, ResultFrame | Exit), seed
