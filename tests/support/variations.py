"""Parameters of which some are tried usually, and the others where long tests run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import pytest


def mostly_long(values: Iterable[Any], *, usual: int = 1) -> list[Any]:
    """The values as parameters of a test, which is long with those behind the first ``usual`` ones."""
    return [value if number < usual else _long(value) for number, value in enumerate(values)]


def _long(value: Any) -> Any:
    values = cast("tuple[Any, ...]", value) if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=pytest.mark.long)
