"""Who has run code in an executor, and who has yet to hear that what their code left behind is gone."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from codeact_team.errors import SettingError

_UNCLAIMED = object()


class Generation:
    """What one block leaves behind for the next, until it is replaced: an interpreter, or only a sandbox.

    Attributes:
        interpreter: The interpreter's number; ``None`` until it is known.
        loss: Why it was replaced, once it is.
        setup_done: How many pieces of the setup have run in it.
    """

    def __init__(self) -> None:
        self.interpreter: int | None = None
        self.loss = ""
        self.setup_done = 0
        self._rights: object = _UNCLAIMED

    def forked(self, interpreter: int) -> Generation:
        """A copy of it, which goes its own way."""
        other = Generation()
        other.interpreter, other.setup_done, other._rights = interpreter, self.setup_done, self._rights
        return other

    def claim(self, rights: object) -> None:
        """Let code with these rights to call the host run here, and from now on no other; they are compared by ``==``.

        Raises:
            SettingError: If code with other rights runs here.
        """
        if self._rights is _UNCLAIMED:
            self._rights = rights
        if self._rights != rights:
            raise SettingError(
                "this session has run code of an agent with other tools, or other limits or approvals for them. What "
                "that code left running could call the tools of this agent. Give each agent an executor of its own, "
                "or restart() the executor in between"
            )


class Users:
    """Which generation each user's code has run in last.

    A user is an object that lives as long as it needs the executor. The owner is whoever does not say who they are.
    """

    def __init__(self, owner: object) -> None:
        self._owner = owner
        self._last: WeakKeyDictionary[object, Generation] = WeakKeyDictionary()
        self.generation = Generation()

    @property
    def in_use(self) -> bool:
        """Whether code of a user other than the owner has run in the present generation."""
        return any(last is self.generation and user is not self._owner for user, last in self._last.items())

    def note(self, user: object) -> tuple[bool, str | None]:
        """Note that the user's code runs in the present generation.

        Returns:
            Whether none has before; and why another generation is gone, if it has run in that last.
        """
        last = self._last.get(user)
        if last is self.generation:
            return False, None
        self._last[user] = self.generation
        return True, None if last is None else last.loss

    def forget(self, user: object) -> None:
        """The user counts on nothing any more."""
        self._last.pop(user, None)

    def take_over(self, other: Users) -> None:
        """What blocks have left behind for others is from now on what they have left behind there, and nothing is there."""
        self.generation, other.generation = other.generation, Generation()
        # it has to be told yet that it has started
        self.generation.interpreter = None

    def replace(self, loss: str, *, told: object = None, by: Generation | None = None) -> None:
        """Begin a new generation, as the present one is gone for the reason ``loss``, which the user ``told`` knows.

        Args:
            loss: Why.
            told: Who knows it.
            by: The new one; by default nothing of it is there yet.
        """
        self.generation.loss = loss
        self.generation = by or Generation()
        if told is not None:
            self.forget(told)
