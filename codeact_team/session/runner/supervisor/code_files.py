"""Files of code that is run: from where only this sandbox can write, with a copy in the workspace, which others may share."""

from __future__ import annotations

import os
from contextlib import suppress

from codeact_team.files import trees


def write(path: str, private: str, code: bytes) -> None:
    """Write the code of a block in place of the block before.

    Args:
        path: The file, below the working directory. Something else in its place is replaced; no link is followed there.
        private: The directory that gets the code to be run, under the name of the file. It is made anew.
        code: The code.

    Raises:
        OSError: If a file cannot be written.
    """
    with suppress(FileNotFoundError):
        trees.remove(private)
    os.mkdir(private, 0o700)
    _write(os.path.join(private, os.path.basename(path)), code)
    if directory := os.path.dirname(path):
        os.makedirs(directory, exist_ok=True)
    with suppress(FileNotFoundError):
        os.unlink(path)
    _write(path, code)


def without_user_packages() -> dict[str, str]:
    """The variable for a Python that runs no file of its user at its start, which may be an earlier block's.

    ``run_python.py`` makes up for it.
    """
    return {"PYTHONUSERBASE": f"/dev/null/{os.environ.get('PYTHONUSERBASE', '')}"}


def _write(path: str, code: bytes) -> None:
    # anew, so that no link is followed
    with open(path, "xb") as file:
        file.write(code)
