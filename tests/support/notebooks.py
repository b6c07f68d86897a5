"""The notebooks of ``tests/notebooks``: their cells, what Jupyter shows for each, and whether a session shows the same kind of thing.

A cell's ``# %%`` may be followed by ``varies``: what is shown depends on the machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from codeact_team.text.screen_text import settled

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
ON_EACH_PYTHON = ("first_steps", "generators", "processes")
"""Notebooks with forty cells, among them all that start processes."""

_PACKAGES = re.compile(r"^# packages: (.*)$", re.MULTILINE)
_SEPARATOR = re.compile(r"^# %%( varies)?\n", re.MULTILINE)
_LONG = 1000
"""Characters of a text. Of a longer one the beginning is kept: Jupyter and a session leave out different parts of it."""


@dataclass(frozen=True)
class Shown:
    """What Jupyter shows for a cell.

    Attributes:
        texts: What is printed and the values that are nothing but text; a new one where something else is shown in between. Of a
            long one, the beginning.
        rich: The types of each output that is more than text.
        error: The name of the class of the error that ends the cell.
        more: Whether there is text besides ``texts``: on stderr, in the pager, the rest of a long one.
        varies: Whether the text, of which ``texts`` has nothing then, is another each time.
    """

    texts: Sequence[str] = ()
    rich: Sequence[Sequence[str]] = ()
    error: str = ""
    more: bool = False
    varies: bool = False


@dataclass(frozen=True)
class Notebook:
    """A notebook.

    Attributes:
        name: Its name.
        packages: What its cells import besides the standard library.
        cells: The code of each cell.
        varying: The numbers of the cells, from 1, of which the text depends on the machine.
    """

    name: str
    packages: Sequence[str]
    cells: Sequence[str]
    varying: frozenset[int] = field(default=frozenset())

    def shown(self) -> list[Shown]:
        """What Jupyter shows for each cell."""
        return [Shown(**cell) for cell in json.loads(_record(self.name).read_text())]

    def keep(self, shown: Sequence[Shown]) -> None:
        """Write that, without what is as usual."""
        cells = [{key: value for key, value in asdict(cell).items() if value} for cell in shown]
        lines = ",\n".join(json.dumps(cell, ensure_ascii=False) for cell in cells)
        _record(self.name).write_text(f"[\n{lines}\n]\n")


def names() -> list[str]:
    """The names of all notebooks."""
    return sorted(path.stem for path in NOTEBOOKS.glob("*.ipy"))


def read(name: str) -> Notebook:
    """Read a notebook."""
    head, *rest = _SEPARATOR.split((NOTEBOOKS / f"{name}.ipy").read_text())
    packages = _PACKAGES.search(head)
    varying = frozenset(number for number, varies in enumerate(rest[::2], start=1) if varies)
    return Notebook(
        name, packages[1].split(", ") if packages else [], [code.strip("\n") for code in rest[1::2]], varying
    )


def readable(text: str) -> str:
    """What a terminal shows of a text in the end, in one line, without addresses, colours, and what IPython writes otherwise of classes and functions."""
    text = re.sub(r"(?: object)? at 0x[0-9a-f]+", "", settled(text))
    text = re.sub(r"<class '([\w.]+)'>", r"\1", text)
    text = re.sub(r"<(?:built-in )?(?:function|bound method) (?:__main__\.)?(\w+)[^<>]*>", r"<\1>", text)
    return " ".join(text.split())


def beginning(text: str) -> str:
    """The text, or the beginning of a long one."""
    return text if len(text) <= _LONG else text[: _LONG // 2]


def difference(shown: Shown, output: str, exit_code: int, types: Sequence[str]) -> str | None:
    """What a session shows otherwise than Jupyter.

    Args:
        shown: What Jupyter shows.
        output: The text of the session.
        exit_code: Its exit code.
        types: The MIME types of its artifacts.
    """
    return (
        _other_types(shown.rich, types)
        or _other_error(shown, output, exit_code)
        or _other_text(shown, output)
    )


def _other_types(rich: Sequence[Sequence[str]], types: Sequence[str]) -> str | None:
    left = [_kind(each) for each in types]
    for outputs in rich:
        kinds = {_kind(each) for each in outputs}
        if not left or left[0] not in kinds:
            return f"it shows {types} and not one of each of {rich}"
        # one output may come in several of its types
        while left and left[0] in kinds:
            kinds.remove(left.pop(0))
    return f"it shows {left} besides" if left else None


def _kind(mime_type: str) -> str:
    """A picture is one in whatever format."""
    return "image" if mime_type.startswith("image/") else mime_type


def _other_error(shown: Shown, output: str, exit_code: int) -> str | None:
    if not shown.error:
        return f"it fails: {output[-500:]}" if exit_code else None
    # a session tells of the exit by its code
    if shown.error == "SystemExit" or re.search(rf"\b{shown.error}\b", output):
        return None
    return f"it shows no {shown.error}: {output[-500:]}"


def _other_text(shown: Shown, output: str) -> str | None:
    left = _bare(output)
    if shown.varies:
        return None if left else "it shows no text"
    besides = ""
    for text in shown.texts:
        before, found, left = left.partition(_bare(text))
        if not found:
            return f"it shows {before!r} and not {text!r}"
        besides += before
    besides += left
    if shown.more and not besides:
        return "it shows nothing of what is on stderr or in the pager"
    may_be = shown.more or shown.error or shown.rich
    return f"it shows {besides!r} besides" if besides and not may_be else None


def _bare(text: str) -> str:
    """A text without white space: IPython breaks long values into lines."""
    return "".join(readable(text).split())


def _record(name: str) -> Path:
    return NOTEBOOKS / f"{name}.json"
