from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.supervisor import Supervised

from codeact_team.session.protocol import MAX_FILE_BYTES, MAX_LISTED_FILES


def test_a_file_that_is_too_large_is_not_sent(supervisor: Supervised, workspace: Path) -> None:
    with (workspace / "sparse").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    assert supervisor.get("sparse") == "OSError"


def test_a_pipe_or_a_device_in_a_files_place_is_not_waited_for(
    supervisor: Supervised, workspace: Path
) -> None:
    os.mkfifo(workspace / "pipe")
    (workspace / "device").symlink_to("/dev/zero")
    assert supervisor.get("pipe") == "OSError"
    assert supervisor.get("device") == "OSError"
    assert supervisor.files() == {}
    assert supervisor.put("pipe", b"x") is None
    assert supervisor.get("pipe") == b"x"


def test_a_planted_link_is_replaced_and_not_followed(supervisor: Supervised, workspace: Path) -> None:
    # code planted a link where the next file was to be written, and another file was overwritten
    other = workspace.parent / "other"
    other.write_bytes(b"precious")
    (workspace / "link").symlink_to(other)
    assert supervisor.put("link", b"new") is None
    assert (other.read_bytes(), supervisor.get("link")) == (b"precious", b"new")


def test_links_are_not_listed_nor_followed(supervisor: Supervised, workspace: Path) -> None:
    (workspace / "file").write_bytes(b"123")
    (workspace / "link").symlink_to("file")
    (workspace / "loop").symlink_to(".")
    assert supervisor.files() == {"file": 3}


def test_a_long_list_is_cut(supervisor: Supervised, workspace: Path) -> None:
    # links to one file are made in a third of the time
    (workspace / "first").touch()
    names = [f"{number:05}" for number in range(MAX_LISTED_FILES + 5)]
    for name in names:
        os.link(workspace / "first", f"{workspace}/{name}")
    assert list(supervisor.files()) == names[:MAX_LISTED_FILES]


@pytest.mark.long
def test_a_list_of_long_names_fits_into_its_frame(supervisor: Supervised, workspace: Path) -> None:
    # of each character that JSON escapes it makes six
    (workspace / "first").touch()
    for number in range(3000):
        os.link(workspace / "first", workspace / f"{number:04}{chr(1) * 240}")
    assert 2000 < len(supervisor.files()) < 3000


def test_a_deep_tree_and_odd_names_are_no_problem(supervisor: Supervised, workspace: Path) -> None:
    (workspace / os.fsdecode(b"\xff")).touch()
    # deeper than a path may be long, and than Python recurses
    code = """
        import os
        for _ in range(1100):
            os.mkdir("deep"); os.chdir("deep")
    """.replace("\n        ", "\n")
    supervisor.run(code)
    assert list(supervisor.files()) == ["\ufffd"]


def test_paths_outside_the_workspace_are_refused(supervisor: Supervised) -> None:
    for path in ("", ".", "/etc/passwd", "../x", "a/../../x", "a\0b", "./", "\ud800"):
        assert supervisor.get(path) == "OSError", path
        assert supervisor.put(path, b"x") == "OSError", path
