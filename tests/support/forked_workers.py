"""Tests in parallel: one process collects them, and forks the workers that run them.

With pytest-xdist each worker collects anew, which takes as long as a thousand tests. Here a worker begins with everything
imported and collected. The process that forks them runs no test. It hands out the tests, prints what the workers report, and
starts another one in place of one that has died.

A worker gets tests that follow each other, for these share fixtures. One that has none left gets half of what another
one still has.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, NoReturn, cast

import pytest
from _pytest.capture import CaptureManager, FDCapture
from _pytest.config import create_terminal_writer

_TERMINAL = "terminalreporter"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--workers",
        type=int,
        default=(os.cpu_count() or 1) + 1,
        help="how many processes run tests; 0: this one alone. Default: one more than processors, as many tests wait",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    workers = min(session.config.option.workers, len(session.items))
    if (
        workers < 1
        or session.config.option.collectonly
        or session.config.option.usepdb
        or session.testsfailed
    ):
        return None
    _Workers(session, workers).run()
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
    return True


@dataclass
class _Worker:
    """A worker as its parent sees it.

    Attributes:
        pid: Its process.
        channel: Carries its requests and reports, and the answers.
        tests: The indices of those it will get.
        given: The indices of those it has got and not finished.
    """

    pid: int
    channel: Connection
    tests: list[int]
    given: list[int] = field(default_factory=list[int])


class _Workers:
    def __init__(self, session: pytest.Session, number: int) -> None:
        self._session = session
        self._hook = session.config.hook
        self._items: list[pytest.Item] = session.items
        size = -(-len(self._items) // number)
        self._shares = [
            list(range(first, min(first + size, len(self._items))))
            for first in range(0, len(self._items), size)
        ]
        self._workers: list[_Worker] = []

    def run(self) -> None:
        """Run all tests.

        Raises:
            KeyboardInterrupt: As it comes; no worker runs any more then.
        """
        # temporary directories of all workers are below one, which this process removes at its end
        self._session.config._tmp_path_factory.getbasetemp()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        # what is there now is never looked at again, so that it stays shared
        gc.collect()
        gc.freeze()
        try:
            for share in self._shares:
                self._start(share)
            while self._workers:
                for channel in wait([worker.channel for worker in self._workers]):
                    self._hear(next(worker for worker in self._workers if worker.channel is channel))
        except BaseException:
            for worker in self._workers:
                os.kill(worker.pid, signal.SIGINT)
            raise
        finally:
            for worker in self._workers:
                worker.channel.close()
                os.waitpid(worker.pid, 0)

    def _start(self, tests: list[int]) -> None:
        ours, theirs = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        if not (pid := os.fork()):
            # the others end when their own channels are closed, and not this copy
            for channel in (ours, *(worker.channel for worker in self._workers)):
                channel.close()
            _work(self._session, theirs)
        theirs.close()
        self._workers.append(_Worker(pid, ours, tests))

    def _hear(self, worker: _Worker) -> None:
        try:
            kind, content = worker.channel.recv()
        except (EOFError, ConnectionResetError):
            self._ended(worker)
            return
        if kind == "next":
            self._give(worker)
        elif kind == "report":
            config = self._session.config
            report = self._hook.pytest_report_from_serializable(config=config, data=content)
            self._hook.pytest_runtest_logreport(report=report)
        elif kind == "end":
            worker.given.remove(content)
            item = self._items[cast("int", content)]
            self._hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        elif kind == "error":
            self._session.shouldfail = content
        else:
            assert kind == "warning", kind
            self._hook.pytest_warning_recorded.call_historic(kwargs=_warning(content))

    def _give(self, worker: _Worker) -> None:
        if not worker.tests:
            busiest = max(self._workers, key=lambda other: len(other.tests)).tests
            # a worker that still has one to run leaves another one's last to it
            half = (len(busiest) + (not worker.given)) // 2
            worker.tests = busiest[-half:] if half else []
            del busiest[len(busiest) - len(worker.tests) :]
        over = self._session.shouldfail or self._session.shouldstop
        following = worker.tests.pop(0) if worker.tests and not over else None
        if following is not None:
            worker.given.append(following)
        # one that has died meanwhile is noticed next
        with suppress(BrokenPipeError):
            worker.channel.send(following)

    def _ended(self, worker: _Worker) -> None:
        worker.channel.close()
        self._workers.remove(worker)
        _, status = os.waitpid(worker.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if not code:
            return
        tests = worker.given + worker.tests
        if tests and not self._session.shouldfail:
            item = self._items[tests.pop(0)]
            text = f"the process that ran this test has ended, with {code}"
            report = pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")
            self._hook.pytest_runtest_logreport(report=report)
        if tests and not self._session.shouldfail:
            self._start(tests)


class _Reporting:
    """Sends its parent what a worker would print."""

    def __init__(self, config: pytest.Config, channel: Connection) -> None:
        self.has_begun = False
        self._config = config
        self._channel = channel
        # under this name pytest looks for where to write the stacks of a test that takes too long
        self._tw = create_terminal_writer(config, sys.stderr)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._channel.send(("report", data))

    def pytest_warning_recorded(
        self,
        warning_message: warnings.WarningMessage,
        when: str,
        nodeid: str,
        location: tuple[str, int, str] | None,
    ) -> None:
        if not self.has_begun:
            # pytest repeats those that came before, which the parent has had
            return
        where = (warning_message.filename, warning_message.lineno)
        self._channel.send(
            (
                "warning",
                (str(warning_message.message), warning_message.category, where, when, nodeid, location),
            )
        )


def _warning(sent: Sequence[Any]) -> dict[str, Any]:
    text, category, where, when, nodeid, location = sent
    message = warnings.WarningMessage(text, category, *where)
    return {"warning_message": message, "when": when, "nodeid": nodeid, "location": location}


def _work(session: pytest.Session, channel: Connection) -> NoReturn:
    """Be a worker: in the new process, which ends here."""
    code = 1
    try:
        # the parent passes an interrupt on
        os.setpgid(0, 0)
        plugins = session.config.pluginmanager
        _capture_alone(cast("CaptureManager", plugins.getplugin("capturemanager")))
        plugins.unregister(name=_TERMINAL)
        reporting = _Reporting(session.config, channel)
        plugins.register(reporting, _TERMINAL)
        reporting.has_begun = True
        _run_tests(session, channel)
        code = 0
    except KeyboardInterrupt:
        session._setupstate.teardown_exact(None)  # pyright: ignore[reportPrivateUsage]
    except BaseException:
        # a mistake of pytest, of a plugin or of this module
        channel.send(("error", traceback.format_exc()))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # what the parent has to do at its end is not the worker's
        os._exit(code)


def _capture_alone(manager: CaptureManager) -> None:
    """Give this process files of its own for what tests print; libraries keep the objects that are on these files."""
    capture = manager._global_capturing  # pyright: ignore[reportPrivateUsage]
    for stream in (capture.out, capture.err) if capture else ():
        if isinstance(stream, FDCapture):
            with tempfile.TemporaryFile() as own:
                os.dup2(own.fileno(), stream.tmpfile.fileno())


def _run_tests(session: pytest.Session, channel: Connection) -> None:
    def next_test() -> int | None:
        channel.send(("next", None))
        return channel.recv()

    index = next_test()
    while index is not None:
        # which decides what of the fixtures is taken down
        following = next_test()
        item = session.items[index]
        nextitem = None if following is None else session.items[following]
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
        channel.send(("end", index))
        index = following
