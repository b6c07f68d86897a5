"""Opens a sandbox. Imports nothing of AutoGen before that."""

from __future__ import annotations

from contextlib import AsyncExitStack, ExitStack
from typing import TYPE_CHECKING, Any, Literal

from codeact_team.errors import SettingError

if TYPE_CHECKING:
    from codeact_team.executors.session import InterpreterCodeExecutor
    from codeact_team.standalone.sandbox import AsyncSandbox
    from codeact_team.standalone.synchronous import SyncSandbox


def open_sandbox(kind: Literal["docker", "confined"], **settings: Any) -> SandboxOpening:
    """A sandbox for a program of any kind, opened by ``async with`` or by ``with``.

    It needs no agent and no model. Python code runs in an interpreter whose variables live on, and programs run at the same time.
    At the end of the block, the sandbox ends with all that runs in it.

    Args:
        kind: ``"docker"`` for a container, ``"confined"`` for processes of this machine that Linux confines.
        settings: Those of :class:`DockerSessionCodeExecutor` or of :class:`ConfinedSessionCodeExecutor`, such as
            ``packages``, ``work_dir``, ``data``, ``timeout`` and ``memory_mib``.

    Returns:
        A context manager. ``async with`` gives an :class:`AsyncSandbox`, and ``with`` a :class:`SyncSandbox`, which has the
        same methods for programs without an event loop. Entering it raises a :class:`SandboxError` if the sandbox cannot
        start.

    Raises:
        SettingError: If the kind is unknown, or a setting cannot be used.
        TypeError: If a setting is unknown.
    """
    return SandboxOpening(_executor(kind, settings))


class SandboxOpening:
    """Opens a sandbox, and ends it: what :func:`open_sandbox` returns."""

    def __init__(self, executor: InterpreterCodeExecutor) -> None:
        self._executor = executor
        self._at_end: ExitStack | AsyncExitStack | None = None

    async def __aenter__(self) -> AsyncSandbox:
        async with AsyncExitStack() as stack:
            sandbox = await stack.enter_async_context(await self._open())
            self._at_end = stack.pop_all()
        return sandbox

    async def __aexit__(self, *_: object) -> None:
        assert isinstance(self._at_end, AsyncExitStack), "it was entered"
        stack, self._at_end = self._at_end, None
        await stack.aclose()

    def __enter__(self) -> SyncSandbox:
        from codeact_team.standalone.synchronous import LoopThread, SyncSandbox

        with ExitStack() as stack:
            loop = LoopThread()
            loop.start()
            stack.callback(loop.stop)
            sandbox = stack.enter_context(SyncSandbox(loop.call(self._open), loop))
            self._at_end = stack.pop_all()
        return sandbox

    def __exit__(self, *_: object) -> None:
        assert isinstance(self._at_end, ExitStack), "it was entered"
        stack, self._at_end = self._at_end, None
        stack.close()

    async def _open(self) -> AsyncSandbox:
        from codeact_team.standalone.sandbox import AsyncSandbox

        if self._at_end is not None:
            raise RuntimeError("the sandbox is open already")
        await self._executor.start()
        return AsyncSandbox(self._executor)


def _executor(kind: str, settings: dict[str, Any]) -> InterpreterCodeExecutor:
    if kind == "docker":
        from codeact_team.executors.docker import DockerSessionCodeExecutor as Executor
    elif kind == "confined":
        from codeact_team.executors.confined import ConfinedSessionCodeExecutor as Executor
    else:
        raise SettingError(f"kind is {kind!r}: it is 'docker' or 'confined'")
    from codeact_team.core.settings import check_names

    check_names(open_sandbox.__name__, settings, Executor.component_config_schema.model_fields)
    return Executor(**settings)
