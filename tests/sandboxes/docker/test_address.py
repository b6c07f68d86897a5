"""Which engine is meant."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Generator
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path

import pytest

from codeact_team.errors import EngineError
from codeact_team.sandbox.docker import address
from codeact_team.sandbox.docker.address import Certificates, certificates, engine_url


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever engine this machine uses."""
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))


def write_context(directory: Path, name: str, host: str, *, tls: bool = False) -> None:
    place = directory / "contexts" / "meta" / sha256(name.encode()).hexdigest()
    place.mkdir(parents=True)
    meta = {"Name": name, "Metadata": {}, "Endpoints": {"docker": {"Host": host, "SkipTLSVerify": False}}}
    (place / "meta.json").write_text(json.dumps(meta))
    if tls:
        certificates = directory / "contexts" / "tls" / place.name / "docker"
        certificates.mkdir(parents=True)
        for file in ("ca.pem", "cert.pem", "key.pem"):
            (certificates / file).write_text("")


def test_environment_names_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://localhost:2375")
    assert engine_url() == "tcp://localhost:2375"
    # the docker command uses TLS for tcp only
    monkeypatch.setenv("DOCKER_HOST", "unix:///run/user/1000/docker.sock")
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    assert engine_url() == "unix:///run/user/1000/docker.sock"


def test_context_names_the_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert engine_url() == "unix:///var/run/docker.sock"
    write_context(tmp_path, "desktop", "unix:///home/me/.docker/docker.sock")
    write_context(tmp_path, "lab", "tcp://lab:2375")
    (tmp_path / "config.json").write_text('{"currentContext": "desktop"}')
    assert engine_url() == "unix:///home/me/.docker/docker.sock"
    monkeypatch.setenv("DOCKER_CONTEXT", "lab")
    assert engine_url() == "tcp://lab:2375"
    monkeypatch.setenv("DOCKER_HOST", "unix:///elsewhere.sock")
    assert engine_url() == "unix:///elsewhere.sock"


def test_context_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"currentContext": "gone"}')
    with pytest.raises(EngineError, match="no Docker context"):
        engine_url()
    monkeypatch.setenv("DOCKER_CONTEXT", "broken")
    place = tmp_path / "contexts" / "meta" / sha256(b"broken").hexdigest()
    place.mkdir(parents=True)
    (place / "meta.json").write_text("{")
    with pytest.raises(EngineError, match="context cannot be read"):
        engine_url()


def test_certificates_come_with_the_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    write_context(tmp_path, "far", "tcp://lab:2376", tls=True)
    monkeypatch.setenv("DOCKER_CONTEXT", "far")
    assert engine_url() == "https://lab:2376"
    known = certificates("https://lab:2376")
    assert known.own is not None
    assert [Path(file).name for file in (known.authority or "", *known.own)] == [
        "ca.pem",
        "cert.pem",
        "key.pem",
    ]
    assert known.verify
    with pytest.raises(EngineError, match=r"certificates for .* at https://other are not known here"):
        certificates("https://user:secret@other")
    monkeypatch.setenv("DOCKER_HOST", "tcp://lab:2376")
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path))
    (tmp_path / "ca.pem").touch()
    assert engine_url() == "https://lab:2376"
    assert certificates("https://lab:2376") == Certificates(str(tmp_path / "ca.pem"))


def test_the_only_socket_of_another_engine_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sockets: Callable[[str], str]
) -> None:
    monkeypatch.setattr(address, "_DEFAULT_SOCKET", str(tmp_path / "docker.sock"))
    monkeypatch.setattr(address, "_SYSTEM_PODMAN", str(tmp_path / "podman.sock"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "user"))
    assert engine_url() == f"unix://{tmp_path}/docker.sock"
    podman = sockets("user/podman/podman.sock")
    assert engine_url() == f"unix://{podman}"
    both = sockets("podman.sock")
    with pytest.raises(
        EngineError, match=f"several container engines have a socket here: .*unix://{podman}, unix://{both}"
    ):
        engine_url()
    monkeypatch.setenv("DOCKER_HOST", f"unix://{both}")
    assert engine_url() == f"unix://{both}"
    monkeypatch.delenv("DOCKER_HOST")
    # Docker at its usual place is what its command would use
    usual = sockets("docker.sock")
    assert engine_url() == f"unix://{usual}"


@pytest.fixture
def sockets(tmp_path: Path) -> Generator[Callable[[str], str]]:
    """Makes sockets below the directory of the test."""
    with ExitStack() as open_ones:

        def make(name: str) -> str:
            place = tmp_path / name
            place.parent.mkdir(parents=True, exist_ok=True)
            open_ones.enter_context(socket.socket(socket.AF_UNIX)).bind(str(place))
            return str(place)

        yield make
