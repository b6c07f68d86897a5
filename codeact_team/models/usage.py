"""The tokens of a model call: what its server reports, or an estimate where it reports none."""

from __future__ import annotations

import json
from collections.abc import Sequence

from autogen_core import Image
from autogen_core.models import CreateResult, LLMMessage, RequestUsage
from pydantic import JsonValue
from pydantic_core import to_jsonable_python

_BYTES_PER_TOKEN = 4
"""OpenAI's rule of thumb for English text; of other alphabets, whose letters have more bytes, a token has fewer letters."""
_TOKENS_PER_MESSAGE = 4
"""The role and the marks around a message, as in OpenAI's cookbook."""
_TOKENS_PER_PICTURE = 765
"""Of a picture of 1024 by 1024 pixels, by OpenAI's guide to pictures."""


def is_reported(result: CreateResult) -> bool:
    """Whether the server has told the tokens of an answer; one from a cache has none."""
    return bool(result.cached or result.usage.prompt_tokens or result.usage.completion_tokens)


def estimated_usage(messages: Sequence[LLMMessage], options: JsonValue, result: CreateResult) -> RequestUsage:
    """Estimate the tokens of an answer whose server does not report them, so that limits hold there, too.

    Args:
        messages: What the model has read.
        options: Further arguments of the call, such as tools.
        result: The answer.
    """
    read = sum(map(_tokens_of, messages)) + _tokens_of_json(options)
    written = _tokens_of_json(to_jsonable_python(result.content)) + _tokens_of_json(result.thought)
    return RequestUsage(read, written)


def usage_of_failure(error: BaseException | None) -> RequestUsage | None:
    """Return the tokens of a failed call if its error has them, as OpenAI's error about a cut-off answer does."""
    usage = getattr(getattr(error, "completion", None), "usage", None)
    return None if usage is None else RequestUsage(usage.prompt_tokens, usage.completion_tokens)


def _tokens_of(message: LLMMessage) -> int:
    content = message.content
    parts = [content] if isinstance(content, str) else content
    pictures = sum(isinstance(part, Image) for part in parts)
    texts = [part for part in parts if not isinstance(part, Image)]
    return _TOKENS_PER_MESSAGE + pictures * _TOKENS_PER_PICTURE + _tokens_of_json(to_jsonable_python(texts))


def _tokens_of_json(value: JsonValue) -> int:
    if not value:
        return 0
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return -(-len(text.encode(errors="replace")) // _BYTES_PER_TOKEN)
