"""One clear sentence for whatever ended a run, with what to do about it.

AutoGen passes an agent's exception on as text, its name and its traceback included, so failures are told apart by
name. Model clients of several providers share the names that OpenAI's uses.
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

from codeact_team import errors
from codeact_team.config.credentials import is_credential_key
from codeact_team.errors import CodeActTeamError

_TRACE = "\nTraceback:\n"
_NAMED = re.compile(r"(?P<kind>[A-Za-z_]\w*): (?P<text>.*)", re.DOTALL)
_STATUS = re.compile(r"Error code: (\d{3})(?: - )?")
_BODY_MESSAGE = re.compile(
    r"""['"]message['"]: (?P<quote>['"])(?P<text>.*?)(?P=quote)(?:, ['"]|\})""", re.DOTALL
)
_CONNECTION_REASON = re.compile(
    r"\[Errno -?\d+\] (?P<system>[^\n]+)"
    r"|(?P<client>All connection attempts failed|Server disconnected[^\n]*|peer closed connection[^\n]*)"
)
_TOO_LONG = re.compile(r"context.?length|context window|maximum context|too many tokens", re.IGNORECASE)
_MODEL_CODE = re.compile(r'File "[^"\n]*[/\\](?:autogen_ext[/\\]models|openai|anthropic|ollama)[/\\]')
_KEY_SHAPE = re.compile(r"\bsk-[\w*.-]{8,}|(?<=Bearer )\S+")

_UNREADABLE_ANSWER = frozenset(
    {"AttributeError", "TypeError", "KeyError", "IndexError", "JSONDecodeError", "APIResponseValidationError"}
)
_OUR_NAMES = frozenset(name for name in vars(errors) if name.endswith("Error"))
_LONGEST = 600
_SHORTEST_SECRET = 8


@dataclass(frozen=True)
class _Failure:
    """An exception, or what AutoGen's text tells of one.

    Attributes:
        kind: Name of its class.
        text: Its message.
        trace: Its traceback as text, with its causes.
    """

    kind: str
    text: str
    trace: str

    @classmethod
    def of(cls, error: BaseException) -> Self:
        kind, text = type(error).__name__, str(error)
        trace = "".join(traceback.format_exception(error))
        # each team on the way out has wrapped it once more
        while kind == "RuntimeError" and (named := _NAMED.fullmatch(text.partition(_TRACE)[0])) is not None:
            trace = text.partition(_TRACE)[2] or trace
            kind, text = named["kind"], named["text"]
        return cls(kind, text, trace)

    @property
    def message(self) -> str:
        """What the server said, without the client's wrapping."""
        said = _STATUS.sub("", self.text, count=1)
        body = _BODY_MESSAGE.search(said)
        return _in_one_line(said if body is None else body["text"])


def explain(error: BaseException, *, environ: Mapping[str, str] = os.environ) -> str:
    """What went wrong, and what to do, for a person; without a traceback and without secrets.

    Args:
        error: What ended a run: raised by this package, or by an agent and passed on by AutoGen.
        environ: Where secrets are known from.
    """
    failure = _Failure.of(error)
    if isinstance(error, CodeActTeamError) or failure.kind in _OUR_NAMES:
        return _without_secrets(failure.text, environ)
    if (advise := _ADVICE.get(failure.kind)) is not None:
        text = advise(failure)
    elif failure.text == "No more mock responses available":
        text = (
            "the recorded conversation has no further answers: it was recorded for another task, or the code went "
            "another way this time; use a config with a model, such as `team`"
        )
    elif (status := _STATUS.match(failure.text)) is not None:
        text = f"the model's server failed ({status[1]}): {failure.message or 'it does not say why'}; try again later"
    elif failure.kind in _UNREADABLE_ANSWER and _MODEL_CODE.search(failure.trace):
        text = (
            "the model's server answered with something that is no chat completion: check `base_url` (or "
            "OPENAI_BASE_URL), which usually ends in /v1, and whatever proxy is in between"
        )
    else:
        text = f"{failure.kind}: {_in_one_line(failure.text)}; CODEACT_TEAM_DEBUG=1 shows where it comes from"
    return _without_secrets(text, environ)


def _wrong_key(failure: _Failure) -> str:
    # the server's own words quote a part of the key
    return (
        "the model's server does not accept the API key (401): check OPENAI_API_KEY, or what the model client's "
        "`api_key` refers to"
    )


def _no_permission(failure: _Failure) -> str:
    return f"the model's server refuses this (403): {failure.message}; check what the API key may do"


def _rate_limit(failure: _Failure) -> str:
    if "quota" in failure.text:
        return f"the account's quota is used up (429): {failure.message}; check its plan and billing"
    return (
        f"too many requests for the model's server (429): {failure.message}; wait a little, or set `max_retries` of the "
        "model client"
    )


def _not_found(failure: _Failure) -> str:
    return (
        f"the model's server does not know the model, or the address (404): {failure.message}; check `model` and "
        "`base_url` of the model client"
    )


def _no_connection(failure: _Failure) -> str:
    found = _CONNECTION_REASON.search(failure.trace)
    reason = failure.text if found is None else found["system"] or found["client"]
    return (
        f"the model's server cannot be reached ({_in_one_line(reason)}): check that it runs, and `base_url` of the model "
        "client (or OPENAI_BASE_URL)"
    )


def _no_answer(failure: _Failure) -> str:
    return "the model's server did not answer in time; try again, or raise `timeout` of the model client"


def _bad_request(failure: _Failure) -> str:
    if _TOO_LONG.search(failure.text):
        return (
            f"the conversation is longer than the model can read: {failure.message}; give the agents a `model_context` "
            "that is limited, such as BufferedChatCompletionContext, or use another model"
        )
    return f"the model's server refuses the request: {failure.message}; check the model client's settings"


_ADVICE: Mapping[str, Callable[[_Failure], str]] = {
    "AuthenticationError": _wrong_key,
    "PermissionDeniedError": _no_permission,
    "RateLimitError": _rate_limit,
    "NotFoundError": _not_found,
    "APIConnectionError": _no_connection,
    "APITimeoutError": _no_answer,
    "BadRequestError": _bad_request,
    "UnprocessableEntityError": _bad_request,
}


def _in_one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


def _without_secrets(text: str, environ: Mapping[str, str]) -> str:
    for name, value in environ.items():
        if len(value) >= _SHORTEST_SECRET and is_credential_key(name):
            text = text.replace(value, f"${{{name}}}")
    return _KEY_SHAPE.sub("(a key)", text)
