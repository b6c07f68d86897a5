"""What a way out costs: a connection and a request through sandbox and proxy, beside ones from this process to the same server.

``pytest -m benchmark --workers 0 -s tests/benchmarks/test_egress.py``.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from statistics import median
from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from benchmarks.flood import SESSIONS
from benchmarks.timing import milliseconds, pss_mib
from rich.console import Console
from rich.table import Table
from support.egress import allowed, name_loopback, serving

pytestmark = [pytest.mark.benchmark, pytest.mark.docker, pytest.mark.timeout(600)]

MIB = 256
PROGRAM = """
import http.client, json, socket, statistics, time

def timed(work, rounds):
    times = []
    for _ in range(rounds):
        began = time.perf_counter(); work(); times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)

def connect():
    with socket.create_connection(through) as connection:
        connection.sendall(b"GET /small HTTP/1.1\\r\\nHost: a.test\\r\\n\\r\\n")
        assert connection.recv(1000)

kept = http.client.HTTPConnection(*opened)

def ask():
    kept.request("GET", "/small")
    assert kept.getresponse().read() == b"ok"

def load():
    with socket.create_connection(through) as connection:
        connection.sendall(b"GET /large HTTP/1.1\\r\\nHost: a.test\\r\\n\\r\\n")
        left, buffer = size, bytearray(1 << 18)
        while left > 0:
            left -= connection.recv_into(buffer)

found = {"connection, ms": timed(connect, 200), "request, ms": timed(ask, 200), "MB/s": size / 1000 / timed(load, 3)}
kept.close()
"""


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer with little or much, as is asked for."""
    while head := await reader.readline():
        while await reader.readline() != b"\r\n":
            pass
        if b"/large" not in head:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            continue
        piece = bytes(1 << 20)
        for _ in range(MIB):
            writer.write(piece)
            await writer.drain()


def here(port: int) -> Mapping[str, float]:
    """What a program of this process finds, without a sandbox."""
    names: dict[str, Any] = {"through": ("127.0.0.1", port), "opened": ("127.0.0.1", port), "size": MIB << 20}
    exec(PROGRAM, names)
    return names["found"]


async def test_connections_and_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    name_loopback(monkeypatch)
    async with serving(serve) as port:
        found = {"from here": await asyncio.to_thread(here, port)}
        egress = [allowed("a.test", port), allowed("b.test", port, paths=["/*"])]
        names = f"through, opened, size = ('a.test', {port}), ('b.test', {port}), {MIB << 20}\n"
        starts: dict[str, list[float]] = {}
        memory: dict[str, float] = {}
        for kind, make in SESSIONS.items():
            for _ in range(5):
                for with_egress in (False, True):
                    executor = make(**({"egress": egress} if with_egress else {}))
                    took = await milliseconds(executor.start())
                    starts.setdefault(f"{kind}{', with egress' if with_egress else ''}", []).append(took)
                    await executor.stop()
            executor = make(egress=egress)
            await executor.start()
            code = CodeBlock(f"{names}{PROGRAM}\nprint(json.dumps(found))", "python")
            result = await executor.execute_code_blocks([code], CancellationToken())
            assert result.exit_code == 0, result.output
            found[kind] = json.loads(result.output)
            memory = pss_mib(os.getpid())
            await executor.stop()
    table = Table("", *found, title="through sandbox and proxy")
    for what in found["from here"]:
        table.add_row(what, *(f"{each[what]:.2f}" for each in found.values()))
    table.add_row(
        "start, ms",
        "",
        *(
            f"{median(starts[kind]):.0f}, with egress {median(starts[f'{kind}, with egress']):.0f}"
            for kind in SESSIONS
        ),
    )
    Console(width=140).print(table, {name: round(mib) for name, mib in memory.items()})
