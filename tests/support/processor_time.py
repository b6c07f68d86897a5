"""What tests cost: seconds of a processor of each test, of its processes and of the programs it has forked.

``--processor-time`` prints the dearest tests, and where the rest of the machine's time went: an engine, its containers and
what nobody waited for cannot be told apart by tests that run side by side. ``--workers 0`` leaves one at a time. With this
option a usual test that takes more than ``BOUND`` is named, and one that takes more than ``TOO_MUCH`` fails the run, unless
``processor_time.toml`` names it. ``--last-failed`` runs it again then, as any other that has failed.
"""

from __future__ import annotations

import os
import resource
import time
import tomllib
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support import fork_server

BOUND = 1.0
"""Seconds, on an idle machine."""
TOO_MUCH = 5 * BOUND
"""Programs that share a processor's core and caches, on a machine that others use as well, take a few times as long."""
EXCEPTIONS = Path(__file__).parents[1] / "processor_time.toml"
"""Names tests, and says why each is worth its time. It may only get shorter."""

_PROPERTY = "processor_time"


class Cost(NamedTuple):
    """Seconds of a processor.

    Attributes:
        own: Of the process that runs tests.
        children: Of those that it has started, and that these have started, whether they have ended or not.
        forked: Of programs that the fork server has started for it.
    """

    own: float
    children: float
    forked: float

    def __sub__(self, other: Cost) -> Cost:
        return Cost(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))


def now() -> Cost:
    """Of this process so far."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    children = ended.ru_utime + ended.ru_stime + _of_descendants(os.getpid())
    return Cost(time.process_time(), children, fork_server.processor_time())


def _of_descendants(process: int | str) -> float:
    """Of those that run, and of those that these have waited for. Else it would be that of the test in which they end."""
    seconds = 0.0
    # threads and processes come and go
    with suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            with suppress(OSError):
                for child in (task / "children").read_text().split():
                    if int(child) in fork_server.servers:
                        # whose programs are counted apart
                        continue
                    with suppress(OSError):
                        fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                        seconds += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
                    seconds += _of_descendants(child)
    return seconds


def of_the_machine() -> float | None:
    """Of all processes so far, where the kernel tells: without the time that its processors were idle or waited."""
    try:
        fields = Path("/proc/stat").read_text().split(None, 8)
    except FileNotFoundError:
        return None
    user, nice, system, _, _, interrupts, soft_interrupts = map(int, fields[1:8])
    return (user + nice + system + interrupts + soft_interrupts) / os.sysconf("SC_CLK_TCK")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--processor-time",
        type=int,
        metavar="N",
        help=f"print the N tests that take most of a processor, and the usual ones that take more than {BOUND:g} s",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.option.processor_time is not None:
        config.pluginmanager.register(_Measuring())
        config.pluginmanager.register(_Report(config))


class _Measuring:
    """Notes in the last report of a test what it took."""

    def __init__(self) -> None:
        self._began = now()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        self._began = now()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown":
            report.user_properties.append((_PROPERTY, tuple(now() - self._began)))
        return report


class _Report:
    def __init__(self, config: pytest.Config) -> None:
        self._number: int = config.option.processor_time
        self._usual = not config.option.markexpr
        self._machine = of_the_machine()
        self._collected = 0.0
        self._costs: dict[str, Cost] = {}

    def pytest_collection_finish(self) -> None:
        self._collected = time.process_time()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == _PROPERTY:
                self._costs[report.nodeid] = Cost(*value)  # pyright: ignore[reportGeneralTypeIssues]

    def _beyond(self, bound: float) -> list[str]:
        """The usual tests that take longer and are no exceptions."""
        if not self._usual:
            return []
        named = tomllib.loads(EXCEPTIONS.read_text())
        return [
            name for name, cost in self._costs.items() if sum(cost) > bound and _function(name) not in named
        ]

    # after pytest itself has noted there what has failed
    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus == pytest.ExitCode.OK and (dear := self._beyond(TOO_MUCH)):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            assert session.config.cache is not None
            session.config.cache.set("cache/lastfailed", dict.fromkeys(dear, True))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        write = terminalreporter.write_line
        terminalreporter.section("processor time, in seconds")
        write("   all   own  children  forked")
        dearest = sorted(self._costs.items(), key=lambda item: -sum(item[1]))
        for name, cost in dearest[: self._number]:
            write(f"{sum(cost):6.2f}{cost.own:6.2f}{cost.children:10.2f}{cost.forked:8.2f}  {name}")
        total = Cost(*map(sum, zip(*self._costs.values(), strict=True))) if self._costs else Cost(0, 0, 0)
        parts = {
            "collecting": self._collected,
            "tests": total.own,
            "their children": total.children,
            "programs that they have forked": total.forked,
        }
        if self._machine is not None and (machine := of_the_machine()) is not None:
            parts["everything else, such as engines and containers"] = (
                machine - self._machine - sum(parts.values())
            )
        for name, seconds in parts.items():
            write(f"{seconds:6.0f} {name}")
        write(f"{sum(parts.values()):6.0f} in all")
        for bound in (BOUND, TOO_MUCH):
            for name in self._beyond(bound):
                write(f"more than {bound:g} s: {name}", red=True)


def _function(name: str) -> str:
    return name.split("[", 1)[0]
