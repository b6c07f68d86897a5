"""A cache of its own for each test, and a directory of wheels in place of a package index."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from support.executing import zygote as zygote
from support.wheels import make_wheel, use_index

from codeact_team.executors.packages.layers import Layer, Layers
from codeact_team.executors.packages.provision import Provision
from codeact_team.executors.packages.requirements import Requested
from codeact_team.sandbox.confined.config import ConfinedSandboxConfig
from codeact_team.sandbox.confined.sandbox import ConfinedSandbox

Provide = Callable[..., Provision]
Said = list[str]


def with_index(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory where uv finds packages, and nowhere else."""
    index = use_index(directory, monkeypatch)
    make_wheel(index, "shapes", "1.0")
    make_wheel(index, "shapes", "2.0", requires=["colours"])
    make_wheel(index, "colours", "0.5")
    return index


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That of a test."""
    return with_index(tmp_path, monkeypatch)


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Layers:
    """What is kept after somebody has asked for ``shapes``: made once, as it costs several sandboxes, and never changed."""
    directory = tmp_path_factory.mktemp("kept")
    layers = Layers(directory / "packages")
    with pytest.MonkeyPatch.context() as monkeypatch:
        with_index(directory, monkeypatch)
        asyncio.run(provision(layers, "shapes").provide(lambda _: None))
    return layers


@pytest.fixture
def layers(tmp_path: Path, kept: Layers, monkeypatch: pytest.MonkeyPatch) -> Layers:
    """The user's layers, of which there are none yet. What Pythons have said of themselves is known."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    layers = Layers()
    shutil.copytree(kept.root / "interpreters", layers.root / "interpreters")
    return layers


@pytest.fixture
def made_before(layers: Layers, kept: Layers) -> None:
    """Has the layer with ``shapes`` among them."""
    shutil.copytree(kept.root, layers.root, dirs_exist_ok=True)


def provision(
    layers: Layers,
    *requirements: str,
    file: Path | None = None,
    kind: type[ConfinedSandbox] = ConfinedSandbox,
) -> Provision:
    return Provision(
        Requested(requirements, file),
        lambda directory: kind(ConfinedSandboxConfig(), workspace=directory),
        layers,
    )


@pytest.fixture
def provide(layers: Layers) -> Provide:
    """Packages for the confined sandbox."""
    return partial(provision, layers)


async def made(
    provide: Provide,
    *requirements: str,
    file: Path | None = None,
    kind: type[ConfinedSandbox] = ConfinedSandbox,
) -> tuple[Layer, Said]:
    said: Said = []
    packages = provide(*requirements, file=file, kind=kind)
    await packages.provide(said.append)
    layer = packages.layer
    assert layer is not None
    await packages.release()
    return layer, said
