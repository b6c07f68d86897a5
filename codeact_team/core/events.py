"""The events of a run: small typed values that dump to JSON and load again.

Each effect has a begin and an end with the same ``span``. ``parent`` is the span that an event belongs to: a run holds
the turns of agents, a turn holds its model calls and blocks, a block the calls of tools that its code makes.

A field that holds text of a model or of code holds hostile data.
"""

# the name of a class says which of the types it has
# pyright: reportIncompatibleVariableOverride=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, ClassVar, Literal, TypeAlias

from autogen_agentchat.messages import (
    BaseAgentEvent,
    BaseChatMessage,
    MessageFactory,
    ModelClientStreamingChunkEvent,
)
from autogen_core.models import RequestUsage
from pydantic import JsonValue, PlainSerializer, PlainValidator, TypeAdapter

from codeact_team.core.attempt_events import AttemptBegan as AttemptBegan
from codeact_team.core.attempt_events import AttemptEnded as AttemptEnded
from codeact_team.core.attempt_events import ForkBegan as ForkBegan
from codeact_team.core.attempt_events import ForkEnded as ForkEnded
from codeact_team.core.attempt_events import PromotionBegan as PromotionBegan
from codeact_team.core.attempt_events import PromotionEnded as PromotionEnded
from codeact_team.core.effects import (
    Dispatcher,
    EffectBegan,
    EffectEnded,
    Event,
    ListenerFailed,
    OtherEffectBegan,
    OtherEffectEnded,
    OtherEvent,
    SpanEvent,
    current_dispatcher,
)
from codeact_team.core.execution import (
    ArtifactReference,
    BoundName,
    CallOutcome,
    Outcome,
)
from codeact_team.core.network_events import RequestBegan as RequestBegan
from codeact_team.core.network_events import RequestDenied as RequestDenied
from codeact_team.core.network_events import RequestEnded as RequestEnded
from codeact_team.core.process_events import ProcessBegan as ProcessBegan
from codeact_team.core.process_events import ProcessEnded as ProcessEnded
from codeact_team.core.sandbox_events import BlocksRepeated as BlocksRepeated
from codeact_team.core.sandbox_events import BlocksRepeating as BlocksRepeating
from codeact_team.core.sandbox_events import ChangedRequest as ChangedRequest
from codeact_team.core.sandbox_events import DescriptionBegan as DescriptionBegan
from codeact_team.core.sandbox_events import DescriptionEnded as DescriptionEnded
from codeact_team.core.sandbox_events import FilesPutBack as FilesPutBack
from codeact_team.core.sandbox_events import Replayed as Replayed
from codeact_team.core.sandbox_events import SandboxLost as SandboxLost
from codeact_team.core.sandbox_events import SandboxPreparing as SandboxPreparing
from codeact_team.core.sandbox_events import SandboxStarted as SandboxStarted
from codeact_team.core.sandbox_events import SandboxStarting as SandboxStarting
from codeact_team.core.sandbox_events import SandboxStopped as SandboxStopped
from codeact_team.text.magics import shell_in

VERSION = 4
"""Of the events as JSON."""


@dataclass(kw_only=True)
class AgentEvent(Event):
    """Something that an agent does."""

    agent: str


@dataclass(kw_only=True)
class Opened(Event):
    """A team is loaded. ``relaxations`` lists its sandboxes' relaxations, ``workspaces`` the host directories of its code."""

    type: ClassVar[Literal["opened"]]
    relaxations: Sequence[str] = ()
    workspaces: Sequence[str] = ()


@dataclass(kw_only=True)
class RunBegan(Event):
    """A team, or an agent, begins to work on a task.

    Attributes:
        bypassing_parts: Parts that bypass the dispatcher: with any, the run can be neither resumed nor replayed.
        record: The directory in which it is kept, if it is.
        options: The options of the command that `resume` needs again.
    """

    type: ClassVar[Literal["run_began"]]
    span: int
    task: str
    bypassing_parts: Sequence[str] = ()
    record: str | None = None
    options: Sequence[str] = ()


@dataclass(kw_only=True)
class RunResumed(Event):
    """A run is resumed; its events are emitted again from the beginning.

    Attributes:
        answered: How many effects its journal answers, by their kinds.
        repeated: How many blocks run again to restore their variables.
        seconds: Wall-clock time that these have taken before.
    """

    type: ClassVar[Literal["run_resumed"]]
    record: str
    answered: dict[str, int]
    repeated: int
    seconds: float


@dataclass(frozen=True)
class OpenQuestion:
    """A question without an answer.

    Attributes:
        n: The number of its entry in the journal.
        key: A digest of caller and question, unique in its place.
        kind: ``approval``, or ``person_input`` for any text.
        is_lost: Whether no answer can reach its caller, which was stopped half-way and is not run twice. On resume its
            outcome is unknown, and it may ask anew.
    """

    n: int
    key: str
    agent: str
    kind: str
    text: str
    is_lost: bool = False


@dataclass(kw_only=True)
class RunParked(Event):
    """A run ends and waits for answers: ``codeact-team answer RECORD``, then ``codeact-team resume RECORD``."""

    type: ClassVar[Literal["run_parked"]]
    record: str
    questions: Sequence[OpenQuestion]


@dataclass(kw_only=True)
class RunEnded(Event):
    """A run has ended; ``error`` is what broke it off."""

    type: ClassVar[Literal["run_ended"]]
    span: int
    error: str | None = None


@dataclass(kw_only=True)
class TurnBegan(SpanEvent):
    """An agent begins its turn."""

    type: ClassVar[Literal["turn_began"]]


@dataclass(kw_only=True)
class TurnEnded(SpanEvent):
    """An agent has ended its turn; ``error`` is what broke it off."""

    type: ClassVar[Literal["turn_ended"]]
    error: str | None = None


@dataclass(kw_only=True)
class ModelCallBegan(EffectBegan):
    """A model is asked; ``client`` is the class of the client that does it."""

    type: ClassVar[Literal["model_call_began"]]
    model: str
    client: str = ""


@dataclass(kw_only=True)
class ModelCallEnded(EffectEnded):
    """A model has answered, or failed.

    Attributes:
        usage: Its tokens; ``None`` if they are not known.
        is_estimated: Whether they are estimated, as the server has not told them.
        cached: Whether the answer cost nothing.
        finish_reason: Why the model stopped, such as ``stop`` or ``length``.
        first_piece: Seconds until its first words, if it is streamed.
    """

    type: ClassVar[Literal["model_call_ended"]]
    model: str
    usage: RequestUsage | None = None
    is_estimated: bool = False
    cached: bool = False
    finish_reason: str | None = None
    first_piece: float | None = None
    error: str | None = None


@dataclass(kw_only=True)
class ModelCallPutOff(Event):
    """A model's server cannot answer the call with the span ``parent``, for ``reason``, and is asked again in ``seconds``."""

    type: ClassVar[Literal["model_call_put_off"]]
    reason: str
    seconds: float


@dataclass(kw_only=True)
class Words(AgentEvent):
    """A piece of a model's text; ``message_id`` is the id of the message with the whole text."""

    type: ClassVar[Literal["words"]]
    text: str
    message_id: str | None = None


@dataclass(frozen=True)
class Code:
    """A code block."""

    language: str
    code: str

    @property
    def runs_shell(self) -> bool:
        """Whether it is Python that runs a shell by magics, such as ``!ls``."""
        return self.language.lower() == "python" and bool(shell_in(self.code).commands)


@dataclass(kw_only=True)
class BlockBegan(EffectBegan):
    """Code blocks begin to run.

    Attributes:
        blocks: The blocks.
        timeout: The time limit of each in seconds, if it is known.
        of_program: Whether no agent runs them, but a program in its sandbox.
    """

    type: ClassVar[Literal["block_began"]]
    blocks: Sequence[Code]
    timeout: float | None = None
    of_program: bool = False


@dataclass(kw_only=True)
class Output(AgentEvent):
    """A piece of the output of code; ``message_id`` is the id of the message with the whole output."""

    type: ClassVar[Literal["output"]]
    text: str
    message_id: str | None = None


@dataclass(kw_only=True)
class BlockEnded(EffectEnded):
    """Code blocks have ended; the fields are as in :class:`~codeact_team.core.execution.SessionResult`.

    Attributes:
        exit_code: 0 for success; ``None`` if they have no result, and ``error`` says why.
        artifacts: The figures, pictures and tables that they have shown, in order, without their bytes.
        message_id: The id of the message with the result, if there is one.
    """

    type: ClassVar[Literal["block_ended"]]
    exit_code: int | None = None
    outcome: Outcome | None = None
    output: str = ""
    limit: str | None = None
    missing_module: str | None = None
    omitted_bytes: int = 0
    seconds: float = 0.0
    processor_seconds: float | None = None
    code_file: str | None = None
    state_lost: bool = False
    names: Sequence[BoundName] = ()
    omitted_names: int = 0
    artifacts: Sequence[ArtifactReference] = ()
    answer: str | None = None
    message_id: str | None = None
    error: str | None = None


@dataclass(kw_only=True)
class ArtifactKept(AgentEvent):
    """A picture that code has shown is a file of the workspace now; ``path`` is where on this machine, if it lasts."""

    type: ClassVar[Literal["artifact_kept"]]
    file: str
    path: str | None
    artifact: ArtifactReference


@dataclass(kw_only=True)
class ToolCallBegan(EffectBegan):
    """A tool of the host is called; ``arguments`` is JSON, cut if it is long. One that ``is_repeatable`` may be called twice."""

    type: ClassVar[Literal["tool_call_began"]]
    name: str
    arguments: str
    is_repeatable: bool = False


@dataclass(kw_only=True)
class ToolCallEnded(EffectEnded):
    """The call of a tool has ended; ``error`` is for the code, and ``seconds`` include the wait for an approval."""

    type: ClassVar[Literal["tool_call_ended"]]
    name: str
    outcome: CallOutcome
    error: str = ""
    seconds: float = 0.0


@dataclass(kw_only=True)
class ToolListingBegan(EffectBegan):
    """Workbenches, such as MCP servers, are asked for their tools; ``of`` has the names of the workbenches."""

    type: ClassVar[Literal["tool_listing_began"]]
    of: Sequence[str]


@dataclass(kw_only=True)
class ToolListingEnded(EffectEnded):
    """Workbenches have answered, or failed to."""

    type: ClassVar[Literal["tool_listing_ended"]]
    of: Sequence[str]


@dataclass(kw_only=True)
class QuestionAsked(EffectBegan):
    """A person is asked; ``text`` is the question, fit to be shown."""

    type: ClassVar[Literal["question_asked"]]
    text: str


@dataclass(kw_only=True)
class QuestionAnswered(EffectEnded):
    """A person has answered; ``text`` is empty where none did, and ``error`` says why none could."""

    type: ClassVar[Literal["question_answered"]]
    text: str = ""
    error: str | None = None


@dataclass(kw_only=True)
class ClockReadingBegan(EffectBegan):
    """An agent, or a team with a budget, begins to read the clock, to compare it with a limit."""

    type: ClassVar[Literal["clock_reading_began"]]


@dataclass(kw_only=True)
class ClockReadingEnded(EffectEnded):
    """The clock was read: whether the time of an agent is over, or the seconds that a team has worked."""

    type: ClassVar[Literal["clock_reading_ended"]]
    over: bool | None = None
    seconds: float | None = None


@dataclass(kw_only=True)
class BudgetSpent(Event):
    """A team with a budget has spent something, or may spend no more.

    Attributes:
        spent: The amounts since its task: ``model_calls``, ``tokens``, ``tool_calls``, ``requests``, ``bytes``,
            ``processor_seconds``; ``cost`` where there are prices, and ``seconds`` where these are limited.
        left: The same, of what is limited.
        unpriced: Models without a price, whose cost is in no number.
        uncounted: How many model calls have an unknown number of tokens.
        is_estimated: Whether tokens are estimated of some calls, whose servers have not told them.
        used_up: Why it may spend no more, in words.
    """

    type: ClassVar[Literal["budget_spent"]]
    spent: dict[str, int | float]
    left: dict[str, int | float]
    currency: str | None = None
    unpriced: Sequence[str] = ()
    uncounted: int = 0
    is_estimated: bool = False
    used_up: str | None = None


@dataclass(kw_only=True)
class Approval(AgentEvent):
    """Code (``what`` is ``code``) or the call of a tool was decided on by a rule, a grant or a person.

    Attributes:
        name: The language of the code, or the tool.
        by: What decided, such as ``rule 2`` (counted from 1), ``handler``, ``standing grant`` or ``no one to ask``.
        seconds: How long the answer of a person took.
    """

    type: ClassVar[Literal["approval"]]
    what: str
    name: str
    allowed: bool
    by: str
    reason: str = ""
    seconds: float = 0.0


@dataclass(kw_only=True)
class Decision(AgentEvent):
    """A model has decided whether code that failed is worth another attempt."""

    type: ClassVar[Literal["decision"]]
    retry: bool
    reason: str


@dataclass(kw_only=True)
class Judged(AgentEvent):
    """A model has judged the work; ``answer`` is its answer to the task if it accepts the work of others."""

    type: ClassVar[Literal["judged"]]
    accepted: bool
    problems: Sequence[str] = ()
    next_step: str = ""
    answer: str = ""
    message_id: str | None = None


def _load_message(data: object) -> BaseChatMessage | BaseAgentEvent:
    if isinstance(data, Mapping):
        return MessageFactory().create(dict(data))  # pyright: ignore[reportUnknownArgumentType]
    assert isinstance(data, BaseChatMessage | BaseAgentEvent)
    return data


Message = Annotated[
    BaseChatMessage | BaseAgentEvent,
    PlainSerializer(lambda message: {"type": type(message).__name__, **message.model_dump(mode="json")}),
    PlainValidator(_load_message),
]


@dataclass(kw_only=True)
class MessageSent(Event, type="message"):
    """A message of an agent, also of one inside a tool, emitted once, as soon as it is known.

    Attributes:
        message: A task, a thought (``ThoughtEvent``), code (``CodeGenerationEvent``), its result, or an answer; pictures in
            it are bytes here, and references in the lines of the command.
    """

    type: ClassVar[Literal["message"]]
    message: Message


AnyEvent: TypeAlias = (
    Opened
    | RunBegan
    | RunResumed
    | RunParked
    | RunEnded
    | TurnBegan
    | TurnEnded
    | ModelCallBegan
    | ModelCallEnded
    | ModelCallPutOff
    | Words
    | BlockBegan
    | Output
    | BlockEnded
    | ArtifactKept
    | ToolCallBegan
    | ToolCallEnded
    | ToolListingBegan
    | ToolListingEnded
    | QuestionAsked
    | QuestionAnswered
    | ClockReadingBegan
    | ClockReadingEnded
    | BudgetSpent
    | Approval
    | Decision
    | Judged
    | SandboxStarting
    | SandboxPreparing
    | SandboxStarted
    | DescriptionBegan
    | DescriptionEnded
    | SandboxLost
    | FilesPutBack
    | BlocksRepeated
    | BlocksRepeating
    | Replayed
    | SandboxStopped
    | MessageSent
    | ForkBegan
    | ForkEnded
    | AttemptBegan
    | AttemptEnded
    | PromotionBegan
    | PromotionEnded
    | ProcessBegan
    | ProcessEnded
    | RequestBegan
    | RequestEnded
    | RequestDenied
    | OtherEffectBegan
    | OtherEffectEnded
    | OtherEvent
    | ListenerFailed
)
"""The events of this package in a run. By ``event.type`` a type checker knows the class."""


def emit_piece(piece: Words | Output, dispatcher: Dispatcher | None) -> None:
    """Emit a piece of a message, which AutoGen's chunks repeat."""
    if (dispatcher := current_dispatcher() or dispatcher) is not None:
        if piece.message_id is not None:
            dispatcher.streamed.add(piece.message_id)
        dispatcher.emit(piece)


def emit_message(message: BaseChatMessage | BaseAgentEvent, dispatcher: Dispatcher | None) -> None:
    """Emit a message, or a piece of one, unless it was emitted before."""
    dispatcher = current_dispatcher() or dispatcher
    if dispatcher is None:
        return
    if not isinstance(message, ModelClientStreamingChunkEvent):
        if message.id not in dispatcher.sent:
            dispatcher.sent.add(message.id)
            dispatcher.emit(MessageSent(message=message))
    elif message.full_message_id not in dispatcher.streamed:
        dispatcher.emit(Words(agent=message.source, text=message.content, message_id=message.full_message_id))


@cache
def adapter_of(kind: type[Event]) -> TypeAdapter[Event]:
    """Writes and reads the events of a class."""
    return TypeAdapter(kind)


def dump(event: Event) -> dict[str, JsonValue]:
    """An event as JSON, with its ``type`` first."""
    return {"type": event.type, **adapter_of(type(event)).dump_python(event, mode="json")}


def load(data: Mapping[str, JsonValue]) -> Event:
    """The event that was dumped; a ``ValueError`` if it is none of this version."""
    kind = Event.kinds.get(str(data.get("type")))
    if kind is None:
        raise ValueError(f"an event of the type {data.get('type')!r} is not known")
    return adapter_of(kind).validate_python({**data})
