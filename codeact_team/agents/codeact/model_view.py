"""What a model gets to see of a conversation, whatever its context drops."""

from __future__ import annotations

from collections.abc import Sequence

from autogen_core.models import AssistantMessage, FunctionExecutionResultMessage, LLMMessage


def keep_in_view(
    kept: Sequence[LLMMessage], *, task: Sequence[LLMMessage], said: Sequence[LLMMessage], latest: int
) -> list[LLMMessage]:
    """The messages that a context has kept, with those put back that must not be missing.

    Args:
        kept: What the context has kept, of this run and of earlier ones.
        task: What the run has begun with; must not be missing.
        said: What was said in the run since, in order.
        latest: From where on in ``said`` nothing must be missing.
    """
    tail = list(said[latest:])
    rest = list(kept)
    for message in reversed(tail):
        if rest and _same(rest[-1], message):
            rest.pop()
    if not all(_contains(rest, message) for message in task):
        rest = [message for message in rest if not _contains(task, message)]
        of_this_run = (number for number, message in enumerate(rest) if _contains(said, message))
        start = next(of_this_run, len(rest))
        rest[start:start] = task
    return _without_halves([*rest, *tail])


def _contains(messages: Sequence[LLMMessage], message: LLMMessage) -> bool:
    return any(_same(other, message) for other in messages)


def _same(one: LLMMessage, other: LLMMessage) -> bool:
    # a context may give copies, and leave out what the model thought
    return one is other or (type(one) is type(other) and one.content == other.content)


def _without_halves(messages: Sequence[LLMMessage]) -> list[LLMMessage]:
    """The messages without calls of tools that lack their results, and results that lack their calls.

    Servers refuse either.
    """
    after = [*messages[1:], None]
    before = [None, *messages[:-1]]
    return [
        message
        for earlier, message, later in zip(before, messages, after, strict=True)
        if (
            not (isinstance(message, AssistantMessage) and isinstance(message.content, list))
            and not isinstance(message, FunctionExecutionResultMessage)
        )
        or _belong_together(message, later)
        or _belong_together(earlier, message)
    ]


def _belong_together(call: LLMMessage | None, results: LLMMessage | None) -> bool:
    if not isinstance(call, AssistantMessage) or isinstance(call.content, str):
        return False
    if not isinstance(results, FunctionExecutionResultMessage):
        return False
    return {one.id for one in call.content} == {result.call_id for result in results.content}
