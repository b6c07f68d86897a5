"""The image that a container is made from: whether the engine has it, and the pull where not."""

from __future__ import annotations

import asyncio
import logging
import threading
from functools import partial

from docker.errors import APIError, ImageNotFound, NotFound

from codeact_team.errors import EngineError
from codeact_team.sandboxes.docker.engine import Client, ask, translated

logger = logging.getLogger(__name__)


async def ensure_image(client: Client, image: str, pull: str) -> None:
    """Make sure the engine has ``image``, or raise an EngineError. A cancellation ends the pull."""
    cancelled = threading.Event()
    try:
        await ask(partial(_ensure, client, image, pull, cancelled))
    except asyncio.CancelledError:
        cancelled.set()
        raise


def image_id(client: Client, image: str) -> str:
    """What stands for the image's content. Blocks.

    Raises:
        EngineError: If the engine has not the image.
    """
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
            # a registry out of reach, a missing name and a missing tag all ask the same of the user
            raise ImageNotFound(str(error), explanation=error.explanation) from error
