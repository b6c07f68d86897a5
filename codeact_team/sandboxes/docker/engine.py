"""The container engine: which one is meant, how to reach it, and its errors in this package's words."""

from __future__ import annotations

import http.client
import io
import json
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

import docker
import requests
import urllib3
from docker.context import ContextAPI
from docker.errors import APIError, DockerException, ImageNotFound
from docker.tls import TLSConfig

from codeact_team.errors import EngineError

Client: TypeAlias = Any
"""A ``docker.APIClient``, whose own annotations are partial."""

REQUEST_TIMEOUT = 60
"""Seconds that the engine may take to answer a request; creating a container on a busy machine takes several."""


def engine_url() -> str:
    """The address of the engine that the ``docker`` command would use.

    ``DOCKER_HOST`` decides, then the current Docker context.

    Raises:
        EngineError: If that engine needs TLS or SSH, which cannot carry a raw stream here.
    """
    if host := os.environ.get("DOCKER_HOST"):
        tls = bool(os.environ.get("DOCKER_TLS_VERIFY"))
    else:
        with translated("the current Docker context"):
            context = ContextAPI.get_current_context()
        # docker's own stubs do not say so, but a context without an endpoint has no host
        host = str(context.Host or "unix:///var/run/docker.sock")
        tls = isinstance(context.TLSConfig, TLSConfig)
    if host.startswith("http+unix://"):
        host = "unix://" + host.removeprefix("http+unix://")
    scheme = urlsplit(host).scheme
    if scheme not in ("unix", "tcp", "http") or tls:
        kind = "TLS" if tls else f"{scheme}://"
        raise EngineError(
            f"the container engine at {_without_credentials(host)} is reached over {kind}, which is not supported "
            "yet: use a unix socket or plain tcp:// on a trusted network, by DOCKER_HOST or `docker context use`"
        )
    return host


def connect(url: str) -> Client:
    """A client of the engine at ``url``. Blocks; the caller closes it.

    Raises:
        EngineError: If no engine answers there.
    """
    with translated(url):
        client = docker.APIClient(base_url=url, version="auto", timeout=REQUEST_TIMEOUT)
    # exec and attach answer with raw multiplexed streams; a proxy configuration must not leak into containers
    client.trust_env = False
    return client


def open_stream(client: Client, url: str, path: str, body: Any = None) -> socket.socket:
    """Start an exec, or attach, and take over the connection as a raw stream. Blocks.

    docker's own way to such a socket reads ahead of the answer's header, and leaves two owners of one descriptor.

    Args:
        client: A client of the engine, for its version.
        url: The engine's address.
        path: What to post to, without the version.
        body: What to post, as JSON.

    Returns:
        A non-blocking socket that the caller owns.

    Raises:
        EngineError: If the engine refuses.
    """
    content = b"" if body is None else json.dumps(body).encode()
    request = (
        f"POST /v{client.api_version}{path} HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    with translated(url):
        stream = _dial(url)
        try:
            stream.sendall(request.encode() + content)
            _read_header(stream)
            stream.setblocking(False)
        except BaseException:
            stream.close()
            raise
    return stream


def _dial(url: str) -> socket.socket:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            stream.settimeout(REQUEST_TIMEOUT)
            stream.connect(unquote(parts.netloc + parts.path))
        except BaseException:
            stream.close()
            raise
        return stream
    return socket.create_connection(
        (parts.hostname or "localhost", parts.port or 2375), timeout=REQUEST_TIMEOUT
    )


def _read_header(stream: socket.socket) -> None:
    """Read the answer's header and not one byte more: what follows belongs to the stream."""
    header = b""
    while not header.endswith(b"\r\n\r\n"):
        byte = stream.recv(1)
        if not byte or len(header) > 65536:
            raise ConnectionError("the engine closed the connection")
        header += byte
    status = int(header.split(None, 2)[1])
    if status not in (http.client.SWITCHING_PROTOCOLS, http.client.OK):
        fields = http.client.parse_headers(io.BytesIO(header.partition(b"\r\n")[2]))
        answer = stream.recv(int(fields.get("Content-Length") or 65536))
        raise APIError(f"{status}", explanation=answer.decode(errors="replace"))


@contextmanager
def translated(subject: str) -> Generator[None]:
    """Turn whatever the Docker client raises into an :class:`EngineError` that says what to do.

    Args:
        subject: What was being talked to: an engine's address or an image's name.
    """
    try:
        yield
    except ImageNotFound as error:
        raise EngineError(
            f"the image {subject!r} is not on this engine and could not be pulled: `docker pull` or build it, or "
            f"name another image ({_reason(error)})"
        ) from error
    except APIError as error:
        raise EngineError(f"the container engine refused: {_reason(error)}") from error
    except (DockerException, requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
        raise EngineError(
            f"no container engine answers at {_without_credentials(subject)}: start Docker (`systemctl start docker`, "
            "Docker Desktop, or `dockerd`), or point DOCKER_HOST at a running one; `codeact-team doctor` shows what "
            f"works here ({_reason(error)})"
        ) from error


def _reason(error: Exception) -> str:
    text = str(error.explanation or error) if isinstance(error, APIError) else str(error)
    return " ".join(text.split())[:500]


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    return url.replace(f"{parts.netloc}", parts.netloc.rpartition("@")[2]) if "@" in parts.netloc else url
