"""Make identifiers of foreign names."""

from __future__ import annotations

import keyword
import unicodedata
from collections.abc import Collection, Sequence

RESERVED = frozenset({"Media", "ToolDenied", "ToolError", "ToolTimeout"})
"""What the module ``tools`` has beside the tools."""

_MAX_LENGTH = 100


def identifier(text: str, instead: str) -> str:
    """Make the identifier that is most like ``text``. It is never private, and never a keyword.

    One that would not begin with a letter begins with ``instead``.
    """
    # as Python itself reads names
    text = unicodedata.normalize("NFKC", text[:_MAX_LENGTH])[:_MAX_LENGTH]
    name = "".join(char if f"_{char}".isidentifier() else "_" for char in text).lstrip("_")
    if not name.isidentifier():
        name = f"{instead}_{name}".rstrip("_")
    return f"{name}_" if keyword.iskeyword(name) else name


def assign(names: Sequence[str], instead: str, *, reserved: Collection[str] = ()) -> list[str]:
    """Make a different identifier for each of ``names``, in their order.

    A name that is an identifier stays as it is. One that is taken gets a number.
    """
    wanted = [identifier(name, instead) for name in names]
    wanted = [f"{name}_" if name in reserved else name for name in wanted]
    taken: set[str] = set(reserved)
    numbers: dict[str, int] = {}
    assigned: dict[int, str] = {}
    for index in sorted(range(len(names)), key=lambda index: wanted[index] != names[index]):
        base = name = wanted[index]
        while name in taken:
            numbers[base] = numbers.get(base, 1) + 1
            name = f"{base}_{numbers[base]}"
        taken.add(name)
        assigned[index] = name
    return [assigned[index] for index in range(len(names))]
