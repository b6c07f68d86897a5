"""Texts that agents read in messages and write in them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from autogen_agentchat.messages import BaseChatMessage, BaseTextChatMessage, HandoffMessage, MultiModalMessage
from autogen_agentchat.utils import remove_images
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor
from autogen_core.model_context import ChatCompletionContext
from autogen_core.models import ChatCompletionClient, CreateResult, LLMMessage
from pydantic import JsonValue, TypeAdapter

from codeact_team.agents.observations import Ending, ExecutionRecord, encodable
from codeact_team.core.aio import is_being_cancelled, until_cancelled
from codeact_team.core.effects import Begin, Dispatcher, Effect, End, perform
from codeact_team.core.events import DescriptionBegan, DescriptionEnded
from codeact_team.core.executor_interface import StreamingCodeExecutor
from codeact_team.text.markdown import Extraction, extract_before_invention
from codeact_team.text.quoting import make_inert, take_thoughts_off

NO_ANSWER = "(The model gave no answer, or declined to.)"
"""In a chat, and in a context, some models take no empty message."""
NO_ANSWER_IN_TIME = "The time for this task is over, and the model did not answer in time."
CALLED_A_TOOL = "(The model called a tool that it was not offered"
"""The beginning of the words in place of an answer where the last reply was such a call."""

_SHORTER = "Write it again, shorter."
_GO_ON = "Go on with the task: write code, or answer in plain words."
_MAX_NAMES = 200
"""Characters of the names of tools."""


@dataclass(frozen=True)
class Fault:
    """A reason not to run a reply of a model, nor to take it for an answer.

    Attributes:
        ending: The end of the agent's work if no better reply comes.
        was: A description of the reply.
        advice: The next step for the model.
    """

    ending: Ending
    was: str
    advice: str

    def to_text(self) -> str:
        """The remark for the model."""
        return f"Your reply was {self.was}, so no code in it was run. {self.advice}"


def fault_of(result: CreateResult, found: Extraction) -> Fault | None:
    """Return the fault of a reply, in which this code was found; ``None`` if the reply is usable."""
    if not isinstance(result.content, str):
        names = ", ".join(dict.fromkeys(call.name for call in result.content))
        called = make_inert(encodable(" ".join(names.split())[:_MAX_NAMES]))
        advice = "There is no such tool. Act by writing code in a ```python block."
        return Fault(Ending.NO_SUCH_TOOL, f"a call of a tool that was not offered ({called})", advice)
    is_blank = not result.content.strip()
    if result.finish_reason == "length" and found.invented is None:
        return Fault(Ending.CUT_OFF, "cut off at the model's token limit", _SHORTER)
    if result.finish_reason == "content_filter":
        return Fault(Ending.REFUSED, "a refusal, or stopped by the provider's content filter", _GO_ON)
    # a model that has stopped by itself may have forgotten the closing fence; of others nobody knows
    if found.unclosed and result.finish_reason != "stop":
        return Fault(Ending.CUT_OFF, "cut off inside a code block", _SHORTER)
    if is_blank:
        return Fault(Ending.NO_ANSWER, "nothing but a thought" if result.thought else "empty", _GO_ON)
    return None


def is_substitute(text: str) -> bool:
    """Whether a message says only why there is no answer of a model's."""
    return text.strip().startswith((NO_ANSWER, NO_ANSWER_IN_TIME, CALLED_A_TOOL))


def text_of_result(result: CreateResult) -> str:
    """The text of what a model answered; a call of a tool that it was not offered is text as well."""
    if isinstance(result.content, str):
        return encodable(result.content) if result.content.strip() else NO_ANSWER
    return "\n".join(f"{call.name}({call.arguments})" for call in result.content)


@dataclass
class FoundCode:
    """The code in some messages."""

    blocks: list[CodeBlock] = field(default_factory=list[CodeBlock])
    """To run, in order."""
    unsupported: list[str] = field(default_factory=list[str])
    """Labels of code that the agent does not run."""
    unclosed: list[str] = field(default_factory=list[str])
    """Authors of messages that end within a block, of which no code is run: it may have been cut off."""
    invented: bool = False
    """Whether a message goes on as if its code had run already; that is not read."""


def text_of(message: BaseChatMessage) -> str:
    """The text of a message of any type, without images."""
    if isinstance(message, BaseTextChatMessage):
        text = message.content
    elif isinstance(message, MultiModalMessage):
        text = "\n".join(part for part in message.content if isinstance(part, str))
    else:
        text = message.to_text()
    return encodable(text)


def given_answer(message: BaseChatMessage) -> str | None:
    """The answer in a message, word for word, of an agent that has come to one by itself."""
    record = ExecutionRecord.from_metadata(message.metadata)
    if record is not None and record.answer is not None:
        return record.answer
    return text_of(message) if Ending.from_metadata(message.metadata) is Ending.ANSWERED else None


def find_code(
    messages: Sequence[BaseChatMessage],
    languages: Sequence[str],
    *,
    sources: Sequence[str] | None,
    default_language: str | None,
) -> FoundCode:
    """The code blocks in ``messages``, those since the agent's last turn, without those in thoughts.

    Code that another agent has run meanwhile, by the record in its message, is not run again, nor is what that message
    quotes of it, unless ``sources`` asks for its author's code.

    Args:
        messages: The messages.
        languages: What the agent runs.
        sources: Whose code to take; ``None`` for everybody's.
        default_language: The language of fences without a label; ``None`` to leave them alone.
    """
    found = FoundCode()
    for message in messages:
        if sources is None or message.source in sources:
            said = take_thoughts_off(text_of(message)).text
            extraction = extract_before_invention(said, languages, default_language=default_language)
            if not extraction.unclosed:
                found.blocks += extraction.blocks
            elif message.source not in found.unclosed:
                found.unclosed.append(message.source)
            found.invented |= extraction.invented is not None
            found.unsupported += [label for label in extraction.unsupported if label not in found.unsupported]
        if sources is None and (record := ExecutionRecord.from_metadata(message.metadata)) is not None:
            done = {(block.language, block.code) for block in [*record.blocks, *record.superseded]}
            found.blocks = [block for block in found.blocks if (block.language, block.code) not in done]
    return found


def model_messages(messages: Sequence[BaseChatMessage]) -> list[LLMMessage]:
    """Messages, and what a handoff brings along, as a model reads them."""
    read: list[LLMMessage] = []
    for message in messages:
        if isinstance(message, HandoffMessage):
            read += message.context
        read.append(message.to_model_message())
    return read


async def add_to_context(context: ChatCompletionContext, messages: Sequence[BaseChatMessage]) -> None:
    """Add messages, and what a handoff brings along, to a model's context."""
    for message in model_messages(messages):
        await context.add_message(message)


def visible_to(client: ChatCompletionClient, messages: Sequence[LLMMessage]) -> list[LLMMessage]:
    """The messages, without images where the model cannot see."""
    return list(messages) if client.model_info["vision"] else remove_images(list(messages))


class _Description(Effect[str]):
    """A sandbox is asked what there is to know of it; the outcome is a text for a model."""

    kind = "description"
    form = TypeAdapter(str)

    def __init__(self, source: str, executor: CodeExecutor) -> None:
        self.source = source
        self.part = executor

    def request(self) -> JsonValue:
        return {"describe": type(self.part).__name__}

    @classmethod
    def began(cls, begin: Begin) -> DescriptionBegan:
        return DescriptionBegan()

    @classmethod
    def ended(cls, end: End) -> DescriptionEnded:
        return DescriptionEnded(text=end.outcome or "")


async def describe_sandbox(
    executor: CodeExecutor, source: str = "", dispatcher: Dispatcher | None = None
) -> str:
    """Describe an executor's sandbox for a model; empty if nothing is known.

    Args:
        executor: Any executor of AutoGen's.
        source: The agent that asks.
        dispatcher: The dispatcher that the agent remembers.

    Raises:
        ValueError: If there is data that cannot be given to the code.
        SandboxError: If what the sandbox needs cannot be had, such as packages.
    """
    if not isinstance(executor, StreamingCodeExecutor):
        return ""

    async def ask() -> str:
        description = await executor.describe()
        return "" if description is None else description.to_text()

    return await perform(_Description(source, executor), ask, dispatcher)


async def describe_for_turn(
    executor: CodeExecutor, source: str, dispatcher: Dispatcher | None, cancellation_token: CancellationToken
) -> str:
    """The same for an agent's turn; nothing if that is cancelled meanwhile, as whatever comes next notices."""
    try:
        return await until_cancelled(describe_sandbox(executor, source, dispatcher), cancellation_token)
    except asyncio.CancelledError:
        if not cancellation_token.is_cancelled() or is_being_cancelled():
            raise
        return ""
