"""The events of sandboxes, and of what a run that goes on finds in them."""

# the name of a class says which of the types it has
# pyright: reportIncompatibleVariableOverride=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from codeact_team.core.effects import EffectBegan, EffectEnded, Event, SpanEvent


@dataclass(kw_only=True)
class SandboxStarting(Event):
    """A sandbox, or the interpreter in it, starts; ``sandbox`` names its executor."""

    type: ClassVar[Literal["sandbox_starting"]]
    sandbox: str


@dataclass(kw_only=True)
class SandboxPreparing(Event):
    """Something is got before a sandbox starts, such as an image or packages; ``doing`` says it in words."""

    type: ClassVar[Literal["sandbox_preparing"]]
    sandbox: str
    doing: str


@dataclass(kw_only=True)
class SandboxStarted(Event):
    """A sandbox is ready.

    Attributes:
        packages: The versions, by name, of the packages that were installed for it.
        image: The digest of the image of its container.
        python: The version of its Python, if no image determines it.
        view: How Linux confines its processes: "in namespaces" or "without namespaces", if they are those of this machine.
        place: The path of its executor in the config; empty if no config has it.
    """

    type: ClassVar[Literal["sandbox_started"]]
    sandbox: str
    packages: Mapping[str, str] = field(default_factory=dict[str, str])
    image: str | None = None
    python: str | None = None
    view: str | None = None
    place: str = ""


@dataclass(kw_only=True)
class DescriptionBegan(EffectBegan):
    """A sandbox is asked for a description of itself, for a model: its Python, packages, network, and files."""

    type: ClassVar[Literal["description_began"]]


@dataclass(kw_only=True)
class DescriptionEnded(EffectEnded):
    """A sandbox has described itself; a model reads ``text``."""

    type: ClassVar[Literal["description_ended"]]
    text: str


@dataclass(kw_only=True)
class SandboxLost(Event):
    """A sandbox, or the interpreter in it, is lost with its state; ``place`` as of :class:`SandboxStarted`."""

    type: ClassVar[Literal["sandbox_lost"]]
    sandbox: str
    reason: str
    place: str = ""


@dataclass(kw_only=True)
class FilesPutBack(Event):
    """On resume, files of a workspace were restored to their state before the interrupted code; hostile paths."""

    type: ClassVar[Literal["files_put_back"]]
    workspace: str
    files: Sequence[str]


@dataclass(kw_only=True)
class BlocksRepeating(SpanEvent):
    """On resume, so many blocks begin to run again, to restore their variables. What belongs to this span has happened before."""

    type: ClassVar[Literal["blocks_repeating"]]
    place: str
    blocks: int


@dataclass(kw_only=True)
class BlocksRepeated(SpanEvent):
    """On resume, code has run again to restore its variables.

    Attributes:
        place: The path of its executor in the config.
        blocks: How many blocks have run.
        differing: How many blocks had another result than before; agents use the recorded one.
        difference: The first difference as a unified diff; hostile data.
    """

    type: ClassVar[Literal["blocks_repeated"]]
    place: str
    blocks: int
    differing: int
    difference: str | None = None


@dataclass(frozen=True)
class ChangedRequest:
    """The number of an agent's effects of one kind whose requests differ from the recorded ones."""

    agent: str
    kind: str
    times: int


@dataclass(kw_only=True)
class Replayed(Event):
    """A recorded run has run once more, without its models and tools.

    Attributes:
        blocks: How many calls of code had the same result.
        answered: How many requests its journal has answered.
        changed: Requests that differ, such as a prompt in other words.
        difference: What else differs, as a diff, or ``None``; hostile data.
        block: The call of code that differs, counted from 1; ``None`` for anything else.
        is_whole: Whether it has reached its end.
    """

    type: ClassVar[Literal["replayed"]]
    record: str
    blocks: int
    answered: int
    changed: Sequence[ChangedRequest]
    difference: str | None
    is_whole: bool
    block: int | None = None


@dataclass(kw_only=True)
class SandboxStopped(Event):
    """A sandbox was stopped by its owner."""

    type: ClassVar[Literal["sandbox_stopped"]]
    sandbox: str
