"""An agent that judges whether the task is solved."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from autogen_agentchat.base import Response
from autogen_agentchat.messages import BaseChatMessage, TextMessage
from autogen_core import CancellationToken, Component, ComponentModel
from autogen_core.models import AssistantMessage, ChatCompletionClient, SystemMessage, UserMessage
from pydantic import Field

from codeact_team.agents.agent_config import AgentConfig
from codeact_team.agents.base import RememberingAgent
from codeact_team.agents.messages import add_to_context, given_answer, text_of, visible_to
from codeact_team.agents.observations import ExecutionRecord, describe_files, shorten
from codeact_team.agents.turn import Turn, YieldItem
from codeact_team.core.execution import Drawn, pictures_from_metadata
from codeact_team.core.settings import in_config, takes_settings
from codeact_team.models.clients import wrap_client
from codeact_team.models.verdicts import REFLECTION_SYSTEM_MESSAGE
from codeact_team.text.quoting import as_data, make_inert


class ReflectionAgentConfig(AgentConfig):  # noqa: D101 - editors show that of the class with these settings
    model_client: Annotated[ChatCompletionClient, in_config(ComponentModel)] = Field(kw_only=False)
    """The model that judges."""
    description: str = (
        "A reviewer who judges whether the task is solved, and says what to do next if it is not."
    )
    """Description of the agent, for whoever selects the next speaker."""
    system_message: str = REFLECTION_SYSTEM_MESSAGE
    """The model's instructions; empty for none."""


class ReflectionAgent(RememberingAgent[ReflectionAgentConfig], Component[ReflectionAgentConfig]):
    """Reads the task, the code and its result, and answers with a verdict; with the answer to the task if it accepts.

    The verdict is a :class:`~codeact_team.Verdict` in the response's metadata. The response's text is the
    answer, if there is one: ``result.messages[-1].to_text()`` of a team that ends with an accepting review. If another
    agent has given an answer since the last review, by ``final_answer`` or as a CodeAct agent, it is passed on word for
    word; otherwise the reviewer writes one. Without an answer, the text is the verdict. If the model's reply cannot be
    read, the verdict does not accept, and says why.
    """

    component_config_schema = ReflectionAgentConfig
    component_provider_override = "codeact_team.ReflectionAgent"

    @takes_settings(ReflectionAgentConfig)
    def __init__(self, settings: ReflectionAgentConfig) -> None:  # noqa: D417 - the settings are its parameters
        """Reads the task, the code and its result, and answers with a verdict; with the answer to the task if it accepts.

        Args:
            name: Name of the agent: unique in its team, and a Python identifier.
            model_client: The model that judges.
            max_pictures: The most pictures drawn by code, the latest ones, that are sent to a model with
                vision at a time.
            model_context: The part of the conversation that the model reads. Default: all of it. A CodeAct
                agent's model always reads the task, the functions and the latest result.
            memory: Stores that add what they know to the model's context at the start of each turn.
            description: Description of the agent, for whoever selects the next speaker.
            system_message: The model's instructions; empty for none.
        """
        self._judge = wrap_client(settings.model_client)
        super().__init__(settings, settings.description, self._judge)

    async def _take_turn(
        self,
        messages: Sequence[BaseChatMessage],
        cancellation_token: CancellationToken,
        yield_item: YieldItem,
    ) -> Response:
        turn = Turn(
            source=self.name,
            yield_item=yield_item,
            dispatcher=self._dispatcher,
            cancellation_token=cancellation_token,
        )
        for message in messages:
            record = ExecutionRecord.from_metadata(message.metadata)
            if record is None:
                await add_to_context(self._model_context, [message])
            else:
                drawn = Drawn(await asyncio.to_thread(pictures_from_metadata, message.metadata))
                report = self._vision.add(_execution_report(message, record), drawn)
                await self._model_context.add_message(UserMessage(content=report, source=message.source))
        await self._recall(turn)
        instructions = self._settings.system_message
        system = [SystemMessage(content=instructions)] if instructions else []
        messages_so_far = await self._model_context.get_messages()
        conversation = self._vision.show(visible_to(self._judge, [*system, *messages_so_far]))
        given = next(filter(None, map(given_answer, reversed(messages))), None)
        judged = await turn.reflect(self._judge, conversation, cancellation_token, answered=given is not None)
        if given is not None and judged.value.accepted:
            judged = replace(judged, value=judged.value.model_copy(update={"answer": given}))
        verdict = await turn.judge(judged, turn.message_id)
        # a reviewer quotes code, which must not be run as new code
        said, answer = make_inert(verdict.to_text()), make_inert(shorten(verdict.answer))
        remembered = AssistantMessage(content=f"{said}\n\n{answer}".rstrip(), source=self.name)
        await self._model_context.add_message(remembered)
        metadata = verdict.to_metadata()
        return turn.respond(TextMessage(content=answer or said, source=self.name, metadata=metadata))


def _execution_report(message: BaseChatMessage, record: ExecutionRecord) -> str:
    """The code that another agent ran, which the model may not have seen, and its result, the output as data."""
    code = "\n\n".join(f"[{block.language}]\n{block.code}" for block in record.blocks)
    text = (
        f"{message.source} was to run this code (attempt {record.attempts}):\n{code}\n\n"
        f"Exit code {record.exit_code}, {record.outcome.value}. What came of it:\n{as_data(record.output)}"
    )
    if record.files:
        text += f"\n\nFiles that it has made or changed:\n{as_data(make_inert(describe_files(record.files)))}"
    remark = text_of(message).strip() if record.remark is None else record.remark
    if remark:
        text += f"\n\n{message.source} says:\n{remark}"
    if record.answer is not None and record.remark is not None:
        text += f"\n\nThe code gave this as its final answer:\n{as_data(make_inert(shorten(record.answer)))}"
    return text
