"""The container engine: which one is meant, how to reach it, and its errors in this package's words."""

from __future__ import annotations

import http.client
import io
import json
import os
import re
import socket
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, TypeAlias, cast
from urllib.parse import unquote, urlsplit

import docker
import urllib3
from docker.context import ContextAPI
from docker.errors import APIError, DockerException, ImageNotFound, StreamParseError
from docker.tls import TLSConfig

from codeact_team.errors import EngineError

Client: TypeAlias = Any
"""A ``docker.APIClient``, whose own annotations are partial."""

REQUEST_TIMEOUT = 60
"""Seconds that the engine may take to answer a request; creating a container on a busy machine takes several."""


def engine_url() -> str:
    """The address of the engine that the ``docker`` command would use.

    ``DOCKER_HOST`` decides, then ``DOCKER_CONTEXT``, then the current Docker context.

    Raises:
        EngineError: If that is no address, or that engine needs TLS or SSH, which cannot carry a raw stream here.
    """
    if host := os.environ.get("DOCKER_HOST", ""):
        tls = bool(os.environ.get("DOCKER_TLS_VERIFY"))
    else:
        host, tls = _context_endpoint(os.environ.get("DOCKER_CONTEXT"))
    if host.startswith("http+unix://"):
        host = "unix://" + host.removeprefix("http+unix://")
    scheme = host.partition("://")[0] if "://" in host else ""
    tls = scheme == "https" or (tls and scheme != "unix")
    if tls or scheme in ("ssh", "npipe"):
        raise EngineError(
            f"the container engine at {_without_credentials(host)} is reached over {'TLS' if tls else scheme}, which is "
            "not supported yet: use a unix socket or plain tcp:// on a trusted network, by DOCKER_HOST or `docker "
            "context use`"
        )
    if scheme not in ("unix", "tcp", "http"):
        raise EngineError(
            f"{_without_credentials(host)!r} is not an engine's address: set DOCKER_HOST to something like "
            "unix:///var/run/docker.sock or tcp://localhost:2375"
        )
    return host


def _context_endpoint(name: str | None) -> tuple[str, bool]:
    """The address that a Docker context names, and whether it needs TLS."""
    try:
        context = ContextAPI.get_context(name)
    # docker raises a bare Exception, or a KeyError, on a file that it does not understand
    except Exception as error:
        raise EngineError(
            f"the Docker context cannot be read: {error}; `docker context ls` shows it"
        ) from error
    # docker's own stubs do not say so, but a context may be missing, and one without an endpoint has no host
    if cast(object, context) is None:
        raise EngineError(
            f"there is no Docker context {name or 'of the current name'!r}: `docker context ls`"
        )
    return str(context.Host or "unix:///var/run/docker.sock"), isinstance(context.TLSConfig, TLSConfig)


def connect(url: str) -> Client:
    """A client of the engine at ``url``. Blocks; the caller closes it.

    Raises:
        EngineError: If no engine answers there.
    """
    with translated(url):
        # docker's client does not close the socket that it cannot connect
        _dial(url).close()
        client = docker.APIClient(base_url=url, version="auto", timeout=REQUEST_TIMEOUT)
    # the raw streams do not go through a proxy, so the requests do not either
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
    try:
        status = int(header.split(None, 2)[1])
    except (IndexError, ValueError) as error:
        raise ConnectionError("the answer is not an engine's") from error
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
    except (DockerException, StreamParseError, OSError, urllib3.exceptions.HTTPError, ValueError) as error:
        if isinstance(error, DockerException) and type(error) is not DockerException:
            raise EngineError(f"the container engine cannot be asked for this: {_reason(error)}") from error
        # what requests raises is an OSError
        place = f" at {_without_credentials(subject)}" if "://" in subject else ""
        raise EngineError(
            f"no container engine answers{place}: start Docker (`systemctl start docker`, "
            "Docker Desktop, or `dockerd`), or point DOCKER_HOST at a running one; `codeact-team doctor` shows what "
            f"works here ({_reason(error)})"
        ) from error


def _reason(error: Exception) -> str:
    text = str(error.explanation or error) if isinstance(error, APIError) else str(error)
    return " ".join(_without_credentials(text).split())[:500]


def _without_credentials(text: str) -> str:
    return re.sub(r"://[^/\s]*@", "://", text)
