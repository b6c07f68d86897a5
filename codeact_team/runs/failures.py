"""One clear sentence for whatever ended a run, with what to do about it.

Model clients of several providers name their errors as OpenAI's does, and give them its attributes.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any, cast

from codeact_team.config.credentials import without_secrets
from codeact_team.errors import CodeActTeamError, EngineError, SandboxLostError

_TOO_LONG = re.compile(r"context.?length|context window|maximum context|too many tokens", re.IGNORECASE)
_ERRNO = re.compile(r"\[Errno -?\d+\] ")
_BAD_REQUEST = (400, 422)
_ADVICE = {
    # the server's own words quote a part of the key
    401: "the model's server does not accept the API key (401): check OPENAI_API_KEY, or what the model client's "
    "`api_key` refers to",
    403: "the model's server refuses this (403): {}; check what the API key may do",
    404: "the model's server does not know the model, or the address (404): {}; check `model` and `base_url` of the "
    "model client",
    429: "too many requests for the model's server (429): {}; wait a little, or set `max_retries` of the model client",
}
_LONGEST = 600


def explain(error: BaseException, *, environ: Mapping[str, str] = os.environ) -> str:
    """What went wrong, and what to do, for a person; without a traceback, and without the secrets of ``environ``."""
    status = _status(error)
    if isinstance(error, CodeActTeamError):
        text = str(error)
    elif status is not None:
        text = _refusal(status, error)
    elif _is_named(error, "APITimeoutError"):
        text = "the model's server did not answer in time; try again, or raise `timeout` of the model client"
    elif _is_named(error, "APIConnectionError"):
        reason = _ERRNO.sub("", str(error.__cause__ or "")) or str(error)
        text = (
            f"the model's server cannot be reached ({_in_one_line(reason)}): check that it runs, and `base_url` of the "
            "model client (or OPENAI_BASE_URL)"
        )
    elif str(error) == "No more mock responses available":
        text = (
            "the recorded conversation has no further answers: it was recorded for another task, or the code went "
            "another way this time; use a config with a model, such as `team`"
        )
    else:
        text = f"{_in_one_line(_named(error))}; CODEACT_TEAM_DEBUG=1 shows where it comes from"
    return without_secrets(text, environ)


def is_transient(error: BaseException) -> bool:
    """Whether the same run may succeed a little later: the model's server is not there, overloaded, or has failed."""
    status = _status(error)
    if status is None:
        return _is_named(error, "APIConnectionError")
    return status >= 500 or (status == 429 and not _quota_is_used_up(error))


def is_of_infrastructure(error: BaseException) -> bool:
    """Whether what is around a run has failed, and not what it was given: the model's server, the engine, or a sandbox."""
    is_around = isinstance(error, EngineError | SandboxLostError)
    return is_around or is_transient(error) or _is_named(error, "APITimeoutError")


def retry_after(error: BaseException) -> float | None:
    """How many seconds a model's server wants to be left alone, where it says so."""
    headers: Any = getattr(getattr(error, "response", None), "headers", None) or {}
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        with suppress(ValueError):
            return max(0.0, float(headers.get(name, "")) * unit)
    with suppress(ValueError, TypeError):
        return max(0.0, parsedate_to_datetime(headers.get("retry-after")).timestamp() - time.time())
    return None


def is_too_many(error: BaseException) -> bool:
    """Whether a model's server has refused as there were too many requests."""
    return _status(error) == 429 and not _quota_is_used_up(error)


def _status(error: BaseException) -> int | None:
    """The HTTP status with which a model's server has refused, if it has."""
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) and status >= 400 and hasattr(error, "body") else None


def _is_named(error: BaseException, name: str) -> bool:
    return any(kind.__name__ == name for kind in type(error).__mro__)


def _named(error: BaseException) -> str:
    """An error by the name of its class; one that a team of AutoGen's has passed on as text has it there."""
    if type(error) is RuntimeError and "\nTraceback:\n" in str(error):
        named = str(error).partition("\nTraceback:\n")[0]
        # each team on the way out has wrapped it once more
        return re.sub(r"^(?:RuntimeError: )+(?=\w+: )", "", named)
    return f"{type(error).__name__}: {error}"


def _message(error: Any) -> str:
    """What the server said, without the client's wrapping."""
    part: Any = error.body
    while isinstance(part, dict):
        told = cast(dict[str, Any], part)
        if isinstance(message := told.get("message"), str):
            return _in_one_line(message)
        part = told.get("error")
    return _in_one_line(re.sub(r"^Error code: \d+(?: - )?", "", str(error)))


def _refusal(status: int, error: BaseException) -> str:
    said = _message(error)
    if status == 429 and _quota_is_used_up(error):
        return f"the account's quota is used up (429): {said}; check its plan and billing"
    if status in _BAD_REQUEST and _TOO_LONG.search(str(error)):
        return (
            f"the conversation is longer than the model can read: {said}; give the agents a `model_context` that is "
            "limited, such as BufferedChatCompletionContext, or use another model"
        )
    if status in _BAD_REQUEST:
        return f"the model's server refuses the request: {said}; check the model client's settings"
    if status in _ADVICE:
        return _ADVICE[status].format(said)
    return f"the model's server failed ({status}): {said or 'it does not say why'}; try again later"


def _quota_is_used_up(error: BaseException) -> bool:
    # the same status as too many requests, but waiting does not help
    return "quota" in str(error)


def _in_one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."
