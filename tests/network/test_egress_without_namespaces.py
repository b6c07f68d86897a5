"""The way out of a sandbox that shares the machine's network, as namespaces are forbidden."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

HOST = """
import asyncio, json, socket, sys
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from sandboxes.confined_host import do_without
from support.egress import Upstream, allowed, serving
from codeact_team import ConfinedSessionCodeExecutor

look_up = socket.getaddrinfo
socket.getaddrinfo = lambda host, *more, **named: look_up(
    "127.0.0.1" if str(host).endswith(".test") else host, *more, **named
)

async def main(code, port_of_others):
    do_without(["namespaces"])
    async with serving(Upstream()) as port:
        async with ConfinedSessionCodeExecutor(egress=[allowed("a.test", port)]) as executor:
            setup = f"PORT, OTHER = {port}, {port_of_others}"
            blocks = [CodeBlock(language="python", code=one) for one in (setup, code)]
            result = await executor.run_code_blocks(blocks, CancellationToken())
            assert executor.life.environment.sandbox.view == "without namespaces"
    print(json.dumps([result.exit_code, result.output]))

asyncio.run(main(sys.stdin.read(), int(sys.argv[1])))
"""


def run(code: str, other: int = 9) -> tuple[int, str]:
    """Run code in such a sandbox; ``other`` is the port of a server that no rule names."""
    ran = subprocess.run(
        [sys.executable, "-c", HOST, str(other)],
        input=code,
        env={"PYTHONPATH": str(Path(__file__).parent.parent), "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    exit_code, output = json.loads(ran.stdout)
    return exit_code, output


def test_code_reaches_what_a_rule_allows_by_the_proxy() -> None:
    code = """
import urllib.request
print(urllib.request.urlopen(f"http://a.test:{PORT}/x").read())
try: urllib.request.urlopen(f"http://b.test:{PORT}/x")
except OSError as error: print(error)
import asyncio
async def main():
    reader, writer = await asyncio.open_connection("127.1.0.1", 3128)
    writer.write(f"GET http://a.test:{PORT}/y HTTP/1.1\\r\\nHost: a.test:{PORT}\\r\\nConnection: close\\r\\n\\r\\n".encode())
    print((await reader.read()).splitlines()[-1])
    writer.close()
await main()
"""
    exit_code, output = run(code)
    assert exit_code == 0, output
    first, second, third, remark = output.splitlines()
    assert (first, second, third) == ("b'answer to /x'", "HTTP Error 403: Forbidden", "b'answer to /y'")
    assert "b.test" in remark


ATTACKS = {
    "another port of this machine": "socket.create_connection(('127.0.0.1', OTHER), 5)",
    "another address": "socket.create_connection(('192.0.2.1', 80), 5)",
    "the way out at another port": "socket.create_connection(('127.1.0.1', 80), 5)",
    "a server": "socket.socket().bind(('127.0.0.1', 0))",
    "a server at a port of the kernel's choice": "socket.socket().listen()",
    "a server after a connection": "s = socket.create_connection(('127.1.0.1', 3128)); s.shutdown(2); s.listen()",
    "a server after a disconnection": "s = socket.create_connection(('127.1.0.1', 3128)); disconnect(s); s.listen()",
    "another connection of the same socket": (
        "s = socket.create_connection(('127.1.0.1', 3128)); s.connect(('127.0.0.1', OTHER))"
    ),
    "a connection with the first bytes": "socket.socket().sendto(b'x', 0x20000000, ('127.0.0.1', OTHER))",
    "UDP": "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', OTHER))",
    "IPv6": "socket.create_connection(('::1', OTHER))",
    "another protocol over TCP": "socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)",
    "netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
}


def test_no_socket_reaches_anything_else_or_is_reached() -> None:
    lines = [f"attack({name!r}, lambda: exec({attack!r}, globals()))" for name, attack in ATTACKS.items()]
    code = """
import ctypes, socket
def disconnect(s):
    if ctypes.CDLL(None, use_errno=True).connect(s.fileno(), bytes(16), 16) < 0:
        raise OSError(ctypes.get_errno(), "connect")
def attack(name, action):
    try: action()
    except OSError: return
    print("done:", name)
"""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        exit_code, output = run(code + "\n".join(lines), server.getsockname()[1])
        with pytest.raises(TimeoutError):
            server.accept()
    assert (exit_code, output) == (0, "")
