"""Opens a sandbox. Imports nothing of AutoGen before that."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    nullcontext,
)
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from typing_extensions import Unpack

from codeact_team.errors import SettingError
from codeact_team.standalone.settings import CommonSettings, ConfinedSettings, DockerSettings

if TYPE_CHECKING:
    from codeact_team.executors.session import InterpreterCodeExecutor
    from codeact_team.standalone.sandbox import AsyncSandbox
    from codeact_team.standalone.synchronous import SyncSandbox


Within: TypeAlias = Callable[[], AbstractContextManager[object]]
"""Makes a context within which effects are recorded."""
Recording: TypeAlias = Callable[[], AbstractAsyncContextManager[Within]]
"""Records what is done with a sandbox; gives what is entered for each thing."""


@overload
def open_sandbox(kind: Literal["confined"], **settings: Unpack[ConfinedSettings]) -> SandboxOpening: ...


@overload
def open_sandbox(kind: Literal["docker"], **settings: Unpack[DockerSettings]) -> SandboxOpening: ...


@overload
def open_sandbox(
    kind: Literal["docker", "confined"], **settings: Unpack[CommonSettings]
) -> SandboxOpening: ...


def open_sandbox(kind: str, **settings: Any) -> SandboxOpening:
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
    """Opens a sandbox, and ends it: what :func:`open_sandbox` returns.

    Attributes:
        executor: The executor of the sandbox.
    """

    def __init__(self, executor: InterpreterCodeExecutor, recording: Recording | None = None) -> None:
        self.executor = executor
        self._recording = recording
        self._is_open = False
        self._at_end = AsyncExitStack()
        self._at_end_of_thread = ExitStack()

    def recorded(self, recording: Recording) -> SandboxOpening:
        """Return the same, as long as it is not open, for a sandbox that is used within a recording."""
        return SandboxOpening(self.executor, recording)

    async def __aenter__(self) -> AsyncSandbox:
        from codeact_team.standalone.sandbox import AsyncSandbox

        if self._is_open:
            raise RuntimeError("the sandbox is open already")
        self._is_open, within = True, None
        async with AsyncExitStack() as stack:
            stack.callback(setattr, self, "_is_open", False)
            if self._recording is not None:
                within = await stack.enter_async_context(self._recording())
            with nullcontext() if within is None else within():
                await self.executor.start()
            sandbox = await stack.enter_async_context(AsyncSandbox(self.executor, within))
            self._at_end = stack.pop_all()
        return sandbox

    async def __aexit__(self, *error: Any) -> None:
        await self._at_end.__aexit__(*error)

    def __enter__(self) -> SyncSandbox:
        from codeact_team.standalone.synchronous import LoopThread, SyncSandbox

        with ExitStack() as stack:
            loop = LoopThread()
            loop.start()
            stack.callback(loop.stop)
            sandbox = SyncSandbox(loop.call(self.__aenter__), loop)

            def end(*error: object) -> None:
                # a fork of the process has no such thread
                if not loop.has_ended:
                    loop.call(partial(self.__aexit__, *error))

            stack.push(end)
            self._at_end_of_thread = stack.pop_all()
        return sandbox

    def __exit__(self, *error: Any) -> None:
        self._at_end_of_thread.__exit__(*error)


def _executor(kind: str, settings: dict[str, Any]) -> InterpreterCodeExecutor:
    if kind == "docker":
        from codeact_team.executors.docker import DockerSessionCodeExecutor as Executor
    elif kind == "confined":
        from codeact_team.executors.confined import ConfinedSessionCodeExecutor as Executor
    else:
        raise SettingError(f"kind is {kind!r}: it must be 'docker' or 'confined'")
    from codeact_team.core.settings import check_names

    check_names(open_sandbox.__name__, settings, Executor.component_config_schema.model_fields)
    return Executor(**settings)
