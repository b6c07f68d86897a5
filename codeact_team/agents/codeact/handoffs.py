"""Handing the work to another agent, as AutoGen's ``AssistantAgent`` does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, cast

from autogen_agentchat.base import Handoff
from autogen_agentchat.messages import HandoffMessage, ToolCallExecutionEvent, ToolCallRequestEvent
from autogen_core import CancellationToken, FunctionCall
from autogen_core.models import (
    AssistantMessage,
    ChatCompletionClient,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    LLMMessage,
)
from autogen_core.tools import Tool
from pydantic import BeforeValidator, Field

from codeact_team.agents.codeact.codeact_reply import Reply
from codeact_team.errors import SettingError


def _readable(value: object) -> object:
    """What AutoGen's model can read: it fails where the target is missing, and writes into what it is given."""
    if not isinstance(value, Mapping):
        return value
    given = dict(cast("Mapping[str, object]", value))
    if not isinstance(given.get("target"), str):
        raise ValueError("a handoff needs a target, which is the name of an agent")
    if unknown := given.keys() - Handoff.model_fields:
        raise ValueError(f"a handoff has no {', '.join(sorted(unknown))}")
    return given


HandoffConfig = Annotated[
    str | Annotated[Handoff, BeforeValidator(_readable)], Field(union_mode="left_to_right")
]
"""A config field for a handoff: the name of an agent, or more about it."""


@dataclass(frozen=True)
class HandoffTaken:
    """A handoff that the model has made."""

    target: str
    content: str
    """What the other agent is told."""
    context: list[LLMMessage]
    """What it gets to know besides."""
    calls: list[FunctionCall]
    """All that the model called, the handoff among them."""
    results: list[FunctionExecutionResult]

    def events(self, source: str) -> tuple[ToolCallRequestEvent, ToolCallExecutionEvent]:
        """What observers of the agent get to see."""
        return (
            ToolCallRequestEvent(content=self.calls, source=source),
            ToolCallExecutionEvent(content=self.results, source=source),
        )

    def remembered(self, source: str, thought: str | None) -> tuple[LLMMessage, LLMMessage]:
        """What the agent itself remembers."""
        return (
            AssistantMessage(content=self.calls, source=source, thought=thought),
            FunctionExecutionResultMessage(content=self.results),
        )

    def message(self, source: str) -> HandoffMessage:
        """The message that hands over."""
        return HandoffMessage(content=self.content, target=self.target, context=self.context, source=source)


class Handoffs:
    """The agents that the work can be handed to.

    Raises:
        SettingError: If the model cannot call tools, or two handoffs have the same name.
    """

    def __init__(self, handoffs: Sequence[Handoff | str], model_client: ChatCompletionClient) -> None:
        self._given = list(handoffs)
        full = [Handoff(target=one) if isinstance(one, str) else one for one in handoffs]
        self._by_name = {one.name: one for one in full}
        if len(self._by_name) < len(full):
            names = ", ".join(one.name for one in full)
            raise SettingError(f"handoffs: each must have a name of its own, but there are {names}")
        if full and not model_client.model_info["function_calling"]:
            raise SettingError("handoffs: the model of model_client cannot call tools, which they need")
        self._tools = {one.name: one.handoff_tool for one in full}

    def __bool__(self) -> bool:
        return bool(self._given)

    @property
    def tools(self) -> Sequence[Tool]:
        """What the model is offered."""
        return tuple(self._tools.values())

    def dump(self) -> list[Handoff | str]:
        """The handoffs for a config.

        Raises:
            SettingError: If one has no form there.
        """
        for one in self._given:
            if not isinstance(one, str) and type(one) is not Handoff:
                raise SettingError(
                    f"handoffs: {type(one).__name__} to {one.target!r} cannot be dumped: only Handoff itself, and the "
                    "name of an agent, have a form in a config"
                )
        return list(self._given)

    async def take(
        self, reply: Reply, *, source: str, cancellation_token: CancellationToken
    ) -> HandoffTaken | str | None:
        """Make the first handoff among the calls of ``reply``; what the model thought goes along.

        Returns:
            The handoff, or why it failed, or ``None`` if there is none among the calls.
        """
        chosen = next((call for call in reply.calls if call.name in self._by_name), None)
        if chosen is None:
            return None
        tool = self._tools[chosen.name]
        try:
            returned = await tool.run_json(_arguments(chosen), cancellation_token, call_id=chosen.id)
        except Exception as error:  # a tool of the user's, called with what a model made up
            return f"{chosen.name} failed: {type(error).__name__}: {error}"
        content = tool.return_value_as_string(returned)
        results = [
            FunctionExecutionResult(
                content=content if call is chosen else "Not done: the work was handed over.",
                name=call.name,
                call_id=call.id,
                is_error=call is not chosen,
            )
            for call in reply.calls
        ]
        target = self._by_name[chosen.name].target
        context: list[LLMMessage] = (
            [AssistantMessage(content=reply.thought, source=source)] if reply.thought else []
        )
        return HandoffTaken(target, content, context, reply.calls, results)


def _arguments(call: FunctionCall) -> dict[str, object]:
    """The arguments; most handoffs take none, so what cannot be read is left out."""
    try:
        arguments: object = json.loads(call.arguments or "{}")
    except json.JSONDecodeError:
        return {}
    return arguments if isinstance(arguments, dict) else {}  # pyright: ignore[reportUnknownVariableType]
