"""What ``%%capture`` keeps of a block: its output, that of programs included."""

from __future__ import annotations

import os
import sys
from tempfile import TemporaryFile

from codeact_team.session.runner.interpreter.user_code import interruptible_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO

interruptible_module(__name__)

_DESCRIPTORS = {"stdout": 1, "stderr": 2}


class Captured:
    """The output of a block, as IPython's object of this kind has it.

    Attributes:
        stdout: What it has printed.
        stderr: What it has written to standard error.
    """

    def __init__(self, stdout: str, stderr: str) -> None:
        self.stdout: str = stdout
        self.stderr: str = stderr

    def __str__(self) -> str:
        return self.stdout

    def show(self) -> None:
        """Write all of it to the output of the present block."""
        sys.stdout.write(self.stdout)
        sys.stderr.write(self.stderr)

    __call__ = show


class Capture:
    """Redirects what a block writes, except for ``leaving_out``, until :meth:`end`. A failure of the block ends it, too."""

    def __init__(self, leaving_out: set[str]) -> None:
        self._files: dict[str, tuple[int, IO[bytes]]] = {}
        _flush()
        for name in _DESCRIPTORS.keys() - leaving_out:
            file = TemporaryFile()
            self._files[name] = os.dup(_DESCRIPTORS[name]), file
            os.dup2(file.fileno(), _DESCRIPTORS[name])

    def end(self) -> Captured:
        """Let the block write to its own output again. Returns what it has written meanwhile."""
        _flush()
        texts = dict.fromkeys(_DESCRIPTORS, "")
        for name, (own, file) in self._files.items():
            os.dup2(own, _DESCRIPTORS[name])
            os.close(own)
            file.seek(0)
            texts[name] = file.read().decode("utf-8", "replace")
            file.close()
        return Captured(**texts)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
