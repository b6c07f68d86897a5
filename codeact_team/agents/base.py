"""The base classes of the agents: memory, pictures, tools, and the way through a turn."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Self, TypeVar, cast

from autogen_agentchat.agents import BaseChatAgent
from autogen_agentchat.base import Response
from autogen_agentchat.messages import BaseChatMessage, MemoryQueryEvent, TextMessage
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeExecutor
from autogen_core.memory import Memory
from autogen_core.model_context import ChatCompletionContext, UnboundedChatCompletionContext
from autogen_core.models import ChatCompletionClient, LLMMessage, UserMessage
from pydantic import BaseModel, ValidationError

from codeact_team.agents.agent_config import ExecutingConfig, Settings, dumped, loaded
from codeact_team.agents.tool_calls import AgentTools
from codeact_team.agents.turn import Item, Turn, YieldItem
from codeact_team.core.aio import aclosing, streamed, until_cancelled
from codeact_team.core.effects import current_dispatcher, error_text, speaking
from codeact_team.core.events import TurnBegan, TurnEnded, emit_message
from codeact_team.core.execution import Drawn, Picture, picture_from_base64
from codeact_team.core.executor_interface import StreamingCodeExecutor
from codeact_team.core.providers import resolve_function
from codeact_team.core.showing import in_few_words
from codeact_team.errors import SettingError
from codeact_team.models.clients import wrap_client
from codeact_team.tools.autogen_parts import unwrap, wrap


@dataclass(frozen=True)
class _Seen:
    text: str
    """The text of its message."""
    number: int
    picture: Picture


class _SeenState(BaseModel):
    text: str
    number: int
    png: str


class Vision:
    """The latest pictures, kept apart from the model's context of text; none if the model lacks vision."""

    def __init__(self, most: int, client: ChatCompletionClient | None) -> None:
        sees = client is not None and client.model_info["vision"]
        self._most = most if sees else 0
        self._count = 0
        self._seen: list[_Seen] = []

    def add(self, text: str, drawn: Drawn) -> str:
        """Show the model pictures with a message from now on; returns the message's text with their names."""
        if not self._most:
            return text
        pictures = drawn.pictures[-self._most :]
        numbered = list(enumerate(pictures, self._count + 1))
        self._count += len(pictures)
        names = [f"Picture {number}: {one.width} x {one.height} pixels." for number, one in numbered]
        if left_out := len(drawn.pictures) - len(pictures):
            names.insert(0, f"{left_out} more pictures are not shown to you.")
        named = "\n".join([text, *drawn.problems, *names])
        self._seen = [*self._seen, *(_Seen(named, *one) for one in numbered)][-self._most :]
        return named

    def show(self, messages: Sequence[LLMMessage]) -> list[LLMMessage]:
        """The messages, with the pictures that the model still sees."""
        if not self._seen:
            return [*messages]
        by_text: dict[str, list[_Seen]] = {}
        for seen in self._seen:
            by_text.setdefault(seen.text, []).append(seen)
        return [_with(message, by_text) for message in messages]

    def take_over(self, other: Vision) -> None:
        """Take over the pictures of ``other``."""
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
        """Restore saved pictures; anything else in the state is left out."""
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


Executing = TypeVar("Executing", bound=ExecutingConfig)


class RememberingAgent(BaseChatAgent, Generic[Settings]):
    """An agent that remembers its conversation in a model context. Subclasses define ``_take_turn``."""

    def __init__(
        self, settings: Settings, description: str, model_client: ChatCompletionClient | None
    ) -> None:
        self._settings = settings
        super().__init__(settings.name, description)
        # AutoGen would fail only in the first turn
        memory: Any = settings.memory or ()
        if not isinstance(memory, Sequence) or not all(
            isinstance(one, Memory) for one in cast("Sequence[object]", memory)
        ):
            raise SettingError("memory: a list of autogen_core.memory.Memory is expected")
        self._memory = [wrap(one) for one in settings.memory or ()]
        self._model_client = None if model_client is None else wrap_client(model_client)
        self._vision = Vision(settings.max_pictures, self._model_client)
        self._dispatcher = current_dispatcher()
        self._model_context = settings.model_context or UnboundedChatCompletionContext()

    def __repr__(self) -> str:
        return in_few_words(self, self._told)

    @property
    def _told(self) -> dict[str, object]:
        """What its ``repr`` tells of it."""
        client = self._model_client
        return {"name": self.name, **({} if client is None else {"model": client.model_name})}

    @property
    def produced_message_types(self) -> Sequence[type[BaseChatMessage]]:
        return (TextMessage,)

    @property
    def model_context(self) -> ChatCompletionContext:
        """The conversation that the model sees."""
        return self._model_context

    def on_messages_stream(
        self, messages: Sequence[BaseChatMessage], cancellation_token: CancellationToken
    ) -> AsyncGenerator[Item, None]:
        return streamed(partial(self._speak, messages, cancellation_token))

    async def _speak(
        self,
        messages: Sequence[BaseChatMessage],
        cancellation_token: CancellationToken,
        yield_item: YieldItem,
    ) -> Response:
        dispatcher = current_dispatcher() or self._dispatcher
        with speaking(self.name):
            if dispatcher is None:
                return await self._take_turn(messages, cancellation_token, yield_item)
            failure: BaseException | None = None
            with dispatcher.span(
                lambda span: TurnBegan(span=span, agent=self.name),
                lambda span: TurnEnded(span=span, agent=self.name, error=error_text(failure)),
            ):
                for message in messages:
                    # the queues of a team around may not have passed it on yet
                    emit_message(message, dispatcher)
                try:
                    return await self._take_turn(messages, cancellation_token, yield_item)
                except BaseException as error:
                    failure = error
                    raise

    @abstractmethod
    async def _take_turn(
        self,
        messages: Sequence[BaseChatMessage],
        cancellation_token: CancellationToken,
        yield_item: YieldItem,
    ) -> Response:
        """Take a turn: yield events and messages, and return the response."""

    async def _recall(self, turn: Turn) -> None:
        """Let the memory extend the context, and yield what it added, as AutoGen's ``AssistantAgent`` does."""
        updates = [await memory.update_context(self._model_context) for memory in self._memory]
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
        self._vision.forget()

    async def save_state(self) -> Mapping[str, Any]:
        """The conversation."""
        return {
            "type": f"{type(self).__name__}State",
            "model_context": await self._model_context.save_state(),
            **self._vision.save_state(),
        }

    async def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore a saved conversation."""
        if "model_context" in state:
            await self._model_context.load_state(state["model_context"])
        self._vision.load_state(state)

    def _dumped_parts(self) -> dict[str, Any]:
        """The fields of the config that are not dumped as they were given."""
        return {"model_context": dumped("model_context", self._model_context)}

    def _to_config(self) -> Any:
        parts = self._dumped_parts()
        others = {name: dumped(name, value) for name, value in self._settings if name not in parts}
        return type(self._settings).model_validate({**others, **parts})

    @classmethod
    def _from_config(cls, config: Any) -> Self:
        return cls(**{field: loaded(field, value) for field, value in config})


class ExecutingAgent(RememberingAgent[Executing]):
    """An agent that runs code, in an executor that others may share."""

    def __init__(
        self,
        settings: Executing,
        description: str,
        model_client: ChatCompletionClient | None,
        code_executor: CodeExecutor,
    ) -> None:
        super().__init__(settings, description, model_client)
        # the agent itself sends the effects of its code through the dispatcher
        self._code_executor = unwrap(code_executor)
        self._tools = AgentTools(
            self.name,
            tools=settings.tools,
            workbench=settings.workbench,
            limits=settings.tool_limits,
            approval=settings.approval,
            handler=settings.approval_handler,
            parks=settings.approval_timeout == "park",
            asks_about_hosts=isinstance(self._code_executor, StreamingCodeExecutor)
            and self._code_executor.asks_about_hosts,
        )
        approve = settings.approval_func
        self._approve = resolve_function(approve) if isinstance(approve, str) else approve
        self._owns_executor = False
        self._left_to_others = False
        """Whether the executor kept its state at the last reset or load, because other agents depend on it."""

    @property
    def _told(self) -> dict[str, object]:
        return {**super()._told, "code_executor": self._code_executor}

    @property
    def code_executor(self) -> CodeExecutor:
        """The executor, in whose sandbox a program may run processes of its own."""
        return self._code_executor

    async def on_reset(self, cancellation_token: CancellationToken) -> None:
        """Forget the conversation and granted approvals, and discard the executor's state.

        Waits for a block of another agent in the same executor. The state is kept if another agent depends on it.
        """
        await super().on_reset(cancellation_token)
        self._tools.reset()
        await until_cancelled(self._release(), cancellation_token)

    async def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore a saved conversation; the executor's state is discarded as by :meth:`on_reset`.

        Files of the code stay in the executor's workspace, and are not part of the saved state.
        """
        await super().load_state(state)
        await self._release()

    async def close(self) -> None:
        """Stop the tools that were started for this agent, and the executor if the agent was loaded from a config."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._tools.stop)
            if self._owns_executor:
                stack.push_async_callback(self._code_executor.stop)

    def _dumped_parts(self) -> dict[str, Any]:
        return {**super()._dumped_parts(), **self._tools.dump()}

    @classmethod
    def _from_config(cls, config: Any) -> Self:
        agent = super()._from_config(config)
        agent._owns_executor = True
        return agent

    async def _release(self) -> None:
        if isinstance(self._code_executor, StreamingCodeExecutor):
            self._left_to_others = not await self._code_executor.release(self._tools)
