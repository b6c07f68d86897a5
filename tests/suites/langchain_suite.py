"""LangChain's tests of a sandbox, unmodified, over our adapter and over plain processes of this machine.

It runs in the environment of that suite; see ``test_langchain.py``.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from deepagents.backends.protocol import (
    ExecuteResponse,
    FileDownloadResponse,
    FileUploadResponse,
    SandboxBackendProtocol,
)
from deepagents.backends.sandbox import BaseSandbox
from langchain_tests.integration_tests import SandboxIntegrationTests

from codeact_team import open_sandbox
from codeact_team.adapters.deepagents import CodeactSandbox

WHERE = os.environ["WHERE"]


class PlainProcesses(BaseSandbox):
    """No sandbox: the most that these releases of the suite and of deepagents have in common."""

    @property
    def id(self) -> str:
        return "plain"

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        ran = subprocess.run(
            command,
            shell=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
        )
        return ExecuteResponse(ran.stdout.decode(), ran.returncode)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return [FileUploadResponse(path, error=self._write(path, content)) for path, content in files]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return [self._read(path) for path in paths]

    def _write(self, path: str, content: bytes) -> str | None:
        if not path.startswith("/"):
            return "invalid_path"
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(content)
        return None

    def _read(self, path: str) -> FileDownloadResponse:
        if not path.startswith("/"):
            return FileDownloadResponse(path, error="invalid_path")
        try:
            return FileDownloadResponse(path, Path(path).read_bytes())
        except FileNotFoundError:
            return FileDownloadResponse(path, error="file_not_found")
        except IsADirectoryError:
            return FileDownloadResponse(path, error="is_directory")
        except PermissionError:
            return FileDownloadResponse(path, error="permission_denied")


class TestSandbox(SandboxIntegrationTests):
    @property
    def sandbox_root_dir(self) -> str:
        return f"{Path.cwd()}/plain" if WHERE == "plain" else super().sandbox_root_dir

    @pytest.fixture(scope="class")
    def sandbox(self) -> Iterator[SandboxBackendProtocol]:
        if WHERE == "plain":
            yield PlainProcesses()
            return
        with open_sandbox("docker" if WHERE == "docker" else "confined") as sandbox:
            yield CodeactSandbox(sandbox)
