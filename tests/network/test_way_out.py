"""The way out of both sandboxes, for all that code is there: each connection reaches the socket, and says whose it is."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from support.executing import LIVING, Kind, run, usually
from support.in_sessions import output
from support.way_out import NAMED, NAMED_ADDRESS, TOKEN, Echo, EgressTo, way_out_of

from codeact_team.errors import SandboxError
from codeact_team.executors.base import SandboxedCodeExecutor
from codeact_team.executors.docker import DockerSessionCodeExecutor
from codeact_team.executors.session import InterpreterCodeExecutor
from codeact_team.network.inside.first_line import PROXY
from codeact_team.sandbox.base import WAY_OUT, WayOut

SAY = """
import socket
def say(words, *address):
    with socket.create_connection(address) as connection:
        connection.sendall(words); connection.shutdown(socket.SHUT_WR)
        return connection.makefile("rb").read().decode()
"""
BUNDLE = "/etc/ssl/certs/ca-certificates.crt"


def with_way_out(kind: Kind, echo: Echo, settings: dict[str, Any], **more: object) -> SandboxedCodeExecutor:
    executor = kind.make(timeout=60, **settings)
    executor.life.environment.egress = EgressTo(way_out_of(echo, **more))
    return executor


@pytest.fixture
async def session(kind: Kind, echo: Echo) -> AsyncGenerator[InterpreterCodeExecutor]:
    executor = with_way_out(kind, echo, {})
    assert isinstance(executor, InterpreterCodeExecutor)
    async with executor:
        yield executor


in_both = usually(*LIVING, among=LIVING)


@in_both
async def test_each_connection_names_what_has_made_it(session: InterpreterCodeExecutor, echo: Echo) -> None:
    said = f"{SAY}print(say(b'{{}}', '{{}}', {{}}))"
    of_program = ["python3", "-c", said.format("program", NAMED, 443)]
    assert await output(session, said.format("block", *PROXY)) == "block\n"
    assert (
        await output(session, f"import subprocess; subprocess.run({of_program}, capture_output=True).stdout")
        == "b'program\\n'\n"
    )
    in_a_shell = f"python3 -c '{said.format('shell', NAMED, 80).replace(chr(39), chr(34))}'"
    assert await output(session, in_a_shell, language="sh") == "shell\n"
    assert (await session.processes.run(of_program)).stdout == b"program\n"
    [fork] = await session.fork()
    async with fork:
        assert await output(fork, said.format("fork", NAMED, 443)) == "fork\n"
        assert await output(fork, in_a_shell, language="sh") == "shell\n"
        # a process that hides what it has open is found all the same
        hide = "import ctypes; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)"
        assert await output(session, f"{hide}\n{said.format('block', NAMED, 443)}") == "block\n"
    units = echo.units()
    process, number = units.pop(3)[0], units.pop(3)
    assert (process, units) == ("p", ["s0", "s0", "s0", number, "s0"])
    assert number not in ("-", "s0")
    assert {(line.address, line.port) for line in echo.lines} == {
        PROXY,
        (NAMED_ADDRESS, 80),
        (NAMED_ADDRESS, 443),
    }


@usually("docker", "confined", among=["docker", "confined"])
async def test_so_do_blocks_that_are_processes(kind: Kind, echo: Echo) -> None:
    async with with_way_out(kind, echo, {}) as executor:
        result = await run(executor, f"{SAY}print(say(b'hello', *{PROXY}))")
        assert result.output == "hello\n"
    assert [unit[0] for unit in echo.units()] == ["p"]


@in_both
async def test_code_that_goes_to_the_socket_itself_has_no_secret_to_say(
    session: InterpreterCodeExecutor, echo: Echo
) -> None:
    code = f"""
import os, socket
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect("{WAY_OUT}/socket")
    connection.sendall(b"{TOKEN[::-1]} s0 {PROXY[0]} {PROXY[1]}\\n")
    print(connection.recv(1))
seen = [open(f"/proc/{{pid}}/{{name}}", "rb") for pid in ("self", os.getppid()) for name in ("environ", "cmdline") if os.access(f"/proc/{{pid}}/{{name}}", os.R_OK)]
print(any(b"{TOKEN[:16]}" in file.read().replace(b"\\0", b"") for file in seen))
"""
    assert await output(session, code.replace(TOKEN[:16], '" b"'.join(TOKEN[:16]))) == "b''\nFalse\n"
    assert (echo.units(), echo.strangers) == ([], 1)


@usually("docker-session", "confined-session", among=LIVING)
async def test_names_variables_and_files_are_there_and_a_configs_own_variables_stay(
    kind: Kind, echo: Echo, tmp_path: Path
) -> None:
    bundle = tmp_path / "bundle.pem"
    bundle.write_text("of the proxy")
    more = {
        "environment": {"http_proxy": "from outside", "NO_PROXY": "from outside"},
        "files": {BUNDLE: bundle},
    }
    executor = with_way_out(kind, echo, {"environment": {"NO_PROXY": "own"}}, **more)
    assert isinstance(executor, InterpreterCodeExecutor)
    async with executor:
        code = f"""
import os, socket
print(socket.gethostbyname("{NAMED}"), socket.gethostbyname("localhost"))
print(os.environ["http_proxy"], os.environ["NO_PROXY"])
print(open("{BUNDLE}").read())
def refused(path):
    try: open(path, "w")
    except OSError: return True
print(refused("{BUNDLE}"), refused("{WAY_OUT}/more"))
"""
        said = f"{NAMED_ADDRESS} 127.0.0.1\nfrom outside own\nof the proxy\nTrue True\n"
        assert await output(executor, code) == said
        assert (await executor.processes.run(["sh", "-c", "echo $http_proxy"])).stdout == b"from outside\n"
    assert bundle.read_text() == "of the proxy"


@usually("docker-session", "confined-session", among=LIVING)
async def test_without_one_nothing_of_it_is_there(kind: Kind) -> None:
    executor = kind.make(timeout=60)
    assert isinstance(executor, InterpreterCodeExecutor)
    async with executor:
        code = f"import os, socket\nprint(os.path.exists('{WAY_OUT}'), socket.socket().connect_ex({PROXY}))"
        assert await output(executor, code) == "False 111\n"


@in_both
async def test_without_a_proxy_nothing_starts_and_it_is_said_why(kind: Kind, echo: Echo) -> None:
    echo.close()
    executor = with_way_out(kind, echo, {})
    with pytest.raises(SandboxError, match=rf"no way out .*: Connection refused \({WAY_OUT}/socket\)"):
        await executor.start()


@in_both
async def test_a_proxy_that_was_killed_is_replaced_while_the_sandbox_goes_on(
    session: InterpreterCodeExecutor, echo: Echo
) -> None:
    await output(
        session,
        f"connection = socket = None{SAY}connection = socket.create_connection({PROXY}); connection.sendall(b'x'); connection.recv(1)",
    )
    echo.close()
    # and it is not taken for an end in order
    assert "ConnectionResetError" in (await run(session, "connection.recv(1)")).output
    result = await run(session, f"say(b'x', *{PROXY})")
    assert (result.exit_code, "ConnectionResetError" in result.output) == (1, True)
    echo.open()
    assert await output(session, f"print(say(b'again', *{PROXY}))") == "again\n"


@pytest.mark.docker
@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"runtime": "runsc"}, "`egress` needs a socket .* gVisor"),
        ({"network": "bridge"}, "`egress` is for a container without a network"),
        ({"environment": {"PATH": "/nowhere"}}, "`egress` needs a `python3` in the image"),
    ],
    ids=["gVisor", "network", "no Python"],
)
async def test_containers_without_a_way_out_are_refused_in_words(
    echo: Echo, settings: dict[str, Any], reason: str
) -> None:
    executor = DockerSessionCodeExecutor(**settings)
    executor.life.environment.egress = EgressTo(way_out_of(echo))
    with pytest.raises(SandboxError, match=reason):
        await executor.start()


@pytest.mark.docker
async def test_an_engine_that_does_not_see_the_socket_is_refused_in_words(tmp_path: Path) -> None:
    executor = DockerSessionCodeExecutor()
    executor.life.environment.egress = EgressTo(WayOut(tmp_path / "elsewhere", TOKEN, []))
    with pytest.raises(
        SandboxError, match=rf"does not see the directory {tmp_path}/elsewhere of this machine"
    ):
        await executor.start()


@pytest.mark.long
@in_both
async def test_many_processes_have_a_thousand_connections_at_once(
    session: InterpreterCodeExecutor, echo: Echo
) -> None:
    code = f"""
import subprocess
program = '''
import socket
connections = [socket.create_connection({PROXY}) for _ in range(250)]
for number, connection in enumerate(connections): connection.sendall(b"%d" % number)
assert [connection.recv(10) for connection in connections] == [b"%d" % number for number in range(250)]
print("open", flush=True); input()
'''
all = [subprocess.Popen(["python3", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(4)]
print([one.stdout.readline() for one in all])
for one in all: one.communicate(b"\\n")
"""
    assert await output(session, code) == f"{[b'open' + bytes([10])] * 4}\n"
    assert echo.units() == ["s0"] * 1000
