"""Makes branches of a session, lets one go on in the place of another, and ends them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import partial

from codeact_team.session.protocol import BRANCH_HEAD, BRANCHES, MAX_BRANCHES, Kind, ProtocolError, frame
from codeact_team.session.runner.supervisor.branch import Branch, remove_home
from codeact_team.session.runner.supervisor.relay import BranchHost, Host
from codeact_team.session.runner.supervisor.surroundings import OutOfHand, Surroundings
from codeact_team.session.runner.supervisor.tree_replacing import replace_content

_REPLACED = "a branch of it goes on in its place"


class Branching:
    """The branches of a session.

    Args:
        around: What they share.
        host: The stream to the host.
        main: The session itself.
    """

    def __init__(self, around: Surroundings, host: Host, main: Branch) -> None:
        self._around = around
        self._host = host
        self._main = main

    def take(self, branch: Branch, kind: Kind, payload: bytes) -> None:
        """Do what a frame of a branch says."""
        if kind == Kind.FORK:
            branch.require_idle()
            numbers, directory = self._new_numbers(payload), _directory(payload)
            branch.with_interpreter(partial(self._fork, branch, numbers, directory))
        elif kind == Kind.PROMOTE:
            self._promote(branch, _field(payload, "branch"))
        elif kind == Kind.END and branch is not self._main:
            self._end(branch)
            branch.host.send(frame(Kind.DONE))
        else:
            branch.take(kind, payload)

    def pass_on(self, payload: bytes) -> None:
        """Take a piece of the stream of a branch. One that has ended hears no more."""
        if len(payload) < BRANCH_HEAD.size:
            raise ProtocolError("a piece says whose it is")
        (number,) = BRANCH_HEAD.unpack_from(payload)
        branch = self._around.branches.get(number)
        if branch is not None and isinstance(branch.host, BranchHost):
            for kind, content in branch.host.feed(payload[BRANCH_HEAD.size :]):
                self.take(branch, kind, content)

    def end_all(self) -> None:
        """End all branches but the session itself."""
        for branch in list(self._around.branches.values()):
            if branch is not self._main:
                self._end(branch)

    def _new_numbers(self, payload: bytes) -> list[int]:
        said = _field(payload, "branches")
        listed: list[object] = [*said] if isinstance(said, list) else []  # pyright: ignore[reportUnknownArgumentType]
        numbers = [one for one in listed if isinstance(one, int)]
        if not numbers or min(numbers) <= 0 or not self._around.branches.keys().isdisjoint(numbers):
            raise ProtocolError("these are no numbers for branches")
        return numbers

    def _fork(self, branch: Branch, numbers: list[int], directory: str) -> None:
        """Make branches of one that has an interpreter, if it can be forked."""
        if (refused := self._obstacle(branch, len(numbers))) is not None:
            _answer(branch, refused)
            return
        made: list[Branch] = []
        try:
            for number in numbers:
                made.append(self._new(number, directory))
            for new in made:
                new.be_fork_of(branch)
        except OSError as error:
            self._discard(made)
            _answer(branch, f"there is not enough for another interpreter: {error.strerror or error}")
            return
        children = [new.interpreter for new in made if new.interpreter]
        branch.supply.fork([new.home for new in made], children, partial(self._forked, branch, made))

    def _new(self, number: int, directory: str) -> Branch:
        home = os.path.join(self._main.home, directory, str(number))
        return Branch(self._around, number, BranchHost(self._host, number), home)

    def _forked(self, branch: Branch, made: Sequence[Branch], problem: str | None) -> None:
        if problem is not None:
            for new in made:
                # closed already
                new.supply.interpreter = None
            self._discard(made)
        else:
            for new in made:
                new.begin()
                self._around.branches[new.number] = new
        _answer(branch, problem)

    def _discard(self, branches: Sequence[Branch]) -> None:
        for branch in branches:
            branch.close()
            remove_home(branch.home)

    def _obstacle(self, branch: Branch, count: int) -> str | None:
        around, interpreter = self._around, branch.interpreter
        if not around.family.can_list:
            return "a fork takes Linux, and a /proc in which processes can be seen"
        if len(around.branches) + count > MAX_BRANCHES:
            return f"there may be {MAX_BRANCHES} branches of a session at a time"
        if interpreter is None:
            return "there is no interpreter to fork"
        sessions = branch.shells.sessions
        if around.family.has(
            lambda one: (
                one.pid != interpreter.pid
                and (one.line == interpreter.pid or one.session in sessions or around.is_of_nobody(one))
            )
        ):
            return "a process that the code has started still runs: wait for it, or end it"
        return None

    def _promote(self, branch: Branch, number: object) -> None:
        source = self._around.branches.get(number) if isinstance(number, int) else None
        if source is None or source is branch or source is self._main:
            raise ProtocolError("there is no such branch")
        branch.require_idle()
        source.require_idle()
        if source.interpreter is None:
            failure = {"error": "OSError", "message": "the branch has lost its interpreter"}
            branch.host.send(frame(Kind.FAILED, json.dumps(failure).encode()))
            return
        branch.end_interpreter(_REPLACED)
        try:
            replace_content(source.home, branch.home, BRANCHES)
        except OSError as error:
            # half of it is there
            raise OutOfHand from error
        del self._around.branches[source.number]
        branch.go_on_from(source)
        branch.greet()

    def _end(self, branch: Branch) -> None:
        branch.end_interpreter("it was ended")
        del self._around.branches[branch.number]
        branch.close()
        remove_home(branch.home)


def _answer(branch: Branch, refused: str | None) -> None:
    branch.host.send(frame(Kind.FORKED, json.dumps({"refused": refused}).encode()))


def _directory(payload: bytes) -> str:
    directory = _field(payload, "directory")
    if not isinstance(directory, str) or not directory.removeprefix(BRANCHES).isalnum():
        raise ProtocolError("that is no directory for branches")
    return directory


def _field(payload: bytes, name: str) -> object:
    try:
        return json.loads(payload)[name]
    except (ValueError, LookupError, TypeError) as error:
        raise ProtocolError("it is no request") from error
