"""Chat messages as agents read them: their text, the code in them, and their place in a model's context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from autogen_agentchat.messages import BaseChatMessage, BaseTextChatMessage, HandoffMessage, MultiModalMessage
from autogen_agentchat.utils import remove_images
from autogen_core.code_executor import CodeBlock
from autogen_core.model_context import ChatCompletionContext
from autogen_core.models import ChatCompletionClient, LLMMessage

from codeact_team.execution_records import Ending, ExecutionRecord
from codeact_team.observations import encodable
from codeact_team.parsing import extract_code, take_thoughts_off


@dataclass
class FoundCode:
    """The code in some messages."""

    blocks: list[CodeBlock] = field(default_factory=list[CodeBlock])
    """To run, in order."""
    unsupported: list[str] = field(default_factory=list[str])
    """Labels of code that the agent does not run."""
    unclosed: list[str] = field(default_factory=list[str])
    """Authors of messages that end within a block, of which no code is run: it may have been cut off."""


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
    """The code blocks in ``messages``, without those that their authors have only thought of.

    What another agent has run meanwhile, by the record in its message, is not run again, nor is what that message
    quotes of it, unless ``sources`` asks for its author's code.

    Args:
        messages: Those since the agent's last turn.
        languages: What the agent runs.
        sources: Whose code to take; ``None`` for everybody's.
        default_language: What a fence without a label holds; ``None`` to leave it alone.
    """
    found = FoundCode()
    for message in messages:
        if sources is None or message.source in sources:
            said = take_thoughts_off(text_of(message)).text
            extraction = extract_code(said, languages, default_language=default_language)
            if not extraction.unclosed:
                found.blocks += extraction.blocks
            elif message.source not in found.unclosed:
                found.unclosed.append(message.source)
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
