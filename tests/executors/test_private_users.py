"""A sandbox has a user of its own if root starts it, as Linux counts some limits for each user."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support.executing import KINDS, LIVING, Kind, run, usually
from support.small_disk import mounted

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the users of Linux"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can give code to another user"),
]

# signals that wait are counted for the user, and their process keeps them
FILL = """
import ctypes, os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMIN})
libc = ctypes.CDLL(None)
count = 0
while libc.sigqueue(os.getpid(), signal.SIGRTMIN, None) == 0:
    count += 1
print(count, os.getuid(), os.getgid(), os.getgroups())
"""


@usually("confined-session", among=LIVING)
async def test_what_one_sandbox_uses_up_another_still_has(kind: Kind) -> None:
    async with kind.make() as first, kind.make() as second:
        said = [(await run(executor, FILL)).output.split() for executor in (first, second)]
    counts, users, groups, more = zip(*said, strict=True)
    assert all(int(count) > 900 for count in counts), said
    assert len({*users}) == 2
    assert "0" not in users
    assert groups == users
    assert {*more} <= {"[]", *(f"[{user}]" for user in users)}


@pytest.mark.parametrize("mode", [0o700, pytest.param(0o755, marks=pytest.mark.long)], ids=oct)
async def test_confined_code_shares_the_files_of_root_that_it_may_use(mode: int, tmp_path: Path) -> None:
    work_dir, readable = tmp_path / "work", tmp_path / "readable"
    for directory in (work_dir, readable):
        directory.mkdir(mode)
        (directory / "text").write_text("of root")
        (directory / "text").chmod(0o600)
    code = f"""
import os
print(open('text').read(), open({str(readable / "text")!r}).read(), os.getuid() == os.stat('text').st_uid)
with open('text', 'a') as file: file.write(', and code')
os.mkdir('new')
try: open({str(readable / "new")!r}, 'w')
except OSError as error: print(error.strerror)
"""
    umask = os.umask(0o077)
    try:
        async with KINDS["confined-session"].make(work_dir=work_dir, readable=[str(readable)]) as executor:
            assert (await run(executor, code)).output == "of root of root True\nRead-only file system\n"
    finally:
        os.umask(umask)
    assert (work_dir / "text").read_text() == "of root, and code"
    assert {path.stat().st_uid for path in work_dir.iterdir()} == {0}


async def test_confined_code_is_roots_without_its_rights_where_no_other_owner_can_be_shown(
    tmp_path: Path,
) -> None:
    work_dir = tmp_path / "work"
    code = "import os; print(os.getuid(), [line for line in open('/proc/self/status') if 'CapEff' in line])"
    with mounted(work_dir, "ramfs"):
        async with KINDS["confined-session"].make(work_dir=work_dir) as executor:
            said = (await run(executor, code)).output
            assert (await run(executor, "open('text', 'w').write('its own')")).exit_code == 0
    assert said == "0 ['CapEff:\\t0000000000000000\\n']\n"
