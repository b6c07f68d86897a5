"""What the agents have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Self, TypeVar, cast

from autogen_agentchat.agents import ApprovalFuncType, BaseChatAgent
from autogen_agentchat.base import Response
from autogen_agentchat.messages import BaseChatMessage, MemoryQueryEvent, TextMessage
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeExecutor
from autogen_core.memory import Memory
from autogen_core.model_context import ChatCompletionContext, UnboundedChatCompletionContext
from autogen_core.models import ChatCompletionClient, LLMMessage, UserMessage
from pydantic import BaseModel, ValidationError

from codeact_team.agents.agent_config import ExecutingSettings, Settings, dumped, loaded, settings_of
from codeact_team.agents.tool_calls import AgentTools
from codeact_team.agents.turn import Emit, Item, Turn
from codeact_team.core.aio import aclosing, streamed, until_cancelled
from codeact_team.core.effects import current_door, error_text, speaking
from codeact_team.core.events import TurnBegan, TurnEnded, emit_message
from codeact_team.core.execution import Drawn, Picture, picture_from_base64
from codeact_team.core.executor_interface import StreamingCodeExecutor
from codeact_team.core.providers import resolve_function
from codeact_team.errors import SettingError
from codeact_team.models.clients import wrap_client
from codeact_team.tools.autogen_parts import unwrap, wrap


@dataclass(frozen=True)
class _Seen:
    text: str
    """Of the message that tells of it."""
    number: int
    picture: Picture


class _SeenState(BaseModel):
    text: str
    number: int
    png: str


class Sight:
    """Keeps pictures beside the context of a model, which holds text only: so neither grows by them.

    Args:
        most: How many pictures the model gets to see at a time.
        client: The model, which may not see; ``None`` where the agent has none.
    """

    def __init__(self, most: int, client: ChatCompletionClient | None) -> None:
        sees = client is not None and client.model_info["vision"]
        self._most = most if sees else 0
        self._count = 0
        self._seen: list[_Seen] = []

    def tell(self, text: str, drawn: Drawn) -> str:
        """The text of a message with what its pictures are called; the model then gets to see them with it."""
        if not self._most:
            return text
        pictures = drawn.pictures[-self._most :]
        numbered = list(enumerate(pictures, self._count + 1))
        self._count += len(pictures)
        names = [f"Picture {number}: {one.width} x {one.height} pixels." for number, one in numbered]
        if left_out := len(drawn.pictures) - len(pictures):
            names.insert(0, f"{left_out} more pictures are not shown to you.")
        told = "\n".join([text, *drawn.problems, *names])
        self._seen = [*self._seen, *(_Seen(told, *one) for one in numbered)][-self._most :]
        return told

    def show(self, messages: Sequence[LLMMessage]) -> list[LLMMessage]:
        """The messages, with the pictures that the model still gets to see."""
        by_text: dict[str, list[_Seen]] = {}
        for seen in self._seen:
            by_text.setdefault(seen.text, []).append(seen)
        return [_with(message, by_text) for message in messages]

    def copy(self) -> Sight:
        """The same pictures, to which others come."""
        # what is seen is replaced, and never changed
        return copy(self)

    def go_on_from(self, other: Sight) -> None:
        """Keep what ``other`` keeps."""
        self._count, self._seen = other._count, other._seen

    def forget(self) -> None:
        """Forget all pictures."""
        self._count, self._seen = 0, []

    def save_state(self) -> dict[str, Any]:
        """The pictures, if there are any."""
        kept = [
            _SeenState(text=one.text, number=one.number, png=one.picture.to_base64()) for one in self._seen
        ]
        return {"pictures": [one.model_dump() for one in kept]} if kept else {}

    def load_state(self, state: Any) -> None:
        """Take up what was saved; what is no picture is left out."""
        self.forget()
        for one in state.get("pictures", ()):
            try:
                kept = _SeenState.model_validate(one)
            except ValidationError:
                continue
            if (picture := picture_from_base64(kept.png)) is not None:
                self._seen.append(_Seen(kept.text, kept.number, picture))
                self._count = max(self._count, kept.number)
        self._seen = self._seen[-self._most :] if self._most else []


def _with(message: LLMMessage, by_text: dict[str, list[_Seen]]) -> LLMMessage:
    if not isinstance(message, UserMessage) or not isinstance(message.content, str):
        return message
    if not (seen := by_text.get(message.content)):
        return message
    shown = [part for one in seen for part in (f"Picture {one.number}:", one.picture)]
    return UserMessage(content=[message.content, *shown], source=message.source)


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
                    emit_message(message, door)
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
