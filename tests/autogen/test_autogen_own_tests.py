"""AutoGen's own tests of the two classes that ours replace, and of the teams they are in, unmodified, with ours in their place.

They come from the source distributions on PyPI, pinned by hash, and are fetched once.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytestmark = pytest.mark.long
HERE = Path(__file__).parent
REQUIREMENTS = HERE / "requirements.txt"
FETCH_TIMEOUT = 100
"""Seconds."""


@pytest.fixture(scope="module")
def sources(request: pytest.FixtureRequest) -> Path:
    """The directory with both source distributions."""
    cache = request.config.cache
    assert cache is not None
    directory = cache.mkdir("autogen-sources")
    with (directory / "lock").open("w") as lock:
        # one worker fetches for all
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete(directory):
            fetch(directory)
    assert complete(directory)
    return directory


def fetch(directory: Path) -> None:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--retries=1"]
    # an environment to build in, which pip would make to learn the version, takes most of the time
    which = ["--no-deps", "--no-binary=autogen-agentchat,autogen-ext", "--no-build-isolation"]
    which += ["--require-hashes", "-r", str(REQUIREMENTS)]
    fetched = subprocess.run(
        [*pip, *which, "-d", directory],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=FETCH_TIMEOUT,
        check=False,
    )
    if fetched.returncode != 0:
        reason = f"AutoGen's source distributions could not be fetched: {fetched.stdout[-500:]}"
        pytest.skip(reason)


def complete(directory: Path) -> bool:
    pinned = REQUIREMENTS.read_text()
    archives = list(directory.glob("*.tar.gz"))
    return len(archives) == 2 and all(
        hashlib.sha256(archive.read_bytes()).hexdigest() in pinned for archive in archives
    )


AGENTS, EXECUTORS = "autogen_agentchat-0.7.5", "autogen_ext-0.7.5"
DOCKER = "code_executors/test_docker_commandline_code_executor.py"


@pytest.mark.parametrize(
    ("distribution", "name", "count"),
    [
        pytest.param(AGENTS, "test_code_executor_agent.py", 26, id="agent"),
        pytest.param(AGENTS, "test_agent.py", 12, id="contexts"),
        pytest.param(AGENTS, "test_group_chat.py", 85, id="teams"),
        pytest.param(AGENTS, "test_group_chat_nested.py", 21, id="nested"),
        pytest.param(EXECUTORS, DOCKER, 16, id="docker", marks=pytest.mark.docker),
    ],
)
def test_autogens_own_tests_pass_with_our_class(
    sources: Path, tmp_path: Path, distribution: str, name: str, count: int
) -> None:
    with tarfile.open(sources / f"{distribution}.tar.gz") as archive:
        for each in (name, *(["utils.py"] if distribution == AGENTS else [])):
            content = archive.extractfile(f"{distribution}/tests/{each}")
            assert content is not None
            (tmp_path / Path(each).name).write_bytes(content.read())
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "ours_in_place",
            "-p",
            "no:cacheprovider",
            "--junitxml=report.xml",
            Path(name).name,
            # gives clients an empty key, which OpenAI's newer ones refuse
            "-k=not test_declarative_groupchats_with_config",
        ],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])]),
            "PYTEST_ADDOPTS": "",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    assert "in place: codeact_team.agents.code_executor, codeact_team.executors.docker" in ran.stdout
    suite = ElementTree.parse(tmp_path / "report.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("skipped")) == (str(count), "0"), ran.stdout
