"""Measures one way to run code, in a process of its own, and prints how many milliseconds it takes, as JSON.

Arguments: the name of the way, an image with a Jupyter kernel gateway, and an empty directory. Runs in an environment that has
the packages of all; see ``test_peers.py``.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import requests
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from autogen_ext.code_executors.docker import DockerCommandLineCodeExecutor as AutoGenExecutor
from autogen_ext.code_executors.docker_jupyter import DockerJupyterCodeExecutor, DockerJupyterServer
from autogen_ext.code_executors.jupyter import JupyterCodeExecutor
from inspect_ai.util._sandbox.docker.docker import DockerSandboxEnvironment
from smolagents.monitoring import AgentLogger, LogLevel
from smolagents.remote_executors import DockerExecutor

from codeact_team.executors.confined import ConfinedSessionCodeExecutor
from codeact_team.executors.docker import DockerSessionCodeExecutor

ROUNDS, STEPS = 3, 100
# what Inspect generates where there is no file, but with the image of all others here
COMPOSE = """
services:
  default:
    image: python:3-slim
    command: tail -f /dev/null
    init: true
    network_mode: none
    stop_grace_period: 1s
    x-local: true
"""


class Way(Protocol):
    """A way to run code."""

    async def start(self) -> None: ...

    async def run(self, code: str) -> str: ...

    async def stop(self) -> None: ...


class OfAutoGen:
    """An executor of AutoGen's, or one of ours, which have the same interface."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    async def start(self) -> None:
        self._executor = self._make()
        await self._executor.start()

    async def run(self, code: str) -> str:
        blocks = [CodeBlock(code, "python")]
        return (await self._executor.execute_code_blocks(blocks, CancellationToken())).output

    async def stop(self) -> None:
        await self._executor.stop()


class JupyterInDocker(OfAutoGen):
    """AutoGen's executor of a Jupyter kernel in a container, with the server that it needs."""

    def __init__(self, image: str, directory: str) -> None:
        super().__init__(lambda: DockerJupyterCodeExecutor(self._server))
        self._image, self._directory = image, directory

    async def start(self) -> None:
        self._server = DockerJupyterServer(custom_image_name=self._image, bind_dir=self._directory)
        while True:
            try:
                return await super().start()
            except requests.ConnectionError:
                # the container runs before its server does, for which a busy machine needs longer than this waits
                await super().stop()

    async def stop(self) -> None:
        await super().stop()
        await self._server.stop()


class OfSmolagents:
    """The Docker executor of smolagents, which blocks."""

    def __init__(self, image: str) -> None:
        self._image = image

    async def start(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        logger = AgentLogger(level=LogLevel.OFF)
        self._executor = DockerExecutor([], logger, port=port, image_name=self._image, build_new_image=False)

    async def run(self, code: str) -> str:
        return self._executor(code).logs

    async def stop(self) -> None:
        self._executor.cleanup()


class OfInspect:
    """The Docker sandbox of Inspect, for one sample. Each block is a program there."""

    def __init__(self, directory: str) -> None:
        self._config = f"{directory}/compose.yaml"
        Path(self._config).write_text(COMPOSE)

    async def start(self) -> None:
        # a task also begins by asking for a newer engine than these calls need
        self._sandboxes = await DockerSandboxEnvironment.sample_init("benchmark", self._config, {})

    async def run(self, code: str) -> str:
        return (await self._sandboxes["default"].exec(["python3", "-c", code])).stdout

    async def stop(self) -> None:
        await DockerSandboxEnvironment.sample_cleanup("benchmark", self._config, self._sandboxes, False)


WAYS: dict[str, Callable[[str, str], Way]] = {
    "session, Docker": lambda _, work_dir: OfAutoGen(partial(DockerSessionCodeExecutor, work_dir=work_dir)),
    "session, confined": lambda _, work_dir: OfAutoGen(
        partial(ConfinedSessionCodeExecutor, work_dir=work_dir)
    ),
    "AutoGen": lambda _, work_dir: OfAutoGen(partial(AutoGenExecutor, work_dir=work_dir)),
    "AutoGen, Jupyter in Docker": JupyterInDocker,
    "AutoGen, Jupyter": lambda _, directory: OfAutoGen(partial(JupyterCodeExecutor, output_dir=directory)),
    "smolagents": lambda image, _: OfSmolagents(image),
    "Inspect": lambda _, directory: OfInspect(directory),
}


async def milliseconds(work: Awaitable[object]) -> float:
    began = time.perf_counter()
    await work
    return 1000 * (time.perf_counter() - began)


async def measured(way: Way) -> dict[str, float]:
    """Milliseconds from the start to the first result, of a step, of all steps, and of the stop."""

    async def step(number: int) -> None:
        printed = await way.run(f"x = {number}\nprint(x)")
        assert printed.strip() == str(number), printed

    async def begin() -> None:
        await way.start()
        await step(-1)

    start = await milliseconds(begin())
    steps = [await milliseconds(step(number)) for number in range(STEPS)]
    stop = await milliseconds(way.stop())
    return {"start": start, "step": median(steps), "steps": sum(steps), "stop": stop}


async def main(name: str, image: str, directory: str) -> dict[str, float]:
    rounds = [await measured(WAYS[name](image, directory)) for _ in range(ROUNDS)]
    return {what: median(each[what] for each in rounds) for what in rounds[0]}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
