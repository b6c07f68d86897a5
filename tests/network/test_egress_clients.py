"""What works inside without a word: programs and libraries as they are, at hosts that are opened, and at ones that are not."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from support.egress import Company, Upstream, allowed, name_loopback, serving
from support.executing import LIVING, Kind, usually
from support.in_sessions import output
from support.wheels import make_wheel, use_index

from codeact_team.executors.session import InterpreterCodeExecutor

OPENED, PASSED = "opened.test", "passed.test"


@pytest.fixture
async def ports(tmp_path: Path) -> AsyncGenerator[dict[str, int]]:
    """The ports of servers: over HTTP, over TLS for each of both hosts, and one that speaks first."""
    company = Company(tmp_path)

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-test\r\n")
        writer.write(await reader.readline())
        await writer.drain()

    async with AsyncExitStack() as servers:
        yield {
            "http": await servers.enter_async_context(serving(Upstream())),
            OPENED: await servers.enter_async_context(serving(Upstream(), company.server_of(OPENED))),
            PASSED: await servers.enter_async_context(serving(Upstream(), company.server_of(PASSED))),
            "first": await servers.enter_async_context(serving(greet)),
        }


@pytest.fixture
async def session(
    kind: Kind, ports: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[InterpreterCodeExecutor]:
    name_loopback(monkeypatch)
    rules = [
        allowed(OPENED, ports["http"], ports[OPENED], paths=["/*"]),
        allowed(PASSED, ports["http"], ports[PASSED], ports["first"]),
    ]
    executor = kind.make(timeout=60, egress=rules, extra_ca=[str(tmp_path / "company.pem")])
    assert isinstance(executor, InterpreterCodeExecutor)
    async with executor:
        yield executor


def urls(ports: dict[str, int]) -> list[str]:
    plain = [f"http://{host}:{ports['http']}/1" for host in (OPENED, PASSED)]
    return [*plain, *(f"https://{host}:{ports[host]}/1" for host in (OPENED, PASSED))]


PYTHON = {
    "urllib": "import urllib.request as u; print(u.urlopen({url!r}).read().decode())",
    "requests": "import requests; print(requests.get({url!r}).text)",
    "httpx": "import httpx; print(httpx.get({url!r}).text)",
    "aiohttp": """
import aiohttp, asyncio
async def main():
    async with aiohttp.ClientSession() as session, session.get({url!r}) as answer:
        print(await answer.text())
asyncio.run(main())
""",
}
PROGRAMS = {
    "curl": "curl -sSf {url}",
    "wget": "wget -qO- {url}",
    "node": "node -e \"fetch('{url}').then(a => a.text()).then(console.log, e => console.log(e, e.cause))\"",
}
in_both = usually(*LIVING, among=LIVING)


@in_both
async def test_the_standard_library_and_what_speaks_first(
    session: InterpreterCodeExecutor, ports: dict[str, int]
) -> None:
    for url in urls(ports):
        assert await output(session, PYTHON["urllib"].format(url=url)) == "answer to /1\n", url
    code = f"""
import socket
with socket.create_connection(("{PASSED}", {ports["first"]})) as connection:
    lines = connection.makefile("rb")
    print(lines.readline()); connection.sendall(b"hello\\n"); print(lines.readline())
"""
    assert await output(session, code) == "b'SSH-2.0-test\\r\\n'\nb'hello\\n'\n"


@pytest.mark.long
@usually("confined-session", among=["confined-session"])
@pytest.mark.parametrize("client", [name for name in PYTHON if name != "urllib"])
async def test_libraries(session: InterpreterCodeExecutor, ports: dict[str, int], client: str) -> None:
    for url in urls(ports):
        assert await output(session, PYTHON[client].format(url=url)) == "answer to /1\n", url


@pytest.mark.long
@usually("confined-session", among=["confined-session"])
@pytest.mark.parametrize("client", ["curl", "wget", "node"])
async def test_programs(session: InterpreterCodeExecutor, ports: dict[str, int], client: str) -> None:
    if shutil.which(client) is None:
        pytest.skip(f"{client} is not installed")
    for url in urls(ports):
        said = await output(session, PROGRAMS[client].format(url=url), language="sh")
        assert said.strip() == "answer to /1", url


@pytest.mark.long
@in_both
async def test_certifi_among_the_packages_names_what_is_trusted(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    index = use_index(tmp_path, monkeypatch)
    make_wheel(index, "certifi", files={"certifi/__init__.py": "", "certifi/cacert.pem": "of the wheel"})
    company = Company(tmp_path)
    for rule, is_opened in ((allowed(OPENED, 443, paths=["/*"]), True), (allowed(OPENED, 443), False)):
        executor = kind.make(timeout=60, egress=[rule], packages=["certifi"], extra_ca=[str(company.file)])
        assert isinstance(executor, InterpreterCodeExecutor)
        async with executor:
            code = "import certifi; print(open(certifi.__path__[0] + '/cacert.pem').read().count('BEGIN CERT') > 1)"
            assert await output(executor, code) == f"{is_opened}\n"
