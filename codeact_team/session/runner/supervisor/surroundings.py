"""What the branches of a session share."""

from __future__ import annotations

from codeact_team.session.runner.supervisor.block_results import Usage
from codeact_team.session.runner.supervisor.child import Interpreter, Program
from codeact_team.session.runner.supervisor.guard import Guard
from codeact_team.session.runner.supervisor.poll_loop import Loop
from codeact_team.session.runner.supervisor.process_family import Descendant, Family

TYPE_CHECKING = False
if TYPE_CHECKING:
    from codeact_team.session.runner.supervisor.branch import Branch


class OutOfHand(Exception):
    """Something cannot be ended; whoever owns the sandbox has to clear it."""


class Surroundings:
    """Processes, and what waits for them.

    Attributes:
        zygote: An interpreter in which the setup has run and no block ever will; those to come are forks of it.
        branches: Those that there are, by number; that of the session itself is 0.
        keeps_zygote: Whether an interpreter can be kept from the code, and its forks be told from one another.
        is_touched: Whether anything of the code's may have run since all was ended last.
    """

    def __init__(self, loop: Loop, family: Family, guard: Guard, program: Program) -> None:
        self.loop = loop
        self.family = family
        self.guard = guard
        self.program = program
        self.usage = Usage()
        self.zygote: Interpreter | None = None
        self.branches: dict[int, Branch] = {}
        self.keeps_zygote = guard.can_shield and family.can_list
        self.is_touched = False

    @property
    def interpreters(self) -> list[int]:
        """The processes of all that live."""
        living = [branch.interpreter for branch in self.branches.values()]
        return [one.pid for one in (self.zygote, *living) if one is not None]

    def drop_zygote(self) -> None:
        """End the zygote, if there is one."""
        zygote, self.zygote = self.zygote, None
        if zygote is None:
            return
        self.guard.shield(None)
        self.loop.forget(zygote.reports)
        self.loop.forget(zygote.commands.fd)
        zygote.close()
        if not self.family.end(lambda descendant: descendant.line == zygote.pid):
            raise OutOfHand

    def is_of_nobody(self, descendant: Descendant) -> bool:
        """Whether a process has been left behind by one that has ended, and not by a shell."""
        if descendant.line in self.interpreters:
            return False
        return all(descendant.session not in branch.shells.sessions for branch in self.branches.values())
