"""Puts what is in one directory in the place of what is in another, and leaves alone what is the same there."""

from __future__ import annotations

import os
import stat

from codeact_team.core import trees


def replace_content(source: str, target: str, leave_out: str) -> None:
    """Move what is in ``source`` to ``target``, of which nothing else is kept but what is left out.

    A file that has not been written to since it was copied stays the same file: it is no news to whoever watches.

    Args:
        source: A directory.
        target: Another one.
        leave_out: How the paths of what is left out begin, below ``target``.

    Raises:
        OSError: If something cannot be moved or removed; then it is half done.
    """
    left_out = os.path.join(target, leave_out)
    pending = [(source, target)]
    while pending:
        here, there = pending.pop()
        new, old = _entries(here), _entries(there)
        for name, status in old.items():
            goal = os.path.join(there, name)
            is_directory = stat.S_ISDIR(status.st_mode)
            if goal.startswith(left_out):
                new.pop(name, None)
            elif name in new and is_directory and stat.S_ISDIR(new[name].st_mode):
                pending.append((os.path.join(here, name), goal))
                del new[name]
            elif name in new and _is_same(status, new[name]):
                del new[name]
            elif left_out.startswith(goal + os.sep):
                # what is left out may be in it
                new.pop(name, None)
            elif is_directory:
                trees.remove(goal)
            else:
                os.unlink(goal)
        for name in new:
            os.rename(os.path.join(here, name), os.path.join(there, name))


def _entries(directory: str) -> dict[str, os.stat_result]:
    with os.scandir(directory) as entries:
        return {entry.name: entry.stat(follow_symlinks=False) for entry in entries}


def _is_same(one: os.stat_result, other: os.stat_result) -> bool:
    return (
        stat.S_ISREG(one.st_mode)
        and (one.st_mode, one.st_size, one.st_mtime_ns) == (other.st_mode, other.st_size, other.st_mtime_ns)
        # else it has got another name there
        and one.st_nlink >= other.st_nlink
    )  # fmt: skip
