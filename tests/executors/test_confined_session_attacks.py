"""Code in a confined session, which may be a fork of the zygote, gets no further than a program."""

from __future__ import annotations

import glob
import json
import os
import sys
from pathlib import Path

import pytest
from sandboxes.confined_host import ATTACKS, targets
from sandboxes.confined_support import skip_if_not_confined
from support.executing import run

from codeact_team.executors.confined import ConfinedSessionCodeExecutor

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="code is confined on Linux only")

_ITS_OWN = {"have a descriptor of the host"}
"""An interpreter has pipes of its own to its supervisor."""


@pytest.mark.parametrize("environment", [{}, {"ANY": "1"}], ids=["a fork", "a program"])
async def test_no_attack_succeeds(environment: dict[str, str], tmp_path: Path) -> None:
    skip_if_not_confined()
    executor = ConfinedSessionCodeExecutor(work_dir=tmp_path, packages=[], environment=environment)
    with targets() as (outside, port, terminal):
        places = [
            place
            for place in ("/", *glob.glob("/*/"), *glob.glob("/*/*/"))
            if not place.endswith(("/shm/", "/tmp/"))
        ]
        arguments = ["", str(os.getpid()), outside, str(port), terminal, *places]
        code = f"import sys\nsys.argv = {arguments}\n{ATTACKS.decode().replace('from __future__ import annotations', '')}"
        result = await run(executor, code)
        again = await run(executor, "main()")
    await executor.stop()
    for each in (result, again):
        assert set(json.loads(each.output)) == _ITS_OWN
