"""The sandboxes for the command line of Deep Agents Code, as in ``dcode --sandbox codeact-docker``."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar, Literal

from blockbuster import blockbuster
from deepagents_code.integrations.sandbox_provider import (
    SandboxNotFoundError,
    SandboxProvider,
    SandboxProviderMetadata,
)

from codeact_team import open_sandbox
from codeact_team.adapters.deepagents import CodeactSandbox
from codeact_team.standalone.opening import SandboxOpening
from codeact_team.standalone.synchronous import LoopThread, SyncSandbox


class _Provider(SandboxProvider):
    """Opens sandboxes, and keeps them until they are deleted. They end with this process in any case."""

    kind: ClassVar[Literal["docker", "confined"]]
    working_dir: ClassVar[str] = "/workspace"
    """Of the sandbox that was opened last: Deep Agents Code opens one, and asks a provider of its own for its directory."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[CodeactSandbox, ExitStack]] = {}

    @property
    def metadata(self) -> SandboxProviderMetadata:
        """The name, and the directory in which commands start."""
        return SandboxProviderMetadata(
            name=f"codeact-{self.kind}", working_dir=self.working_dir, supports_sandbox_id=False
        )

    def get_or_create(self, *, sandbox_id: str | None = None, **kwargs: Any) -> CodeactSandbox:
        """Open a sandbox, or return an open one.

        Args:
            sandbox_id: The id of one that this provider has opened. Default: a new one.
            kwargs: Settings of the sandbox, such as ``packages``. On the command line they are the ``params`` of the provider
                in the file ``~/.deepagents/config.toml``.

        Raises:
            SandboxNotFoundError: If no sandbox with this id is open here.
            SandboxError: If it cannot be opened.
        """
        if sandbox_id is not None:
            return self._find(sandbox_id)[0]
        with ExitStack() as stack:
            sandbox = stack.enter_context(_opened(open_sandbox(self.kind, **kwargs)))
            backend = CodeactSandbox(sandbox)
            self._open[backend.id] = backend, stack.pop_all()
        type(self).working_dir = sandbox.workspace_path
        return backend

    def delete(self, *, sandbox_id: str, **kwargs: Any) -> None:
        """Close a sandbox.

        Raises:
            SandboxNotFoundError: If no sandbox with this id is open here.
        """
        _, stack = self._find(sandbox_id)
        del self._open[sandbox_id]
        stack.close()

    def _find(self, sandbox_id: str) -> tuple[CodeactSandbox, ExitStack]:
        if (found := self._open.get(sandbox_id)) is None:
            raise SandboxNotFoundError(f"no sandbox {sandbox_id!r} is open in this process")
        return found


@contextmanager
def _opened(opening: SandboxOpening) -> Generator[SyncSandbox]:
    """Open a sandbox by ``with``, but in a thread that may block."""
    loop = LoopThread()
    loop.start()
    try:
        loop.call(_allow_blocking)
        sandbox = loop.call(opening.__aenter__)
        try:
            yield SyncSandbox(sandbox, loop)
        finally:
            loop.call(opening.__aexit__)
    finally:
        loop.stop()


async def _allow_blocking() -> None:
    """Allow blocking calls in a sandbox's event loop, which LangGraph's server forbids in all loops of its process."""
    getattr(blockbuster, "_skip").value = True  # noqa: B009 - it has no public name


class DockerProvider(_Provider):
    """Sandboxes that are containers."""

    kind = "docker"


class ConfinedProvider(_Provider):
    """Sandboxes of Linux's own means, without an engine."""

    kind = "confined"
