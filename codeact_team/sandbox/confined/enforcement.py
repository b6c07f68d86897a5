"""What the kernel really enforces on this machine, found by trial, and whether that is enough."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager, suppress
from enum import StrEnum
from pathlib import Path

from codeact_team.core.files import resolved
from codeact_team.errors import ConfinementError
from codeact_team.sandbox.base import Process, warn_once
from codeact_team.sandbox.temporary import TemporaryDirectory, places


class Enforced(StrEnum):
    """What confinement can enforce."""

    READS = "reads"
    """Only the interpreter, system libraries and the workspace can be read, and nothing of the supervising process."""
    WRITES = "writes"
    """Only the workspace and a temporary directory can be changed."""
    NETWORK = "network"
    """No sockets but those between the program's own processes."""
    OTHERS = "other processes"
    """No signals to processes outside, and no limits set for them."""
    MODES = "set-id modes"
    """No files that run with the rights of their owner."""
    MEMORY = "memory"
    """How much of it the code reserves."""
    PROCESSES = "number of processes"


REQUIRED = frozenset({Enforced.READS, Enforced.WRITES, Enforced.NETWORK, Enforced.MODES})
"""What ``confinement: required`` needs."""

_LONGEST_PLACE = 66
"""Bytes; the name of a socket in a directory below it must not be longer than about 104."""
_PROBE = Path(__file__).with_name("probe.py").read_bytes()


@contextmanager
def something_outside(*granted: Path | str) -> Generator[Path]:
    """A directory outside ``granted`` with what the probe tries to reach."""
    inside = [resolved(path) for path in granted]
    for place in places():
        fits = len(os.fsencode(place)) <= _LONGEST_PLACE and os.access(place, os.W_OK)
        if fits and not any(place.is_relative_to(path) for path in inside):
            break
    else:
        raise ConfinementError(
            f"Confinement cannot be checked: no temporary directory is outside of {', '.join(map(str, granted))}. "
            "Choose a smaller work_dir."
        )
    with TemporaryDirectory(place) as outside:
        (outside / "secret").write_text("secret")
        with (
            closing(socket.socket(socket.AF_UNIX)) as named,
            closing(socket.socket(socket.AF_UNIX)) as abstract,
        ):
            named.bind(str(outside / "socket"))
            named.listen()
            if sys.platform == "linux":
                abstract.bind(f"\0{outside}")
                abstract.listen()
            yield outside


async def read_probe(process: Process) -> frozenset[Enforced]:
    """What the probe finds refused, which is to run as ``process``."""
    await process.write(_PROBE)
    await process.close_stdin()
    output = b""
    while chunk := await process.read():
        output += chunk
    exit = await process.wait()
    with suppress(ValueError):
        return frozenset(map(Enforced, json.loads(output)))
    said = [output.decode(errors="replace").strip()[-1000:], exit.lost or f"exit code {exit.code}"]
    raise ConfinementError(
        f"The interpreter {sys.executable} does not run confined: {'; '.join(filter(None, said))}. If it needs more of "
        "this machine than its own installation and the system's libraries, name that in `readable`."
    )


def judge(enforced: frozenset[Enforced], reasons: Mapping[str, str | None], *, required: bool) -> None:
    """Refuse to go on without :data:`REQUIRED`, if that is required; say once what else is missing, and the reasons."""
    missing = [what for what in Enforced if what not in enforced]
    if not missing:
        return
    why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items() if reason)
    why = f" ({why})" if why else ""
    if required and not enforced >= REQUIRED:
        raise ConfinementError(
            f"This machine does not enforce what `confinement: required` needs; missing: {', '.join(missing)}{why}. Use "
            "a Docker executor, or a Linux kernel 6.12 with Landlock; or set `confinement: best_effort` for code that "
            "you trust with what is missing."
        )
    warn_once(
        f"confined code is not kept from everything on this machine; not enforced: {', '.join(missing)}{why}"
    )
