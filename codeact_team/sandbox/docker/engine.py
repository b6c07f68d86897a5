"""The container engine: requests, streams, images, and the translation of its errors."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import logging
import re
import socket
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
from email.message import Message
from functools import partial
from typing import Any, TypeAlias, TypeVar
from urllib.parse import unquote, urlsplit

import docker
import requests
from docker.errors import APIError, DockerException, ImageNotFound, NotFound, StreamParseError
from urllib3.exceptions import HTTPError

from codeact_team.errors import EngineError
from codeact_team.sandbox.docker.address import engine_url
from codeact_team.sandbox.docker.forwarding import local_url
from codeact_team.text.redaction import without_user_info

Client: TypeAlias = Any
"""A ``docker.APIClient``, whose own annotations are partial."""

T = TypeVar("T")

REQUEST_TIMEOUT = 60
"""Seconds that the engine gets to answer a request; creating a container on a busy machine takes several."""
GREETING_TIMEOUT = 10
"""Seconds that it gets to answer with its version, which costs it nothing."""
_UNDO_GRACE = 3.0
"""Seconds that a cancelled caller waits for the removal of its request's result."""
# the exceptions of requests are OSErrors
_RAISED = (DockerException, StreamParseError, OSError, http.client.HTTPException, HTTPError, ValueError)


def connect(url: str) -> Client:
    """A client of the engine at ``url``, which the caller closes. Blocks. Raises an ``EngineError`` if no engine answers."""
    with translated(url):
        client = docker.APIClient(
            base_url=local_url(url), version=_newest_version(url), timeout=REQUEST_TIMEOUT
        )
    # the raw streams bypass proxies, so the requests do as well
    client.trust_env = False
    return client


def at_engine(work: Callable[[Client, str], T]) -> T:
    """Call ``work`` with a client of the current engine and the address of that. Blocks."""
    url = engine_url()
    with closing(connect(url)) as client:
        return work(client, url)


def _newest_version(url: str) -> str:
    """The newest version of the API that the engine speaks."""
    # docker's own way has the engine start programs, and leaves a socket open without an answer
    with _dial(url, GREETING_TIMEOUT) as stream:
        version = _request(stream, "GET /_ping HTTP/1.1\r\nHost: docker\r\n\r\n").get("Api-Version", "")
    if not re.fullmatch(r"\d+\.\d+", version):
        raise ConnectionError("the answer is not an engine's")
    return version


async def ask(work: Callable[[], T], *, undo: Callable[[T], object] | None = None) -> T:
    """Do something that blocks, such as a request to the engine, in a thread.

    A cancelled caller does not wait for an engine that hangs: the thread ends by the time-outs of its requests. If the work
    succeeds all the same, ``undo`` is called with the result, also in a thread; the cancellation waits for that a while.
    """
    loop = asyncio.get_running_loop()
    answer: Future[T] = Future()
    ended = loop.run_in_executor(None, _do, answer, work, undo)
    try:
        return await asyncio.shield(asyncio.wrap_future(answer))
    except asyncio.CancelledError:
        if not answer.cancel() and undo is not None and answer.exception() is None:
            # the result has come all the same
            ended = loop.run_in_executor(None, undo, answer.result())
        if undo is not None:
            await asyncio.wait({ended}, timeout=_UNDO_GRACE)
        raise


def in_thread(work: Callable[[], T]) -> Future[T]:
    """Start something that blocks in a thread. Its result can be awaited from any event loop."""
    answer: Future[T] = Future()
    asyncio.get_running_loop().run_in_executor(None, _do, answer, work, None)
    return answer


def _do(answer: Future[T], work: Callable[[], T], undo: Callable[[T], object] | None) -> None:
    """Do the work, and undo it if the answer has been cancelled meanwhile."""
    try:
        result = work()
    except BaseException as error:
        if answer.set_running_or_notify_cancel():
            answer.set_exception(error)
        return
    if answer.set_running_or_notify_cancel():
        answer.set_result(result)
    elif undo is not None:
        undo(result)


def open_stream(client: Client, url: str, path: str, body: Any = None) -> socket.socket:
    """Post ``body``, and take over the connection as a non-blocking socket, as for an exec or an attachment. Blocks.

    The method of docker reads beyond the header of the answer, and leaves two owners of one descriptor.
    """
    content = b"" if body is None else json.dumps(body).encode()
    request = (
        f"POST /v{client.api_version}{path} HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    with translated(url), ExitStack() as failed:
        stream = failed.enter_context(_dial(url, client.timeout))
        _request(stream, request, content)
        stream.setblocking(False)
        failed.pop_all()
    return stream


def _dial(url: str, timeout: float) -> socket.socket:
    parts = urlsplit(local_url(url))
    if parts.scheme != "unix":
        return socket.create_connection((parts.hostname or "localhost", parts.port or 2375), timeout=timeout)
    with ExitStack() as failed:
        stream = failed.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        stream.settimeout(timeout)
        stream.connect(unquote(parts.netloc + parts.path))
        failed.pop_all()
    return stream


def _request(stream: socket.socket, head: str, content: bytes = b"") -> Message:
    """Send a request, and read only the header of the answer: what follows belongs to the stream."""
    stream.sendall(head.encode() + content)
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
    fields = http.client.parse_headers(io.BytesIO(header.partition(b"\r\n")[2]))
    if status not in (http.client.SWITCHING_PROTOCOLS, http.client.OK):
        answer = stream.recv(int(fields.get("Content-Length") or 65536))
        raise APIError(f"{status}", explanation=answer.decode(errors="replace"))
    return fields


@contextmanager
def translated(subject: str) -> Generator[None]:
    """Turn every exception of the Docker client into an :class:`EngineError`.

    The request is about the ``subject``: the engine's address, or an image.
    """
    try:
        yield
    except _RAISED as error:
        # an error of the system without its number, and one of the engine in the engine's words
        told = getattr(error, "explanation" if isinstance(error, APIError) else "strerror", None)
        text = str(told or error)
        reason = " ".join(without_user_info(text).split())[:500]
        if isinstance(error, ImageNotFound):
            message = (
                f"the image {subject!r} is not on this engine and could not be pulled: `docker pull` or build it, or "
                f"name another image ({reason})"
            )
        elif isinstance(error, APIError):
            message = f"the container engine refused: {reason}"
        elif isinstance(error, DockerException) and type(error) is not DockerException:
            message = f"the container engine cannot do this: {reason}"
        else:
            place = f" at {without_user_info(subject)}" if "://" in subject else ""
            message = _unanswered(error, f"{place} ({reason})")
        raise EngineError(message) from error


def _unanswered(error: Exception, place: str) -> str:
    """Return what kept an engine from answering, and a remedy. The ``place`` is where it was tried, and what came of that."""
    if isinstance(error, PermissionError):
        return (
            f"this user may not use the container engine{place}: add the user to the group that owns its socket (`sudo "
            "usermod -aG docker $USER`, then log in again), or point DOCKER_HOST at an engine of the user's own"
        )
    if isinstance(error, TimeoutError | requests.exceptions.ReadTimeout):
        return (
            f"the container engine{place} did not answer in time: it hangs or is overloaded; check whether `docker "
            "info` answers, and restart the engine if not"
        )
    return (
        f"no container engine answers{place}: start Docker (`systemctl start docker`, Docker Desktop, or `dockerd`), or "
        "point DOCKER_HOST at a running one"
    )


logger = logging.getLogger(__name__)


async def ensure_image(client: Client, image: str, pull: str) -> None:
    """Make sure that the engine has ``image``. A cancellation ends the pull. Raises an ``EngineError``."""
    cancelled = threading.Event()
    try:
        await ask(partial(_ensure, client, image, pull, cancelled))
    except asyncio.CancelledError:
        cancelled.set()
        raise


def image_id(client: Client, image: str) -> str:
    """The digest of the image's content. Blocks. Raises an ``EngineError`` if the engine does not have the image."""
    with translated(image):
        return str(client.inspect_image(image)["Id"])


def _ensure(client: Client, image: str, pull: str, cancelled: threading.Event) -> None:
    if pull != "always":
        try:
            with translated(image):
                client.inspect_image(image)
            return
        except EngineError as error:
            if pull == "never" or not isinstance(error.__cause__, ImageNotFound):
                raise
    logger.info("pulling the image %s", image)
    with translated(image):
        try:
            for event in client.pull(image, stream=True, decode=True):
                if cancelled.is_set():
                    return
                if "error" in event:
                    raise ImageNotFound(str(event["error"]))
        except (APIError, NotFound) as error:
            # the user has to do the same for an unreachable registry, a missing name and a missing tag
            raise ImageNotFound(str(error), explanation=error.explanation) from error
