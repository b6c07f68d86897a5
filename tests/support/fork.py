"""Has the fork server run a Python program on this process's standard streams, and ends as it does.

Its arguments are the server's address and what the command line has behind ``python``.
"""

from __future__ import annotations

import json
import os
import socket
import sys

with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asked:
    asked.connect(sys.argv[1])
    request = {
        "arguments": sys.argv[2:],
        "cwd": os.getcwd(),
        "environment": dict(os.environ),
        "terminal": False,
        "nohup": False,
    }
    socket.send_fds(asked, [json.dumps(request).encode()], [0, 1, 2])
    asked.recv(16)
    code, _ = asked.recv(64).split()
    # the number of a signal has no meaning to whoever has started this one
    sys.exit(max(int(code), -1))
