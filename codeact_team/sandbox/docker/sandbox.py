"""A hardened container as a sandbox."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from codeact_team.core.aio import FairLock
from codeact_team.errors import EngineError, SandboxError
from codeact_team.files.opening import known_directory, open_named
from codeact_team.files.trees import DIRECTORY
from codeact_team.sandbox.base import (
    BY_RULES,
    STARTS_AT_ONCE,
    STOPPED,
    Cause,
    Limits,
    NoPythonError,
    Process,
    PythonIdentity,
    Sandbox,
    Spawn,
    receiving,
    warn_once,
)
from codeact_team.sandbox.docker.address import engine_url
from codeact_team.sandbox.docker.config import DockerSandboxConfig
from codeact_team.sandbox.docker.container import Container
from codeact_team.sandbox.docker.creation import (
    WORKSPACE,
    Binding,
    filled_volume,
    is_missing,
    launch,
)
from codeact_team.sandbox.docker.description import refusal
from codeact_team.sandbox.docker.engine import Client, ask, connect, ensure_image, image_id, in_thread
from codeact_team.sandbox.docker.leftovers import remove_unstarted
from codeact_team.sandbox.docker.plain import PlainPrograms
from codeact_team.sandbox.docker.programs import ContainerProcess
from codeact_team.sandbox.docker.way_out import NEEDS_PYTHON, unseen
from codeact_team.sandbox.users import is_root

logger = logging.getLogger(__name__)

_COMPARE = (
    'read -r own </proc/self/cgroup && read -r first </proc/1/cgroup && [ "$own" = "$first" ] && echo inside'
)
"""Compares the control groups of this program and of the container's first one."""
_FIRST_LINE_TIMEOUT = 60
"""Seconds that a container without an ``init_command`` gets to report that it is up, and a trial program to end."""
_REMOVAL_GRACE = 1.0
"""Seconds for which the users of a container that is being removed wait for its end to show by itself."""

_READY, _PLAIN, _UNGUARDED = "ready", "ready without Python", "ready without Python, unguarded"
"""Reports of the first process when it is up."""
_NOT_RUNNING = "the container is not running: it was stopped, or has never been started"

_starts = FairLock(STARTS_AT_ONCE)
_without_python: set[PythonIdentity] = set()
"""The identities of Pythons that run no supervisor."""


class DockerSandbox(Sandbox):
    """A container without network, capabilities and privileges, in which programs are started one by one.

    Its first process is the supervisor, a Python that lives as long as the host process does. Without a Python there, it is our
    shell, which passes on signals; see :mod:`codeact_team.sandbox.docker.plain`.

    Args:
        config: The container's settings.
        work_dir: Directory of the host to bind as the workspace; ``None`` for a workspace inside the container.
        bind_dir: The same directory as the engine names it, where that differs.
        must_share: Whether it is an error if the engine does not see ``work_dir``, or the user cannot write there.
            Otherwise the workspace is then inside the container.
        packages: A layer of Python packages that the code may read; see :mod:`codeact_team.executors.packages`.
    """

    def __init__(
        self,
        config: DockerSandboxConfig,
        *,
        work_dir: Path | None = None,
        bind_dir: Path | None = None,
        must_share: bool = True,
        packages: Path | None = None,
    ) -> None:
        self._config = config
        self._packages: Path | str | None = packages
        self._work_dir = work_dir
        self._bind_dir = bind_dir
        self._must_share = must_share
        self._container: Container | None = None
        self._process: ContainerProcess | None = None
        self._with_python = True
        self._has_tried_python = False
        self._programs: PlainPrograms | None = None
        """Starts programs in a container without a supervisor."""
        self._removals: list[Future[None]] = []
        self.shared: bool = work_dir is not None
        """Whether the workspace is a directory of the host."""

    @property
    def workspace(self) -> str:
        return WORKSPACE

    @property
    def private(self) -> str:
        # always in memory, and code rather fills /tmp
        return "/dev/shm"

    @property
    def image(self) -> str | None:
        return None if self._container is None else self._container.image

    @property
    def limits(self) -> Limits:
        limits = self._config.limits
        return limits if self.way_out is None else {**limits, Cause.NETWORK: BY_RULES}

    @property
    def directories(self) -> Sequence[Path]:
        return () if self._work_dir is None or not self.shared else (self._work_dir,)

    @property
    def python(self) -> str:
        return "python3"

    @property
    def running(self) -> bool:
        return self._container is not None and self._container.alive

    async def stop(self) -> None:
        await self._give_up(self._container, STOPPED)
        for removal in self._removals:
            await asyncio.shield(asyncio.wrap_future(removal))
        self._removals = []

    async def _give_up(self, container: Container | None, reason: str | None) -> None:
        """Start removing the container, if it is still the present one, and wake the tasks that wait for it.

        That happens even if the engine hangs. The removal continues after a cancellation. The ``reason`` why the running
        program is lost is ``None`` if the engine knows it.
        """
        if container is None or container is not self._container:
            return
        process, self._container, self._process, self._programs = self._process, None, None, None
        removal = in_thread(container.remove)
        self._removals = [*(removal for removal in self._removals if not removal.done()), removal]
        if process is not None and reason is not None:
            # the output of a paused program, which continues to be removed, would hide the reason
            process.lost = reason
            process.cut()
        try:
            await asyncio.wait({asyncio.wrap_future(removal)}, timeout=_REMOVAL_GRACE)
        finally:
            if process is not None:
                process.cut()
            container.detach()

    async def supervise(self, *, plain: bool = False) -> Process:
        container = self._container
        if container is None:
            raise EngineError(_NOT_RUNNING)
        if self._programs is not None:
            raise NoPythonError("no interpreter can be started in the sandbox: the image has no `python3`")
        if self._process is not None:
            raise EngineError("the container has its supervisor already")
        self._has_tried_python = True
        self._process = process = ContainerProcess(
            container.stream, container.ending, frames=container.frames, unread=container.unread
        )
        return process

    async def start_without_python(self) -> Spawn:
        if self.way_out is not None:
            raise EngineError(NEEDS_PYTHON)
        self._with_python = False
        if self._programs is None:
            if self._has_tried_python:
                _without_python.add(await self.python_identity())
            await self._give_up(self._container, None)
        await self.start()
        assert self._programs is not None, "it starts with them"
        return self._programs.spawn

    def is_own_user(self, user: str) -> bool:
        return self._container is not None and user in (
            self._container.user,
            self._container.user.partition(":")[0],
        )

    async def supervise_as(self, user: str) -> Process:
        if is_root(user) and not (self._container and self._container.is_filtered):
            raise EngineError(
                "programs run as root only under our seccomp profile, which refuses set-id modes, and it is not in force here"
            )
        return await self.spawn_beside(receiving(self.python), user)

    async def spawn_beside(self, argv: Sequence[str], user: str = "") -> Process:
        """Start a program of ours beside the running one. Its end is not known, so do not call ``wait``."""
        return await self._run(argv, user)

    async def _run_first(self, argv: Sequence[str]) -> ContainerProcess:
        self._process = process = await self._run(argv)
        return process

    async def _run(self, command: Sequence[str], user: str = "") -> ContainerProcess:
        container = self._container
        if container is None:
            raise EngineError(_NOT_RUNNING)
        # a program whose start is cancelled ends when it reads the end of its input
        launch = partial(container.launch, command, user)
        hangup = container.hangup()
        try:
            exec_id, stream = await ask(launch, undo=lambda late: late[1].close())
        except BaseException:
            hangup.close()
            raise
        return ContainerProcess(stream, partial(container.ending, exec_id), hangup)

    async def python_identity(self) -> PythonIdentity:
        client = await ask(partial(connect, engine_url()), undo=lambda late: late.close())
        try:
            await ensure_image(client, self._config.image, self._config.pull)
            image = await ask(partial(image_id, client, self._config.image))
        finally:
            client.close()
        # with these, it may find another Python than the image's own, or other packages
        config = self._config
        origin = f"{image} {config.extra_volumes} {config.init_command}"
        return PythonIdentity(origin, str(config.environment))

    async def kill(self) -> None:
        if self._process is not None and self._container is not None:
            # all that runs ends with its first process
            self._process.is_killed = True
            await self._give_up(self._container, await self._container.why_unresponsive())

    async def _start(self) -> None:
        work_dir = self._work_dir if self.shared else None
        report, output = await self._launch(work_dir)
        if report in ("unshared", "unwritable") and work_dir is not None and not self._must_share:
            logger.warning("%s is %s for the container: the workspace is inside it", work_dir, report)
            await self.stop()
            self.shared = False
            report, output = await self._launch(None)
        container = self._container
        if container is None or report not in (_READY, _PLAIN, _UNGUARDED):
            raise EngineError(self._explain(report, output))
        if report != _READY and self.way_out is not None:
            raise EngineError(NEEDS_PYTHON)
        if report == _UNGUARDED:
            warn_once(
                "code can read and change the container's first process, and so everything that runs there later: the "
                "kernel, or the `runtime` in its place, does not prevent it"
            )
        if report != _READY:
            self._programs = PlainPrograms(container, self._run_first, partial(self._give_up, container))
        engine = container.engine
        refused = refusal(engine, self._config, starts_outside=True) if engine.may_start_outside else None
        if refused is not None and not await self._starts_inside():
            raise EngineError(refused)
        await container.identify()

    async def _starts_inside(self) -> bool:
        """Whether a program that the engine starts in the container is in its control group. Before other code may answer."""
        process, output = await self.spawn_beside(["/bin/sh", "-c", _COMPARE]), b""
        try:
            async with asyncio.timeout(_FIRST_LINE_TIMEOUT):
                while data := await process.read():
                    output += data
        except TimeoutError:
            raise EngineError(
                f"a program in the container has not ended in {_FIRST_LINE_TIMEOUT} s"
            ) from None
        finally:
            await process.aclose()
        return output == b"inside\n"

    async def _launch(self, work_dir: Path | None) -> tuple[str, str]:
        """Create the container. Returns what its first process reports, and what was written before."""
        url = engine_url()
        client = await ask(partial(_connect, url), undo=lambda late: late.close())
        try:
            await ensure_image(client, self._config.image, self._config.pull)
            with _bound(work_dir, self._bind_dir) as binding:
                return await self._first_words(client, url, binding)
        finally:
            if self._container is None:
                client.close()

    async def _first_words(self, client: Client, url: str, binding: Binding | None) -> tuple[str, str]:
        word = secrets.token_hex(8)
        with_python = self._with_python
        if with_python and _without_python:
            with_python = await self.python_identity() not in _without_python
        try:
            async with _starts:
                self._container = container = await ask(
                    partial(
                        launch,
                        client,
                        url,
                        self._config,
                        binding,
                        self._packages,
                        word,
                        with_python=with_python,
                        way_out=self.way_out,
                    ),
                    undo=Container.discard,
                )
            async with asyncio.timeout(None if self._config.init_command else _FIRST_LINE_TIMEOUT):
                report, output = await container.first_line(word)
            if report != "unprovided" or not isinstance(self._packages, Path):
                return report, output
            layer = self._packages
            await self.stop()
        except TimeoutError:
            return "", f"it printed nothing for {_FIRST_LINE_TIMEOUT} s"
        except EngineError as error:
            if binding is not None and is_missing(binding.source, error):
                return "unshared", ""
            if self.way_out is not None and is_missing(self.way_out.directory, error):
                raise EngineError(unseen(self.way_out.directory)) from error
            layer = self._packages
            if not isinstance(layer, Path) or not is_missing(layer, error):
                raise
        # the engine runs on another machine
        self._packages = await ask(partial(filled_volume, client, url, self._config.image, layer))
        return await self._first_words(client, url, binding)

    def _explain(self, report: str, output: str) -> str:
        if report == "unshared":
            return (
                f"the container engine cannot see the directory {self._work_dir} of this machine: set "
                "`workspace: container`, or `bind_dir` to the path by which the engine knows that directory"
            )
        if report == "unwritable":
            return (
                f"the code's user cannot write to {self._work_dir or WORKSPACE}: make it writable, or set `user` to "
                "its owner"
            )
        if report == "set-id":
            return (
                f"the code would run as root in {self._work_dir}, which other users of this machine can enter, and the "
                "container does not refuse set-id modes: a set-id file left there would give them root's rights. Close the "
                "directory (`chmod 700`), choose a work_dir of another user, or use an engine and a `runtime` that filter "
                "system calls by seccomp"
            )
        output = output[-1000:] or "it printed nothing"
        if report.startswith("init-failed "):
            return f"init_command exited with {report.split()[1]}: {output}"
        return f"the container of {self._config.image!r} ended at its start: {output}"


def _connect(url: str) -> Client:
    client = connect(url)
    try:
        remove_unstarted(client, url)
    except BaseException:
        client.close()
        raise
    return client


@contextmanager
def _bound(work_dir: Path | None, source: Path | None) -> Generator[Binding | None]:
    """Creates a probe file in the directory, so that the container can verify the bind mount."""
    if work_dir is None:
        yield None
        return
    probe = f".codeact-probe-{secrets.token_hex(8)}"
    with ExitStack() as stack:
        try:
            # follows no link that earlier code may have planted; if the engine follows one, the container does not see the
            # file
            directory = open_named(work_dir, DIRECTORY)
            stack.callback(os.close, directory)
            found, status = known_directory(directory)
            os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644, dir_fd=directory))
        except OSError as error:
            raise SandboxError(f"the work_dir {work_dir} cannot be written: {error.strerror}") from error
        try:
            yield Binding(found, f"{status.st_uid}:{status.st_gid}", source or found, probe)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(probe, dir_fd=directory)
