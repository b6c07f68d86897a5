"""Parses JSON that anybody may have written, in an amount of memory that is bounded by its parts."""

from __future__ import annotations

import json

from pydantic import JsonValue

MAX_PARTS = 1 << 20
"""Values and keys; each takes about a hundred bytes, however short it is written."""


def parse(data: bytes) -> JsonValue:
    """The value that is written as JSON.

    Raises:
        ValueError: If it is no JSON, is nested too deeply, or has too many parts.
    """
    # a text is one part, whatever is in it
    if not data.startswith(b'"') and parts_of(data) > MAX_PARTS:
        raise ValueError(f"it has more than {MAX_PARTS:,} parts")
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parts_of(data: bytes) -> int:
    """At least as many as the values in a text of JSON."""
    return sum(map(data.count, (b",", b"[", b"{", b":"))) + 1
