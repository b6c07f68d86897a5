"""Which limit of the sandbox made a program fail, and which config field sets it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

from pydantic import BaseModel


class Cause(StrEnum):
    """What a sandbox can limit."""

    TIME = "time"
    MEMORY = "memory"
    PROCESSES = "number of processes"
    NETWORK = "network"
    READ_ONLY = "read-only file system"
    DISK = "disk space"
    FILES = "access to files"
    UNSEEN = "files that it sees"


Limits = Mapping[Cause, str]
"""The limits in force: the config field that sets each, with its value, such as ``memory_mib: 1024``."""


def above_default(config: BaseModel, *fields: str) -> list[str]:
    """The limits among ``fields`` that are higher than their defaults, in words for a person."""
    defaults = {field: type(config).model_fields[field].default for field in fields}
    return [
        f"{field}: {value} (default {default})"
        for field, default in defaults.items()
        if (value := getattr(config, field)) is None or value > default
    ]


# What C libraries, shells and interpreters say when the kernel refuses, in the order of how sure they are.
_SYMPTOMS = {
    Cause.READ_ONLY: r"Read-only file system|\bEROFS\b",
    Cause.DISK: r"No space left on device|\bENOSPC\b|Disk quota exceeded|File too large|\bEFBIG\b",
    Cause.NETWORK: (
        r"Temporary failure (?:in name resolution|resolving)|UnknownHostException|Name or service not known"
        r"|Network is unreachable|Could not resolve host|nodename nor servname provided|bad address '|\bEAI_AGAIN\b"
        r"|\bENETUNREACH\b|[Ss]ocket(?s:.){0,200}(?:Permission denied|Operation not permitted)"
    ),
    Cause.PROCESSES: (
        r"can't start new thread|[Cc]annot fork|can't fork|fork: (?:retry: )?Resource temporarily unavailable"
        r"|BlockingIOError: \[Errno 11\]|pthread_create failed"
    ),
    Cause.MEMORY: (
        r"\bMemoryError\b|[Cc]annot allocate memory|[Oo]ut of memory|OutOfMemoryError|\bENOMEM\b|std::bad_alloc"
    ),
    Cause.FILES: r"PermissionError: \[Errno (?:1|13)\]|Permission denied|Operation not permitted",
    Cause.UNSEEN: r"No such file or directory: ['\"]/|\W/[^:\n]*: No such file or directory",
}

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
    """The limit that a failed program ran into, in a sentence that says so where it is a guess.

    Args:
        limits: The limits in force.
        exit_code: The program's exit code.
        output: The end of what it wrote. Hostile data: it can make the answer wrong, nothing else.
        timed_out: Whether the time limit stopped it.
        oom_kills: Processes that the memory limit killed; ``None`` if not known.
        fork_failures: New processes that the process limit refused.

    Returns:
        ``None`` where no limit is to blame.
    """
    if timed_out:
        cause = Cause.TIME
    elif exit_code == 0:
        return None
    elif oom_kills:
        cause = Cause.MEMORY
    elif symptoms := [
        each for each, words in _SYMPTOMS.items() if each in limits and re.search(words, output)
    ]:
        cause = symptoms[0]
    elif fork_failures:
        cause = Cause.PROCESSES
    elif exit_code == _SIGXFSZ_EXIT:
        cause = Cause.DISK
    elif exit_code == _SIGKILL_EXIT and oom_kills is None and Cause.MEMORY in limits:
        # where nobody counts, it may have been the memory limit, or the code itself
        return (
            "What killed it is not known. It may have run into a limit of the sandbox: "
            f"{Cause.MEMORY} ({limits[Cause.MEMORY]})."
        )
    else:
        return None
    return told(cause, limits[cause]) if cause in limits else None


def told(cause: Cause, field: str) -> str:
    """The sentence that names a limit, and the config field that sets it."""
    # it may be nowhere else either
    how = "It may have run" if cause is Cause.UNSEEN else "This ran"
    return f"{how} into a limit of the sandbox: {cause} ({field})."
