from __future__ import annotations

from collections.abc import Generator

import pytest
from playwright.sync_api import Browser
from support.browsing import Elsewhere, chromium, listening


@pytest.fixture
def browser() -> Generator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def elsewhere() -> Generator[Elsewhere]:
    with listening() as elsewhere:
        yield elsewhere
