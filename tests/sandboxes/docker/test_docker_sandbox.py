"""The container: what its settings do, against a real engine."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from support.executing import wait_until

from codeact_team.errors import EngineError, SandboxError
from codeact_team.sandbox.docker.address import engine_url
from codeact_team.sandbox.docker.config import DockerSandboxConfig
from codeact_team.sandbox.docker.container import LABEL, owner_label
from codeact_team.sandbox.docker.description import describe
from codeact_team.sandbox.docker.engine import at_engine, connect
from codeact_team.sandbox.docker.sandbox import DockerSandbox

pytestmark = pytest.mark.docker


@asynccontextmanager
async def started(
    work_dir: Path | None = None, bind_dir: Path | None = None, must_share: bool = True, **settings: Any
) -> AsyncGenerator[DockerSandbox]:
    config = DockerSandboxConfig(**settings)
    sandbox = DockerSandbox(config, work_dir=work_dir, bind_dir=bind_dir, must_share=must_share)
    try:
        # its programs are started here, and not by a supervisor
        await sandbox.start_without_python()
        yield sandbox
    finally:
        await sandbox.stop()


async def output(sandbox: DockerSandbox, *argv: str) -> str:
    spawn = await sandbox.start_without_python()
    process = await spawn(argv)
    await process.close_stdin()
    said = b""
    while chunk := await process.read():
        said += chunk
    await process.wait()
    await process.aclose()
    return said.decode()


_others: set[str] = set()


@pytest.fixture(autouse=True)
def containers_of_other_tests() -> None:
    """Those of fixtures that live on in this process."""
    _others.clear()
    _others.update(container["Id"] for container in inspected())


def inspected() -> list[dict[str, Any]]:
    """The containers of this process that began in this test."""
    with closing(connect(engine_url())) as client:
        found = client.containers(all=True, filters={"label": f"{LABEL}={owner_label()}"})
        return [client.inspect_container(each["Id"]) for each in found if each["Id"] not in _others]


async def test_settings_arrive_at_the_container_and_nothing_else_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # what the docker command would pass on may carry a password
    proxies = '{"proxies": {"default": {"httpProxy": "http://me:secret@proxy:1"}}}'
    (tmp_path / "config.json").write_text(proxies)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    settings: dict[str, Any] = {
        "memory_mib": 100,
        "cpus": 0.5,
        "pids": 20,
        "tmpfs_mib": 20,
        "max_file_mib": 30,
        "environment": {"A": "b c"},
        "extra_hosts": {"elsewhere": "192.0.2.7"},
        "user": "1234:2345",
        # it may say what it likes
        "init_command": "echo made by init > made; seq 100000; echo ready; sleep 0.1; echo unshared; printf x",
    }
    async with started(**settings) as sandbox:
        (container,) = inspected()
        host = container["HostConfig"]
        assert (host["Memory"], host["MemorySwap"]) == (100 << 20, 100 << 20)
        assert (host["NanoCpus"], host["PidsLimit"]) == (500_000_000, 20)
        assert (host["NetworkMode"], host["ReadonlyRootfs"], host["Privileged"]) == ("none", True, False)
        assert "no-new-privileges" in host["SecurityOpt"]
        assert host["LogConfig"]["Type"] == "none"
        script = "echo $A; id -u; id -g; grep elsewhere /etc/hosts; cat made; df -m /tmp | tail -1; ulimit -f; ulimit -c; pwd; grep CapBnd /proc/self/status"
        said = (await output(sandbox, "sh", "-c", script)).split("\n")
        assert said[:3] == ["b c", "1234", "2345"]
        assert said[3].split() == ["192.0.2.7", "elsewhere"]
        assert said[4] == "made by init"
        assert said[5].split()[1] == "20"
        assert said[6:9] == [str(30 << 11), "0", "/workspace"]
        assert int(said[9].split()[1], 16) == 0
        assert "secret" not in await output(sandbox, "env")
    assert inspected() == []


async def test_a_workspace_inside_belongs_to_the_sandboxs_own_user() -> None:
    script = "id -u; id -g; stat -c %u .; ulimit -H -c; grep -E ' /(tmp|workspace) ' /proc/mounts"
    async with started(workspace="container") as sandbox:
        uid, gid, owner, cores, *mounts = (await output(sandbox, "sh", "-c", script)).splitlines()
    # who takes no owner for it gives everybody in the container the right to write
    owned_by = "0" if at_engine(describe).is_podman else uid
    assert (gid, owner, cores) == (uid, owned_by, "0")
    assert int(uid) >= 20_000
    assert len(mounts) == 2
    assert all({"nosuid", "nodev"} <= set(mount.split()[3].split(",")) for mount in mounts)


@pytest.mark.long
async def test_loosened_settings_are_loose(tmp_path: Path) -> None:
    async with started(tmp_path, network="bridge", read_only=False, user="0:0") as sandbox:
        script = "wc -l < /proc/net/route; touch /etc/made && echo made"
        assert (await output(sandbox, "sh", "-c", script)).split() == ["3", "made"]


async def test_extra_volumes_and_a_directory_of_another_name_at_the_engine(tmp_path: Path) -> None:
    for name in ("ro", "rw", "real"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    (tmp_path / "link").symlink_to("real")
    volumes = {str(tmp_path / mode): {"bind": f"/{mode}", "mode": mode} for mode in ("ro", "rw")}
    async with started(tmp_path / "real", tmp_path / "link", extra_volumes=volumes) as sandbox:
        script = "cat file /ro/file /rw/file; touch made /rw/made /ro/made"
        said = await output(sandbox, "sh", "-c", script)
        assert said.startswith("realrorw")
        assert "Read-only file system" in said
    assert os.listdir(tmp_path / "ro") == ["file"]
    for name in ("real", "rw"):
        assert sorted(os.listdir(tmp_path / name)) == ["file", "made"]


async def test_missing_volume_is_refused_and_not_made(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    with pytest.raises(EngineError, match="missing"):
        async with started(tmp_path, extra_volumes={missing: {"bind": "/x", "mode": "ro"}}):
            pass
    assert os.listdir(tmp_path) == []
    assert inspected() == []


async def test_directory_that_the_engine_does_not_share_is_noticed(tmp_path: Path) -> None:
    # another machine's engine may well have a directory of that name
    for name in ("mine", "theirs"):
        (tmp_path / name).mkdir()
    for bind_dir in (tmp_path / "theirs", tmp_path / "missing"):
        with pytest.raises(EngineError, match=r"cannot see the directory .*mine.*workspace: container"):
            async with started(tmp_path / "mine", bind_dir):
                pass
        assert os.listdir(tmp_path / "mine") == os.listdir(tmp_path / "theirs") == []
        assert inspected() == []


@pytest.mark.long
async def test_directory_that_nobody_asked_for_gives_way_to_one_in_the_container(tmp_path: Path) -> None:
    for name in ("mine", "theirs"):
        (tmp_path / name).mkdir()
    async with started(tmp_path / "mine", tmp_path / "theirs", must_share=False) as sandbox:
        assert not sandbox.shared
        assert await output(sandbox, "sh", "-c", "touch made; ls") == "made\n"
        await sandbox.stop()
        await sandbox.start()
        assert not sandbox.shared
    assert os.listdir(tmp_path / "mine") == os.listdir(tmp_path / "theirs") == []


@pytest.mark.long
async def test_directory_that_the_user_cannot_write(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"cannot write to .*set `user`"):
        async with started(tmp_path, user="1234:1234"):
            pass
    with pytest.raises(SandboxError, match="work_dir /proc cannot be written"):
        async with started(Path("/proc")):
            pass


async def test_init_command_runs_under_the_same_limits_and_where_it_fails_that_is_an_error_with_its_output() -> (
    None
):
    command = "seq 100000 | tr '\\n' ' '; touch /etc/made && exit 4; exit 3"
    with pytest.raises(EngineError, match=r"exited with 3: .*99999 100000 touch: .*Read-only file system"):
        async with started(init_command=command, auto_remove=False):
            pass
    (kept,) = inspected()
    with closing(connect(engine_url())) as client:
        client.remove_container(kept["Id"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"runtime": "nowhere"}, r"refused: .*nowhere|Podman takes no runtime .*nowhere"),
        ({"network": "nowhere"}, "refused: .*nowhere"),
        ({"user": "nobody-of-that-name"}, "refused: .*nobody-of-that-name"),
        ({"device_requests": [{"Driver": "nowhere", "Capabilities": [["gpu"]]}]}, "refused: .*nowhere|Podman does not know Docker's"),
        ({"container_name": "not a name"}, "refused: .*not a name|refused: .*names must match"),
        ({"image": "NOT AN IMAGE"}, "refused: |NOT AN IMAGE"),
        ({"image": "codeact-team/nowhere:none", "pull": "never"}, "image 'codeact-team/nowhere:none' is not on this"),
        ({"image": "localhost:1/nowhere:none"}, "image 'localhost:1/nowhere:none' is not on this engine and could not"),
    ],
)  # fmt: skip
async def test_what_the_engine_refuses_is_said_clearly(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        async with started(**settings):
            pass
    assert inspected() == []


async def test_container_that_is_to_be_kept(tmp_path: Path) -> None:
    async with started(tmp_path, auto_remove=False):
        (container,) = inspected()
        assert container["Config"]["Labels"][LABEL] == owner_label()
    (container,) = inspected()
    with closing(connect(engine_url())) as client:
        assert not container["State"]["Running"]
        client.remove_container(container["Id"])


@pytest.mark.long
async def test_unasked_bytes_of_the_container_do_not_hold_up_the_host(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # what a hostile program writes for ever to the first process' output
    async with started() as sandbox:
        spawn = await sandbox.start_without_python()
        flood = await spawn(["sh", "-c", "while :; do head -c 100000000 /dev/zero; done > /proc/1/fd/1"])
        for _ in range(20):
            began = time.process_time()
            assert sandbox.running
            assert time.process_time() - began < 0.5
        await flood.kill()
        await flood.aclose()
        if not sandbox.running:
            # an engine that is busy with the flood may not tell in time that the code has ended
            assert "do not end by SIGKILL: stopping the container" in caplog.text
            await sandbox.start()
        assert await output(sandbox, "echo", "up") == "up\n"


@pytest.mark.long
async def test_containers_end_is_seen() -> None:
    async with started() as sandbox:
        (container,) = inspected()
        spawn = await sandbox.start_without_python()
        with closing(connect(engine_url())) as client:
            client.kill(container["Id"])
        wait_until(lambda: not sandbox.running, seconds=5)
        with pytest.raises(EngineError):
            await spawn(["true"])
        await sandbox.kill()
        await sandbox.start()
        assert await output(sandbox, "echo", "up") == "up\n"


ORPHANS = """
import os, time
for _ in range(40):
    if (child := os.fork()) == 0:
        os.fork()
        os._exit(0)
    os.waitpid(child, 0)
def dead():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as file: yield ") Z 1 " in file.read()
        except OSError: pass
end = time.monotonic() + 20
while any(dead()) and time.monotonic() < end:
    # one that ends while the first process looks is seen with the next
    if (child := os.fork()) == 0:
        os.fork()
        os._exit(0)
    os.waitpid(child, 0)
    time.sleep(0.05)
print("left" if any(dead()) else "none left")
"""
"""Leaves processes whose parents have ended to the first process."""


@pytest.mark.long
async def test_orphans_that_have_ended_do_not_stay() -> None:
    async with started() as sandbox:
        assert await output(sandbox, sandbox.python, "-c", ORPHANS) == "none left\n"
