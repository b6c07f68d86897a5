"""What tests need of the machine. Without it they are left out, in one line; and what fails on a machine that is full says so.

With ``CODEACT_TEAM_REQUIRE_ALL=1`` a test that would be left out fails.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from docker.errors import DockerException

from codeact_team.errors import EngineError
from codeact_team.sandbox.docker.address import engine_url
from codeact_team.sandbox.docker.container import LABEL, owner_label
from codeact_team.sandbox.docker.engine import connect, translated

IMAGE = "python:3-slim"

_MIB = 1 << 20
_LITTLE = 500 * _MIB
"""Bytes of disk or memory with which tests fail that find nothing wrong."""


@functools.cache
def why_no_docker() -> str | None:
    """What is missing for the tests marked ``docker``."""
    try:
        with closing(connect(engine_url())) as client, translated(IMAGE):
            client.inspect_image(IMAGE)
    except EngineError as error:
        return str(error)
    return None


def pytest_configure() -> None:
    # as with nohup or in the background of a script; what the tests start would ignore it, too
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("docker") and (reason := why_no_docker()) is not None:
        pytest.skip(f"no Docker: {reason}")


@pytest.fixture(scope="session", autouse=True)
def no_container_is_left() -> Generator[None]:
    yield
    # asked only where some test used the engine
    if why_no_docker.cache_info().currsize and why_no_docker() is None:
        with closing(connect(engine_url())) as client:
            left = client.containers(all=True, filters={"label": f"{LABEL}={owner_label()}"})
        assert not left, f"containers are left: {[container['Names'] for container in left]}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and os.environ.get("CODEACT_TEAM_REQUIRE_ALL") == "1":
        report.outcome = "failed"
        report.longrepr = f"nothing may be skipped here, but: {report.longrepr}"
    elif report.failed and (said := "\n".join(_wrong_with_the_machine(item))):
        report.sections.append(("The machine may be the reason", said))
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say in one line what was left out, and why."""
    reasons = Counter(str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", ()))
    said = [f"{number} ({_line(reason)})" for reason, number in reasons.most_common()]
    if said:
        terminalreporter.write_line(f"left out: {'; '.join(said)}", yellow=True)


def _line(reason: str) -> str:
    return " ".join(reason.removeprefix("Skipped: ").split())


def _wrong_with_the_machine(item: pytest.Item) -> Iterator[str]:
    for directory in dict.fromkeys((tempfile.gettempdir(), str(item.config.rootpath))):
        if (free := shutil.disk_usage(directory).free) < _LITTLE:
            yield f"The disk of {directory} has {free // _MIB} MiB left."
    if (memory := _available_memory()) is not None and memory < _LITTLE:
        yield f"{memory // _MIB} MiB of memory are left."
    processors = os.cpu_count() or 1
    if (load := os.getloadavg()[0]) > 8 * processors:
        yield f"{load:.0f} processes want to run on {processors} processor(s)."
    if item.get_closest_marker("docker") and not _has_bridge():
        yield "The Docker engine has no network 'bridge', without which containers have no network."


def _available_memory() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except FileNotFoundError:
        return None
    found = (int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    return next(found, None)


def _has_bridge() -> bool:
    """Whether containers can have a network; ``True`` where the engine cannot be asked, which tests say themselves."""
    if not (url := engine_url()).startswith("unix:"):
        # a test's own way to an engine, which may be what has failed
        return True
    try:
        with closing(connect(url)) as client:
            return bool(client.networks(names=["bridge"]))
    except (EngineError, DockerException):
        return True
