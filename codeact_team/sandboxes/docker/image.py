"""The image a container is made from: is it there, and if not, can it be pulled."""

from __future__ import annotations

import asyncio
import logging
import threading

from docker.errors import APIError, ImageNotFound, NotFound

from codeact_team.errors import EngineError
from codeact_team.sandboxes.docker.engine import Client, translated

logger = logging.getLogger(__name__)


async def ensure_image(client: Client, image: str, pull: str) -> None:
    """Make sure the engine has ``image``. Takes as long as a pull takes; a cancellation ends the pull.

    Args:
        client: The engine.
        image: The image's name.
        pull: ``missing``, ``always`` or ``never``.

    Raises:
        EngineError: If the engine has not the image and cannot get it.
    """
    cancelled = threading.Event()
    work = asyncio.ensure_future(asyncio.to_thread(_ensure, client, image, pull, cancelled))
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        cancelled.set()
        await asyncio.wait({work})
        raise


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
            # a registry out of reach, a missing name and a missing tag all ask the same of the user
            raise ImageNotFound(str(error), explanation=error.explanation) from error
