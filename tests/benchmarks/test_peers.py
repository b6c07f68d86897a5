"""How long others that run code for agents take, beside ours, in the same run: to start, for a step, for 100, and to stop.

``pytest -m benchmark --workers 0 -s tests/benchmarks/test_peers.py``. Their packages go into an environment of their own, below
``build/suites``. Inspect needs Docker Compose; without it, its column stays empty.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from benchmarks.conftest import Figures
from rich.console import Console
from rich.table import Table
from suites.environments import suite_environment, type_check
from support.executing import run

from codeact_team.executors.docker import DockerSessionCodeExecutor
from codeact_team.sandbox.docker.address import engine_url
from codeact_team.sandbox.docker.engine import connect

PROGRAM = Path(__file__).with_name("peers.py")
REQUIREMENTS = (
    "autogen-ext[docker,docker-jupyter-executor,jupyter-executor]",
    "inspect-ai",
    "smolagents[docker]",
)
PACKAGES = ["ipykernel", "jupyter-kernel-gateway"]
IMAGE = "codeact-team-benchmark-jupyter"
DOCKERFILE = """
FROM python:3-slim
COPY packages /opt/packages
ENV PYTHONPATH=/opt/packages
EXPOSE 8888
CMD exec python3 -m kernel_gateway --KernelGatewayApp.ip=0.0.0.0 --KernelGatewayApp.port=8888 \
    --KernelGatewayApp.auth_token="${TOKEN:-$KG_AUTH_TOKEN}"
"""
COPY = """
import os, shutil, kernel_gateway
shutil.copytree(os.path.dirname(os.path.dirname(kernel_gateway.__file__)), "packages")
"""

OURS = {"session, Docker": "AutoGen, Jupyter in Docker", "session, confined": "AutoGen, Jupyter"}
"""Ours, each with that one of AutoGen's Jupyter executors that runs where it does, but without isolation."""
ROWS = {
    "start": "Start to the first result",
    "step": "A block of code",
    "steps": "100 blocks of code",
    "stop": "Stop",
}

Times = Mapping[str, float]


@pytest.fixture(scope="module")
def python() -> Path:
    return suite_environment("peers", *REQUIREMENTS)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """An image with what the peers otherwise build theirs with, from a registry."""
    context = tmp_path_factory.mktemp("context")
    asyncio.run(copy_packages(context))
    (context / "Dockerfile").write_text(DOCKERFILE)
    with closing(connect(engine_url())) as client:
        *_, said = client.build(path=str(context), tag=IMAGE, rm=True, decode=True)
        assert "error" not in said, said
        yield IMAGE
        client.remove_image(IMAGE, force=True)


async def copy_packages(directory: Path) -> None:
    async with DockerSessionCodeExecutor(work_dir=directory, packages=PACKAGES) as executor:
        result = await run(executor, COPY)
        assert result.exit_code == 0, result.output


@pytest.fixture
def names() -> list[str]:
    """What can be measured here."""
    has_compose = subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0
    if not has_compose:
        print("Inspect is left out: `docker compose version` fails here")
    return [*OURS, "AutoGen", *OURS.values(), "smolagents", *(["Inspect"] if has_compose else [])]


def measured(python: Path, name: str, image: str, directory: Path) -> Times:
    program = [python, "-W", "ignore", PROGRAM, name, image, directory]
    return json.loads(subprocess.run(program, stdout=subprocess.PIPE, check=True).stdout)


def shown(milliseconds: float) -> str:
    return f"{milliseconds:.{2 if milliseconds < 10 else 0}f} ms"


def ratio(milliseconds: float, ours: float) -> str:
    times = milliseconds / ours
    return f"{times:.{1 if times < 10 else 0}f}"


@pytest.mark.benchmark
@pytest.mark.docker
@pytest.mark.timeout(1200)
def test_start_steps_and_stop(
    python: Path, image: str, names: Sequence[str], tmp_path: Path, figure: Figures
) -> None:
    found: dict[str, Times] = {}
    for number, name in enumerate(names):
        directory = tmp_path / f"{number}"
        directory.mkdir()
        found[name] = measured(python, name, image, directory)
    table = Table(
        "", *ROWS.values(), title="milliseconds; in brackets: multiples of ours, in Docker and confined"
    )
    for name, times in found.items():
        cells = [
            f"{times[what]:.2f} ({', '.join(ratio(times[what], found[our][what]) for our in OURS)})"
            for what in ROWS
        ]
        table.add_row(name, *cells)
    Console(width=180).print(table)
    for what, title in ROWS.items():
        for our, jupyter in OURS.items():
            ours = found[our][what]
            theirs = found["AutoGen"][what]
            others = {"smolagents": "smolagents", "AutoGen, Jupyter": jupyter, "Inspect": "Inspect"}
            peers = {
                column: f"{shown(found[name][what])} ({ratio(found[name][what], ours)})"
                for column, name in others.items()
                if name in found
            }
            figure(f"{title}: {our}", shown(ours), shown(theirs), ratio(theirs, ours), peers)


@pytest.mark.suites
def test_what_measures_peers_is_type_checked(python: Path) -> None:
    type_check(python, PROGRAM)
