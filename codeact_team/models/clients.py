"""Model clients, wrapped: each call passes the door, keeps what clients promise, and can be stopped.

The wrapper is put around every client that a config loads, and by :func:`wrap_client` around those of Python. It is
invisible in a dump.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from json import JSONDecodeError
from typing import Any, TypeGuard

from autogen_core import CancellationToken
from autogen_core.models import ChatCompletionClient, CreateResult, LLMMessage, ModelInfo, RequestUsage
from autogen_core.tools import Tool, ToolSchema
from pydantic import BaseModel, JsonValue, TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from codeact_team.core.aio import aclosing, streamed, until_cancelled
from codeact_team.core.effects import Effect, error_text, perform, speaker
from codeact_team.core.events import ModelCallBegan, ModelCallEnded, Words, emit_piece
from codeact_team.core.wrapper import Wrapper
from codeact_team.errors import ModelError

_UNREADABLE = (
    "the model's server answered with something that is no chat completion: check `base_url` (or OPENAI_BASE_URL), which "
    "usually ends in /v1, and whatever proxy is in between"
)
_NO_STREAM = (
    "the model's server answered with something that is no stream of a chat completion: check `base_url` (or "
    "OPENAI_BASE_URL), which usually ends in /v1, whatever proxy is in between, and whether the server can stream"
)
_STUMBLES = (AttributeError, TypeError, KeyError, IndexError, JSONDecodeError)
"""What AutoGen's clients raise about an answer without what they look for in it."""
_DEFAULT_CHOICE = ("tool_choice", "auto")

Emit = Callable[[str], Awaitable[None]]


class ModelCall(Effect[CreateResult]):
    """A model, by its name, is asked to go on with a conversation; ``options`` are further arguments of ``create``."""

    kind = "model_call"
    form = TypeAdapter(CreateResult)

    def __init__(
        self,
        client: ChatCompletionClient,
        model: str,
        messages: Sequence[LLMMessage],
        options: Mapping[str, Any],
    ) -> None:
        self.part = client
        self.client = type(client).__name__
        self.model = model
        self._messages = messages
        self._options = options
        self.first_piece: float | None = None
        """Seconds until the first words came."""

    def request(self) -> JsonValue:
        return {
            "model": self.model,
            "messages": [message.model_dump(mode="json") for message in self._messages],
            **to_jsonable_python(dict(self._options), fallback=_as_json),
        }

    async def skip(self) -> None:
        # it gives one answer after the other, whatever it is asked
        if _is_replaying(self.part):
            # a config that has changed since may have fewer
            with suppress(ValueError):
                await self.part.create(self._messages)

    def began(self, span: int) -> ModelCallBegan:
        return ModelCallBegan(span=span, agent=self.source, model=self.model, client=self.client)

    def ended(self, span: int, outcome: CreateResult | None, error: BaseException | None) -> ModelCallEnded:
        event = ModelCallEnded(span=span, agent=self.source, model=self.model, error=error_text(error))
        if outcome is not None:
            event.usage, event.cached = outcome.usage, outcome.cached
            event.finish_reason = outcome.finish_reason
            event.first_piece = self.first_piece
        elif error is not None:
            event.usage = usage_of(error)
        return event


def _is_replaying(client: object) -> TypeGuard[ChatCompletionClient]:
    # AutoGen's is imported only by who uses it
    return any(kind.__module__.startswith("autogen_ext.models.replay.") for kind in type(client).__mro__)


class WrappedClient(Wrapper, ChatCompletionClient):
    """A model client whose calls pass the door; made by :func:`wrap_client`."""

    def __init__(self, client: ChatCompletionClient, model: str | None = None) -> None:
        super().__init__(client)
        self._model = model or _model_of(client)

    async def ask(
        self,
        messages: Sequence[LLMMessage],
        *,
        emit: Emit | None = None,
        message_id: str | None = None,
        cancellation_token: CancellationToken | None = None,
        **options: Any,
    ) -> CreateResult:
        """Let the model go on with a conversation.

        Args:
            messages: The conversation.
            emit: Is given the model's words as they come; ``None`` to have the answer at once.
            message_id: The id of the message that will have all of the words.
            cancellation_token: Stops the call, also of a client that does not heed it.
            options: Further arguments of AutoGen's ``create``; those that are empty are left out.

        Raises:
            ModelError: If what the client returned, or found in its server's answer, is no answer of a model.
            Exception: Whatever else the client raises.
        """
        # not every client knows all options
        options = {key: value for key, value in options.items() if value and (key, value) != _DEFAULT_CHOICE}
        effect = ModelCall(self.wrapped, self._model, messages, options)
        work = partial(self._answer, effect, messages, cancellation_token, options, emit, message_id)
        return await perform(effect, partial(_heeding, work, cancellation_token), self._door)

    async def create(self, messages: Sequence[LLMMessage], **options: Any) -> CreateResult:
        return await self.ask(messages, **options)

    def create_stream(
        self, messages: Sequence[LLMMessage], **options: Any
    ) -> AsyncGenerator[str | CreateResult, None]:
        def work(emit: Emit) -> Awaitable[CreateResult]:
            return self.ask(messages, emit=emit, **options)

        return streamed(work)

    async def close(self) -> None:
        await self.wrapped.close()

    def actual_usage(self) -> RequestUsage:
        return self.wrapped.actual_usage()

    def total_usage(self) -> RequestUsage:
        return self.wrapped.total_usage()

    def count_tokens(self, messages: Sequence[LLMMessage], *, tools: Sequence[Tool | ToolSchema] = ()) -> int:
        return self.wrapped.count_tokens(messages, tools=tools)

    def remaining_tokens(
        self, messages: Sequence[LLMMessage], *, tools: Sequence[Tool | ToolSchema] = ()
    ) -> int:
        return self.wrapped.remaining_tokens(messages, tools=tools)

    @property
    def capabilities(self) -> Any:
        return self.wrapped.capabilities

    @property
    def model_info(self) -> ModelInfo:
        return self.wrapped.model_info

    async def _answer(
        self,
        effect: ModelCall,
        messages: Sequence[LLMMessage],
        token: CancellationToken | None,
        options: Mapping[str, Any],
        emit: Emit | None,
        message_id: str | None,
    ) -> CreateResult:
        try:
            if emit is not None:
                return await self._stream(effect, messages, token, options, emit, message_id)
            return _checked(
                self.wrapped, await self.wrapped.create(messages, cancellation_token=token, **options)
            )
        except _STUMBLES as error:
            raise ModelError(_UNREADABLE) from error
        except ValidationError as error:
            if error.title != CreateResult.__name__:
                raise
            raise ModelError(_UNREADABLE) from error

    async def _stream(
        self,
        effect: ModelCall,
        messages: Sequence[LLMMessage],
        token: CancellationToken | None,
        options: Mapping[str, Any],
        emit: Emit,
        message_id: str | None,
    ) -> CreateResult:
        agent, last, began = speaker(), None, time.monotonic()
        # AutoGen's OpenAI clients report no tokens of a stream unless asked to, and others cannot be asked
        if "include_usage" in inspect.signature(self.wrapped.create_stream).parameters:
            options = {**options, "include_usage": True}
        answer = self.wrapped.create_stream(messages, cancellation_token=token, **options)
        async with aclosing(answer) as items:
            async for last in items:
                if isinstance(last, str):
                    if effect.first_piece is None:
                        effect.first_piece = time.monotonic() - began
                    if message_id is not None:
                        emit_piece(Words(agent=agent, text=last, message_id=message_id), self._door)
                    await emit(last)
        # a stream ends with its result
        result = _checked(self.wrapped, last)
        if _is_nothing(result):
            # clients skip what is no event, such as a whole page of HTML
            raise ModelError(_NO_STREAM)
        return result


def wrap_client(client: ChatCompletionClient, model: str | None = None) -> WrappedClient:
    """Wrap a model client, so that its calls pass the door; one that is wrapped stays as it is.

    Whoever made the client closes it.

    Args:
        client: Any model client.
        model: The name of its model. Default: what its config says, or else the name of its class.
    """
    return client if isinstance(client, WrappedClient) else WrappedClient(client, model)


def _model_of(client: ChatCompletionClient) -> str:
    try:
        model = client.dump_component().config.get("model")
    except Exception:  # whatever a client raises that has no config
        model = None
    return model if isinstance(model, str) else type(client).__name__


async def _heeding(
    call: Callable[[], Awaitable[CreateResult]], token: CancellationToken | None
) -> CreateResult:
    return await (call() if token is None else until_cancelled(call(), token))


def _checked(client: ChatCompletionClient, result: object) -> CreateResult:
    """What a client has returned, if it is what clients have to return.

    Raises:
        ModelError: If it is not.
    """
    given = type(result).__name__
    if isinstance(result, CreateResult):
        # one that was not validated may hold anything
        if isinstance(result.content, str | list):  # pyright: ignore[reportUnnecessaryIsInstance]
            return result
        given = f"{given} with content of type {type(result.content).__name__}"
    raise ModelError(
        f"the model client {type(client).__name__} returned {given} instead of a CreateResult with text or calls of tools; "
        "that is a fault of the client"
    )


def _is_nothing(result: CreateResult) -> bool:
    """Whether a server has not even said that its answer is over, or how long it is."""
    said = result.content or result.thought or result.usage.prompt_tokens or result.usage.completion_tokens
    return result.finish_reason == "unknown" and not said


def usage_of(error: BaseException | None) -> RequestUsage | None:
    """The tokens of a call that has failed, where the error tells them, as OpenAI's do of an answer that is cut off."""
    usage = getattr(getattr(error, "completion", None), "usage", None)
    return None if usage is None else RequestUsage(usage.prompt_tokens, usage.completion_tokens)


def _as_json(value: object) -> object:
    """What has no form in JSON: a tool, or the class that an answer is to be of."""
    if isinstance(value, Tool):
        return value.schema
    return value.model_json_schema() if _is_model(value) else repr(value)


def _is_model(value: object) -> TypeGuard[type[BaseModel]]:
    return isinstance(value, type) and issubclass(value, BaseModel)
