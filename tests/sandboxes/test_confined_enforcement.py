from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from sandboxes.confined_support import (
    delegates_control_groups,
    host,
    python,
    run,
    skip_if_not_confined,
    started,
)
from support.variations import mostly_long

from codeact_team.sandbox.base import Cause, diagnose
from codeact_team.sandbox.confined.sandbox import ConfinedSandbox, Enforced

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="code is confined on Linux only")


class TestConfinement:
    @pytest.mark.parametrize(
        "without",
        [
            "",
            *(
                pytest.param(parts, marks=pytest.mark.long)
                for parts in (
                    "listener",
                    "cgroups",
                    "cgroups capabilities",
                    "cgroups namespaces",
                    "cgroups capabilities namespaces",
                    "capabilities namespaces",
                )
            ),
            "namespaces",
        ],
    )
    def test_no_attack_succeeds(self, tmp_path: Path, without: str) -> None:
        if "cgroups" in without and os.geteuid() != 0:
            pytest.skip("only root can hide control groups")
        report = report_of_host(tmp_path, "required", *without.split())
        ungrouped = report.pop("ungrouped")
        report.pop("namespaces")
        assert report == {
            "terminals": True,
            "enforced": sorted(Enforced),
            "done": [],
            "survivors": 0,
            "said": [],
        }
        if "cgroups" in without:
            assert ungrouped == ["cpu", "memory", "pids"]
        elif delegates_control_groups() and "capabilities" not in without:
            assert ungrouped == []

    async def test_readable_paths_can_be_read_and_not_written_and_each_limit_is_named(
        self, tmp_path: Path
    ) -> None:
        workspace, data = tmp_path / "workspace", tmp_path / "data"
        for directory in (workspace, data):
            directory.mkdir()
        (data / "file").write_text("data")
        async with started(workspace, readable=[str(data)], memory_mib=512, pids=8) as sandbox:
            assert (await run(sandbox, "cat", str(data / "file")))[0] == b"data"
            assert (await run(sandbox, "touch", str(data / "file")))[1].code != 0
            assert (await run(sandbox, "touch", str(data / "new")))[1].code != 0
            assert sandbox.limits[Cause.FILES] == f"readable: {[str(data)]}, work_dir: {workspace}"
            assert sandbox.limits[Cause.MEMORY].startswith("memory_mib: 512")
            assert sandbox.limits[Cause.PROCESSES] == "pids: 8"
            assert {Cause.NETWORK, Cause.READ_ONLY} <= set(sandbox.limits)

    async def test_what_is_readable_is_seen_where_links_and_detours_lead(self, tmp_path: Path) -> None:
        for name in ("workspace", "data", "other", "hidden"):
            (tmp_path / name).mkdir()
        (tmp_path / "data" / "file").write_text("data")
        (tmp_path / "hidden" / "file").write_text("hidden")
        (tmp_path / "other" / "link").symlink_to("../data")
        (tmp_path / "absolute").symlink_to(tmp_path / "other" / "link")
        ways = [f"{tmp_path}/{way}" for way in ("absolute/file", "other/../absolute/file", "other/link/file")]
        async with started(tmp_path / "workspace", readable=ways[:2]) as sandbox:
            for way in ways:
                assert (await run(sandbox, "cat", way))[0] == b"data"
            assert b"No such file" in (await run(sandbox, "cat", f"{tmp_path}/hidden/file"))[0]

    @pytest.mark.parametrize(
        ("code", "cause"),
        [
            ("import socket; socket.create_connection(('192.0.2.1', 80))", Cause.NETWORK),
            ("import socket; socket.gethostbyname('example.com')", Cause.NETWORK),
            ("open('/usr/new', 'w')", Cause.READ_ONLY),
            ("import os; os.mkdir('/usr/new')", Cause.READ_ONLY),
            ("open('/etc/shadow')", Cause.UNSEEN),
            ("open('/proc/1/environ')", Cause.FILES),
        ],
    )
    async def test_a_refusal_is_told_by_the_field_that_sets_it(
        self, sandbox: ConfinedSandbox, code: str, cause: Cause
    ) -> None:
        output, exit = await python(sandbox, code)
        said = diagnose(sandbox.limits, exit_code=exit.code, output=output)
        assert said is not None
        assert str(cause) in said

    def test_without_landlock_the_required_confinement_is_refused(self, tmp_path: Path) -> None:
        error = report_of_host(tmp_path, "required", "landlock")["error"]
        assert "missing: reads" in error
        assert "Landlock" in error
        assert "This process is already under a seccomp filter" in error
        assert "best_effort" in error

    @pytest.mark.parametrize(
        "without", mostly_long(["landlock namespaces", "landlock", "listener namespaces"])
    )
    def test_the_best_effort_goes_on_and_says_once_what_is_missing(
        self, tmp_path: Path, without: str
    ) -> None:
        report = report_of_host(tmp_path, "best_effort", *without.split())
        missing = {Enforced.READS, Enforced.PROCESSES}
        if "namespaces" in without:
            missing |= {Enforced.WRITES, Enforced.OTHERS}
        assert set(report["enforced"]) == set(Enforced) - missing
        [said] = report["said"]
        assert all(what in said for what in missing)
        assert report["survivors"] == 0

    def test_without_the_filter_of_system_calls_the_required_confinement_is_refused(
        self, tmp_path: Path
    ) -> None:
        error = report_of_host(tmp_path, "required", "numbers")["error"]
        assert Enforced.NETWORK in error
        assert Enforced.MODES in error


def report_of_host(workspace: Path, *mode: str) -> dict[str, Any]:
    if not {"landlock", "listener", "numbers"} & set(mode):
        skip_if_not_confined()
    with host("report", workspace, *mode) as process:
        return json.loads(process.communicate(timeout=60)[0])


OPTIONS = """
import errno, socket, struct
def names(level, options, family=socket.AF_INET):
    said = []
    for option in options:
        try: socket.socket(family).setsockopt(level, option, struct.pack("i", 1))
        except OSError as error: said.append(errno.errorcode[error.errno])
        else: said.append("done")
    return said
tcp, ip, ipv6 = socket.IPPROTO_TCP, socket.IPPROTO_IP, socket.IPPROTO_IPV6
print(*names(socket.SOL_SOCKET, (socket.SO_REUSEADDR, socket.SO_KEEPALIVE, socket.SO_REUSEPORT, socket.SO_RCVBUF)))
print(*names(tcp, (socket.TCP_NODELAY, socket.TCP_KEEPIDLE, socket.TCP_USER_TIMEOUT)), *names(ip, (socket.IP_TTL,)), *names(ipv6, (socket.IPV6_V6ONLY,), socket.AF_INET6))
print(*names(socket.SOL_SOCKET, (26, 50, 51, 52, 60, 61)))
print(*names(tcp, (13, 19, 31, 38)), *names(ip, (3, 4, 35, 64)), *names(ipv6, (1, 6, 20, 64), socket.AF_INET6), *names(17, (103,)), *names(282, (1,)))
print(socket.gethostbyname("localhost"), socket.gethostbyname(socket.gethostname()))
"""


async def test_only_options_of_sockets_that_programs_need_can_be_set(tmp_path: Path) -> None:
    async with started(tmp_path) as sandbox:
        if Cause.UNSEEN not in sandbox.limits:
            pytest.skip("no namespaces")
        output, _ = await python(sandbox, OPTIONS)
        assert output.splitlines() == [
            "done done done done",
            "done done done done done",
            " ".join(["ENOPROTOOPT"] * 6),
            " ".join(["ENOPROTOOPT"] * 14),
            "127.0.0.1 127.0.0.1",
        ]


SERVE = """
import socket, sys
server = socket.create_server(("", 0)); print(server.getsockname()[1], flush=True); sys.stdin.read()
"""
REACH = """
import socket, sys
try: print(socket.create_connection(("127.0.0.1", int(sys.argv[1]))))
except ConnectionRefusedError: print("refused")
"""


async def test_a_server_is_not_reached_from_another_sandbox_nor_from_the_host(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    async with started(tmp_path / "one") as one, started(tmp_path / "other") as other:
        if Cause.UNSEEN not in one.limits:
            pytest.skip("no namespaces")
        process = await one.spawn([one.python, "-c", SERVE])
        port = int(await process.read())
        assert (await python(other, REACH, str(port)))[0] == "refused\n"
        with socket.socket() as client, pytest.raises(ConnectionRefusedError):
            client.connect(("127.0.0.1", port))
        await process.aclose()


FILL = """
import resource, socket
sockets, sent = [], 0
server = socket.create_server(("127.0.0.1", 0))
try:
    while True:
        sockets += [socket.create_connection(server.getsockname()), server.accept()[0]]
except OSError: pass
for one in sockets:
    one.setblocking(False)
    try:
        while True: sent += one.send(bytes(1 << 20))
    except BlockingIOError: pass
print(len(sockets) > 400, sent < 256 << 20)
"""


async def test_what_waits_in_connections_is_bounded(tmp_path: Path) -> None:
    async with started(tmp_path) as sandbox:
        if Cause.UNSEEN not in sandbox.limits:
            pytest.skip("no namespaces")
        assert (await python(sandbox, FILL))[0] == "True True\n"
