"""A cache of its own for each test, and a directory of wheels in place of a package index."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.wheels import make_wheel, use_index

from codeact_team.executors.packages.layers import Layers
from codeact_team.executors.packages.provision import Provision
from codeact_team.executors.packages.requirements import Requested
from codeact_team.sandbox.confined.config import ConfinedSandboxConfig
from codeact_team.sandbox.confined.sandbox import ConfinedSandbox

Provide = Callable[..., Provision]


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where uv finds packages, and nowhere else."""
    index = use_index(tmp_path, monkeypatch)
    make_wheel(index, "shapes", "1.0")
    make_wheel(index, "shapes", "2.0", requires=["colours"])
    make_wheel(index, "colours", "0.5")
    return index


@pytest.fixture(scope="session")
def known_interpreters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What Pythons have said of themselves: asked once, as it costs a sandbox."""
    return tmp_path_factory.mktemp("interpreters")


@pytest.fixture
def layers(tmp_path: Path, known_interpreters: Path, monkeypatch: pytest.MonkeyPatch) -> Layers:
    """The user's layers, of which there are none yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    layers = Layers()
    layers.root.mkdir(parents=True)
    (layers.root / "interpreters").symlink_to(known_interpreters)
    return layers


@pytest.fixture
def provide(layers: Layers) -> Provide:
    """Packages for the confined sandbox."""

    def provision(*requirements: str, file: Path | None = None) -> Provision:
        return Provision(
            Requested(requirements, file),
            lambda directory: ConfinedSandbox(ConfinedSandboxConfig(), workspace=directory),
            layers,
        )

    return provision
