"""What happens in a run, as small typed values that dump to JSON and load again.

Each effect has a begin and an end with the same ``span``. ``parent`` is the span that an event belongs to: a run holds
the turns of agents, a turn holds its model calls and blocks, a block the calls of tools that its code makes.

A field that holds text of a model or of code holds hostile data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from typing import Annotated

from autogen_agentchat.messages import (
    BaseAgentEvent,
    BaseChatMessage,
    MessageFactory,
    ModelClientStreamingChunkEvent,
)
from autogen_core.code_executor import CodeResult
from autogen_core.models import RequestUsage
from pydantic import JsonValue, PlainSerializer, PlainValidator, TypeAdapter

from codeact_team.core.effects import (
    Dispatcher,
    EffectBegan,
    EffectEnded,
    Event,
    SpanEvent,
    current_dispatcher,
    error_text,
)
from codeact_team.core.execution import (
    Artifact,
    BoundName,
    CallOutcome,
    Outcome,
    SessionResult,
)

VERSION = 3
"""Of the events as JSON."""


@dataclass(kw_only=True)
class AgentEvent(Event):
    """Something that an agent does."""

    agent: str


@dataclass(kw_only=True)
class Opened(Event):
    """A team is loaded.

    Attributes:
        relaxations: The settings of its sandboxes weaker than the default, in words.
        workspaces: The directories of this machine in which its code works and that stay there.
    """

    relaxations: Sequence[str] = ()
    workspaces: Sequence[str] = ()


@dataclass(kw_only=True)
class RunBegan(Event):
    """A team, or an agent, begins to work on a task.

    Attributes:
        bypassing_parts: Parts of it that bypass the dispatcher, by name: with any, the run can be neither resumed nor
            replayed.
        record: The directory in which it is kept, if it is.
    """

    span: int
    task: str
    bypassing_parts: Sequence[str] = ()
    record: str | None = None


@dataclass(kw_only=True)
class RunResumed(Event):
    """A run is gone on with. What follows is told from its beginning once more.

    Attributes:
        record: The directory in which it is kept.
        answered: How many effects its journal answers, by their kinds.
        repeated: How many blocks run again, to bring back their variables, if other code is to run.
        seconds: Wall-clock time that these have taken before.
    """

    record: str
    answered: dict[str, int]
    repeated: int
    seconds: float


@dataclass(frozen=True)
class OpenQuestion:
    """A question that nobody was there to answer.

    Attributes:
        n: The number of its entry in the journal.
        key: A digest of who asks what, which no other question has in the same place.
        agent: Who asks.
        kind: ``approval``, or ``person_input`` for any text.
        text: The question, fit to be shown.
        is_lost: Whether no answer can reach what has asked: it was stopped half-way, and is not done twice, as it is code that
            could reach more than its workspace, or a tool. When the run goes on, it is told as unknown, and may ask anew.
    """

    n: int
    key: str
    agent: str
    kind: str
    text: str
    is_lost: bool = False


@dataclass(kw_only=True)
class RunParked(Event):
    """A run ends here, and waits for answers: ``codeact-team answer RECORD``, and then ``codeact-team resume RECORD``.

    Attributes:
        record: The directory in which it is kept.
        questions: What is asked.
    """

    record: str
    questions: Sequence[OpenQuestion]


@dataclass(kw_only=True)
class RunEnded(Event):
    """Its work is over. What it came to is told by whoever ran it; ``error`` is what broke it off."""

    span: int
    error: str | None = None


@dataclass(kw_only=True)
class TurnBegan(SpanEvent):
    """An agent begins its turn."""


@dataclass(kw_only=True)
class TurnEnded(SpanEvent):
    """An agent has ended its turn; ``error`` is what broke it off."""

    error: str | None = None


@dataclass(kw_only=True)
class ModelCallBegan(EffectBegan):
    """A model is asked; ``client`` is the class of the client that does it."""

    model: str
    client: str = ""


@dataclass(kw_only=True)
class ModelCallEnded(EffectEnded):
    """A model has answered, or failed.

    Attributes:
        usage: The tokens that it cost; ``None`` where nobody knows.
        cached: Whether the answer cost nothing, as it was there already.
        first_piece: Seconds until its first words came, where it is streamed.
        error: What went wrong, if something did.
    """

    model: str
    usage: RequestUsage | None = None
    cached: bool = False
    finish_reason: str | None = None
    first_piece: float | None = None
    error: str | None = None


@dataclass(kw_only=True)
class Words(AgentEvent):
    """A piece of what a model writes, as it comes; ``message_id`` is that of the message that will have all of it."""

    text: str
    message_id: str | None = None


@dataclass(frozen=True)
class Code:
    """A code block."""

    language: str
    code: str


@dataclass(frozen=True)
class ArtifactReference:
    """An artifact without its bytes.

    Attributes:
        mime_type: Such as ``image/png``.
        size: In bytes.
        sha256: The digest of the bytes, in hexadecimal digits.
    """

    mime_type: str
    size: int
    sha256: str

    @classmethod
    def of(cls, artifact: Artifact) -> ArtifactReference:
        """The reference to an artifact."""
        return cls(artifact.mime_type, len(artifact.data), sha256(artifact.data).hexdigest())


@dataclass(kw_only=True)
class BlockBegan(EffectBegan):
    """Code blocks begin to run."""

    blocks: Sequence[Code]


@dataclass(kw_only=True)
class Output(AgentEvent):
    """A piece of what code writes, as it comes."""

    text: str
    message_id: str | None = None


@dataclass(kw_only=True)
class BlockEnded(EffectEnded):
    """Code blocks have ended.

    Attributes:
        exit_code: ``None`` where they have no result, as something else went wrong.
        output: What the blocks wrote, bounded.
        processor_seconds: Processor time that their sandbox has used since the call before; ``None`` if not known.
        missing_module: The Python module whose absence ended them, by what they wrote last.
        names: What they have bound in a session.
        artifacts: What they have made beside text, without the bytes.
        answer: What the code called ``final_answer`` with.
        message_id: The id of the message that tells of it, where there is one.
        error: What went wrong where there is no result.
    """

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
    """A picture or a table that code has shown was added to the files of the workspace.

    Attributes:
        file: Its name there.
        path: Where that is on this machine; ``None`` where it does not stay there.
    """

    file: str
    path: str | None
    artifact: ArtifactReference


def block_ended(
    result: CodeResult | None, error: BaseException | None = None, message_id: str | None = None
) -> BlockEnded:
    """The end of code blocks, by what came of them."""
    event = BlockEnded(message_id=message_id, error=error_text(error))
    if result is not None:
        event.outcome = Outcome.COMPLETED
        # the fields have the names that they have in the result
        for name in vars(event).keys() & vars(result).keys():
            setattr(event, name, getattr(result, name))
    if isinstance(result, SessionResult):
        event.artifacts = [ArtifactReference.of(artifact) for artifact in result.artifacts]
    return event


@dataclass(kw_only=True)
class ToolCallBegan(EffectBegan):
    """A tool of the host is called.

    Attributes:
        name: The tool; where code calls it, its dotted path below ``tools``.
        arguments: As JSON text, cut if they are long.
    """

    name: str
    arguments: str


@dataclass(kw_only=True)
class ToolCallEnded(EffectEnded):
    """The call of a tool has ended; ``seconds`` include the wait for an approval."""

    name: str
    outcome: CallOutcome
    error: str = ""
    seconds: float = 0.0


@dataclass(kw_only=True)
class ToolListingBegan(EffectBegan):
    """Workbenches are asked which tools there are; ``of`` says what the workbenches are called."""

    of: Sequence[str]


@dataclass(kw_only=True)
class ToolListingEnded(EffectEnded):
    """Workbenches have answered, or failed to."""

    of: Sequence[str]


@dataclass(kw_only=True)
class QuestionAsked(EffectBegan):
    """A person is asked; ``text`` is the question, fit to be shown."""

    text: str


@dataclass(kw_only=True)
class QuestionAnswered(EffectEnded):
    """A person has answered; ``text`` is empty where none did."""

    text: str = ""
    error: str | None = None


@dataclass(kw_only=True)
class ClockReadingBegan(EffectBegan):
    """An agent, or a team with a budget, begins to read the clock."""


@dataclass(kw_only=True)
class ClockReadingEnded(EffectEnded):
    """The clock was read; both fields are ``None`` where that failed.

    Attributes:
        over: Whether the time of an agent is over.
        seconds: How long a team has worked.
    """

    over: bool | None = None
    seconds: float | None = None


@dataclass(kw_only=True)
class BudgetSpent(Event):
    """A team that has a budget has spent something, or may spend no more.

    Attributes:
        spent: How much since its task: ``model_calls``, ``tokens``, ``tool_calls``, ``processor_seconds``; ``cost`` where
            there are prices, and ``seconds`` where these are limited.
        left: The same, of what is limited.
        currency: Of money.
        unpriced: Models that were asked and have no price: what they cost is in no number.
        uncounted: How many calls of models have an unknown number of tokens: they are in no number, either.
        used_up: Why it may spend no more, in words.
    """

    spent: dict[str, int | float]
    left: dict[str, int | float]
    currency: str | None = None
    unpriced: Sequence[str] = ()
    uncounted: int = 0
    used_up: str | None = None


@dataclass(kw_only=True)
class Approval(AgentEvent):
    """Code, or the call of a tool, was allowed or denied by a rule, a grant or a person.

    Attributes:
        what: ``code`` or ``tool``.
        name: The tool, or the language of the code.
        by: Who decided, such as ``rule 2``.
    """

    what: str
    name: str
    allowed: bool
    by: str
    reason: str = ""
    seconds: float = 0.0


@dataclass(kw_only=True)
class Decision(AgentEvent):
    """A model has decided whether code that failed is worth another attempt."""

    retry: bool
    reason: str


@dataclass(kw_only=True)
class Judged(AgentEvent):
    """A model has judged the work.

    Attributes:
        answer: To the task, where it accepts the work of others.
        message_id: The id of the message that tells of it, where there is one.
    """

    accepted: bool
    problems: Sequence[str] = ()
    next_step: str = ""
    answer: str = ""
    message_id: str | None = None


@dataclass(kw_only=True)
class ForkBegan(EffectBegan):
    """An agent forks its session, once for each attempt at its task; ``branches`` says how often."""

    branches: int


@dataclass(kw_only=True)
class ForkEnded(EffectEnded):
    """A session was forked, or could not be; then ``refusal`` says why, and one attempt is made."""

    branches: int
    refusal: str | None = None


@dataclass(kw_only=True)
class AttemptBegan(EffectBegan):
    """An agent begins one of several attempts at its task, side by side. What belongs to it has its span as ``parent``.

    Attributes:
        attempt: Its number, from 1.
        attempts: How many there are.
    """

    attempt: int
    attempts: int


@dataclass(kw_only=True)
class AttemptEnded(EffectEnded):
    """An attempt has ended.

    Attributes:
        attempt: Its number, from 1.
        attempts: How many there are.
        ending: How it came to its end, such as ``answered`` or ``cancelled``; ``None`` where ``error`` broke it off.
    """

    attempt: int
    attempts: int
    ending: str | None = None
    error: str | None = None


@dataclass(kw_only=True)
class PromotionBegan(EffectBegan):
    """An agent chooses one of its attempts: the variables and files of that shall be those of its session."""

    attempt: int


@dataclass(kw_only=True)
class PromotionEnded(EffectEnded):
    """An attempt was chosen, and the others are dropped; ``loss`` says why its variables and files are lost, if they are."""

    attempt: int
    loss: str | None = None


@dataclass(kw_only=True)
class SandboxStarting(Event):
    """A sandbox, or the interpreter in it, starts; ``sandbox`` names its executor."""

    sandbox: str


@dataclass(kw_only=True)
class SandboxPreparing(Event):
    """Something is done before a sandbox can start, such as a download: ``doing`` says what, in words."""

    sandbox: str
    doing: str


@dataclass(kw_only=True)
class SandboxStarted(Event):
    """A sandbox is ready.

    Attributes:
        sandbox: Its executor.
        packages: The versions, by name, of what was put into it.
        image: The digest of the image that its container was made from.
        python: The version of its Python, where no image says which.
        place: Where in the config its executor is; empty where no config has it.
    """

    sandbox: str
    packages: Mapping[str, str] = field(default_factory=dict[str, str])
    image: str | None = None
    python: str | None = None
    place: str = ""


@dataclass(kw_only=True)
class DescriptionBegan(EffectBegan):
    """A sandbox is asked for a description of itself, for a model."""


@dataclass(kw_only=True)
class DescriptionEnded(EffectEnded):
    """A sandbox has described itself."""

    text: str


@dataclass(kw_only=True)
class SandboxLost(Event):
    """A sandbox, or the interpreter in it, is gone with what code has left there.

    Attributes:
        sandbox: Its executor.
        place: Where in the config that is; empty where no config has it.
    """

    sandbox: str
    reason: str
    place: str = ""


@dataclass(kw_only=True)
class FilesPutBack(Event):
    """A run goes on, and files of its workspace are again what they were before the code that was interrupted.

    Attributes:
        workspace: The directory, from the working directory.
        files: Their paths in it; hostile data.
    """

    workspace: str
    files: Sequence[str]


@dataclass(kw_only=True)
class BlocksRepeated(Event):
    """A run goes on, and code of it has run again, to bring back its variables.

    Attributes:
        place: Where in the config its executor is.
        blocks: How many blocks.
        differing: How many of them came to something else than before; agents go by what they came to then.
        difference: How the first of these differs, as a unified diff; hostile data.
    """

    place: str
    blocks: int
    differing: int
    difference: str | None = None


@dataclass(frozen=True)
class ChangedRequest:
    """Something that a run has asked otherwise than before.

    Attributes:
        agent: Who asked.
        kind: For what sort of effect, such as ``model_call``.
        times: How often.
    """

    agent: str
    kind: str
    times: int


@dataclass(kw_only=True)
class Replayed(Event):
    """A recorded run has run once more, without its models and tools.

    Attributes:
        record: The directory in which it is kept.
        blocks: How many calls of code have come to the same as then.
        answered: How many questions were answered from its journal.
        changed: What it has asked otherwise than then, such as a prompt in other words.
        difference: What is otherwise than then, such as the output of a call of code, as a diff; ``None`` if nothing is.
            Hostile data.
        block: Which call of code that is, counted from 1; ``None`` where it is something else.
        is_whole: Whether it has come to its end.
    """

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

    sandbox: str


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
    """A message: an agent of this package has sent or received it, or it has come out of the team.

    Each message is emitted once, as soon as it is known, also that of an agent inside a tool.
    """

    message: Message


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
def _adapter(kind: type[Event]) -> TypeAdapter[Event]:
    return TypeAdapter(kind)


def dump(event: Event) -> dict[str, JsonValue]:
    """An event as JSON, with its ``type`` first."""
    return {"type": event.type, **_adapter(type(event)).dump_python(event, mode="json")}


def load(data: Mapping[str, JsonValue]) -> Event:
    """The event that was dumped.

    Raises:
        ValueError: If it is none of this version.
    """
    kind = Event.kinds.get(str(data.get("type")))
    if kind is None:
        raise ValueError(f"an event of the type {data.get('type')!r} is not known")
    return _adapter(kind).validate_python({**data})
