"""Branches of a session: copies of its interpreter, which go ways of their own from then on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autogen_core import CancellationToken

from codeact_team.aio import Turns, to_the_end
from codeact_team.errors import ForkError, SandboxError, SettingError
from codeact_team.execution import Artifact
from codeact_team.executor_interface import Checkpoint, SessionCodeExecutor
from codeact_team.executors.code_runner import Setup
from codeact_team.executors.lifecycle import Lifecycle
from codeact_team.executors.place import Place
from codeact_team.executors.session import InterpreterCodeExecutor, LivingInterpreter, SessionConfig
from codeact_team.executors.stopping import Call
from codeact_team.executors.users import Generation
from codeact_team.sessions.host import Session
from codeact_team.sessions.protocol import MAX_BRANCHES
from codeact_team.workspace import Changes


class SessionCheckpoint(Checkpoint):
    """A branch of a session in which nothing runs.

    Args:
        session: The branch.
        generation: What ran in the session when it was made.
        of: The executor of the session.
    """

    def __init__(self, session: Session, generation: Generation, of: BranchingCodeExecutor) -> None:
        self.session = session
        self.generation = generation
        self.of = of

    async def aclose(self) -> None:
        await self.session.aclose()


class BranchingCodeExecutor(InterpreterCodeExecutor):
    """Runs code in a living interpreter that can be copied."""

    async def fork(self, count: int = 1) -> Sequence[SessionCodeExecutor]:
        async with self._turns:
            session = await self._set_up_session()
            async with self._place.copying:
                sessions = await self._copies_of(session, count)
            return [
                SessionBranch(self._config, self._place, self._interpreter, one, self) for one in sessions
            ]

    async def promote(self, branch: SessionCodeExecutor, *, user: object | None = None) -> None:
        if not isinstance(branch, SessionBranch) or branch.of is not self:
            raise SettingError("only a branch of this executor can take its place")
        async with self._turns, branch.turns:
            await self._go_on_from(
                branch.own_session(), branch.generation, "a branch has taken its place", user
            )

    async def checkpoint(self) -> Checkpoint:
        async with self._turns:
            session = await self._set_up_session()
            async with self._place.copying:
                [copy] = await self._copies_of(session, 1)
            return SessionCheckpoint(copy, self._users.generation, self)

    async def rollback(self, to: Checkpoint, *, user: object | None = None) -> None:
        if not isinstance(to, SessionCheckpoint) or to.of is not self:
            raise SettingError("only a checkpoint of this executor can be gone back to")
        # for a moment there are the old files and the new ones, but not of several branches at once
        async with self._turns, self._place.copying:
            if not to.session.alive:
                raise SandboxError(
                    "the checkpoint is gone: it was closed, or the session was restarted or lost"
                )
            # it stays, to be gone back to again
            [copy] = await self._copies_of(to.session, 1, replaced=self._interpreter.session)
            await self._go_on_from(copy, to.generation, "it was set back to an earlier state", user)

    async def _copies_of(
        self, session: Session, count: int, *, replaced: Session | None = None
    ) -> Sequence[Session]:
        """Fork a session, unless that is no number of branches, or its workspace is too large to be copied so often.

        Args:
            session: It.
            count: How often.
            replaced: The session whose place a copy takes.
        """
        most = MAX_BRANCHES - 1
        # True is an integer, too
        if type(count) is not int or not 1 <= count <= most:
            raise SettingError(f"`count` is {count!r}: a session can be forked into 1 to {most} branches")
        home = None if replaced is None else replaced.home
        exceeded = await self._place.growth.exceeded_by_copies(session.home, count, replaced=home)
        if exceeded is not None:
            raise ForkError(
                f"this session cannot be forked now: copies of its workspace would exceed {exceeded}; stop branches, close "
                "checkpoints, or have the code remove files"
            )
        return await session.fork(count)

    async def _go_on_from(
        self, branch: Session, generation: Generation, loss: str, user: object | None
    ) -> None:
        if (session := self._interpreter.session) is None:
            raise SandboxError("nothing can go on from there: the session has ended")
        await session.promote(branch)
        told = self if user is None else user
        self._users.replace(loss, told=told, by=generation.forked(session.interpreter))

    async def _set_up_session(self) -> Session:
        """The session, with an interpreter in which the setup has run."""
        if not self._life.ready:
            call = Call(CancellationToken(), self, None, self._place)
            try:
                await self._get_ready(call)
            finally:
                call.stop.cancel()
                await call.end()
        session = await self._running_session()
        # of what ends with the sandbox, nobody else removes the directory
        self._place.workspace.remove_at_end(session.branches_in)
        return session


class BranchLife(Lifecycle):
    """From the fork to the end of a branch, which is not started again."""

    async def prepare(self) -> None:
        """There is nothing to get."""

    async def start(self, *, for_use: bool = False) -> None:
        """See that it is there.

        Raises:
            SandboxError: If it has ended.
        """
        if not self.ready:
            reason = self._runner.interpreter_loss or "it was stopped, or its session was"
            raise SandboxError(f"this branch of a session has ended: {reason}")

    async def stop(self) -> None:
        """End the branch. Idempotent."""
        async with self._turns:
            await to_the_end(self._runner.close())

    async def renew(self, *, in_use: bool = False) -> None:
        """Raise a ``SettingError``: a branch cannot begin anew."""
        raise SettingError("a branch of a session cannot be restarted: stop it, and fork the session again")


class BranchInterpreter(LivingInterpreter):
    """The interpreter of a branch: a copy of another one, the setup and all."""

    loss = "The interpreter was lost: {}. With it, this branch of the session has ended: its variables and files are gone."
    loss_before = loss

    def __init__(self, config: SessionConfig, session: Session, setup: Sequence[Setup]) -> None:
        super().__init__(config)
        self.setup[:] = setup
        self._session = session


class SessionBranch(BranchingCodeExecutor):
    """A branch of a session, as :meth:`SessionCodeExecutor.fork` makes them.

    Args:
        config: The settings of the session.
        place: Where it is.
        interpreter: The session's.
        session: The branch of it.
        of: The executor of the session.
    """

    life_kind = BranchLife

    def __init__(
        self,
        config: SessionConfig,
        place: Place,
        interpreter: LivingInterpreter,
        session: Session,
        of: BranchingCodeExecutor,
    ) -> None:
        super().__init__(config, place, BranchInterpreter(config, session, interpreter.setup))
        self.of = of
        self._users.generation = of._users.generation.forked(session.interpreter)

    @property
    def turns(self) -> Turns:
        """Who runs code has them."""
        return self._turns

    @property
    def generation(self) -> Generation:
        """What runs in it."""
        return self._users.generation

    def own_session(self) -> Session:
        """The branch.

        Raises:
            SandboxError: If it has ended.
        """
        if (session := self._interpreter.session) is None:
            raise SandboxError("the branch has ended")
        return session

    async def changed_files(self) -> Changes:
        """What it has changed shows once it is promoted."""
        return Changes()

    async def saved_pictures(self, most: int) -> Sequence[Artifact]:
        """What it has saved shows once it is promoted."""
        return ()

    def _to_config(self) -> Any:
        raise SettingError("a branch of a session has no config: dump the executor of the session")
