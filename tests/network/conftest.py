from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from support.executing import KINDS, Kind, why_not_confined
from support.executing import zygote as zygote
from support.way_out import Echo, echo_in


@pytest.fixture
def echo(tmp_path: Path) -> Generator[Echo]:
    with echo_in(tmp_path / "outside") as echo:
        yield echo


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> Generator[Kind]:
    """An executor. Afterwards nothing of it is left running."""
    if request.param.startswith("confined") and (reason := why_not_confined()) is not None:
        pytest.skip(reason)
    kind = KINDS[request.param]
    before = kind.held()
    yield kind
    assert kind.held() == before
