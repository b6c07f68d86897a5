"""The forwarder of a supervisor that runs here, without a sandbox: what code connects to, a server at a unix socket gets."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Generator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
from support.supervisor import Supervised, supervised, wait_for
from support.way_out import TOKEN, Echo

from codeact_team.network.inside.first_line import FirstLine, address_of
from codeact_team.network.inside.relay import MAX_CONNECTIONS
from codeact_team.sandbox.system.framing import frame
from codeact_team.session.protocol import PROCESS_HEAD, Kind

SAY = """
import socket
def say(words, *address):
    with socket.create_connection(address or ADDRESS) as connection:
        connection.sendall(words)
        connection.shutdown(socket.SHUT_WR)
        return connection.makefile("rb").read()
"""


def free_address() -> tuple[str, int]:
    """An address of this machine's loopback that no other test has."""
    host = f"127.1.{1 + os.getpid() % 250}.{1 + os.getpid() // 250 % 250}"
    with socket.create_server((host, 0)) as server:
        return host, server.getsockname()[1]


def begin(supervisor: Supervised, echo: Echo, *addresses: tuple[str, int]) -> str | None:
    """Have a supervisor take connections. Returns what is in the way of that."""
    order = {"token": TOKEN, "socket": echo.path, "addresses": addresses}
    supervisor.send(frame(Kind.EGRESS, json.dumps(order).encode()))
    return json.loads(supervisor.expect(Kind.FORWARDING))["problem"]


class Forwarding:
    """A supervisor that takes connections at an address."""

    def __init__(self, supervisor: Supervised, echo: Echo) -> None:
        self.supervisor = supervisor
        self.address = free_address()
        assert begin(supervisor, echo, self.address) is None
        self.run(SAY.replace("ADDRESS", repr(self.address)))
        self._before = self._children()

    def run(self, code: str) -> str:
        return self.supervisor.run(code).text

    def connect(self) -> socket.socket:
        """Connect from this process, which is none of the supervisor's."""
        return socket.create_connection(self.address, timeout=30)

    def relays(self) -> set[int]:
        """The processes that the supervisor has started since it takes connections."""
        return self._children() - self._before

    def _children(self) -> set[int]:
        pid = self.supervisor.process.pid
        return {*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())}


@pytest.fixture
def forwarding(tmp_path: Path, echo: Echo) -> Generator[Forwarding]:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    with supervised(workspace) as supervisor:
        yield Forwarding(supervisor, echo)


def start_process(supervisor: Supervised, number: int, code: str) -> None:
    """Start a process of the host's, a Python that runs ``code``."""
    start: dict[str, object] = {
        "argv": ["python3", "-c", code], "env": {}, "cwd": None, "timeout": None, "together": True,
        "limit": 1000, "has_input": False, "terminal": None, "apart": False, "runs_out": False, "code_file": None,
    }  # fmt: skip
    supervisor.send(frame(Kind.START, PROCESS_HEAD.pack(number), json.dumps(start).encode()))
    supervisor.expect(Kind.STARTED)


def test_a_line_says_the_same_on_both_sides() -> None:
    line = FirstLine(TOKEN, "p5", address_of(251), 443)
    assert line.pack() == f"{TOKEN} p5 127.1.2.2 443\n".encode()
    assert FirstLine.unpack(line.pack()) == line


@pytest.mark.parametrize("line", [
    b"", b"\n", b"GET / HTTP/1.1\r\n", TOKEN.encode() + b" s0 127.1.0.1 3128", TOKEN.encode() + b" x0 127.1.0.1 3128\n",
    TOKEN.encode() + b" s0 10.0.0.1 80\n", TOKEN[1:].encode() + b" s0 127.1.0.1 80\n", TOKEN.encode() + b" s0 127.1.0.1 80\n\n",
])  # fmt: skip
def test_nothing_else_is_a_line(line: bytes) -> None:
    with pytest.raises(ValueError, match="no first line"):
        FirstLine.unpack(line)


def test_what_code_says_arrives_with_where_it_has_connected_to_and_so_does_the_answer(
    forwarding: Forwarding, echo: Echo
) -> None:
    assert forwarding.run("print(say(b'hello'))") == "b'hello'\n"
    assert echo.lines == [FirstLine(TOKEN, "s0", *forwarding.address)]


def test_the_end_of_one_direction_leaves_the_other(forwarding: Forwarding) -> None:
    with forwarding.connect() as connection:
        connection.sendall(b"before")
        assert connection.recv(100) == b"before"
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(100) == b""


@pytest.mark.parametrize("family", ["AF_INET", "AF_INET6"])
def test_with_other_sessions_the_kernel_says_whose_a_connection_is(
    forwarding: Forwarding, echo: Echo, family: str
) -> None:
    supervisor, host = forwarding.supervisor, forwarding.address[0]
    # sockets for IPv6 are used for both kinds of addresses by some, such as Java
    address = (f"::ffff:{host}" if family == "AF_INET6" else host, forwarding.address[1])
    code = f"connection = socket.socket(socket.{family}); connection.connect({address})\nconnection.sendall(b'x'); print(connection.recv(1))"
    supervisor.send(
        frame(Kind.FORK, json.dumps({"forks": [3], "directory": ".codeact-team/forks-1"}).encode())
    )
    supervisor.expect(Kind.FORKED)
    assert forwarding.run(code) == "b'x'\n"
    start_process(supervisor, 5, f"import socket\n{code}")
    echo.wait_for(2)
    assert echo.units() == ["s0", "p5"]


def test_a_connection_from_elsewhere_is_nobodys(forwarding: Forwarding, echo: Echo) -> None:
    with forwarding.connect():
        echo.wait_for(1)
    assert echo.units() == ["-"]


def test_who_has_closed_before_the_connection_is_taken_is_looked_for(
    forwarding: Forwarding, echo: Echo
) -> None:
    # the supervisor cannot take it while it is stopped
    os.kill(forwarding.supervisor.process.pid, signal.SIGSTOP)
    with forwarding.connect() as connection:
        connection.sendall(b"gone")
    os.kill(forwarding.supervisor.process.pid, signal.SIGCONT)
    echo.wait_for(1)
    assert echo.units() == ["-"]


GIVEN = """
import os, socket, time
with socket.socket(socket.AF_UNIX) as server:
    server.bind("socket"); server.listen()
    receiver, _ = server.accept()
    held = socket.recv_fds(receiver, 1, 1); open("held", "w").close(); time.sleep(600)
"""
GIVE = """
import os, time
giver = socket.socket(socket.AF_UNIX)
while giver.connect_ex("socket"): time.sleep(0.01)
print("ready", flush=True)
while not os.path.exists("go"): time.sleep(0.01)
connection = socket.create_connection(ADDRESS); socket.send_fds(giver, [b"x"], [connection.fileno()])
"""


def test_a_connection_that_two_have_is_nobodys(forwarding: Forwarding, echo: Echo, tmp_path: Path) -> None:
    supervisor, workspace = forwarding.supervisor, tmp_path / "workspace"
    start_process(supervisor, 5, GIVEN)
    supervisor.start(GIVE.replace("ADDRESS", repr(forwarding.address)))
    supervisor.output_until(b"ready")
    # it takes the connection only when both have it
    os.kill(supervisor.process.pid, signal.SIGSTOP)
    (workspace / "go").touch()
    wait_for((workspace / "held").exists)
    os.kill(supervisor.process.pid, signal.SIGCONT)
    echo.wait_for(1)
    assert echo.units() == ["-"]
    assert supervisor.result().exit_code is None


def test_200_mb_pass_both_ways_at_once(forwarding: Forwarding) -> None:
    size = 100 << 20
    code = f"""
import threading
connection = socket.create_connection({forwarding.address}); got = 0
def write():
    for _ in range({size} >> 18): connection.sendall(bytes(1 << 18))
    connection.shutdown(socket.SHUT_WR)
writing = threading.Thread(target=write); writing.start()
while piece := connection.recv(1 << 18): got += len(piece)
print(got)
"""
    assert forwarding.run(code) == f"{size}\n"


def test_a_slow_reader_keeps_nobody_else_waiting(forwarding: Forwarding) -> None:
    with forwarding.connect() as slow:
        slow.setblocking(False)
        # until nothing more fits anywhere: the server, which sends all back, waits for this one
        with suppress(BlockingIOError):
            while slow.send(bytes(1 << 18)):
                pass
        assert forwarding.run("print(say(b'meanwhile'))") == "b'meanwhile'\n"


def test_connections_for_which_there_are_no_descriptors_are_refused_and_the_others_stay(
    tmp_path: Path, echo: Echo
) -> None:
    with supervised(tmp_path, prefix=["prlimit", "--nofile=120"]) as supervisor, ExitStack() as opened:
        forwarding = Forwarding(supervisor, echo)
        connections = [opened.enter_context(forwarding.connect()) for _ in range(80)]
        answers: list[bytes] = []
        for connection in connections:
            with suppress(ConnectionError):
                connection.sendall(b"x")
                answers.append(connection.recv(1))
        assert 40 < answers.count(b"x") < 60
        opened.close()
        wait_for(lambda: all(connection.fileno() < 0 for connection in echo.connections))
        assert forwarding.run("print(say(b'afterwards'))") == "b'afterwards'\n"


@pytest.mark.long
def test_a_thousand_connections_are_open_at_once_and_more_are_refused(tmp_path: Path, echo: Echo) -> None:
    with supervised(tmp_path, prefix=["prlimit", "--nofile=4096"]) as supervisor:
        forwarding = Forwarding(supervisor, echo)
        connections = [forwarding.connect() for _ in range(MAX_CONNECTIONS)]
        try:
            for number, connection in enumerate(connections):
                connection.sendall(b"%d" % number)
            for number, connection in enumerate(connections):
                assert connection.recv(10) == b"%d" % number
            with forwarding.connect() as one_more, pytest.raises(ConnectionResetError):
                one_more.recv(1)
        finally:
            for connection in connections:
                connection.close()
        assert forwarding.run("print(say(b'afterwards'))") == "b'afterwards'\n"


OPEN = "connection = socket.create_connection(ADDRESS); connection.sendall(b'x'); connection.recv(1)"


def test_code_that_kills_the_relay_loses_its_connections_and_gets_new_ones(forwarding: Forwarding) -> None:
    forwarding.run(OPEN.replace("ADDRESS", repr(forwarding.address)))
    [relay] = forwarding.relays()
    # as all of this is one user's here
    forwarding.run(f"import os, signal; os.kill({relay}, signal.SIGKILL)")
    assert forwarding.run("print(connection.recv(1))") == "b''\n"
    assert forwarding.run("print(say(b'again'))") == "b'again'\n"
    [other] = forwarding.relays()
    assert other != relay


def test_code_cannot_read_the_relay(forwarding: Forwarding) -> None:
    forwarding.run(OPEN.replace("ADDRESS", repr(forwarding.address)))
    [relay] = forwarding.relays()
    said = forwarding.run(f"try: open('/proc/{relay}/mem')\nexcept PermissionError: print('refused')")
    assert said == "refused\n"


def test_a_restart_of_the_session_ends_its_connections(forwarding: Forwarding, echo: Echo) -> None:
    forwarding.run(OPEN.replace("ADDRESS", repr(forwarding.address)))
    [connection] = echo.connections[-1:]
    forwarding.supervisor.restart()
    wait_for(lambda: connection.fileno() < 0)
    forwarding.run(SAY.replace("ADDRESS", repr(forwarding.address)))
    assert forwarding.run("print(say(b'anew'))") == "b'anew'\n"


def test_without_a_proxy_connections_fail_until_there_is_another(forwarding: Forwarding, echo: Echo) -> None:
    echo.close()
    refused = "try: print(say(b'x'))\nexcept OSError as error: print(type(error).__name__)"
    assert forwarding.run(refused) == "ConnectionResetError\n"
    echo.open()
    assert forwarding.run("print(say(b'a new one'))") == "b'a new one'\n"


def test_a_proxy_that_takes_no_connections_holds_up_nothing_else(forwarding: Forwarding, echo: Echo) -> None:
    echo.close()
    with closing(socket.socket(socket.AF_UNIX)) as busy:
        os.unlink(echo.path)
        busy.bind(echo.path)
        busy.listen(0)
        connections = [forwarding.connect() for _ in range(4)]
        # the supervisor waits for the proxy, and for the host as well
        assert forwarding.run("print('runs')") == "runs\n"
        busy.accept()[0].close()
        for connection in connections:
            connection.close()


def test_a_supervisor_that_cannot_reach_the_socket_says_why(tmp_path: Path, echo: Echo) -> None:
    echo.close()
    with supervised(tmp_path) as supervisor:
        problem = begin(supervisor, echo, free_address())
        assert problem == f"Connection refused ({echo.path})"
        assert supervisor.run("print('runs')").text == "runs\n"


def test_a_supervisor_that_cannot_listen_says_where(tmp_path: Path, echo: Echo) -> None:
    host, port = free_address()
    with socket.create_server((host, port)), supervised(tmp_path) as supervisor:
        assert begin(supervisor, echo, (host, port)) == f"Address already in use ({host} port {port})"


def test_nothing_is_left_of_it(tmp_path: Path, echo: Echo) -> None:
    with supervised(tmp_path) as supervisor:
        forwarding = Forwarding(supervisor, echo)
        forwarding.run("print(say(b'x'))")
        [relay] = forwarding.relays()
        open_one = forwarding.connect()
        echo.wait_for(2)
    wait_for(lambda: not Path(f"/proc/{relay}").exists())
    with open_one, suppress(ConnectionResetError):
        assert open_one.recv(1) == b""
    wait_for(lambda: all(connection.fileno() < 0 for connection in echo.connections))
