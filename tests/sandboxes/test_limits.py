"""Which limit is to blame, by messages as programs really wrote them in a sandbox."""

from __future__ import annotations

import re

import pytest

from codeact_team.sandbox.base import Cause, diagnose

LIMITS = {cause: f"{cause.name.lower()}_field: 1" for cause in Cause}

SEEN = [
    (Cause.NETWORK, "socket.gaierror: [Errno -3] Temporary failure in name resolution"),
    (Cause.NETWORK, "urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>"),
    (Cause.NETWORK, "OSError: [Errno 101] Network is unreachable"),
    (Cause.NETWORK, "curl: (6) Could not resolve host: example.com"),
    (Cause.NETWORK, "wget: bad address 'example.com'"),
    (Cause.NETWORK, "fatal: unable to access 'https://github.com/x/': Could not resolve host: github.com"),
    (Cause.NETWORK, "Err:1 http://deb.debian.org trixie\n  Temporary failure resolving 'deb.debian.org'"),
    (Cause.NETWORK, "Error: getaddrinfo EAI_AGAIN registry.npmjs.org"),
    (Cause.NETWORK, "Exception in thread \"main\" java.net.UnknownHostException: example.com"),
    (Cause.NETWORK, "OSError: [Errno 113] No route to host"),
    (Cause.NETWORK, "    self.sock = socket.create_connection(\nPermissionError: [Errno 1] Operation not permitted"),
    (Cause.NETWORK, "    self.socket = socket.socket(self.address_family,\n    " + "^" * 300 + "\nPermissionError: [Errno 13] Permission denied"),
    (Cause.READ_ONLY, "OSError: [Errno 30] Read-only file system: '/usr/x'"),
    (Cause.READ_ONLY, "touch: cannot touch '/etc/x': Read-only file system"),
    (Cause.READ_ONLY, "Error: EROFS: read-only file system, open '/x'"),
    (Cause.DISK, "OSError: [Errno 28] No space left on device"),
    (Cause.DISK, "head: error writing 'standard output': No space left on device"),
    (Cause.DISK, "OSError: [Errno 27] File too large"),
    (Cause.PROCESSES, "RuntimeError: can't start new thread"),
    (Cause.PROCESSES, "BlockingIOError: [Errno 11] Resource temporarily unavailable"),
    (Cause.PROCESSES, "sh: 1: Cannot fork"),
    (Cause.PROCESSES, "sh: can't fork: Resource temporarily unavailable"),
    (Cause.PROCESSES, "bash: fork: retry: Resource temporarily unavailable"),
    (Cause.PROCESSES, "OpenBLAS blas_thread_init: pthread_create failed for thread 1 of 8: Resource temporarily"),
    (Cause.MEMORY, "    x = bytearray(10**12)\nMemoryError"),
    (Cause.MEMORY, "numpy.core._exceptions._ArrayMemoryError: Unable to allocate\nOSError: Cannot allocate memory"),
    (Cause.MEMORY, "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory"),
    (Cause.MEMORY, "terminate called after throwing an instance of 'std::bad_alloc'"),
    (Cause.FILES, "PermissionError: [Errno 13] Permission denied: '/root/x'"),
    (Cause.FILES, "cat: /etc/shadow: Permission denied"),
    (Cause.UNSEEN, "FileNotFoundError: [Errno 2] No such file or directory: '/data/table.csv'"),
    (Cause.UNSEEN, "cat: /data/table.csv: No such file or directory"),
    (Cause.UNSEEN, "ls: cannot access '/data': No such file or directory"),
]  # fmt: skip


@pytest.mark.parametrize(("cause", "output"), SEEN)
def test_messages_of_programs(cause: Cause, output: str) -> None:
    said = diagnose(LIMITS, exit_code=1, output=output)
    is_of_the_kernel = re.match(
        r"(?:\w+\.)*(?:OS|BlockingIO|Memory|Permission|URL)Error|socket.gaierror", output.split("\n")[-1]
    )
    how = "This ran" if is_of_the_kernel and cause is not Cause.UNSEEN else "It may have run"
    field = f"{cause.name.lower()}_field: 1"
    assert said == f"{how} into a limit of the sandbox: {cause} ({field})."
    # a limit that is not in force is not to blame
    without = {other: field for other, field in LIMITS.items() if other is not cause}
    assert cause.name.lower() not in (diagnose(without, exit_code=1, output=output) or "")


@pytest.mark.parametrize(
    "output",
    [
        "",
        "ValueError: network memory disk",
        "ConnectionRefusedError: [Errno 111] Connection refused",
        "FileNotFoundError: [Errno 2] No such file or directory: 'x'",
        "ModuleNotFoundError: No module named 'numpy'",
        "[Errno 28] No space left on device\nTraceback (most recent call last):\n  int('x')\nValueError: invalid literal",
    ],
)
def test_failures_of_the_codes_own(output: str) -> None:
    assert diagnose(LIMITS, exit_code=1, output=output) is None


def test_what_code_has_printed_is_no_proof() -> None:
    for output in ("MemoryError\ndone", "sh: can't fork", "ValueError: [Errno 28] No space left on device"):
        assert (diagnose(LIMITS, exit_code=1, output=output) or "").startswith("It may have run into")


@pytest.mark.parametrize(("_", "output"), SEEN[:3])
def test_success_needs_no_excuse(_: Cause, output: str) -> None:
    assert diagnose(LIMITS, exit_code=0, output=output, oom_kills=1, fork_failures=1) is None


def test_what_the_kernel_counted_counts() -> None:
    def cause(**known: int) -> str | None:
        said = diagnose(LIMITS, **{"exit_code": 1, "output": "", **known})  # pyright: ignore[reportArgumentType]
        if said is None:
            return None
        opening, _, limit = said.partition(": ")
        assert ("not known" in opening) == (known == {"exit_code": 137})
        return limit.partition(" (")[0]

    assert cause(oom_kills=1) == Cause.MEMORY
    assert cause(fork_failures=3) == Cause.PROCESSES
    assert cause(oom_kills=0, fork_failures=0) is None
    # killed: maybe by the memory limit, unless it is known that this did not happen
    assert cause(exit_code=137) == Cause.MEMORY
    assert cause(exit_code=137, oom_kills=0) is None
    # SIGXFSZ
    assert cause(exit_code=153) == Cause.DISK
