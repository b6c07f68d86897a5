"""Packages for an engine that does not see this machine's files, as one on another machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import docker
import pytest
from support.wheels import make_wheel

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("layers")]

CODE = """
import asyncio, sys
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from codeact_team import DockerCommandLineCodeExecutor

async def main():
    for number in range(2):
        async with DockerCommandLineCodeExecutor(packages=["remote"], workspace="container") as executor:
            block = CodeBlock(code="import remote; print(remote.version, remote.__file__, remote.__cached__)", language="python")
            print((await executor.execute_code_blocks([block], CancellationToken())).output, end="")

asyncio.run(main())
"""
PRUNE = "from codeact_team.cli.app import main; main()"


@pytest.mark.long
def test_they_travel_to_it_once_and_are_pruned(index: Path, tmp_path: Path) -> None:
    make_wheel(index, "remote", "1.5")
    cache = tmp_path / "cache"
    # what is mounted here is seen by nothing but what is started here
    hidden = f'mount -t tmpfs none {cache} && {sys.executable} -c "$1" && exec {sys.executable} -c "$2" packages --prune'
    unshared = ["unshare", "--mount", "--propagation", "private", "sh", "-c", hidden, "sh", CODE, PRUNE]
    said = subprocess.run(unshared, text=True, capture_output=True, check=False)
    place = "/opt/codeact-team/packages/site-packages"
    once = f"1.5 {place}/remote.py {place}/__pycache__/remote.cpython-311.pyc\n"
    assert said.stdout.startswith(2 * once), said.stderr
    with docker.APIClient() as engine:
        assert not engine.volumes(filters={"label": "codeact-team.packages"})["Volumes"]
