"""Parameters of which some are tried usually, and the others where long tests run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def mostly_long(values: Iterable[Any], *, usual: int = 1) -> list[Any]:
    """The values as parameters of a test, which is long with those behind the first ``usual`` ones."""
    return [
        value
        if number < usual
        else pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.long)
        for number, value in enumerate(values)
    ]
