"""Where pip installs for its user, which earlier code may have been: found by the code, and not run before it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.supervisor import supervised


def test_an_interpreter_finds_what_is_installed_there_and_runs_nothing_of_it_at_its_start(
    tmp_path: Path,
) -> None:
    # an environment of its own, such as that of the tests, has no such place
    python = os.path.realpath(sys.executable)
    environment = {"PYTHONUSERBASE": str(tmp_path / "base")}
    about = [python, "-c", "import site; print(site.getusersitepackages(), end='')"]
    packages = Path(subprocess.check_output(about, env=environment, text=True))
    packages.mkdir(parents=True)
    (packages / "beside.py").write_text("words = 'beside'")
    for name in ("usercustomize.py", "sitecustomize.py", "first.pth"):
        (packages / name).write_text("import builtins; builtins.planted = True\n")
    asked = "import builtins, os, beside; print(beside.words, hasattr(builtins, 'planted'), os.environ['PYTHONUSERBASE'])"
    # what is looked for there is there
    plain = subprocess.check_output([python, "-c", asked], env=environment, text=True)
    assert plain == f"beside True {tmp_path}/base\n"
    with supervised(tmp_path, python=python, environment=environment) as one:
        for _ in range(2):
            assert one.run(asked).text == f"beside False {tmp_path}/base\n"
            one.restart()
