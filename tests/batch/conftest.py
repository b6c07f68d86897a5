"""One template of sandboxes for all tests."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from support.executing import template_kept


@pytest.fixture(scope="session", autouse=True)
def template() -> Generator[None]:
    with template_kept():
        yield
