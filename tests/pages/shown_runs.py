"""Events of a run in which every text of a model, of code, of a tool or of a person is the same one."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

from autogen_agentchat.messages import CodeGenerationEvent, TextMessage, ThoughtEvent
from autogen_core.code_executor import CodeBlock
from autogen_core.models import RequestUsage

from codeact_team.core.effects import Event
from codeact_team.core.events import (
    Approval,
    ArtifactKept,
    ArtifactReference,
    BlockBegan,
    BlockEnded,
    BudgetSpent,
    Code,
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
    RunEnded,
    SandboxLost,
    SandboxPreparing,
    SandboxStarted,
    ToolCallBegan,
    ToolCallEnded,
)
from codeact_team.core.execution import Artifact, BoundName, CallOutcome, Outcome
from codeact_team.core.executor_interface import Change
from codeact_team.journal.result import RunEnding, RunFile, RunResult, ToolUse

USAGE = RequestUsage(1234, 56)


class Shown:
    """What code has shown, by its digest."""

    def __init__(self, *artifacts: Artifact) -> None:
        forms = [data for artifact in artifacts for data in artifact.forms.values()]
        self._data = {sha256(data).hexdigest(): data for data in forms}
        self.references = [ArtifactReference.of(artifact) for artifact in artifacts]

    def __call__(self, digest: str) -> bytes | None:
        return self._data.get(digest)


def everywhere(text: str, shown: Shown) -> Iterator[Event]:
    """One of each thing that is told of a run, with ``text`` wherever there is a text."""
    agent = text
    yield Opened(relaxations=[text], workspaces=[text])
    yield RunBegan(span=1, task=text, bypassing_parts=[text])
    yield SandboxPreparing(sandbox=text, doing=text)
    yield SandboxStarted(sandbox=text, packages={text: text})
    yield ModelCallBegan(span=2, agent=agent, model=text)
    yield ModelCallEnded(span=2, agent=agent, model=text, usage=USAGE, error=text)
    yield MessageSent(message=ThoughtEvent(source=agent, content=text))
    written = CodeGenerationEvent(
        source=agent,
        content=text,
        code_blocks=[CodeBlock(code="1", language="python")],
        retry_attempt=0,
    )
    yield MessageSent(message=written)
    yield QuestionAsked(span=3, agent=agent, text=text)
    yield QuestionAnswered(span=3, agent=agent, text=text, error=text)
    yield Approval(agent=agent, what="code", name=text, allowed=True, by=text, reason=text)
    for language in ("python", "bash", "json", text):
        yield BlockBegan(span=4, agent=agent, blocks=[Code(language, f"{text}\nprint(1)")])
    yield ToolCallBegan(span=5, agent=agent, name=text, arguments=text)
    yield ToolCallEnded(span=5, agent=agent, name=text, outcome=CallOutcome.FAILED, error=text)
    for reference in shown.references:
        yield ArtifactKept(agent=agent, file=text, path=text, artifact=reference)
    yield BlockEnded(
        span=4,
        agent=agent,
        exit_code=1,
        outcome=Outcome.COMPLETED,
        output=text,
        limit=text,
        names=[BoundName(text, text, text, text)],
        artifacts=shown.references,
        error=text,
    )
    yield Decision(agent=agent, retry=True, reason=text)
    yield MessageSent(message=TextMessage(source=agent, content=f"Again: {text}"))
    yield MessageSent(message=TextMessage(source=agent, content=text))
    yield Judged(agent=agent, accepted=False, problems=[text], next_step=text, answer=text)
    yield BudgetSpent(spent={"cost": 0.5}, left={}, currency=text, unpriced=[text], used_up=text)
    yield SandboxLost(sandbox=text, reason=text)
    yield ProcessBegan(span=8, agent=agent, argv=[text, text], cwd=text)
    yield ProcessEnded(span=8, agent=agent, returncode=1, limit=text, error=text)
    yield ProcessBegan(span=9, agent=agent, argv=[text], is_job=True)
    yield RequestBegan(span=10, agent=agent, method=text, url=text)
    yield RequestEnded(span=10, agent=agent, method=text, url=text, error=text)
    yield RequestBegan(span=11, agent=agent, method=text, url=text)
    yield RequestDenied(agent=agent, host=text, port=80, reason=text, entry=text)
    yield ToolCallBegan(span=6, agent=agent, name=text, arguments=text)
    yield QuestionAsked(span=7, agent=agent, text=text)
    yield RunEnded(span=1)
    yield RunResult(
        ending=RunEnding.NOT_ACCEPTED,
        usage=USAGE,
        messages=2,
        seconds=1.5,
        stop_reason=text,
        objection=f"No: {text}",
        error=text,
        answer=text,
        tools=[ToolUse(text, {CallOutcome.OK: 1})],
        files=[RunFile(text, 10, Change.MADE, text, text)],
        file_notes=[text],
    )


def session(code: str, output: str, *shown: ArtifactReference, answer: str = "Done.") -> Iterator[Event]:
    """A run with one block."""
    yield RunBegan(span=1, task="Look.")
    yield BlockBegan(span=2, agent="coder", blocks=[Code("python", code)])
    yield BlockEnded(span=2, agent="coder", exit_code=0, output=output, artifacts=shown)
    yield RunEnded(span=1)
    yield RunResult(ending=RunEnding.ACCEPTED, usage=USAGE, messages=2, seconds=1.5, answer=answer)
