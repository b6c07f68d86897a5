"""Make handlers of input functions, such as AutoGen's ``UserProxyAgent`` takes."""

from __future__ import annotations

import asyncio
import inspect
import shutil
from collections.abc import Awaitable, Callable
from typing import Any

from autogen_core import CancellationToken

from codeact_team.aio import Turns
from codeact_team.approval.handlers import Answer, Handler
from codeact_team.approval.question import Question

_ATTEMPTS = 3


def ask_with(input_func: Callable[..., str | Awaitable[str]]) -> Handler:
    """Make a handler of a function that takes a prompt and returns what was entered.

    Args:
        input_func: ``input``, a function like it, or an async one, which may take a cancellation token as well. One
            that is not async runs in a thread, and cannot be stopped: after a cancellation it still waits for its line.
    """
    turns = Turns()

    async def ask(question: Question) -> Answer:
        prompt = (
            f"{question.to_text(width=shutil.get_terminal_size().columns)}\n"
            f"Allow? y (yes), n (no; a reason may follow), a (always: {question.grant}): "
        )
        async with turns:
            for _ in range(_ATTEMPTS):
                answer = read_answer(await enter(input_func, prompt))
                if answer is not None:
                    return answer
                prompt = "Please answer y, n or a: "
        return Answer(False, "the answer was neither yes nor no")

    return ask


def read_answer(text: str) -> Answer | None:
    """Tell what an answer in words means; ``None`` if that is not clear."""
    word, rest = [*text.split(maxsplit=1), "", ""][:2]
    match word.lower():
        case "n" | "no":
            return Answer(False, rest.strip())
        case "y" | "yes" if not rest:
            return Answer(True)
        case "a" | "always" if not rest:
            return Answer(True, always=True)
        case _:
            return None


async def enter(
    function: Callable[..., Any], prompt: str, cancellation_token: CancellationToken | None = None
) -> str:
    """Call an input function, as :func:`ask_with` takes it; the token is passed on, and cancelled if the caller is."""
    token = cancellation_token or CancellationToken()
    arguments = (prompt, token) if _takes_token(function) else (prompt,)
    try:
        if _is_async(function):
            return await function(*arguments)
        entered: Any = await asyncio.to_thread(function, *arguments)
        # a lambda around an async function, among others
        return await entered if inspect.isawaitable(entered) else entered
    except asyncio.CancelledError:
        token.cancel()
        raise


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _takes_token(function: Callable[..., Any]) -> bool:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:
        # a function that is written in C may not tell
        return False
    if len(parameters) < 2:
        return False
    second = parameters[1]
    # AutoGen passes it by position, to async functions only
    return second.name == "cancellation_token" or (
        _is_async(function) and second.kind is not inspect.Parameter.KEYWORD_ONLY
    )
