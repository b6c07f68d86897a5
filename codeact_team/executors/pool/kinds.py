"""What one sandbox must have in common with another to stand in for it."""

from __future__ import annotations

import os
from contextvars import Context
from dataclasses import dataclass, field
from typing import Self

from codeact_team.aio import to_the_end
from codeact_team.errors import SettingError
from codeact_team.executors.base import SandboxedCodeExecutor
from codeact_team.executors.code_runner import Setup


@dataclass(frozen=True)
class Kind:
    """All that a sandbox is made from, and what has run there before the first block. Equal ones can be exchanged."""

    make: type[SandboxedCodeExecutor]
    settings: str = field(repr=False)
    """All but the data, as JSON."""
    code: tuple[tuple[str, str], ...] = field(repr=False)
    """What of the setup has run: language and text of each piece."""
    directory: str
    """From which relative paths lead."""
    setup: tuple[Setup, ...] = field(compare=False, repr=False)
    memory_mib: int = field(compare=False)
    """How much the code may use."""

    @classmethod
    def of(cls, executor: SandboxedCodeExecutor) -> Self:
        """What an executor needs.

        Raises:
            SettingError: If no sandbox that was started ahead will do.
        """
        if (reason := why_not_ahead(executor)) is not None:
            raise SettingError(reason)
        warmth = executor.warmth
        setup = tuple(warmth.early_setup)
        return cls(
            make=type(executor),
            settings=warmth.settings,
            code=tuple((each.block.language, each.block.code) for each in setup),
            directory=os.getcwd(),
            setup=setup,
            memory_mib=warmth.memory_mib,
        )

    def make_executor(self) -> SandboxedCodeExecutor:
        """A new executor, which has started nothing yet, and knows nothing of whoever asks for it."""
        return Context().run(self._make_executor)

    def _make_executor(self) -> SandboxedCodeExecutor:
        config = self.make.component_config_schema.model_validate_json(self.settings)
        executor = self.make(**config.model_dump())
        executor.warmth.set_up_by(self.setup)
        return executor

    async def start(self) -> SandboxedCodeExecutor:
        """A new executor whose sandbox is ready for the first block.

        Raises:
            SandboxError: If it cannot start.
            SettingError: If its setup fails.
        """
        executor = self.make_executor()
        try:
            await executor.warmth.warm_up()
        except BaseException:
            await to_the_end(executor.stop())
            raise
        return executor


def why_not_ahead(executor: SandboxedCodeExecutor) -> str | None:
    """Why no sandbox that was started ahead will do for an executor; ``None`` if one will."""
    if (setting := executor.warmth.bound_to) is None:
        return None
    return f"with `{setting}`, no sandbox can be started ahead"
