"""Which tests run: usual ones; benchmarks, long ones and suites when asked for."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from support import fork_server
from support.weak_engine import accept_if_asked
from support.wheels import make_wheel, use_index

pytest_plugins = ["support.forked_workers", "support.processor_time", "support.surroundings"]

_UNIMPORTED = {
    Path(__file__).parent / name: mark
    for mark, names in {
        "benchmark": ["benchmarks"],
        "suites": ["suites"],
        "long": [
            "docs/test_picture.py",
            "docs/test_site.py",
            "inspect_logs",
            "pages/test_pages_in_a_browser.py",
            "test_recipes.py",
        ],
    }.items()
    for name in names
}
"""Where all tests have a mark, by which they are asked for, and which import much or what only an extra installs."""

# each worker would compile all tests anew, and each program of the tests what it imports of the package
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# options of this run, which are none of the suites that tests run
os.environ.pop("PYTEST_ADDOPTS", None)

# nothing here speaks TLS, and to read all the certificates of the machine takes most of the time to make a client
os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)
os.environ.pop("SSL_CERT_FILE", None)

# pytest-asyncio goes back to the loop that was there before a test; where nothing is said it makes one, and nobody closes it
asyncio.set_event_loop(None)

accept_if_asked()

# how long a machine takes to make an example says nothing of the code
settings.register_profile(
    "usual",
    deadline=None,
    max_examples=15,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("thorough", settings.get_profile("usual"), max_examples=300)
settings.load_profile("usual")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-docstrings", action="store_true", help="write what settings mean into the source"
    )


def pytest_configure(config: pytest.Config) -> None:
    if "benchmark" not in config.option.markexpr:
        # one for all workers, and not the user's
        cache = tempfile.TemporaryDirectory(prefix="codeact-team-tests-")
        config.add_cleanup(cache.cleanup)
        os.environ["XDG_CACHE_HOME"] = cache.name
        os.environ["XDG_STATE_HOME"] = os.path.join(cache.name, "state")
    if config.option.workers and not config.option.collectonly:
        # it prepares itself while the tests are collected
        fork_server.address()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    mark = _UNIMPORTED.get(collection_path)
    return True if mark and mark not in config.option.markexpr else None


def pytest_collection_finish() -> None:
    # what takes long the first time, once for all workers: Hypothesis finds out which characters there are
    st.text().validate()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    unasked = [mark for mark in ("benchmark", "long", "suites") if mark not in config.option.markexpr]
    left_out = {item for item in items if any(map(item.get_closest_marker, unasked))}
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=list(left_out))


@pytest.fixture
def offline_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of an index, something by the names of the packages that the shipped configs ask for."""
    index = use_index(tmp_path, monkeypatch)
    for name in ("pandas", "matplotlib"):
        make_wheel(index, name)
    # whoever wants the real ones must not find these
    monkeypatch.setenv("XDG_CACHE_HOME", os.path.join(os.environ["XDG_CACHE_HOME"], "offline"))


@pytest.fixture
def enterable(tmp_path: Path) -> Path:
    """``tmp_path``, which other users of the machine can enter; pytest closes those above it."""
    for directory in (tmp_path, *tmp_path.parents):
        directory.chmod(directory.stat().st_mode | 0o055)
        if directory.parent == Path(tempfile.gettempdir()):
            break
    return tmp_path


@pytest.fixture
def in_memory() -> Generator[Path]:
    """A directory from which a thousand others are removed at once; some disks take many seconds."""
    memory = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=memory if os.path.isdir(memory) else None) as directory:
        yield Path(directory)
