"""Compiles the modules of packages by the Python of a sandbox, which sees nothing but their sources."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from codeact_team.aio import to_the_end
from codeact_team.errors import SandboxError
from codeact_team.packages.manifests import files_in
from codeact_team.sandboxes.base import Process, Sandbox

_MAX_COMPILED_BYTES = 256 * 1024 * 1024
_LENGTH = 4


async def compile_modules(sandbox: Sandbox, directory: Path, cache_tag: str) -> None:
    """Put the compiled form of each module where Python looks for it.

    Args:
        sandbox: It runs.
        directory: The packages: files and directories only.
        cache_tag: The name of the sandbox's Python in names of files, such as ``cpython-311``.

    Raises:
        SandboxError: If the sandbox does not do what it is asked.
    """
    modules = [path for entry in files_in(str(directory)) if (path := Path(entry.path)).suffix == ".py"]
    program = (resources.files(__name__.rpartition(".")[0]) / "inside" / "compile.py").read_text()
    process = await sandbox.spawn([sandbox.python, "-I", "-S", "-W", "ignore", "-c", program])
    sending = asyncio.ensure_future(_send(process, modules))
    try:
        answers = _Answers(process)
        for module in modules:
            length = int.from_bytes(await answers.read(_LENGTH), "big")
            if compiled := await answers.read(length):
                cache = module.parent / "__pycache__"
                cache.mkdir(exist_ok=True)
                (cache / f"{module.stem}.{cache_tag}.pyc").write_bytes(compiled)
        await sending
    finally:
        sending.cancel()
        await to_the_end(asyncio.wait({sending}))
        await process.aclose()


async def _send(process: Process, modules: Sequence[Path]) -> None:
    for module in modules:
        source = module.read_bytes()
        await process.write(len(source).to_bytes(_LENGTH, "big") + source)
    await process.close_stdin()


class _Answers:
    """What a process writes, by length."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._data = bytearray()

    async def read(self, length: int) -> bytes:
        while len(self._data) < length <= _MAX_COMPILED_BYTES:
            piece = await self._process.read()
            if not piece:
                break
            self._data += piece
        if len(self._data) < length:
            said = bytes(self._data[-300:]).decode(errors="replace").strip()
            raise SandboxError(f"the sandbox's Python does not compile the packages, but says: {said!r}")
        taken = bytes(self._data[:length])
        del self._data[:length]
        return taken
