"""Makes wheels and source distributions by hand, so that tests need no package index."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest


def use_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in which uv finds packages, and nowhere else, whatever this machine has set."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    # one for all tests: in a new one uv would ask again what Python it has
    monkeypatch.setenv("UV_CACHE_DIR", os.path.join(os.environ["XDG_CACHE_HOME"], "uv"))
    index, settings = tmp_path / "index", tmp_path / "configuration" / "uv" / "uv.toml"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(settings.parent.parent))
    index.mkdir()
    settings.parent.mkdir(parents=True)
    settings.write_text(f"no-index = true\nfind-links = [{json.dumps(str(index))}]\n")
    return index


def make_wheel(
    directory: Path,
    name: str,
    version: str = "1.0",
    *,
    files: Mapping[str, str] | None = None,
    requires: Sequence[str] = (),
    tag: str = "py3-none-any",
) -> Path:
    """A wheel whose module says its version.

    Args:
        directory: Where it is put.
        name: The package, and its module.
        version: Its version.
        files: Text by path; default: the module.
        requires: What it depends on.
        tag: What it fits.
    """
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {one}\n" for one in requires)
    contents = {
        **(files or {f"{name}.py": f"version = {version!r}\n"}),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    record = "".join(f"{path},sha256={_digest(text)},{len(text)}\n" for path, text in contents.items())
    wheel = directory / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in {**contents, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            archive.writestr(path, text)
    return wheel


def make_source_distribution(directory: Path, name: str, setup: str) -> Path:
    """A source distribution whose ``setup.py`` is this."""
    source = directory / f"{name}-1.0.tar.gz"
    contents = {"PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", "setup.py": setup}
    with tarfile.open(source, "w:gz") as archive:
        for path, text in contents.items():
            member = tarfile.TarInfo(f"{name}-1.0/{path}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return source


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
