"""``killed_run.py``, where all names below ``.test`` are this machine's."""

from __future__ import annotations

import runpy
import socket
from pathlib import Path
from typing import Any

look_up = socket.getaddrinfo


def look_up_here(host: Any, *arguments: Any, **named: Any) -> Any:
    is_here = isinstance(host, str) and host.endswith(".test")
    return look_up("127.0.0.1" if is_here else host, *arguments, **named)


if __name__ == "__main__":
    socket.getaddrinfo = look_up_here
    runpy.run_path(str(Path(__file__).with_name("killed_run.py")), run_name="__main__")
