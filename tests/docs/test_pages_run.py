"""Every command and every code block of the pages does what the page says."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import PAGES, blocks_of
from running import PageRun, environment_of, replies_of
from support.openai_server import ScriptedServer

NEEDS_DOCKER = {"README"}


def _parameter(name: str) -> object:
    return pytest.param(name, marks=[pytest.mark.docker] if name in NEEDS_DOCKER else [])


@pytest.mark.parametrize("name", [_parameter(name) for name, page in PAGES.items() if blocks_of(page)])
def test_the_blocks_of_a_page_print_what_it_shows(name: str, tmp_path: Path) -> None:
    with ScriptedServer.in_thread(replies_of(name)) as server:
        with PageRun(name, tmp_path, environment_of(tmp_path, server.base_url)) as run:
            run.run(PAGES[name])
        assert not server.unused, "the page asks the model less often than is scripted"
