"""An option of the tests of the documents."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-picture", action="store_true", help="write the picture of a run for the README")
