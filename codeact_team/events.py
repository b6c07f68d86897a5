"""What happens in a run, as small typed values that dump to JSON and load again.

Each effect has a begin and an end with the same ``span``. ``parent`` is the span that an event belongs to: a run holds
the turns of agents, a turn holds its model calls and blocks, a block the calls of tools that its code makes.

A field that holds text of a model or of code holds hostile data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Any, Literal

from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage, MessageFactory
from autogen_core.code_executor import CodeResult
from autogen_core.models import RequestUsage
from pydantic import Field, JsonValue, PlainSerializer, PlainValidator, TypeAdapter

from codeact_team.effects import Event, ListenerFailed
from codeact_team.execution import Artifact, BoundName, CallOutcome, ExecutionResult, Outcome, SessionResult

VERSION = 2
"""Of the events as JSON. The first was AutoGen's messages as ``--json`` printed them."""


@dataclass(kw_only=True)
class Opened(Event):
    """A team is loaded.

    Attributes:
        loosenings: Each setting of its sandboxes that is weaker than the default, in words.
    """

    type: Literal["opened"] = "opened"
    loosenings: Sequence[str] = ()


@dataclass(kw_only=True)
class RunBegan(Event):
    """A team, or an agent, begins to work on a task."""

    type: Literal["run_began"] = "run_began"
    span: int
    task: str


@dataclass(kw_only=True)
class RunEnded(Event):
    """Its work is over. What it came to is told by whoever ran it."""

    type: Literal["run_ended"] = "run_ended"
    span: int


@dataclass(kw_only=True)
class TurnBegan(Event):
    """An agent begins its turn."""

    type: Literal["turn_began"] = "turn_began"
    span: int
    agent: str


@dataclass(kw_only=True)
class TurnEnded(Event):
    """An agent has ended its turn."""

    type: Literal["turn_ended"] = "turn_ended"
    span: int
    agent: str


@dataclass(kw_only=True)
class ModelCallBegan(Event):
    """A model is asked."""

    type: Literal["model_call_began"] = "model_call_began"
    span: int
    agent: str
    model: str


@dataclass(kw_only=True)
class ModelCallEnded(Event):
    """A model has answered, or failed.

    Attributes:
        usage: The tokens that it cost; ``None`` where nobody knows.
        cached: Whether the answer cost nothing, as it was there already.
        error: What went wrong, if something did.
    """

    type: Literal["model_call_ended"] = "model_call_ended"
    span: int
    agent: str
    model: str
    usage: RequestUsage | None = None
    cached: bool = False
    finish_reason: str | None = None
    error: str | None = None


@dataclass(kw_only=True)
class Words(Event):
    """A piece of what a model writes, as it comes.

    Attributes:
        message_id: The id of the message that will have all of it.
    """

    type: Literal["words"] = "words"
    agent: str
    text: str
    message_id: str | None = None


@dataclass(kw_only=True)
class Thought(Event):
    """What a model thought before it spoke."""

    type: Literal["thought"] = "thought"
    agent: str
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
class BlockBegan(Event):
    """Code blocks begin to run."""

    type: Literal["block_began"] = "block_began"
    span: int
    agent: str
    blocks: Sequence[Code]


@dataclass(kw_only=True)
class Output(Event):
    """A piece of what code writes, as it comes."""

    type: Literal["output"] = "output"
    agent: str
    text: str
    message_id: str | None = None


@dataclass(kw_only=True)
class BlockEnded(Event):
    """Code blocks have ended.

    Attributes:
        exit_code: ``None`` where they have no result, as something else went wrong.
        output: What the blocks wrote, bounded.
        names: What they have bound in a session.
        artifacts: What they have made beside text, without the bytes.
        answer: What the code called ``final_answer`` with.
        message_id: The id of the message that tells of it, where there is one.
        error: What went wrong where there is no result.
    """

    type: Literal["block_ended"] = "block_ended"
    span: int
    agent: str
    exit_code: int | None = None
    outcome: Outcome | None = None
    output: str = ""
    limit: str | None = None
    omitted_bytes: int = 0
    seconds: float = 0.0
    code_file: str | None = None
    state_lost: bool = False
    names: Sequence[BoundName] = ()
    omitted_names: int = 0
    artifacts: Sequence[ArtifactReference] = ()
    answer: str | None = None
    message_id: str | None = None
    error: str | None = None


def block_ended(
    span: int,
    agent: str,
    result: CodeResult | None,
    error: BaseException | None = None,
    message_id: str | None = None,
) -> BlockEnded:
    """The end of code blocks, by what came of them."""
    event = BlockEnded(span=span, agent=agent, message_id=message_id)
    if error is not None:
        event.error = f"{type(error).__name__}: {error}"
    if result is not None:
        event.exit_code, event.output, event.outcome = result.exit_code, result.output, Outcome.COMPLETED
    if isinstance(result, ExecutionResult):
        event.outcome, event.limit, event.code_file = result.outcome, result.limit, result.code_file
        event.omitted_bytes, event.seconds = result.omitted_bytes, result.seconds
    if isinstance(result, SessionResult):
        event.state_lost, event.answer = result.state_lost, result.answer
        event.names, event.omitted_names = result.names, result.omitted_names
        event.artifacts = [ArtifactReference.of(artifact) for artifact in result.artifacts]
    return event


@dataclass(kw_only=True)
class ToolCallBegan(Event):
    """A tool of the host is called.

    Attributes:
        name: The tool; where code calls it, its dotted path below ``tools``.
        arguments: As JSON text, cut if they are long.
    """

    type: Literal["tool_call_began"] = "tool_call_began"
    span: int
    agent: str
    name: str
    arguments: str


@dataclass(kw_only=True)
class ToolCallEnded(Event):
    """The call of a tool has ended.

    Attributes:
        seconds: Wall-clock time, the wait for an approval included.
    """

    type: Literal["tool_call_ended"] = "tool_call_ended"
    span: int
    agent: str
    name: str
    outcome: CallOutcome
    error: str = ""
    seconds: float = 0.0


@dataclass(kw_only=True)
class QuestionAsked(Event):
    """A person is asked.

    Attributes:
        text: The question, fit to be shown.
    """

    type: Literal["question_asked"] = "question_asked"
    span: int
    agent: str
    text: str


@dataclass(kw_only=True)
class QuestionAnswered(Event):
    """A person has answered; ``text`` is empty where none did."""

    type: Literal["question_answered"] = "question_answered"
    span: int
    agent: str
    text: str = ""
    error: str | None = None


@dataclass(kw_only=True)
class ClockRead(Event):
    """An agent looks whether its time is over.

    Attributes:
        over: Whether it is; ``None`` where it begins to look, and where that failed.
    """

    type: Literal["clock_read"] = "clock_read"
    span: int
    agent: str
    over: bool | None = None


@dataclass(kw_only=True)
class Approval(Event):
    """Code, or the call of a tool, was allowed or denied by a rule, a grant or a person.

    Attributes:
        what: ``code`` or ``tool``.
        name: The tool, or the language of the code.
        by: Who decided, such as ``rule 2``.
    """

    type: Literal["approval"] = "approval"
    agent: str
    what: str
    name: str
    allowed: bool
    by: str
    reason: str = ""
    seconds: float = 0.0


@dataclass(kw_only=True)
class CodeWritten(Event):
    """A model has written code that is to run, or proposed a correction, or a reply whose code is not run.

    Attributes:
        attempt: How many attempts were made before.
    """

    type: Literal["code_written"] = "code_written"
    agent: str
    text: str
    blocks: Sequence[Code]
    attempt: int
    message_id: str


@dataclass(kw_only=True)
class Decision(Event):
    """A model has decided whether code that failed is worth another attempt."""

    type: Literal["decision"] = "decision"
    agent: str
    retry: bool
    reason: str


@dataclass(kw_only=True)
class Judged(Event):
    """A model has judged the work.

    Attributes:
        message_id: The id of the message that tells of it, where there is one.
    """

    type: Literal["judged"] = "judged"
    agent: str
    accepted: bool
    problems: Sequence[str] = ()
    next_step: str = ""
    message_id: str | None = None


@dataclass(kw_only=True)
class HandedOff(Event):
    """An agent has handed the work to another."""

    type: Literal["handed_off"] = "handed_off"
    agent: str
    target: str


@dataclass(kw_only=True)
class SandboxStarting(Event):
    """A sandbox, or the interpreter in it, starts; ``sandbox`` names its executor."""

    type: Literal["sandbox_starting"] = "sandbox_starting"
    sandbox: str


@dataclass(kw_only=True)
class SandboxStarted(Event):
    """A sandbox is ready."""

    type: Literal["sandbox_started"] = "sandbox_started"
    sandbox: str


@dataclass(kw_only=True)
class SandboxLost(Event):
    """A sandbox, or the interpreter in it, is gone with what code has left there."""

    type: Literal["sandbox_lost"] = "sandbox_lost"
    sandbox: str
    reason: str


@dataclass(kw_only=True)
class SandboxStopped(Event):
    """A sandbox was stopped by its owner."""

    type: Literal["sandbox_stopped"] = "sandbox_stopped"
    sandbox: str


def _dump_message(message: BaseChatMessage | BaseAgentEvent) -> dict[str, Any]:
    return {"type": type(message).__name__, **message.model_dump(mode="json")}


def _load_message(data: object) -> BaseChatMessage | BaseAgentEvent:
    if isinstance(data, Mapping):
        return MessageFactory().create(dict(data))  # pyright: ignore[reportUnknownArgumentType]
    assert isinstance(data, BaseChatMessage | BaseAgentEvent)
    return data


Message = Annotated[
    BaseChatMessage | BaseAgentEvent, PlainSerializer(_dump_message), PlainValidator(_load_message)
]


@dataclass(kw_only=True)
class MessageSent(Event):
    """A message of AutoGen's has come out of the team.

    An agent of ours has told of what is in it before; the same thing then has the same id.
    """

    type: Literal["message"] = "message"
    message: Message


@dataclass(kw_only=True)
class Said(Event):
    """An agent of ours has said this message, or has just read it.

    It comes out of the team a little later, as :class:`MessageSent` and with the same id; that of an agent inside a tool
    does not.
    """

    type: Literal["said"] = "said"
    message: Message


AnyEvent = Annotated[
    Opened
    | RunBegan
    | RunEnded
    | TurnBegan
    | TurnEnded
    | ModelCallBegan
    | ModelCallEnded
    | Words
    | Thought
    | CodeWritten
    | BlockBegan
    | Output
    | BlockEnded
    | ToolCallBegan
    | ToolCallEnded
    | QuestionAsked
    | QuestionAnswered
    | ClockRead
    | Approval
    | Decision
    | Judged
    | HandedOff
    | SandboxStarting
    | SandboxStarted
    | SandboxLost
    | SandboxStopped
    | MessageSent
    | Said
    | ListenerFailed,
    Field(discriminator="type"),
]

_ADAPTER: TypeAdapter[AnyEvent] = TypeAdapter(AnyEvent)


def dump(event: Event) -> dict[str, JsonValue]:
    """An event as JSON, with its ``type`` first."""
    data: dict[str, JsonValue] = _ADAPTER.dump_python(event, mode="json")  # type: ignore[arg-type]
    return {"type": data.pop("type"), **data}


def load(data: Mapping[str, JsonValue]) -> AnyEvent:
    """The event that was dumped.

    Raises:
        ValueError: If it is none of this version.
    """
    return _ADAPTER.validate_python(dict(data))
