from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes a document and says where it is."""

    def write(text: str | bytes, name: str = "team.yaml") -> Path:
        file = tmp_path / name
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return file

    return write


@pytest.fixture
def add_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Makes a module of the given name and source importable for the length of a test."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    def add(name: str, source: str) -> None:
        (tmp_path / f"{name}.py").write_text(source)
        # whatever imports it, it is forgotten after the test
        monkeypatch.setitem(sys.modules, name, sys)
        monkeypatch.delitem(sys.modules, name)

    return add
