"""A run as a page for a browser: one file that asks nobody for anything, and runs nothing but artifacts in frames."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import resources
from secrets import token_hex
from tempfile import TemporaryFile
from typing import Any, TextIO

from autogen_agentchat.messages import (
    BaseAgentEvent,
    BaseChatMessage,
    CodeExecutionEvent,
    CodeGenerationEvent,
    ThoughtEvent,
    UserInputRequestedEvent,
)
from jinja2 import Template
from markupsafe import Markup

from codeact_team.agents.observations import ExecutionRecord
from codeact_team.core.effects import (
    EffectEnded,
    Event,
    ListenerFailed,
    OtherEffectBegan,
    OtherEffectEnded,
    OtherEvent,
)
from codeact_team.core.events import (
    Approval,
    ArtifactKept,
    BlockBegan,
    BlockEnded,
    BudgetSpent,
    Decision,
    Judged,
    MessageSent,
    ModelCallBegan,
    ModelCallEnded,
    Opened,
    ProcessBegan,
    ProcessEnded,
    QuestionAnswered,
    QuestionAsked,
    RequestBegan,
    RequestDenied,
    RequestEnded,
    RunBegan,
    RunParked,
    SandboxLost,
    SandboxPreparing,
    SandboxStarted,
    ToolCallBegan,
    ToolCallEnded,
)
from codeact_team.core.execution import Bytes
from codeact_team.core.sandbox_description import without_note
from codeact_team.exports.pages.markup import environment, files_shown, highlighting_styles, shown
from codeact_team.journal.promoted import PromotedListener
from codeact_team.journal.result import Costs, RunFile, RunResult, merged

_MAX_LENGTH = 50
"""The most items in one section: a browser lays out only the sections that are seen."""
_CallBegan = ModelCallBegan | ProcessBegan | RequestBegan | ToolCallBegan | QuestionAsked | OtherEffectBegan
_CallEnded = (
    ModelCallEnded | ProcessEnded | RequestEnded | ToolCallEnded | QuestionAnswered | OtherEffectEnded
)
_Began = BlockBegan | _CallBegan


class _Story(PromotedListener):
    """A listener that writes HTML. Nothing is held back that may become large.

    Args:
        file: What to write to.
        items: The template with a macro for each kind of thing that is told.
        artifact: Where the bytes of artifacts are.
        nonce: What the policy of the page asks of scripts.

    Attributes:
        result: Of the last run that has ended.
        messages: Of all tasks that have ended.
        files: What these have made or changed, by the path.
        made_in: The number of the task that has done so last.
        seconds: The wall-clock time of these.
    """

    def __init__(self, file: TextIO, items: Template, artifact: Bytes, nonce: str) -> None:
        super().__init__()
        self._file = file
        self._items: Any = items.module
        self._artifact = artifact
        self._nonce = nonce
        self._speaker: str | None = None
        """Whose section is open."""
        self._length = 0
        """The number of items in it."""
        self._under_way: dict[int, _Began] = {}
        self._task: str | None = None
        """The task, until its message has come."""
        self._written = ""
        """The last text of a model."""
        self._reason: str | None = None
        """A model's reason for another attempt, until its proposal has come."""
        self._executed: set[str] = set()
        """Agents whose last execution is shown, and whose message on it has not come."""
        self._kept: dict[str, str] = {}
        """The names of artifacts that are files, by their digests."""
        self.shown: set[str] = set()
        """The digests of the artifacts in the sections."""
        self._judged: str | None = None
        """The id of the message that repeats the last verdict."""
        self.result: RunResult | None = None
        self.messages = 0
        self.seconds = 0.0
        self.files: Mapping[str, RunFile] = {}
        self.made_in: dict[str, int] = {}
        self._begun = self._ended = 0
        """The number of tasks; a program's have one result."""
        self._is_at_work: bool | None = None
        """Whether a task has begun and not ended; ``None`` before the first."""
        self._entered = ""
        """What a person has entered in a chat, until it is known whether it is a task, which is told by itself."""

    def hear(self, event: Event) -> None:
        """Write an event."""
        self._tell_entered(event)
        match event:
            case RunBegan():
                self._section(None)
                self._is_at_work = True
                self._task, self.result = event.task, None
                self._begun += 1
                self._file.write(self._items.task(event, self._begun))
            case _ if isinstance(event, _CallBegan):
                self._under_way[event.span] = event
            case _ if isinstance(event, _CallEnded):
                self._effect(event)
            case BlockBegan() | BlockEnded():
                self._block(event)
            case MessageSent():
                self._message(event.message)
            case Decision() | Judged():
                self._decided(event)
            case RunResult():
                self._end(event)
            case _:
                self._beside(event)

    def _end(self, result: RunResult) -> None:
        self.close()
        self.result = result
        if self._is_at_work is False:
            # a chat has ended, each of whose tasks has a result of its own
            return
        self._is_at_work = False
        self.messages += result.messages
        self.seconds += result.seconds
        self.files = merged(self.files, result.files)
        self._ended += 1
        self.made_in.update(dict.fromkeys(merged({}, result.files), self._ended))
        self._file.write(self._items.ending(result))

    def _tell_entered(self, event: Event) -> None:
        entered, self._entered = self._entered, ""
        if entered and not isinstance(event, RunBegan):
            self._section(None)
            self._file.write(self._items.entered(entered))

    def close(self) -> None:
        """Tell what has not ended, and end the last section."""
        for began in self._under_way.values():
            if _is_of_chat(began):
                # a chat may end at any time
                continue
            self._tell(began.agent, "unfinished", began)
        self._under_way.clear()
        self._section(None)

    def _effect(self, event: EffectEnded) -> None:
        began = self._under_way.pop(event.span, None)
        if _is_of_chat(began):
            self._entered = event.text if isinstance(event, QuestionAnswered) else ""
        elif began is not None:
            self._tell(event.agent, event.type, began, event)

    def _block(self, event: BlockBegan | BlockEnded) -> None:
        if isinstance(event, BlockBegan):
            self._under_way[event.span] = event
            is_above = all(block.code.strip() in self._written for block in event.blocks)
            self._tell(event.agent, event.type, event, is_above=is_above)
            return
        self._under_way.pop(event.span, None)
        self._executed.add(event.agent)
        self._tell(event.agent, event.type, event)
        for artifact in event.artifacts:
            self.shown |= {form.sha256 for form in (artifact, *artifact.other_forms)}
            name = artifact.file or self._kept.get(artifact.sha256)
            self._tell(event.agent, "artifact", artifact, name, shown(artifact, self._artifact, self._nonce))

    def _decided(self, event: Decision | Judged) -> None:
        if isinstance(event, Decision):
            self._reason = event.reason if event.retry else None
        else:
            self._judged = event.message_id
        self._tell(event.agent, event.type, event)

    def _beside(self, event: Event) -> None:
        match event:
            case ArtifactKept():
                self._kept[event.artifact.sha256] = event.path or event.file
            case Approval() | RequestDenied():
                self._tell(event.agent, event.type, event)
            case BudgetSpent(used_up=str()):
                self._file.write(self._items.budget_spent(event))
            case (
                Opened()
                | RunParked()
                | SandboxPreparing()
                | SandboxStarted()
                | SandboxLost()
                | ListenerFailed()
            ):
                self._file.write(getattr(self._items, event.type)(event))
            case OtherEvent():
                self._file.write(self._items.other_event(event.name, event.data))
            case _:
                pass

    def _message(self, message: BaseAgentEvent | BaseChatMessage) -> None:
        if isinstance(message, UserInputRequestedEvent) or message.id == self._judged:
            return
        if isinstance(message, ThoughtEvent):
            self._tell(message.source, "thought", message.content)
            return
        if isinstance(message, CodeGenerationEvent) and not message.code_blocks and self._reason:
            reason, self._reason = self._reason, None
            if message.content.endswith(reason):
                # it repeats what was decided
                return
        executed = message.source in self._executed
        if isinstance(message, CodeExecutionEvent) and executed:
            return
        text = message.to_text()
        if isinstance(message, BaseChatMessage):
            self._executed.discard(message.source)
            text = without_note(message).to_text()
            record = ExecutionRecord.from_metadata(message.metadata)
            if record is not None and record.remark is not None:
                text = record.remark if executed else f"{record.output}\n{record.remark}"
        if text == self._task:
            self._task = None
        elif text:
            self._written = text
            self._tell(message.source, "words", text)

    def _tell(self, agent: str, kind: str, *told: object, **more: object) -> None:
        if agent:
            self._section(agent)
        self._file.write(getattr(self._items, kind)(*told, **more))

    def _section(self, speaker: str | None) -> None:
        self._length += 1
        if speaker == self._speaker and self._length < _MAX_LENGTH:
            return
        if self._speaker is not None:
            self._file.write(self._items.turn_end())
        if speaker is not None:
            self._file.write(self._items.turn_begin(speaker))
        self._speaker, self._length = speaker, 0


def _is_of_chat(began: _Began | None) -> bool:
    """Whether a person is asked for the next input of a chat, which is no question in words."""
    return isinstance(began, QuestionAsked) and not began.text


_PIECE = 64 * 1024


def write_page(
    write: Callable[[str], object],
    events: Iterable[Event],
    artifact: Bytes,
    *,
    title: str,
    state: str = "no end",
    facts: Mapping[str, str] | None = None,
) -> None:
    """Write a page that loads nothing, and runs no script outside the frames of artifacts, whatever is in the events.

    Args:
        write: Is given the page, piece by piece, to be written in UTF-8.
        events: Of a run, in order; they are read once, and not kept.
        artifact: Where the bytes of artifacts are.
        title: Of the page, such as the task.
        state: What is told of a run without an end.
        facts: What else is known of the run.

    Raises:
        Exception: What reading ``events`` raises.
    """
    templates = environment()
    costs = Costs(in_all=True)
    with TemporaryFile("w+", encoding="utf-8") as body:
        # what comes last in a run is first on its page
        nonce = token_hex()
        story = _Story(body, templates.get_template("items.html"), artifact, nonce)
        for event in events:
            costs(event)
            story(event)
        story.close()
        body.seek(0)
        page = templates.get_template("page.html").generate(
            title=title,
            state=state,
            facts=facts or {},
            result=story.result,
            files=story.files,
            made_in=story.made_in,
            shown=files_shown(story.files.values(), artifact, story.shown),
            costs=costs,
            messages=story.messages,
            seconds=story.seconds,
            style=_style(),
            nonce=nonce,
            body=_pieces(body),
        )
        for piece in page:
            write(piece)


def _pieces(file: TextIO) -> Iterator[Markup]:
    while piece := file.read(_PIECE):
        yield Markup(piece)


def _style() -> Markup:
    light, dark = highlighting_styles()
    own = (
        resources.files("codeact_team.exports.pages")
        .joinpath("templates", "style.css")
        .read_text(encoding="utf-8")
    )
    return Markup(f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n{own}")
