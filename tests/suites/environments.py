"""Virtual environments for other people's suites, and how a suite runs in one.

A suite needs packages that this project does not depend on, so each has an environment of its own below ``build/suites``.
It has the wheel of this checkout, as a user would install it, and is made again when the wheel or the requirements change.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

import pytest
import uv
from docs.documents import PAGES, blocks_of
from support.openai_server import AnyReply, ScriptedServer
from support.pythons import python_of

from codeact_team.executors.packages.installer import settings_for_uv

ROOT = Path(__file__).parents[2]
SUITES = ROOT / "build" / "suites"
EXAMPLES = ROOT / "examples"
INSTALL_TIMEOUT = 900
"""Seconds to fetch and unpack the packages of a suite."""

Status = Literal["passed", "failed", "error", "skipped"]


@dataclass(frozen=True)
class Outcome:
    """How a test of a suite ended.

    Attributes:
        status: ``skipped`` is said of an expected failure, too.
        details: Why it did not pass, with the traceback.
    """

    status: Status
    details: str = ""


def suite_environment(
    name: str, *requirements: str, python: str = "3.11", overrides: Sequence[str] = ()
) -> Path:
    """Make an environment with this package's wheel, pytest and these packages, unless it is there already.

    Args:
        name: The suite. Its environment is ``build/suites/NAME``.
        requirements: What pip would install, such as ``langchain-tests==1.1.9``. Extras of ours are named as
            ``codeact-team[deepagents]``; they are those of this checkout.
        python: The version of Python; the test is skipped where this machine has none.
        overrides: Requirements in the place of those that packages of the suite declare, where these exclude each other.

    Returns:
        The environment's Python.

    Raises:
        RuntimeError: If the packages cannot be had, or exclude each other.
    """
    with _alone(name):
        wheel = _wheel()
        directory, record = SUITES / name, SUITES / name / "made-from.json"
        made_from = json.dumps([python, wheel.parent.name, requirements, overrides])
        interpreter = directory / "bin" / "python"
        if not record.exists() or record.read_text() != made_from:
            shutil.rmtree(directory, ignore_errors=True)
            _uv("venv", "--python", _interpreter(python), str(directory))
            (override := directory / "overrides.txt").write_text("\n".join(overrides))
            options = ("--python", str(interpreter), "--overrides", str(override))
            ours = f"codeact-team @ {wheel.as_uri()}"
            _uv("pip", "install", *options, ours, "pytest", "pytest-timeout", *requirements)
            record.write_text(made_from)
        return interpreter


def run_suite(
    python: Path,
    *arguments: str | Path,
    cwd: Path,
    environment: Mapping[str, str] | None = None,
    timeout: float = 900,
) -> Mapping[str, Outcome]:
    """Run pytest in an environment, by none of our settings, and read its report.

    Args:
        python: The environment's Python.
        arguments: The tests, and options of pytest, such as ``-o asyncio_mode=auto``.
        cwd: An empty directory, in which it runs. A file that the tests import can be put there.
        environment: Variables besides those of this process.
        timeout: Seconds for the whole suite.

    Returns:
        The outcomes by ``Class::test``, or ``module::test`` of a test without a class.

    Raises:
        RuntimeError: If pytest could not run the tests, or none was found.
        subprocess.TimeoutExpired: If the suite takes longer.
    """
    (cwd / "pytest.ini").write_text("[pytest]\n")
    report = cwd / "report.xml"
    command = [python, "-m", "pytest", "-p", "no:cacheprovider", "-q", f"--junitxml={report}", *arguments]
    ran = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, "PYTEST_ADDOPTS": "", "PYTHONPATH": str(cwd), **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )
    # 1: some tests failed
    if ran.returncode not in (0, 1):
        raise RuntimeError(f"pytest ended with code {ran.returncode}:\n{ran.stdout[-4000:]}")
    return {
        f"{case.attrib['classname'].rpartition('.')[2]}::{case.attrib['name']}": _outcome(case)
        for case in ElementTree.parse(report).iter("testcase")
    }


def run_program(
    python: Path,
    program: Path,
    *arguments: str,
    replies: Sequence[AnyReply] | Callable[[Any], AnyReply],
    cwd: Path,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run a program in an environment, with a scripted server in the place of the model.

    Args:
        python: The environment's Python.
        program: Such as a file in ``EXAMPLES``.
        arguments: Its arguments.
        replies: The model's answers; or a function that answers the body of a request.
        cwd: The directory in which it runs.
        environment: Variables besides those of this process and of the server.

    Returns:
        What it has printed to stdout. It is asserted that it succeeds.
    """
    with ScriptedServer.in_thread(replies) as server:
        variables = {"OPENAI_API_KEY": "key-of-a-test", "OPENAI_BASE_URL": server.base_url}
        ran = subprocess.run(
            [python, program, *arguments],
            cwd=cwd,
            env={**os.environ, **variables, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def source_distribution(package: str, version: str) -> Path:
    """Fetch the source distribution of a package, unless it was fetched before. Nothing of it is built."""
    directory = SUITES / "sources"
    archive = directory / f"{package}-{version}.tar.gz"
    with _alone("sources"):
        if not archive.exists():
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
            which = ["--no-deps", "--no-binary", package, f"{package}=={version}"]
            _run(*pip, *which, "-d", str(directory))
    return archive


def file_of_guide(name: str) -> str:
    """The content of a file that the guide on harnesses shows."""
    (content,) = [block.text for block in blocks_of(PAGES["guides/harnesses"]) if block.file == name]
    return content


def assert_passed(outcomes: Mapping[str, Outcome], *, but: Mapping[str, str] | None = None) -> None:
    """Assert that all tests of a suite passed or were skipped, but for those refused by design, which must fail.

    Args:
        outcomes: What ``run_suite`` returned.
        but: The reason of each refusal by the test's name.
    """
    refused = but or {}
    failed = {name: each for name, each in outcomes.items() if each.status in ("failed", "error")}
    unexpected = [f"{name}: {each.details}" for name, each in failed.items() if name not in refused]
    assert not unexpected, "\n\n".join(unexpected)
    assert refused.keys() <= failed.keys(), f"not refused: {sorted(refused.keys() - failed.keys())}"


def type_check(python: Path, *files: Path) -> None:
    """Assert that files which need a suite's packages pass pyright in its environment, by our settings."""
    environment = python.parents[1]
    # the environment that our settings name would win over one of the command line
    settings = {
        "extends": os.path.relpath(ROOT / "pyproject.toml", environment),
        "venvPath": "..",
        "venv": environment.name,
        "include": [os.path.relpath(file, environment) for file in files],
        # not that of the adapters: their names are those of the packages
        "extraPaths": [os.path.relpath(ROOT / place, environment) for place in ("tests", "tests/suites")],
        "exclude": [],
    }
    config = environment / "pyrightconfig.json"
    config.write_text(json.dumps(settings))
    checked = subprocess.run(
        [sys.executable, "-m", "pyright", "--project", config],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=INSTALL_TIMEOUT,
    )
    assert checked.returncode == 0, checked.stdout


def _outcome(case: ElementTree.Element) -> Outcome:
    for child in case:
        match child.tag:
            case "failure":
                return Outcome("failed", child.text or "")
            case "error":
                return Outcome("error", child.text or "")
            case "skipped":
                return Outcome("skipped", child.attrib.get("message", ""))
            case _:
                pass
    return Outcome("passed")


@contextmanager
def _alone(name: str) -> Generator[None]:
    """Keep other workers from making the same environment."""
    SUITES.mkdir(parents=True, exist_ok=True)
    with (SUITES / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@functools.cache
def _wheel() -> Path:
    """The wheel of this checkout, in a directory named by its content, which is the same for the same sources."""
    with tempfile.TemporaryDirectory(dir=SUITES) as directory:
        _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", directory)
        (built,) = Path(directory).glob("*.whl")
        wheel = SUITES / "wheels" / hashlib.sha256(built.read_bytes()).hexdigest()[:16] / built.name
        wheel.parent.mkdir(parents=True, exist_ok=True)
        built.replace(wheel)
    return wheel


def _interpreter(version: str) -> str:
    if (python := python_of(version)) is None:
        pytest.skip(f"this machine has no Python {version}")
    return python


def _uv(*arguments: str) -> None:
    environment, options = settings_for_uv(os.environ)
    # that of these tests names no certificates, and their cache ends with them
    environment.pop("SSL_CERT_DIR", None)
    environment.setdefault("UV_CACHE_DIR", str(SUITES / "cache"))
    # pip takes the best version of all indexes, uv otherwise that of the first
    environment.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    variables = {"UV_PYTHON_DOWNLOADS": "never", "NO_COLOR": "1"}
    options = options if arguments[0] == "pip" else ()
    _run(uv.find_uv_bin(), *arguments, *options, environment={**environment, **variables})


def _run(*command: str, environment: Mapping[str, str] | None = None) -> None:
    ran = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=INSTALL_TIMEOUT,
    )
    if ran.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}:\n{ran.stdout}")
