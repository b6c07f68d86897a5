"""Every command and every code block of the pages does what the page says."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from documents import PAGES, ROOT, blocks_of
from running import PageRun, environment_of, replies_of
from support.openai_server import ScriptedServer

_NEEDS_DOCKER = re.compile(
    r"Docker\w+Executor\(|open_sandbox\(\"docker\"|codeact-team \w+ (team|codeact|tools|executor|local-model)(?![\w.-])"
)


def _parameter(name: str) -> object:
    needs_docker = any(_NEEDS_DOCKER.search(block.text) for block in blocks_of(PAGES[name]))
    # that of the README installs pandas, and runs in a container
    marks = [
        *([pytest.mark.docker] if needs_docker else []),
        *([pytest.mark.long] if name != "tutorial" else []),
    ]
    return pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", [_parameter(name) for name, page in PAGES.items() if blocks_of(page)])
def test_the_blocks_of_a_page_print_what_it_shows(name: str, tmp_path: Path) -> None:
    if name in ("README", "guides/first-hour"):  # which one reads in a checkout
        shutil.copytree(ROOT / "examples", tmp_path / "examples")
    with ScriptedServer.in_thread(replies_of(name)) as server:
        with PageRun(name, tmp_path, environment_of(tmp_path, server.base_url)) as run:
            run.run(PAGES[name])
        assert not server.unused, "the page asks the model less often than is scripted"
