"""Makes a container with the settings given as JSON, prints its own process id, and ends without another word."""

from __future__ import annotations

import asyncio
import json
import os
import sys

from codeact_team.executors.docker import DockerCommandLineCodeExecutor

asyncio.run(DockerCommandLineCodeExecutor(**json.loads(sys.argv[1])).start())
print(os.getpid(), flush=True)
os._exit(0)
