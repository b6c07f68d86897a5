"""An agent that judges whether the task is solved."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Self

from autogen_agentchat.base import Response
from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage, TextMessage, ThoughtEvent
from autogen_core import CancellationToken, Component, ComponentModel
from autogen_core.model_context import ChatCompletionContext
from autogen_core.models import AssistantMessage, ChatCompletionClient, SystemMessage, UserMessage
from pydantic import BaseModel, ConfigDict

from codeact_team.agents.base import RememberingAgent
from codeact_team.agents.calls import visible_to
from codeact_team.agents.messages import add_to_context, load_context, text_of
from codeact_team.agents.settings import dumped
from codeact_team.observations import ExecutionRecord, as_data
from codeact_team.parsing import make_inert
from codeact_team.reflection import REFLECTION_SYSTEM_MESSAGE, reflect


class ReflectionAgentConfig(BaseModel):
    """Settings of :class:`ReflectionAgent`."""

    model_config = ConfigDict(extra="forbid")

    name: str
    """Name of the agent: unique in its team, and a Python identifier."""
    model_client: ComponentModel
    """The model that judges."""
    model_context: ComponentModel | None = None
    """What the model remembers. Default: everything."""
    description: str = (
        "A reviewer who judges whether the task is solved, and says what to do next if it is not."
    )
    """What the agent does, for whoever selects the next speaker."""
    system_message: str = REFLECTION_SYSTEM_MESSAGE
    """The model's instructions; empty for none."""


class ReflectionAgent(RememberingAgent, Component[ReflectionAgentConfig]):
    """Reads the task, the code and its result, and answers with a verdict.

    The verdict is the response's text for people, and a :class:`~codeact_team.reflection.Verdict` in its metadata for
    programs. An answer of the model that cannot be read is a verdict that does not accept, and says so.

    Args:
        name: Name of the agent.
        model_client: The model that judges.
        model_context: What the model remembers. Default: everything.
        description: What the agent does.
        system_message: The model's instructions.
    """

    component_config_schema = ReflectionAgentConfig
    component_provider_override = "codeact_team.ReflectionAgent"

    def __init__(
        self,
        name: str,
        model_client: ChatCompletionClient,
        *,
        model_context: ChatCompletionContext | None = None,
        description: str = ReflectionAgentConfig.model_fields["description"].default,
        system_message: str = REFLECTION_SYSTEM_MESSAGE,
    ) -> None:
        super().__init__(name, description, model_context)
        self._model_client = model_client
        self._system_message = system_message

    async def on_messages_stream(
        self, messages: Sequence[BaseChatMessage], cancellation_token: CancellationToken
    ) -> AsyncGenerator[BaseAgentEvent | BaseChatMessage | Response, None]:
        for message in messages:
            record = ExecutionRecord.from_metadata(message.metadata)
            if record is None:
                await add_to_context(self._model_context, [message])
            else:
                await self._model_context.add_message(_execution_report(message, record))
        system = [SystemMessage(content=self._system_message)] if self._system_message else []
        conversation = visible_to(self._model_client, [*system, *await self._model_context.get_messages()])
        answer = await reflect(self._model_client, conversation, cancellation_token=cancellation_token)
        inner: list[BaseAgentEvent | BaseChatMessage] = []
        if answer.thought:
            inner.append(ThoughtEvent(content=answer.thought, source=self.name))
            yield inner[0]
        # a reviewer quotes code; an agent that runs code must not take it for new
        text = make_inert(answer.value.to_text())
        await self._model_context.add_message(AssistantMessage(content=text, source=self.name))
        yield Response(
            chat_message=TextMessage(
                content=text,
                source=self.name,
                models_usage=answer.usage,
                metadata=answer.value.to_metadata(),
            ),
            inner_messages=inner,
        )

    def _to_config(self) -> ReflectionAgentConfig:
        return ReflectionAgentConfig(
            name=self.name,
            model_client=dumped("model_client", self._model_client),
            model_context=dumped("model_context", self._model_context),
            description=self.description,
            system_message=self._system_message,
        )

    @classmethod
    def _from_config(cls, config: ReflectionAgentConfig) -> Self:
        return cls(
            config.name,
            ChatCompletionClient.load_component(config.model_client),
            model_context=load_context(config.model_context),
            description=config.description,
            system_message=config.system_message,
        )


def _execution_report(message: BaseChatMessage, record: ExecutionRecord) -> UserMessage:
    """What another agent ran and what came of it, for the model: the code it may not have seen, the output as data."""
    code = "\n\n".join(f"[{block.language}]\n{block.code}" for block in record.blocks)
    text = (
        f"{message.source} was to run this code (attempt {record.attempts}):\n{code}\n\n"
        f"Exit code {record.exit_code}, {record.outcome.value}. What came of it:\n{as_data(record.output)}"
    )
    if remark := text_of(message).removeprefix(record.output).strip():
        text += f"\n\n{message.source} says:\n{remark}"
    return UserMessage(content=text, source=message.source)
