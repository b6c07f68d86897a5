"""Match globs of rules with the texts of a value."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from pydantic import JsonValue

from codeact_team.approval.question import as_json, with_leaves

LONGEST_MATCHED = 100_000
"""Characters that a glob is matched with. A match takes time in proportion to them, and the event loop waits."""

_SITE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")
_ENCODED_DOT = re.compile("%2e", re.IGNORECASE)


def matches(glob: str, text: str | None) -> bool | None:
    """Tell whether the whole text fits; ``None`` if it is too long to tell, or there is none."""
    if not glob.strip("*"):
        return True
    if text is None or len(text) > LONGEST_MATCHED:
        return None
    return fnmatchcase(text, glob)


def matches_value(glob: str, value: JsonValue, *, allowing: bool) -> bool | None:
    """Tell whether a value fits, in whatever way it is written.

    What restricts has to notice a value in any notation. What allows must not be misled by one: a glob with a slash sees
    the path without detours only, any other has to fit with them and without.

    Returns:
        ``None`` if the value is too long to tell, or nested too deeply.
    """
    if not glob.strip("*"):
        return True
    if isinstance(value, float) and value.is_integer():
        return _any([matches(glob, as_json(value)), matches(glob, json.dumps(value))])
    direct = matches(glob.removeprefix("./"), _text(without_detours(value)))
    if allowing and "/" in glob:
        return direct
    both = [direct, matches(glob, _text(value))]
    return _all(both) if allowing else _any(both)


def without_detours(value: JsonValue) -> JsonValue:
    """Resolve ``.``, ``..`` and doubled slashes in the paths and URLs of a value."""
    try:
        return with_leaves(value, lambda leaf: _straight(leaf) if isinstance(leaf, str) else leaf)
    except RecursionError:
        # as JSON it is too deep as well
        return value


def _straight(text: str) -> str:
    site = _SITE.match(text)
    head, path, tail = "", text, ""
    if site is not None:
        head, rest = site[0], text[site.end() :]
        path = re.split("[?#]", rest, maxsplit=1)[0]
        tail = rest[len(path) :]
        path = _ENCODED_DOT.sub(".", path)
    if "/" not in path:
        return text
    root = "/" if path.startswith("/") else ""
    steps: list[str] = []
    for step in path.split("/"):
        if step == ".." and (steps and steps[-1] != ".."):
            steps.pop()
        elif step not in ("", ".") and not (step == ".." and root):
            steps.append(step)
    # a folder's path may end with a slash, and then still does
    end = "/" if steps and path.endswith(("/", "/.", "/..")) else ""
    return f"{head}{root}{'/'.join(steps) or ('' if root else '.')}{end}{tail}"


def _text(value: JsonValue) -> str | None:
    return value if isinstance(value, str) else as_json(value)


def _any(matched: Sequence[bool | None]) -> bool | None:
    return True if True in matched else None if None in matched else False


def _all(matched: Sequence[bool | None]) -> bool | None:
    return False if False in matched else None if None in matched else True
