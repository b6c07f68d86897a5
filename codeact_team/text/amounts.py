"""Numbers of things and of bytes in words."""

from __future__ import annotations

_UNITS = (("kB", 10**3), ("MB", 10**6), ("GB", 10**9))


def size_of(size: int) -> str:
    """A number of bytes for a person."""
    if size < 1000:
        return counted(size, "byte")
    unit, power = next(((unit, power) for unit, power in _UNITS if size < 1000 * power), _UNITS[-1])
    return f"{size / power:,.1f} {unit}"


def counted(number: int, noun: str) -> str:
    """A number of things, with the noun in the singular or the plural."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
