"""Signals that end a command in order."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from signal import SIGHUP, SIGINT, SIGTERM, Signals
from typing import TextIO

ENDED_BY = {SIGINT: "interrupted", SIGTERM: "terminated", SIGHUP: "hung up"}
"""The signals that end a command, and the words for it."""


@contextmanager
def handling_signals(stop: Callable[[Signals], bool]) -> Generator[list[Signals]]:
    """Call ``stop`` with each signal that may end the command, until it returns that the command ends by it.

    The yielded list then has that signal. From then on these signals are ignored, so that nothing cuts the clean-up
    short. Needs a running event loop.
    """
    loop, ended_by = asyncio.get_running_loop(), list[Signals]()
    terminals = output_terminals()
    # a program that nohup has started outlives its terminal
    outlives = signal.getsignal(SIGHUP) is signal.SIG_IGN
    numbers = [number for number in ENDED_BY if number is not SIGHUP or not outlives]

    def handle(number: Signals) -> None:
        if not ended_by:
            if number is SIGHUP:
                silence(*terminals)
            if stop(number):
                ended_by.append(number)

    for number in numbers:
        loop.add_signal_handler(number, handle, number)
    try:
        yield ended_by
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
            if ended_by:
                signal.signal(number, signal.SIG_IGN)


def output_terminals() -> list[TextIO]:
    """The streams that print on a terminal; once it is gone, ``isatty`` is false."""
    return [stream for stream in (sys.stdout, sys.stderr) if stream.isatty()]


def silence(*streams: TextIO) -> None:
    """Discard further output of these streams."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
