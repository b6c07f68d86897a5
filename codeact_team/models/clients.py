"""A wrapper of model clients: each call goes through the dispatcher, is checked, and can be cancelled.

Clients of a config are wrapped when it is loaded, others by :func:`wrap_client`. A dump does not show the wrapper.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from json import JSONDecodeError
from typing import Any, TypeGuard

from autogen_core import CancellationToken, Image
from autogen_core.models import (
    ChatCompletionClient,
    CreateResult,
    LLMMessage,
    ModelInfo,
    RequestUsage,
    UserMessage,
)
from autogen_core.tools import Tool, ToolSchema
from pydantic import BaseModel, JsonValue, TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from codeact_team.core.aio import aclosing, streamed, until_cancelled
from codeact_team.core.autogen_internals import base_url_of, mend_answers
from codeact_team.core.effects import Begin, Effect, End, perform, speaker
from codeact_team.core.events import ModelCallBegan, ModelCallEnded, Words, emit_piece
from codeact_team.core.wrapper import Wrapper
from codeact_team.errors import AnswerCutOffError, ModelError
from codeact_team.models.refusals import named_server
from codeact_team.models.usage import estimated_usage, is_reported, usage_of_failure
from codeact_team.text.markdown import with_closing_fence

_UNREADABLE = (
    "{server} answered with something that is not a chat completion: check `base_url` (or OPENAI_BASE_URL), which "
    "usually ends in /v1, and any proxy in between"
)
_NO_STREAM = (
    "{server} answered with something that is not a streamed chat completion: check `base_url` (or "
    "OPENAI_BASE_URL), which usually ends in /v1, any proxy in between, and whether the server can stream"
)
_NO_HEADER = (
    "the API key has a character that cannot be in a key, such as a line break: check OPENAI_API_KEY, or what the model client's "
    "`api_key` refers to, and its other headers"
)
_STUMBLES = (AttributeError, TypeError, KeyError, IndexError, JSONDecodeError)
"""Exceptions of AutoGen's clients if a server's answer lacks the fields of a chat completion."""
_DEFAULT_CHOICE = ("tool_choice", "auto")
_ALTERNATING = "roles must alternate"
"""What the templates of Gemma and Mistral say to messages of several agents, which are all a user's."""

Emit = Callable[[str], Awaitable[None]]


class ModelCall(Effect[CreateResult]):
    """A model is asked to continue a conversation; ``options`` are further arguments of the client's ``create``."""

    kind = "model_call"
    spends = ("model_calls", "tokens", "cost", "seconds")
    form = TypeAdapter(CreateResult)

    def __init__(
        self,
        client: ChatCompletionClient,
        model: str,
        messages: Sequence[LLMMessage],
        options: Mapping[str, Any],
    ) -> None:
        self.part = client
        self.client: str = type(client).__name__
        self.model = model
        self.messages = messages
        self._options = options
        self.first_piece: float | None = None
        """Seconds until the first words came."""

    def request(self) -> JsonValue:
        messages: list[JsonValue] = [message.model_dump(mode="json") for message in self.messages]
        return {**self.request_without_messages(), "messages": messages}

    def request_without_messages(self) -> dict[str, JsonValue]:
        return {"model": self.model, **self._options_as_json()}

    def facts(self) -> Mapping[str, JsonValue]:
        return {"client": self.client}

    def facts_at_end(
        self, outcome: CreateResult | None, error: BaseException | None
    ) -> Mapping[str, JsonValue]:
        facts: dict[str, JsonValue] = {}
        if self.first_piece is not None:
            facts["first_piece"] = self.first_piece
        if outcome is None:
            usage = usage_of_failure(error)
        else:
            usage = None if is_reported(outcome) else self.usage(outcome)
        if usage is not None:
            facts["usage"] = asdict(usage)
        return facts

    def usage(self, outcome: CreateResult) -> RequestUsage:
        """The tokens of an answer: those that the server has reported, or an estimate."""
        if is_reported(outcome):
            return outcome.usage
        return estimated_usage(self.messages, self._options_as_json(), outcome)

    def _options_as_json(self) -> dict[str, JsonValue]:
        return to_jsonable_python(dict(self._options), fallback=_as_json)

    async def skip(self) -> None:
        # AutoGen's replay client, found without importing it, gives its answers in turn, whatever the question
        client: Any = self.part
        if any(kind.__module__.startswith("autogen_ext.models.replay.") for kind in type(client).__mro__):
            # a changed config may have fewer answers
            with suppress(ValueError):
                await client.create(self.messages)

    @classmethod
    def began(cls, begin: Begin) -> ModelCallBegan:
        return ModelCallBegan(model=begin.request["model"], **ModelCallBegan.fields_in(begin.facts))

    @classmethod
    def ended(cls, end: End) -> ModelCallEnded:
        event = ModelCallEnded(model=end.request["model"], error=end.error)
        if end.outcome is not None:
            event.usage, event.cached = _usage(end.outcome["usage"]), end.outcome["cached"]
            event.finish_reason = end.outcome["finish_reason"]
            event.first_piece = end.facts.get("first_piece")
        if (usage := end.facts.get("usage")) is not None:
            event.usage, event.is_estimated = _usage(usage), end.outcome is not None
        return event


def _usage(recorded: Mapping[str, int]) -> RequestUsage:
    # another version of AutoGen counts more
    return RequestUsage(recorded["prompt_tokens"], recorded["completion_tokens"])


class ModelChosen(Effect[Sequence[str]]):
    """A person chooses the model that all model clients ask from now on; the outcome has those that they asked before.

    Args:
        name: The name of the model.
        choose: Has the clients ask it.
    """

    kind = "model_choice"
    form = TypeAdapter(Sequence[str])
    fails_undone = True

    def __init__(self, name: str, choose: Callable[[], Awaitable[object]]) -> None:
        self._name = name
        self._choose = choose

    def request(self) -> JsonValue:
        return {"model": self._name}

    def facts_at_end(
        self, outcome: Sequence[str] | None, error: BaseException | None
    ) -> Mapping[str, JsonValue]:
        if outcome is None:
            return {"told": str(error) or "the model stays: the change was stopped"}
        before = " and ".join(name for name in outcome if name != self._name)
        in_place_of = f", in place of {before}" if before else ""
        return {"told": f"{self._name} is asked from now on{in_place_of}"}

    async def skip(self) -> None:
        await self._choose()


class WrappedClient(Wrapper, ChatCompletionClient):
    """A model client whose calls go through the dispatcher; made by :func:`wrap_client`."""

    def __init__(self, client: ChatCompletionClient, model: str | None = None) -> None:
        super().__init__(client)
        self.put(client, model)

    def put(self, client: ChatCompletionClient, model: str | None = None) -> None:
        """Wrap a client, from the next call on, in place of the one that was there. Arguments as :func:`wrap_client`."""
        self.wrapped = client
        self._state = mend_answers(client)
        self.model_name: str = model or _model_of(client)
        self._gives_reasons: bool | None = None
        """Whether the server says why an answer ends, as far as is known: one that does not, has cut off no answer."""
        self._alternates = False
        """Whether the model has refused two messages of a user's in a row."""

    async def ask(
        self,
        messages: Sequence[LLMMessage],
        *,
        emit: Emit | None = None,
        message_id: str | None = None,
        cancellation_token: CancellationToken | None = None,
        **options: Any,
    ) -> CreateResult:
        """Have the model continue a conversation.

        Args:
            messages: The conversation.
            emit: Receives the model's words as they come; ``None`` to get the answer as a whole.
            message_id: The id of the message that will have all the words.
            cancellation_token: Stops the call, also if the client ignores it.
            options: Further arguments of AutoGen's ``create``; empty ones are left out.

        Raises:
            ModelError: If the result of the client, or the answer of its server, is no answer of a model.
            Exception: Any other error of the client.
        """
        # not every client knows all options
        options = {key: value for key, value in options.items() if value and (key, value) != _DEFAULT_CHOICE}
        effect = ModelCall(self.wrapped, self.model_name, messages, options)

        def work() -> Awaitable[CreateResult]:
            answer = self._answer(effect, messages, cancellation_token, options, emit, message_id)
            return answer if cancellation_token is None else until_cancelled(answer, cancellation_token)

        result = await perform(effect, work, self._dispatcher)
        changes: dict[str, object] = {"usage": effect.usage(result)}
        if isinstance(result.content, str) and result.finish_reason == "stop":
            # who runs the code in a message of AutoGen's agents does not see why the model has stopped
            changes["content"] = with_closing_fence(result.content)
        return result.model_copy(update=changes)

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

    @property
    def _server(self) -> str:
        return named_server(base_url_of(self.wrapped))

    async def _answer(
        self,
        effect: ModelCall,
        messages: Sequence[LLMMessage],
        token: CancellationToken | None,
        options: Mapping[str, Any],
        emit: Emit | None,
        message_id: str | None,
    ) -> CreateResult:
        if self._alternates:
            messages = _joined(messages)
        try:
            if emit is not None:
                return await self._whole(
                    partial(self._stream, effect, messages, token, options, emit, message_id)
                )
            return _checked(
                self.wrapped, await self.wrapped.create(messages, cancellation_token=token, **options)
            )
        except _STUMBLES as error:
            raise ModelError(_UNREADABLE.format(server=self._server)) from error
        except ValidationError as error:
            if error.title != CreateResult.__name__:
                raise
            raise ModelError(_UNREADABLE.format(server=self._server)) from error
        except Exception as error:
            if _is_about_a_header(error):
                # the error itself has the key
                raise ModelError(_NO_HEADER) from None
            if self._alternates or _ALTERNATING not in str(error):
                raise
        self._alternates = True
        return await self._answer(effect, messages, token, options, emit, message_id)

    async def _whole(self, stream: Callable[[], Awaitable[CreateResult]]) -> CreateResult:
        """The result of a streamed answer, unless the server has cut it off."""
        while True:
            result = await stream()
            if self._state.had_reason:
                self._gives_reasons = True
            elif self._gives_reasons is None:
                # whether that is its way shows when it is asked again
                self._gives_reasons = False
                continue
            elif self._gives_reasons:
                raise AnswerCutOffError("the model's server has cut its answer off")
            return result

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
        # AutoGen's OpenAI clients report the tokens of a stream only with this option, which others do not have
        if "include_usage" in inspect.signature(self.wrapped.create_stream).parameters:
            options = {**options, "include_usage": True}
        answer = self.wrapped.create_stream(messages, cancellation_token=token, **options)
        async with aclosing(answer) as items:
            async for last in items:
                if isinstance(last, str):
                    if effect.first_piece is None:
                        effect.first_piece = time.monotonic() - began
                    if message_id is not None:
                        emit_piece(Words(agent=agent, text=last, message_id=message_id), self._dispatcher)
                    await emit(last)
        # a stream ends with its result
        result = _checked(self.wrapped, last)
        counted = result.usage.prompt_tokens or result.usage.completion_tokens
        if result.finish_reason == "unknown" and not (result.content or result.thought or counted):
            # clients skip everything that is no event, such as a whole page of HTML
            raise ModelError(_NO_STREAM.format(server=self._server))
        return result


def wrap_client(client: ChatCompletionClient, model: str | None = None) -> WrappedClient:
    """Wrap a model client, unless it is wrapped, so that its calls go through the dispatcher.

    The wrapper does not own the client: its creator closes it.

    Args:
        client: Any model client.
        model: The name of its model. Default: the name in its config, or else the name of its class.
    """
    return client if isinstance(client, WrappedClient) else WrappedClient(client, model)


def _model_of(client: ChatCompletionClient) -> str:
    try:
        model = client.dump_component().config.get("model")
    except Exception:  # any, of a client without a config
        model = None
    return model if isinstance(model, str) else type(client).__name__


def _checked(client: ChatCompletionClient, result: object) -> CreateResult:
    """The result of a client if it is valid; else a :class:`ModelError`."""
    given = type(result).__name__
    if isinstance(result, CreateResult):
        # it may have been constructed without validation
        if isinstance(result.content, str | list):  # pyright: ignore[reportUnnecessaryIsInstance]
            return result
        given = f"{given} with content of type {type(result.content).__name__}"
    raise ModelError(
        f"the model client {type(client).__name__} returned {given} instead of a CreateResult with text or calls of tools; "
        "that is a fault of the client"
    )


def _joined(messages: Sequence[LLMMessage]) -> Sequence[LLMMessage]:
    """The messages, with those of a user's in a row as one."""
    joined: list[LLMMessage] = []
    for message in messages:
        if isinstance(message, UserMessage) and joined and isinstance(last := joined[-1], UserMessage):
            if isinstance(last.content, str) and isinstance(message.content, str):
                content: Any = f"{last.content}\n\n{message.content}"
            else:
                content = [*_parts(last.content), *_parts(message.content)]
            joined[-1] = message.model_copy(update={"content": content})
        else:
            joined.append(message)
    return joined


def _parts(content: str | list[str | Image]) -> list[str | Image]:
    return [content] if isinstance(content, str) else content


def _is_about_a_header(error: Exception) -> bool:
    """Whether a request was not sent, as a header, which the key is, has characters that none may have."""
    if isinstance(error, UnicodeEncodeError):
        return error.encoding == "ascii"
    return type(error.__cause__).__name__ == "LocalProtocolError"


def _as_json(value: object) -> object:
    """Convert a tool, or the class of a structured answer, to JSON."""
    if isinstance(value, Tool):
        return value.schema
    return value.model_json_schema() if _is_model(value) else repr(value)


def _is_model(value: object) -> TypeGuard[type[BaseModel]]:
    return isinstance(value, type) and issubclass(value, BaseModel)
