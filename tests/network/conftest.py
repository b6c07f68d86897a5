from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest
from support.egress import Upstream, name_loopback, serving
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


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names below ``.test`` are this machine; the list has those that were looked up."""
    return name_loopback(monkeypatch)


@pytest.fixture
async def upstream() -> AsyncGenerator[Upstream]:
    one = Upstream()
    async with serving(one):
        yield one
