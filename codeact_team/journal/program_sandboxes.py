"""The sandboxes of a program whose run is resumed: the program does everything with them again, in the same order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from codeact_team.core.component_effects import CodeEffect
from codeact_team.core.effects import emit
from codeact_team.core.events import BlocksRepeated
from codeact_team.core.execution import Outcome, SessionResult
from codeact_team.core.executor_interface import SessionCodeExecutor
from codeact_team.core.places import place_of
from codeact_team.journal.answers import is_contained
from codeact_team.journal.calls import calling
from codeact_team.journal.differences import difference
from codeact_team.journal.restoration import STRAYED, Restoration


class ProgramSandboxes:
    """Brings the interpreters in the sandboxes of a program to where they were.

    Args:
        restoration: Restores the files.
    """

    def __init__(self, restoration: Restoration) -> None:
        self._restoration = restoration
        self._losses: dict[object, str] = {}
        """The losses of interpreters' states, each a reason, by executor."""

    async def begin(self, effect: CodeEffect[Any], n: int) -> SessionCodeExecutor:
        """Begin to do the effect with the number ``n`` again; returns its executor. Raises as :meth:`Restoration.restore`."""
        executor = effect.part
        assert isinstance(executor, SessionCodeExecutor), "the sandbox of a program has an interpreter"
        # a fork has no files but those that its code makes again
        if not effect.is_apart:
            await self._restoration.begin_again(executor, n)
        return executor

    async def ended(self, effect: CodeEffect[Any], n: int) -> None:
        """End to do the effect with the number ``n`` again."""
        if not effect.is_apart:
            await self._restoration.done_again(effect.part, n)

    async def go_on(self, effect: CodeEffect[Any], n: int) -> str | None:
        """Go on with something new, or that was under way; returns why the interpreter's state is lost, once."""
        executor = await self.begin(effect, n)
        if not effect.is_apart:
            self._restoration.go_on(executor)
        return self._losses.pop(executor, None)

    async def repeat(
        self,
        executor: SessionCodeExecutor,
        n: int,
        recorded: SessionResult,
        run: Callable[[], Awaitable[Any]],
    ) -> None:
        """Run a recorded block again, unless the state that it needs is lost.

        Args:
            executor: Where it runs.
            n: The number of the block.
            recorded: Its result.
            run: Runs it.
        """
        if recorded.outcome in (Outcome.DENIED, Outcome.NOT_RUN):
            return
        if executor in self._losses:
            pass
        elif not await is_contained(executor):
            self._losses[executor] = "it could reach more than its workspace"
        elif (unkept := self._restoration.unkept_in([n])) is not None:
            self._losses[executor] = unkept
        elif recorded.outcome is Outcome.COMPLETED:
            with calling(None, n) as repetition:
                now = await run()
            if repetition.strayed is not None:
                # its state is unknown now
                await executor.restart()
                self._losses[executor] = STRAYED.format(repetition.strayed)
            differs = difference(recorded, now)
            place, count = place_of(executor), int(differs is not None)
            emit(BlocksRepeated(place=place, blocks=1, differing=count, difference=differs))
            return
        elif recorded.state_lost:
            # its result has told so
            await executor.restart()
        else:
            self._losses[executor] = "some of it was stopped before its end"
        self._restoration.recall(executor, [n])
