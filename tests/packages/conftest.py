"""A cache of its own for each test, and a directory of wheels in place of a package index."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.wheels import make_wheel

from codeact_team.packages import Layers, Provision, Requested
from codeact_team.sandboxes.confined import ConfinedSandbox, ConfinedSandboxConfig

Provide = Callable[..., Provision]


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where uv finds packages, and nowhere else."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    index, settings = tmp_path / "index", tmp_path / "configuration" / "uv" / "uv.toml"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(settings.parent.parent))
    index.mkdir()
    settings.parent.mkdir(parents=True)
    settings.write_text(f"no-index = true\nfind-links = [{json.dumps(str(index))}]\n")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
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
