"""What the agents here have in common: a stream that is the whole turn, and a conversation they remember."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Generic, Self, TypeVar, cast

from autogen_agentchat.agents import ApprovalFuncType, BaseChatAgent
from autogen_agentchat.base import Response
from autogen_agentchat.messages import BaseChatMessage, MemoryQueryEvent, TextMessage
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeExecutor
from autogen_core.memory import Memory
from autogen_core.model_context import ChatCompletionContext, UnboundedChatCompletionContext
from autogen_core.models import ChatCompletionClient

from codeact_team.agents.agent_config import ExecutingSettings, Settings, dumped, loaded, settings_of
from codeact_team.agents.agent_tools import AgentTools
from codeact_team.agents.sight import Sight
from codeact_team.agents.turn import Emit, Item, Turn
from codeact_team.aio import aclosing, streamed, until_cancelled
from codeact_team.autogen_parts import unwrap, wrap
from codeact_team.clients import wrap_client
from codeact_team.effects import current_door, error_text, speaking
from codeact_team.errors import SettingError
from codeact_team.events import Said, TurnBegan, TurnEnded
from codeact_team.executor_interface import StreamingCodeExecutor
from codeact_team.providers import resolve_function

Executing = TypeVar("Executing", bound=ExecutingSettings)


class RememberingAgent(BaseChatAgent, Generic[Settings]):
    """An agent that remembers its conversation in a model context. Subclasses define ``_take_turn``.

    Args:
        settings: The class of its plain settings.
        given: All its settings by name, the live parts among them.

    Raises:
        TypeError: If there is no such setting.
        ValueError: If one cannot work.
    """

    component_config_schema: type[Any]

    def __init__(self, settings: type[Settings], given: Mapping[str, Any]) -> None:
        self._settings = settings_of(settings, self.component_config_schema, given)
        plain = dict(self._settings)
        super().__init__(plain["name"], plain["description"])
        memory: Sequence[Memory] | None = given.get("memory")
        if memory is not None and not _are_memories(memory):
            raise SettingError("memory: a list of autogen_core.memory.Memory is expected")
        self._memory = None if memory is None else [wrap(one) for one in memory]
        client: ChatCompletionClient | None = given.get("model_client")
        self._model_client = None if client is None else wrap_client(client)
        self._sight = Sight(plain["max_pictures"], self._model_client)
        self._door = current_door()
        self._model_context: ChatCompletionContext = (
            given.get("model_context") or UnboundedChatCompletionContext()
        )

    @property
    def produced_message_types(self) -> Sequence[type[BaseChatMessage]]:
        return (TextMessage,)

    @property
    def model_context(self) -> ChatCompletionContext:
        """What the model remembers."""
        return self._model_context

    def on_messages_stream(
        self, messages: Sequence[BaseChatMessage], cancellation_token: CancellationToken
    ) -> AsyncGenerator[Item, None]:
        return streamed(partial(self._speak, messages, cancellation_token))

    async def _speak(
        self, messages: Sequence[BaseChatMessage], cancellation_token: CancellationToken, emit: Emit
    ) -> Response:
        door = current_door() or self._door
        with speaking(self.name):
            if door is None:
                return await self._take_turn(messages, cancellation_token, emit)
            failure: BaseException | None = None
            with door.span(
                lambda span: TurnBegan(span=span, agent=self.name),
                lambda span: TurnEnded(span=span, agent=self.name, error=error_text(failure)),
            ):
                for message in messages:
                    # the queues of a team around may not have passed it on yet
                    door.tell(Said(message=message))
                try:
                    return await self._take_turn(messages, cancellation_token, emit)
                except BaseException as error:
                    failure = error
                    raise

    @abstractmethod
    async def _take_turn(
        self, messages: Sequence[BaseChatMessage], cancellation_token: CancellationToken, emit: Emit
    ) -> Response:
        """Take a turn: yield with ``emit`` what is to be seen meanwhile, and return the response."""

    async def _recall(self, turn: Turn) -> None:
        """Have the memory add what it knows to the context, and tell of it, as AutoGen's ``AssistantAgent`` does."""
        updates = [await memory.update_context(self._model_context) for memory in self._memory or ()]
        for update in updates:
            if update.memories.results:
                await turn.send(MemoryQueryEvent(content=update.memories.results, source=self.name))

    async def on_messages(
        self, messages: Sequence[BaseChatMessage], cancellation_token: CancellationToken
    ) -> Response:
        async with aclosing(self.on_messages_stream(messages, cancellation_token)) as items:
            async for item in items:
                if isinstance(item, Response):
                    return item
        raise AssertionError("the stream ends with a response")

    async def on_reset(self, cancellation_token: CancellationToken) -> None:
        """Forget the conversation."""
        await self._model_context.clear()
        self._sight.forget()

    async def save_state(self) -> Mapping[str, Any]:
        """The conversation."""
        return {
            "type": f"{type(self).__name__}State",
            "model_context": await self._model_context.save_state(),
            **self._sight.save_state(),
        }

    async def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on with a saved conversation."""
        if "model_context" in state:
            await self._model_context.load_state(state["model_context"])
        self._sight.load_state(state)

    def _parts(self) -> dict[str, Any]:
        """The live settings by field."""
        return {
            "model_client": self._model_client,
            "model_context": self._model_context,
            "memory": self._memory,
        }

    def _to_config(self) -> Any:
        parts = {field: dumped(field, part) for field, part in self._parts().items()}
        return self.component_config_schema(**dict(self._settings), **parts)

    @classmethod
    def _from_config(cls, config: Any) -> Self:
        return cls(**{field: loaded(field, value) for field, value in config})


class ExecutingAgent(RememberingAgent[Executing]):
    """An agent that runs code, in an executor that others may share."""

    def __init__(self, settings: type[Executing], given: Mapping[str, Any]) -> None:
        super().__init__(settings, given)
        # what it does passes the door here
        self._code_executor: CodeExecutor = unwrap(given["code_executor"])
        self._tools = AgentTools(
            self.name,
            tools=given.get("tools", ()),
            workbench=given.get("workbench"),
            limits=self._settings.tool_limits,
            approval=self._settings.approval,
            handler=given.get("approval_handler"),
            parks=self._settings.approval_timeout == "park",
        )
        self._approval_func: ApprovalFuncType | str | None = given.get("approval_func")
        approve = self._approval_func
        self._approve = resolve_function(approve) if isinstance(approve, str) else approve
        self._owns_executor = False
        self._left_to_others = False
        """Whether what the code had left behind at the last reset or load stayed, as other agents count on it."""

    async def on_reset(self, cancellation_token: CancellationToken) -> None:
        """Forget the conversation and what was granted, and end what the code left behind.

        Waits for a block of another agent in the same executor. Where another agent counts on what is there, it stays.
        """
        await super().on_reset(cancellation_token)
        self._tools.reset()
        await until_cancelled(self._release(), cancellation_token)

    async def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on with a saved conversation; what code has left behind is ended as by :meth:`on_reset`.

        What the code has done lives on in the executor's workspace, not in the state.
        """
        await super().load_state(state)
        await self._release()

    async def close(self) -> None:
        """Stop the tools that were started for this agent, and the executor that it made itself from a config."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._tools.stop)
            if self._owns_executor:
                stack.push_async_callback(self._code_executor.stop)

    def _parts(self) -> dict[str, Any]:
        return {
            **super()._parts(),
            "code_executor": self._code_executor,
            "approval_func": self._approval_func,
            **self._tools.parts(),
        }

    @classmethod
    def _from_config(cls, config: Any) -> Self:
        agent = super()._from_config(config)
        agent._owns_executor = True
        return agent

    async def _release(self) -> None:
        if isinstance(self._code_executor, StreamingCodeExecutor):
            self._left_to_others = not await self._code_executor.release(self._tools)


def _are_memories(memory: object) -> bool:
    # AutoGen's own mistake would be noticed in the first turn
    return isinstance(memory, Sequence) and all(
        isinstance(one, Memory) for one in cast("Sequence[object]", memory)
    )
