"""The calls of one block, taken in frame by frame, without a sandbox around."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.host_tools import Offered, echo, forever
from support.waiting import until

from codeact_team.core.execution import Artifact, CallAnswer, CallOutcome, HostTools
from codeact_team.errors import SettingError
from codeact_team.sandbox.system.framing import FrameReader, ProtocolError
from codeact_team.session.protocol import (
    FROM_HOST,
    MAX_ANSWER_BYTES,
    MAX_CALL_BYTES,
    MAX_CALL_BYTES_AT_ONCE,
    MAX_CALLS_AT_ONCE,
    MIB,
    Kind,
)
from codeact_team.session.tool_calls import ToolCalls, declaration_frame

Answer = dict[str, Any]


def call(number: int, name: str = "echo", arguments: dict[str, Any] | None = None) -> bytes:
    return json.dumps({"id": number, "name": name, "arguments": arguments or {}}).encode()


def withdrawal(number: int) -> bytes:
    return json.dumps({"id": number}).encode()


class Answers:
    """What is sent, taken apart."""

    def __init__(self) -> None:
        self._reader = FrameReader(FROM_HOST)
        self.messages = 0
        self.came: list[Answer] = []
        self.open = asyncio.Event()
        self.open.set()

    async def send(self, data: bytes) -> None:
        self.messages += 1
        await self.open.wait()
        for kind, payload in self._reader.feed(data):
            assert kind == Kind.ANSWER
            self.came.append(json.loads(payload))

    async def expect(self, count: int) -> list[Answer]:
        """The answers, once there are so many."""
        await until(lambda: len(self.came) >= count)
        assert len(self.came) == count
        return self.came


@asynccontextmanager
async def called(tools: HostTools | None) -> AsyncGenerator[tuple[ToolCalls, Answers]]:
    """The calls of a block that ends with the context, without a task left."""
    answers = Answers()
    calls = ToolCalls(tools, answers.send, nullcontext)
    try:
        yield calls, answers
    finally:
        answers.open.set()
        await calls.aclose()
        await calls.sent()
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def answer_to(payload: bytes, tools: HostTools | None) -> Answer:
    async with called(tools) as (calls, answers):
        calls.accept(payload)
        [answer] = await answers.expect(1)
        return answer


@pytest.mark.parametrize("outcome", [one for one in CallOutcome if one is not CallOutcome.OK])
async def test_what_went_wrong_is_said_with_its_outcome(outcome: CallOutcome) -> None:
    async def fail(*_: Any) -> CallAnswer:
        return CallAnswer(outcome, error="no ä")

    answer = await answer_to(call(1, "fail"), Offered(fail=fail))
    assert answer == {"id": 1, "error": "no ä", "outcome": str(outcome)}


async def test_answers_come_in_the_order_in_which_the_tools_return() -> None:
    gates = [asyncio.Event() for _ in range(3)]

    async def wait(value: int, _: Any) -> CallAnswer:
        await gates[value].wait()
        return CallAnswer(content=[value])

    async with called(Offered(wait=wait)) as (calls, answers):
        for number in range(3):
            calls.accept(call(number, "wait", {"value": number}))
        for count, number in enumerate((2, 0, 1), 1):
            gates[number].set()
            assert (await answers.expect(count))[-1]["id"] == number


async def test_answers_that_come_together_go_with_one_message() -> None:
    async with called(Offered(echo=echo, max_parallel=MAX_CALLS_AT_ONCE)) as (calls, answers):
        for number in range(MAX_CALLS_AT_ONCE):
            calls.accept(call(number))
        await answers.expect(MAX_CALLS_AT_ONCE)
        assert answers.messages == 1


async def test_an_id_can_be_used_again_once_it_is_answered() -> None:
    async with called(Offered(echo=echo)) as (calls, answers):
        for count in range(1, 200):
            calls.accept(call(5))
            await answers.expect(count)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"id":}',
        b'{"id":-1,"name":"echo","arguments":{}}',
        b'{"id":1.5,"name":"echo","arguments":{}}',
        b'{"id":"1","name":"echo","arguments":{}}',
        b'{"id":true,"name":"echo","arguments":{}}',
        b'{"id":' + b"9" * 500_000 + b',"name":"echo","arguments":{}}',
        b'{"name":"echo","arguments":{}}',
        b"[" * 500_000,
    ],
)
async def test_a_call_that_cannot_be_answered_is_no_call(payload: bytes) -> None:
    async with called(Offered(echo=echo)) as (calls, answers):
        with pytest.raises(ProtocolError):
            calls.accept(payload)
        with pytest.raises(ProtocolError):
            calls.withdraw(payload)
        assert answers.came == []


@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        (b"", "Invalid JSON"),
        (b'"name":"echo"}', "arguments: Field required"),
        (b'"name":5,"arguments":{}}', "name: Input should be a valid string"),
        (b'"name":"echo","arguments":[1]}', "arguments: Input should be an object"),
        (b'"name":"' + b"x" * 1000 + b'","arguments":{}}', "name: String should have at most 200"),
        (b'"name":"echo","arguments":{"value":' + b"[" * 500_000, "recursion limit"),
        (b'"name":"echo","arguments":{"value":' + b"[" * 300 + b"]" * 300 + b"}}", "recursion limit"),
        (b'"name":"echo","arguments":{"value":' + b"9" * 500_000 + b"}}", "number out of range"),
        (b'"name":"echo","arguments":{"value":"\\ud800"}}', "Invalid JSON"),
        (b'"name":"echo","arguments":{"value":"\xff"}}', "Invalid JSON"),
    ],
)
async def test_a_call_with_unusable_contents_is_refused(rest: bytes, reason: str) -> None:
    tools = Offered(echo=echo)
    answer = await answer_to(b'{"id":3,' + rest, tools)
    assert (answer["id"], answer["outcome"]) == (3, "refused")
    assert reason in answer["error"]
    assert len(answer["error"]) < 1000
    assert tools.began == []


async def test_an_id_that_is_in_use_is_no_call() -> None:
    async with called(Offered(forever=forever)) as (calls, _):
        calls.accept(call(1, "forever"))
        with pytest.raises(ProtocolError):
            calls.accept(call(1, "forever"))


async def test_more_calls_than_an_interpreter_makes_are_an_attack() -> None:
    async with called(Offered(forever=forever, max_parallel=2)) as (calls, _):
        for number in range(MAX_CALLS_AT_ONCE):
            calls.accept(call(number, "forever"))
        with pytest.raises(ProtocolError):
            calls.accept(call(MAX_CALLS_AT_ONCE, "forever"))


async def test_larger_calls_than_an_interpreter_makes_are_an_attack() -> None:
    payload = call(0, "forever", {"value": "x" * (MAX_CALL_BYTES - 100)})
    fitting = MAX_CALL_BYTES_AT_ONCE // len(payload) + 1
    async with called(Offered(forever=forever, max_parallel=2)) as (calls, _):
        for number in range(fitting):
            calls.accept(payload.replace(b'"id": 0', b'"id": %d' % number))
        with pytest.raises(ProtocolError):
            calls.accept(call(fitting, "forever"))


async def test_answered_calls_do_not_count() -> None:
    payload = call(0, "echo", {"value": "x" * (MAX_CALL_BYTES - 100)})
    async with called(Offered(echo=echo)) as (calls, answers):
        for number in range(12):
            calls.accept(payload.replace(b'"id": 0', b'"id": %d' % number))
            await answers.expect(number + 1)


async def test_a_call_is_held_as_bytes_until_its_turn() -> None:
    tools = Offered(forever=forever, max_parallel=1)
    async with called(tools) as (calls, answers):
        calls.accept(call(1, "forever"))
        # unusable, which nobody knows before
        calls.accept(b'{"id":2,')
        await asyncio.sleep(0.01)
        assert answers.came == []
        calls.withdraw(withdrawal(1))
        first, second = await answers.expect(2)
        assert (first["id"], first["outcome"]) == (1, "cancelled")
        assert (second["id"], second["outcome"]) == (2, "refused")


async def test_a_withdrawn_call_is_cancelled_and_answered() -> None:
    tools = Offered(forever=forever, max_parallel=1)
    async with called(tools) as (calls, answers):
        for number in (1, 2):
            calls.accept(call(number, "forever"))
        await until(lambda: tools.running == 1)
        for number in (2, 1):
            calls.withdraw(withdrawal(number))
        came = await answers.expect(2)
        assert {answer["id"]: answer["outcome"] for answer in came} == {1: "cancelled", 2: "cancelled"}
    assert (tools.cancelled, len(tools.began)) == (1, 1)


async def test_a_call_that_is_withdrawn_at_once_is_answered_too() -> None:
    async with called(Offered(forever=forever)) as (calls, answers):
        calls.accept(call(1, "forever"))
        calls.withdraw(withdrawal(1))
        [answer] = await answers.expect(1)
        assert answer["outcome"] == "cancelled"


async def test_a_tool_can_do_something_about_its_cancellation_however_often_it_is_withdrawn() -> None:
    cleaned: list[bool] = []

    async def tidy(*_: Any) -> CallAnswer:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            cleaned.append(True)
        return CallAnswer()

    tools = Offered(tidy=tidy, echo=echo)
    async with called(tools) as (calls, answers):
        calls.accept(call(1, "tidy"))
        calls.accept(call(2))
        await answers.expect(1)
        for _ in range(2):
            calls.withdraw(withdrawal(1))
            await asyncio.sleep(0)
        calls.end()
    assert cleaned == [True]


async def test_withdrawing_what_is_answered_or_unknown_does_nothing() -> None:
    async with called(Offered(echo=echo)) as (calls, answers):
        for number in (1, 2):
            calls.accept(call(number))
        await answers.expect(2)
        for number in (1, 99):
            calls.withdraw(withdrawal(number))
        await asyncio.sleep(0.01)
        assert len(answers.came) == 2


async def test_a_flood_of_withdrawals_is_an_attack() -> None:
    async with called(Offered(echo=echo)) as (calls, _):
        calls.accept(call(1))
        for _ in range(MAX_CALLS_AT_ONCE + 1):
            calls.withdraw(withdrawal(1))
        with pytest.raises(ProtocolError):
            calls.withdraw(withdrawal(1))


async def test_when_a_block_is_ended_its_calls_are_answered_as_cancelled_and_so_are_later_ones() -> None:
    tools = Offered(forever=forever, echo=echo, max_parallel=1)
    async with called(tools) as (calls, answers):
        for number in (1, 2):
            calls.accept(call(number, "forever"))
        await until(lambda: tools.running == 1)
        calls.end()
        await answers.expect(2)
        calls.accept(call(3))
        came = await answers.expect(3)
        assert {answer["outcome"] for answer in came} == {"cancelled"}
    assert (len(tools.began), tools.cancelled) == (1, 1)


async def test_when_a_block_has_ended_its_calls_have_and_nothing_is_sent_any_more() -> None:
    tools = Offered(forever=forever, max_parallel=10)
    async with called(tools) as (calls, answers):
        for number in range(20):
            calls.accept(call(number, "forever"))
        await until(lambda: tools.running == 10)
        await calls.aclose()
        assert (tools.running, tools.cancelled) == (0, 10)
        await calls.sent()
        assert answers.came == []
        await calls.aclose()


async def test_what_is_being_sent_is_sent_whole() -> None:
    async with called(Offered(echo=echo)) as (calls, answers):
        answers.open.clear()
        calls.accept(call(1))
        await until(lambda: answers.messages == 1)
        calls.accept(call(2))
        await calls.aclose()
        assert answers.came == []
        answers.open.set()
        await calls.sent()
        assert [answer["id"] for answer in answers.came] == [1]


async def test_a_lost_session_is_not_sent_the_rest() -> None:
    async with called(Offered(echo=echo, forever=forever)) as (calls, answers):
        answers.open.clear()
        calls.accept(call(1))
        await until(lambda: answers.messages == 1)
        calls.accept(call(2, "forever"))
        await calls.hang_up()
        await calls.aclose()
        await calls.sent()
        assert answers.came == []


async def test_reading_on_does_not_wait_for_what_is_sent() -> None:
    tools = Offered(echo=echo)
    async with called(tools) as (calls, answers):
        answers.open.clear()
        for number in range(MAX_CALLS_AT_ONCE):
            calls.accept(call(number))
            await asyncio.sleep(0)
        await until(lambda: len(tools.began) == MAX_CALLS_AT_ONCE)
        answers.open.set()
        assert {answer["id"] for answer in await answers.expect(MAX_CALLS_AT_ONCE)} == set(
            range(MAX_CALLS_AT_ONCE)
        )


async def test_answers_that_are_not_taken_hold_further_calls_back() -> None:
    async def much(*_: Any) -> CallAnswer:
        return CallAnswer(content=["x" * (6 * MIB)])

    tools = Offered(much=much, max_parallel=2)
    async with called(tools) as (calls, answers):
        answers.open.clear()
        for number in range(8):
            calls.accept(call(number, "much"))
        await until(lambda: len(tools.began) >= 5)
        await asyncio.sleep(0.05)
        # one on its way, and as much as the largest answer and those that were begun before
        assert len(tools.began) <= 6
        answers.open.set()
        await answers.expect(8)


@pytest.mark.parametrize(
    "content",
    [
        ["x" * (MAX_ANSWER_BYTES + 1)],
        ["x" * (MAX_ANSWER_BYTES - 10)],
        [["x" * 1000] * 20_000],
        [Artifact("image/png", bytes(MAX_ANSWER_BYTES * 3 // 4 + 10))],
        ["\x01" * (MAX_ANSWER_BYTES // 4)],
    ],
    ids=["long", "barely", "nested", "picture", "escaped"],
)
async def test_an_answer_that_is_too_large_says_both_sizes(content: list[Any]) -> None:
    async def much(*_: Any) -> CallAnswer:
        return CallAnswer(content=content)

    answer = await answer_to(call(1, "much"), Offered(much=much))
    assert answer["outcome"] == "failed"
    assert " MiB; at most 16 MiB are possible" in answer["error"]


async def value(one: Any) -> CallAnswer:
    return CallAnswer(content=[one])


async def test_half_a_character_and_no_number_arrive_as_they_are() -> None:
    odd = ["\ud800", "ä", float("inf"), 10**400]
    answer = await answer_to(call(1), Offered(echo=lambda *_: value(odd)))
    assert answer["content"] == [{"value": odd}]
    answer = await answer_to(call(1), Offered(echo=lambda *_: value(float("nan"))))
    assert answer["content"][0]["value"] != answer["content"][0]["value"]


def nested(depth: int) -> list[Any]:
    inner: list[Any] = []
    for _ in range(depth):
        inner = [inner]
    return inner


@pytest.mark.parametrize("odd", [object(), {1, 2}, nested(20_000), b"x"], ids=type)
async def test_what_is_no_value_is_a_failure_without_details_of_the_host(
    odd: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        answer = await answer_to(call(1), Offered(echo=lambda *_: value(odd)))
    assert answer == {"id": 1, "error": "the call failed on the host", "outcome": "failed"}
    assert "cannot be encoded" in caplog.text


async def test_a_tool_that_raises_is_a_failure_without_details_of_the_host(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(*_: Any) -> CallAnswer:
        raise RuntimeError("the key is 123")

    with caplog.at_level(logging.ERROR):
        answer = await answer_to(call(1, "broken"), Offered(broken=broken))
    assert answer == {"id": 1, "error": "the call failed on the host", "outcome": "failed"}
    assert "the key is 123" in caplog.text


def test_tools_that_are_too_much_to_tell_are_refused() -> None:
    with pytest.raises(SettingError, match=r"5\.0 MiB together, of at most 4 MiB"):
        declaration_frame([{"name": "x", "doc": "y" * 5 * MIB}])


@given(st.lists(st.binary(max_size=40) | st.binary(max_size=30).map(b'{"id":1,'.__add__)))
def test_whatever_comes_is_answered_or_refused(payloads: list[bytes]) -> None:
    async def take_all() -> None:
        async with called(Offered(echo=echo)) as (calls, answers):
            taken = 0
            for payload in payloads:
                try:
                    calls.accept(payload)
                except ProtocolError:
                    continue
                taken += 1
                await answers.expect(taken)

    asyncio.run(take_all())
