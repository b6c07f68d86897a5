"""Which limit of the sandbox made a program fail, and which config field sets it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum


class Cause(StrEnum):
    """What a sandbox can limit."""

    TIME = "time"
    MEMORY = "memory"
    PROCESSES = "number of processes"
    NETWORK = "network"
    READ_ONLY = "read-only file system"
    DISK = "disk space"
    FILES = "access to files"


Limits = Mapping[Cause, str]
"""The limits in force: the config field that sets each, with its value, such as ``memory_mib: 1024``."""

# What C libraries, shells and interpreters say when the kernel refuses, in the order of how sure they are.
_SYMPTOMS: tuple[tuple[Cause, re.Pattern[str]], ...] = (
    (Cause.READ_ONLY, re.compile(r"Read-only file system|\bEROFS\b")),
    (
        Cause.DISK,
        re.compile(r"No space left on device|\bENOSPC\b|Disk quota exceeded|File too large|\bEFBIG\b"),
    ),
    (
        Cause.NETWORK,
        re.compile(
            r"Temporary failure (?:in name resolution|resolving)|UnknownHostException|Name or service not known|Network is unreachable"
            r"|Could not resolve host|nodename nor servname provided|bad address '|\bEAI_AGAIN\b|\bENETUNREACH\b"
            r"|[Ss]ocket.{0,200}(?:Permission denied|Operation not permitted)",
            re.DOTALL,
        ),
    ),
    (
        Cause.PROCESSES,
        re.compile(
            r"can't start new thread|[Cc]annot fork|can't fork|fork: (?:retry: )?Resource temporarily unavailable"
            r"|BlockingIOError: \[Errno 11\]|pthread_create failed"
        ),
    ),
    (
        Cause.MEMORY,
        re.compile(
            r"\bMemoryError\b|[Cc]annot allocate memory|[Oo]ut of memory|OutOfMemoryError|\bENOMEM\b|std::bad_alloc"
        ),
    ),
    (
        Cause.FILES,
        re.compile(r"PermissionError: \[Errno (?:1|13)\]|Permission denied|Operation not permitted"),
    ),
)

_SIGKILL_EXIT = 128 + 9
_SIGXFSZ_EXIT = 128 + 25


def diagnose(
    limits: Limits,
    *,
    exit_code: int,
    output: str,
    timed_out: bool = False,
    oom_kills: int | None = None,
    fork_failures: int = 0,
) -> str | None:
    """Say which limit a failed program ran into.

    Args:
        limits: The limits in force.
        exit_code: The program's exit code.
        output: The end of what it wrote. Hostile data: it can make the answer wrong, nothing else.
        timed_out: Whether the time limit stopped it.
        oom_kills: Processes that the memory limit killed, as the kernel counts them; ``None`` if not known.
        fork_failures: New processes that the process limit refused, as the kernel counts them.

    Returns:
        A sentence that names the limit and the config field, or ``None`` where no limit is to blame.
    """
    if timed_out:
        cause = Cause.TIME
    elif exit_code == 0:
        return None
    elif oom_kills:
        cause = Cause.MEMORY
    else:
        cause = _from_symptoms(limits, output)
        if cause is None and fork_failures:
            cause = Cause.PROCESSES
        if cause is None:
            cause = _from_signal(exit_code, oom_kills)
    if cause is None or cause not in limits:
        return None
    return f"This ran into a limit of the sandbox: {cause} ({limits[cause]})."


def _from_signal(exit_code: int, oom_kills: int | None) -> Cause | None:
    if exit_code == _SIGXFSZ_EXIT:
        return Cause.DISK
    # where nobody counts, whoever kills is most likely the memory limit
    return Cause.MEMORY if exit_code == _SIGKILL_EXIT and oom_kills is None else None


def _from_symptoms(limits: Limits, output: str) -> Cause | None:
    for cause, symptom in _SYMPTOMS:
        if cause in limits and symptom.search(output):
            return cause
    return None
