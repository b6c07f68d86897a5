"""Servers and clients that code runs in its sandbox, on a loopback of its own."""

from __future__ import annotations

import pytest
from support.executing import one_interpreter, run, usually
from support.in_sessions import output

from codeact_team.executors.base import SandboxedCodeExecutor
from codeact_team.executors.session import InterpreterCodeExecutor

HTTP = """
import http.server, threading, urllib.request
class Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"hello")
    def log_message(self, *_): pass
with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hello) as server:
    thread = threading.Thread(target=server.serve_forever); thread.start()
    print(urllib.request.urlopen(f"http://localhost:{server.server_port}").read())
    server.shutdown(); thread.join()
"""
ASYNCIO = """
import asyncio
async def echo(host):
    async def answer(reader, writer):
        writer.write(await reader.readline()); await writer.drain(); writer.close()
    async with await asyncio.start_server(answer, host, 0) as server:
        reader, writer = await asyncio.open_connection(host, server.sockets[0].getsockname()[1])
        writer.write(b"echo\\n"); print(await reader.read()); writer.close()
asyncio.run(echo("localhost"))
"""
DATAGRAMS = """
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
    one.bind(("127.0.0.1", 0)); other.sendto(b"datagram", one.getsockname()); print(one.recv(100))
"""


@pytest.mark.parametrize(
    ("code", "said"),
    [(HTTP, "b'hello'"), (ASYNCIO, "b'echo\\n'"), (DATAGRAMS, "b'datagram'")],
    ids=["http.server", "asyncio", "datagrams"],
)
@usually("docker-session", "confined-session")
async def test_a_server_and_its_client_work(executor: SandboxedCodeExecutor, code: str, said: str) -> None:
    result = await run(executor, code)
    assert result.output == f"{said}\n"


@one_interpreter
async def test_a_server_of_one_block_serves_the_next_ones_and_programs(
    executor: InterpreterCodeExecutor,
) -> None:
    await executor.restart()
    quiet = "class Quiet(http.server.SimpleHTTPRequestHandler):\n  def log_message(self, *_): pass"
    code = f"import http.server, threading\n{quiet}\nserver = http.server.HTTPServer(('', 0), Quiet)"
    await output(executor, f"{code}\nthreading.Thread(target=server.serve_forever, daemon=True).start()")
    read = (
        "import sys, urllib.request; print(urllib.request.urlopen(f'http://127.0.0.1:{sys.argv[1]}').status)"
    )
    by_a_program = f"import subprocess\nsubprocess.run(['python3', '-c', {read!r}, str(server.server_port)], capture_output=True).stdout"
    assert await output(executor, by_a_program) == "b'200\\n'\n"
    await executor.restart()


@usually("docker-session", "confined-session")
async def test_what_is_outside_is_told_as_a_limit(executor: SandboxedCodeExecutor) -> None:
    result = await run(executor, "import socket; socket.create_connection(('192.0.2.1', 80))")
    assert "This ran into a limit of the sandbox: network (network: none" in result.output
