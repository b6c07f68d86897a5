"""Requests as effects of a run, questions to a person, and a proxy that dies or whose host does."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.egress import (
    LOOPBACK,
    Upstream,
    allowed,
    client_of,
    get,
    proxies,
    way_out,
)
from support.processes import process_lives
from support.waiting import until

from codeact_team.agents.ledger import BudgetTermination
from codeact_team.core.effects import Dispatcher, Effect, Event, Perform, speaking
from codeact_team.core.network_events import RequestBegan, RequestDenied, RequestEnded
from codeact_team.network.requests import NetworkRequest, RequestOutcome
from codeact_team.network.rules import EgressRule
from codeact_team.tools.approval_rules import Question
from codeact_team.tools.approvals import Answer, asking

pytestmark = pytest.mark.usefixtures("lookups")


async def test_a_request_is_an_effect_of_the_block_whose_it_is(upstream: Upstream) -> None:
    events: list[Any] = []
    site = f"a.test:{upstream.port}"
    async with (
        way_out(allowed("a.test", upstream.port, paths=["/*"])) as way,
        client_of(way, unit="s3") as client,
    ):
        with Dispatcher() as dispatcher:
            dispatcher.listen(events.append)
            async with way.performing("s3", None):
                assert await client.ask(get(f"http://{site}/1?q=2", site, method="POST", body="abc")) == (
                    200,
                    "answer to /1?q=2",
                )
    began, ended = events
    assert isinstance(began, RequestBegan)
    assert (began.method, began.url, began.body_size) == ("POST", f"http://{site}/1?q=2", 3)
    assert isinstance(ended, RequestEnded)
    assert (ended.status, ended.sent, ended.received, ended.error) == (200, 3, 16, None)


async def test_a_denial_is_an_event_of_the_block_and_of_each_host_one(upstream: Upstream) -> None:
    events: list[Any] = []
    async with way_out(allowed("a.test", upstream.port)) as way, client_of(way, unit="s3") as client:
        with Dispatcher() as dispatcher, dispatcher.span(lambda _: Event(), lambda _: Event()) as block:
            dispatcher.listen(events.append)
            async with way.performing("s3", None):
                for _ in range(2):
                    assert (await client.ask(get("http://b.test:8080/", "b.test:8080")))[0] == 403
                assert (await client.ask(get("http://b_.test/", "b_.test")))[0] == 403
                # the proxy has refused this name by itself
                await until(lambda: len(events) == 2)
    denied, refused, _ = events
    assert isinstance(denied, RequestDenied)
    assert (denied.parent, denied.host, denied.port) == (block, "b.test", 8080)
    assert denied.entry == "{host: b.test, ports: [8080], decision: allow}"
    assert denied.told == "b.test:8080 is denied: no rule allows b.test at port 8080"
    assert isinstance(refused, RequestDenied)
    assert (refused.host, refused.entry) == (None, None)
    assert [one.host for one in way.policy.take_denials()] == ["b.test", None]


async def test_what_a_budget_has_no_room_for_is_refused_in_words(upstream: Upstream) -> None:
    site = f"a.test:{upstream.port}"
    async with (
        way_out(allowed("a.test", upstream.port, paths=["/*"])) as way,
        client_of(way) as client,
    ):
        with Dispatcher():
            budget = BudgetTermination(max_bytes=20)
            budget.begin()
            async with way.performing("s0", None):
                # what is under way goes on to its end
                for number in (1, 2):
                    asked = get(f"http://{site}/{number}", site)
                    assert await client.ask(asked) == (200, f"answer to /{number}")
                status, text = await client.ask(get(f"http://{site}/3", site))
            await budget.reset()
    assert status == 403
    assert "the budget is used up: 24 of 20 bytes; a higher max_bytes of BudgetTermination would" in text
    assert len(upstream.heads) == 2


async def test_a_connection_is_an_effect_and_goes_on_when_its_block_has_ended(upstream: Upstream) -> None:
    events: list[Any] = []
    async with way_out(allowed("a.test", upstream.port)) as way, client_of(way) as client:
        with Dispatcher() as dispatcher:
            dispatcher.listen(events.append)
            async with way.performing("s0", None):
                assert await client.connect("a.test", upstream.port) == 200
                assert (await client.ask(get("/1", "a.test")))[0] == 200
        assert [type(event) for event in events] == [RequestBegan, RequestEnded]
        assert "went on" in events[1].error
        assert (await client.ask(get("/2", "a.test")))[0] == 200


async def test_an_answer_on_record_is_given_without_sending_anything(upstream: Upstream) -> None:
    async def answer(effect: Effect[Any], do: Perform) -> RequestOutcome:
        assert isinstance(effect, NetworkRequest)
        return RequestOutcome(status=201, headers=[("X-Recorded", "yes")], content=b"from the journal")

    site = f"a.test:{upstream.port}"
    async with way_out(allowed("a.test", upstream.port, paths=["/*"])) as way, client_of(way) as client:
        with Dispatcher(answer):
            async with way.performing("s0", None):
                await client.send(get(f"http://{site}/1", site))
                status, fields, body = await client.response()
    assert (status, fields["x-recorded"], body) == (201, "yes", b"from the journal")
    assert upstream.connections == 0


async def test_the_end_of_an_answer_waits_until_it_is_on_record(upstream: Upstream) -> None:
    may_record = asyncio.Event()

    async def record(effect: Effect[Any], do: Perform) -> Any:
        outcome = await do()
        await may_record.wait()
        return outcome

    site = f"a.test:{upstream.port}"
    async with way_out(allowed("a.test", upstream.port, paths=["/*"])) as way, client_of(way) as client:
        with Dispatcher(record):
            async with way.performing("s0", None):
                asking = asyncio.ensure_future(client.ask(get(f"http://{site}/1", site)))
                await until(lambda: upstream.heads)
                await asyncio.sleep(0.1)
                assert not asking.done()
                may_record.set()
                assert (await asking)[0] == 200


async def test_a_person_is_asked_once_about_a_host(upstream: Upstream) -> None:
    asked: list[str] = []

    async def ask(question: Question) -> Answer:
        asked.append(f"{question.headline}, {question.reason}")
        return Answer(question.name.startswith("a.test"))

    rule = EgressRule(
        host="*", ports=[upstream.port], networks=LOOPBACK, decision="ask", reason="not on the list"
    )
    async with way_out(rule) as way:
        with speaking("coder"), asking(ask):
            async with way.performing("s0", None):
                for _ in range(2):
                    async with client_of(way) as client:
                        assert await client.connect("a.test", upstream.port) == 200
                    async with client_of(way) as client:
                        assert await client.connect("b.test", upstream.port) == 403
        # and nobody where no block runs
        async with client_of(way) as client:
            assert await client.connect("c.test", upstream.port) == 403
    assert asked == [f"coder wants to reach {name}.test:{upstream.port}, not on the list" for name in "ab"]


async def test_code_cannot_flood_a_person_with_questions(upstream: Upstream) -> None:
    asked: list[str] = []
    never = asyncio.Event()

    async def ask(question: Question) -> Answer:
        asked.append(question.name)
        await never.wait()
        return Answer(False)

    async def connect(way: Any, number: int) -> int:
        async with client_of(way) as client:
            return await client.connect(f"n{number}.test", upstream.port)

    rule = EgressRule(host="*", ports=[upstream.port], decision="ask")
    with asking(ask):
        async with way_out(rule) as way, way.performing("s0", None):
            connecting = [asyncio.ensure_future(connect(way, number)) for number in range(60)]
            await until(lambda: sum(one.done() for one in connecting) == 40)
            never.set()
            assert {await one for one in connecting} == {403}
    assert len(asked) == 20


async def test_a_fork_and_its_parent_that_ask_the_same_at_once_get_each_its_own_answer(
    upstream: Upstream,
) -> None:
    site = f"a.test:{upstream.port}"
    units = {"s0": "parent", "s3": "fork"}

    async def answer(effect: Effect[Any], do: Perform) -> RequestOutcome:
        return RequestOutcome(status=200, content=f"of the {effect.source}".encode())

    async with way_out(allowed("a.test", upstream.port, paths=["/*"])) as way:
        with Dispatcher(answer):
            for unit, agent in units.items():
                with speaking(agent):
                    way.begin(unit, None)
            async with client_of(way, unit="s0") as parent, client_of(way, unit="s3") as fork:
                answers = await asyncio.gather(
                    *(one.ask(get(f"http://{site}/1", site)) for one in (parent, fork))
                )
            for unit in units:
                way.end(unit)
    assert answers == [(200, "of the parent"), (200, "of the fork")]


async def test_nothing_of_a_run_is_sent_that_is_none_of_its_effects(upstream: Upstream) -> None:
    site = f"a.test:{upstream.port}"
    async with way_out(allowed("a.test", upstream.port, paths=["/*"])) as way:
        with Dispatcher():
            async with way.performing("s0", None):
                pass
        for unit in ("s0", "-"):
            async with client_of(way, unit=unit) as client:
                status, body = await client.ask(get(f"http://{site}/1", site, method="POST", body="x"))
                assert (status, "it can be made only while the block runs" in body) == (403, True)
    assert upstream.connections == 0


async def test_a_question_is_withdrawn_when_its_code_ends(upstream: Upstream) -> None:
    asked, ended = asyncio.Event(), asyncio.Event()

    async def ask(question: Question) -> Answer:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError("nobody answers")

    rule = EgressRule(host="a.test", ports=[upstream.port], decision="ask")
    async with way_out(rule) as way, client_of(way) as client:
        with asking(ask):
            async with way.performing("s0", None):
                connecting = asyncio.ensure_future(client.connect("a.test", upstream.port))
                await asked.wait()
        assert ended.is_set()
        assert await connecting == 403


async def test_a_proxy_that_is_killed_is_started_again_and_the_sandbox_goes_on(upstream: Upstream) -> None:
    before = proxies()
    async with way_out(allowed("a.test", upstream.port)) as way, client_of(way) as client:
        assert await client.connect("a.test", upstream.port) == 200
        [proxy] = proxies() - before
        os.kill(proxy, signal.SIGKILL)
        assert await client.is_closed()
        async with client_of(way) as client:
            assert await client.connect("a.test", upstream.port) == 200
            assert (await client.ask(get("/1", "a.test")))[0] == 200
    assert proxies() == before


async def test_sandboxes_that_start_at_once_have_one_proxy(upstream: Upstream) -> None:
    before = proxies()

    async def use() -> None:
        async with way_out(allowed("a.test", upstream.port)) as way, client_of(way) as client:
            assert await client.connect("a.test", upstream.port) == 200
            assert len(proxies() - before) == 1

    for _ in range(2):
        await asyncio.gather(*(use() for _ in range(3)))
        assert proxies() == before


async def test_a_proxy_that_dies_again_and_again_leaves_no_connection_waiting() -> None:
    before = proxies()

    def refuses(path: Path) -> bool:
        # of some that die
        with suppress(OSError):
            for proxy in proxies() - before:
                os.kill(proxy, signal.SIGKILL)
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(path)) == errno.ECONNREFUSED

    async with way_out() as way:
        await until(lambda: refuses(way.socket))
    async with way_out() as way, client_of(way) as client:
        assert await client.connect("a.test", 443) == 403


async def test_a_way_that_is_closed_leaves_neither_connections_nor_files_nor_processes(
    upstream: Upstream,
) -> None:
    before = proxies()
    async with way_out(allowed("a.test", upstream.port)) as way:
        async with client_of(way) as client, way_out() as other:
            assert await client.connect("a.test", upstream.port) == 200
            async with client_of(other) as stranger:
                assert await stranger.connect("a.test", upstream.port) == 403
        directory = way.directory
    assert not directory.exists()
    assert proxies() == before


HOST = """
import asyncio, sys
from codeact_team.network.gateway import open_way
from codeact_team.network.rules import EgressRules
from codeact_team.network.way import EgressPolicy

async def main():
    way = await open_way(EgressPolicy(EgressRules([])))
    print(way.directory, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it learns it from its input")
async def test_no_proxy_outlives_a_host_that_is_killed() -> None:
    host = await asyncio.create_subprocess_exec(sys.executable, "-c", HOST, stdout=asyncio.subprocess.PIPE)
    assert host.stdout is not None
    await host.stdout.readline()
    [proxy] = proxies(host.pid)
    host.kill()
    await host.wait()
    await until(lambda: not process_lives(proxy))
