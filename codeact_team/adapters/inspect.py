"""Inspect's sandboxes ``codeact-docker`` and ``codeact-confined``, which it finds by its entry point, for any task."""

from __future__ import annotations

import errno
import os
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, overload

from inspect_ai import util
from inspect_ai.util import ExecResult, SandboxEnvironment, sandboxenv
from inspect_ai.util import SandboxEnvironmentLimits as Limits
from pydantic import BaseModel

from codeact_team import SandboxError, open_sandbox
from codeact_team.config import yaml12

if TYPE_CHECKING:
    from codeact_team import AsyncSandbox, SandboxProcess

Config: TypeAlias = util.SandboxEnvironmentConfigType | None
_LARGEST, _IN_WORDS = 64 << 20, "64 MiB"
"""The most bytes of a file, or of a stream, that a sandbox hands out at once."""


class SandboxSettings(BaseModel, extra="allow"):
    """Settings of the sandbox of each sample, as for :func:`codeact_team.open_sandbox`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)

    def __hash__(self) -> int:
        # Inspect keeps the prepared ones in a set
        return hash(self.model_dump_json())


class CodeactEnvironment(SandboxEnvironment):
    """The sandbox of a sample. It ends with the sample, and with this program at the latest.

    Attributes:
        sandbox: What :func:`codeact_team.open_sandbox` has opened, whose interpreter lives on.
    """

    kind: ClassVar[Literal["docker", "confined"]]
    _open: ClassVar[set[CodeactEnvironment]] = set()

    def __init__(self, sandbox: AsyncSandbox) -> None:
        super().__init__()
        self.sandbox = sandbox
        self._background: list[SandboxProcess] = []
        """Commands that have ended, and have left something running."""

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,  # noqa: ASYNC109 as Inspect has it
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        # a command that took too long was killed, so that no retry is due; none takes a process of this program
        kept = min(Limits.MAX_EXEC_OUTPUT_SIZE, _LARGEST)
        try:
            process = await self.sandbox.start(
                cmd, cwd=cwd, env=env, user=user, timeout=timeout, output_limit=kept
            )
            return await self._finish(process, input.encode() if isinstance(input, str) else input or b"")
        except LookupError as error:
            raise util.SandboxUserUnsupportedError(str(error)) from error
        except SandboxError as error:
            raise util.SandboxUnavailableError(str(error)) from error
        except (PermissionError, TimeoutError):
            raise
        # exit codes as a shell has them
        except OSError as error:
            return ExecResult(False, 127 if isinstance(error, FileNotFoundError) else 126, "", f"{error}\n")

    async def _finish(self, process: SandboxProcess, input: bytes) -> ExecResult[str]:
        """Write ``input`` to a command, and read its output, until it ends."""
        tails, omitted = (bytearray(), bytearray()), 0
        try:
            await process.write(input)
            await process.close_stdin()
            while piece := await process.read():
                omitted += piece.stdout_omitted + piece.stderr_omitted
                for tail, new in zip(tails, (piece.stdout, piece.stderr), strict=True):
                    tail += new
                    omitted += max(0, len(tail) - Limits.MAX_EXEC_OUTPUT_SIZE)
                    del tail[: -Limits.MAX_EXEC_OUTPUT_SIZE]
            code = await process.wait()
        except BaseException:
            await process.aclose()
            raise
        background, self._background = [*self._background, process], []
        for each in background:
            if await each.has_left():
                # it lives until the sample ends
                self._background.append(each)
            else:
                await each.aclose()
        stdout, stderr = (tail.decode(errors="replace") for tail in tails)
        if process.timed_out:
            late = TimeoutError(f"{process.args[0]!r} took too long and was killed")
            # where Inspect looks for it
            late.truncated_output = stdout + stderr  # pyright: ignore[reportAttributeAccessIssue]
            raise late
        if omitted:
            raise util.OutputLimitExceededError(Limits.MAX_EXEC_OUTPUT_SIZE_STR, stdout + stderr)
        return ExecResult(code == 0, code if code >= 0 else 128 - code, stdout, stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        await self.sandbox.put(self._absolute(file), contents)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...
    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...
    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        limit, words = min(Limits.MAX_READ_FILE_SIZE, _LARGEST), Limits.MAX_READ_FILE_SIZE_STR
        try:
            data = await self.sandbox.get(self._absolute(file), limit=limit)
        except OSError as error:
            if error.errno != errno.EFBIG:
                raise
            raise util.OutputLimitExceededError(words if limit < _LARGEST else _IN_WORDS, None) from error
        return data.decode() if text else data

    def _absolute(self, file: str) -> str:
        # a relative path is written and read from outside, whatever rights the code has
        return str(PurePosixPath(self.sandbox.workspace_path, file))

    def default_polling_interval(self) -> float:
        return 0.2

    @classmethod
    def default_concurrency(cls) -> int | None:
        return 2 * (os.cpu_count() or 1)

    @classmethod
    def config_files(cls) -> list[str]:
        return [f"codeact-{cls.kind}.yaml"]

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        return SandboxSettings(**config)

    @classmethod
    async def task_init(cls, task_name: str, config: Config) -> None:
        # a wrong setting, or a missing engine or image, ends the task before its first sample
        async with open_sandbox(cls.kind, **_settings(config)):
            pass

    @classmethod
    async def sample_init(
        cls, task_name: str, config: Config, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        environment = cls(await open_sandbox(cls.kind, **_settings(config)).__aenter__())
        cls._open.add(environment)
        return {"default": environment}

    @classmethod
    async def sample_cleanup(
        cls, task_name: str, config: Config, environments: dict[str, SandboxEnvironment], interrupted: bool
    ) -> None:
        for environment in environments.values():
            ours = environment.as_type(CodeactEnvironment)
            cls._open.discard(ours)
            await ours.sandbox.aclose()

    @classmethod
    async def task_cleanup(cls, task_name: str, config: Config, cleanup: bool) -> None:
        # those that were to be kept, too: none outlives this program
        for environment in [*cls._open]:
            await cls.sample_cleanup(task_name, config, {"default": environment}, False)


@sandboxenv(name="codeact-docker")  # pyright: ignore[reportUntypedClassDecorator]
class CodeactDockerEnvironment(CodeactEnvironment):
    """A container for each sample."""

    kind = "docker"


@sandboxenv(name="codeact-confined")  # pyright: ignore[reportUntypedClassDecorator]
class CodeactConfinedEnvironment(CodeactEnvironment):
    """Processes of this machine for each sample, which its kernel confines. They have one user only."""

    kind = "confined"


def _settings(config: Config) -> dict[str, Any]:
    """The settings of a task, or of its file."""
    if isinstance(config, str):
        return yaml12.parse(Path(config).read_text(encoding="utf-8"))[0] or {}
    return {} if config is None else config.model_dump(exclude_unset=True)
