"""Refusals of model servers, read in all the shapes that servers use, with a remedy for each kind.

Servers that speak OpenAI's protocol answer with its status codes, and with words of their own. Clients of several providers name
their errors as OpenAI's does, and give them its attributes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import Enum
from html import unescape
from typing import Any, NamedTuple, cast

from codeact_team.text.redaction import without_user_info


class RefusalKind(Enum):
    """Kinds of refusals, each with a message for a person.

    It has the ``{server}`` with its address, if that is known, the server's own words ``{said}``, and mostly the ``{status}``.
    """

    CONTEXT = (
        "the conversation is longer than the model can read, says {server}: {said}; give the agents a `model_context` that is "
        "limited, such as BufferedChatCompletionContext, or use another model"
    )
    QUOTA = "the account's quota with {server} is used up ({status}): {said}; check its plan and billing"
    # the server's own words quote a part of the key
    KEY = (
        "{server} does not accept the API key ({status}): check OPENAI_API_KEY, or what the model client's "
        "`api_key` refers to"
    )
    FORBIDDEN = "{server} refuses this ({status}): {said}; check what the API key may do"
    UNKNOWN = (
        "{server} does not know the model, or the address ({status}): {said}; check `model` and `base_url` of the model "
        "client"
    )
    TOO_LARGE = (
        "the request is larger than {server} accepts ({status}): {said}; give the agents a `model_context` that is limited, such "
        "as BufferedChatCompletionContext, or use another plan or model"
    )
    TOO_MANY = "too many requests for {server} ({status}): {said}; wait a little, or raise --retries"
    REQUEST = "{server} refuses the request ({status}): {said}; check the model client's settings"
    SERVER = "{server} failed ({status}): {said}; try again later"


class _Row(NamedTuple):
    """Refusals of one kind: with one of these codes of the server's, or with one of these statuses and words."""

    kind: RefusalKind
    codes: str = ""
    statuses: str = ".*"
    words: str = ".*"


_TABLE = (
    _Row(
        RefusalKind.CONTEXT,
        codes="context_length_exceeded|exceed_context_size_error|string_above_max_length",
        statuses="400|413|422|5..",
        # OpenAI, vLLM, DeepSeek, Mistral; llama.cpp; llama-cpp-python; LM Studio; Groq; Anthropic; Gemini; TGI; Ollama
        words="maximum context|context.?(?:length|window|size|limit)|too many tokens|reduce the length of the messages|"
        r"prompt is too long|input token count.* exceeds|inputs?`? tokens \+|must have less than \d+ tokens|"
        "larger than the context|maximum model length|input is too large to process",
    ),
    _Row(
        RefusalKind.QUOTA,
        codes="insufficient_quota|billing_.*|insufficient_(?:balance|credits|funds)|credit_balance_.*|budget_exceeded",
        statuses="402",
    ),
    _Row(RefusalKind.KEY, codes="invalid_api_key|API_KEY_INVALID", statuses="401"),
    _Row(
        RefusalKind.KEY,
        statuses="400|403",
        words="api.?key (?:is )?(?:not valid|invalid|expired)|invalid api.?key",
    ),
    _Row(
        RefusalKind.QUOTA,
        statuses="400|403|429",
        words="exceeded your (?:current|monthly) quota|credit balance|insufficient (?:balance|credits|funds)|out of credits|"
        "billing hard limit|quota is used up",
    ),
    _Row(RefusalKind.TOO_LARGE, statuses="413"),
    _Row(RefusalKind.TOO_MANY, codes="rate_limit.*|RESOURCE_EXHAUSTED|too_many_requests", statuses="429"),
    _Row(RefusalKind.FORBIDDEN, statuses="403"),
    _Row(RefusalKind.UNKNOWN, statuses="404"),
    # LiteLLM; OpenRouter
    _Row(RefusalKind.UNKNOWN, statuses="400", words="invalid model name|not a valid model"),
    # llama.cpp says so as if it had failed
    _Row(RefusalKind.REQUEST, statuses="5..", words="tools param requires"),
    _Row(RefusalKind.SERVER, codes="overloaded.*|server_error|internal.*", statuses="5..|408|409|425"),
    _Row(RefusalKind.REQUEST),
)
"""The first row that fits counts."""

_ADDRESS = re.compile(r"https?://\S+")
_ENDPOINT = re.compile(r"(?:/chat/completions|/messages)?/*$")
"""The end of a request's address, which the ``base_url`` of a model client lacks."""
_LONGEST = 600
_MOST_PARTS = 50
_RESETS = ("", "-requests", "-tokens")
"""Endings of the names of headers that say when a limit is over."""
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|[hms])")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_EPOCH = 1e9
"""Seconds: more are a time since the epoch, and a thousand times more one in milliseconds."""
_WAIT = re.compile(r"(?:retry|try again) (?:in|after) (\d+(?:\.\d+)?) ?(ms|milli|s|m|h)", re.IGNORECASE)
_IN_STREAM = 500
"""The status of an error in the middle of an answer that has begun with 200 and names none."""


@dataclass(frozen=True)
class ServerRefusal:
    """A refusal of a model's server.

    Attributes:
        kind: Why.
        status: The HTTP status, or what an error in a stream has in its place.
        said: The server's own words, in one line.
        retry_after: The seconds to wait that the server asks for, if it does.
        server: The server in a sentence, with its address if that is known.
    """

    kind: RefusalKind
    status: int
    said: str
    retry_after: float | None
    server: str

    @classmethod
    def of(cls, error: BaseException) -> ServerRefusal | None:
        """The refusal that an error of a model client is about, if it is about one."""
        if (status := _status(error)) is None:
            return None
        body: object = getattr(error, "body", None)
        said = next(_messages(body), "") or in_one_line(re.sub(r"^Error code: \d+(?: - )?", "", str(error)))
        wait = _wait_of_headers(error)
        if wait is None:
            wait = _wait_of_body(body, said)
        codes = list(_codes(body))
        kind = _kind(status, codes, _ADDRESS.sub("", f"{said} {error}"))
        is_of_account = status != 429 or wait is None or "insufficient_quota" in codes
        if kind is RefusalKind.QUOTA and not is_of_account:
            # a quota of a minute, or of a day
            kind = RefusalKind.TOO_MANY
        return cls(kind, status, said.rstrip(" .;:") or "it does not say why", wait, asked_server(error))

    @property
    def is_transient(self) -> bool:
        """Whether the same request may succeed a little later."""
        return self.kind in (RefusalKind.SERVER, RefusalKind.TOO_MANY)

    def __str__(self) -> str:
        return self.kind.value.format(server=self.server, status=self.status, said=self.said)


def _kind(status: int, codes: list[str], words: str) -> RefusalKind:
    def fits(row: _Row) -> bool:
        if any(re.fullmatch(row.codes, code, re.IGNORECASE) for code in codes):
            return True
        return bool(
            re.fullmatch(row.statuses, str(status)) and re.search(row.words, words, re.IGNORECASE | re.DOTALL)
        )

    return next(row.kind for row in _TABLE if fits(row))


def _status(error: BaseException) -> int | None:
    """The HTTP status with which a model's server has refused, if it has."""
    if not hasattr(error, "body"):
        return None
    status: object = getattr(error, "status_code", None)
    if isinstance(status, int):
        return status if status >= 400 else None
    names = {kind.__name__ for kind in type(error).__mro__}
    if "APIError" not in names or names & {"APIConnectionError", "APIResponseValidationError"}:
        return None
    # in a stream
    numbers = [int(code) for code in _codes(getattr(error, "body", None)) if re.fullmatch(r"[45]\d\d", code)]
    return numbers[0] if numbers else _IN_STREAM


def _parts(body: object) -> Iterator[Mapping[str, Any]]:
    """The objects in which a server may say what is wrong, the outermost first; of a hostile answer only some."""
    waiting = [body]
    for _ in range(_MOST_PARTS):
        if not waiting:
            return
        part = waiting.pop(0)
        if isinstance(part, list):
            waiting[:0] = cast("list[object]", part)[:3]
        elif isinstance(part, dict):
            yield (told := cast("dict[str, Any]", part))
            waiting[:0] = [told[name] for name in ("error", "errors", "detail", "metadata") if name in told]


def _codes(body: object) -> Iterator[str]:
    """Yield the server's codes for the error."""
    for part in _parts(body):
        for name in ("code", "type", "status", "reason"):
            code = part.get(name)
            if isinstance(code, str | int) and not isinstance(code, bool) and code != "":
                yield str(code)


def _messages(body: object) -> Iterator[str]:
    """Yield the server's messages for people."""
    if isinstance(body, str) and body.strip():
        yield in_one_line(_without_markup(body))
    for part in _parts(body):
        # the names that OpenAI, FastAPI, TGI and others have for it
        for name in ("message", "detail", "error", "msg", "error_message", "title"):
            if isinstance(message := part.get(name), str) and message.strip():
                yield in_one_line(_without_markup(message))


def _without_markup(text: str) -> str:
    """A page of HTML by its title, or else by its text."""
    if not re.search(r"<(?:!doctype|html|head|body|title)\b", text, re.IGNORECASE):
        return text
    title = re.search(r"<title[^>]*>(.*?)</title>", text, re.IGNORECASE | re.DOTALL)
    shown = re.sub(r"<(script|style)\b.*?</\1>|<[^>]*>", " ", text, flags=re.IGNORECASE | re.DOTALL)
    return f"a page of HTML, {unescape(' '.join((title[1] if title else shown).split()))[:200]!r}"


def _wait_of_headers(error: BaseException) -> float | None:
    headers: Any = getattr(getattr(error, "response", None), "headers", None) or {}
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        with suppress(ValueError):
            return max(0.0, float(headers.get(name, "")) * unit)
    with suppress(ValueError, TypeError):
        return max(0.0, parsedate_to_datetime(headers.get("retry-after")).timestamp() - time.time())
    resets = {kind: _seconds(headers.get(f"x-ratelimit-reset{kind}", "")) for kind in _RESETS}
    used_up = [kind for kind in _RESETS if headers.get(f"x-ratelimit-remaining{kind}") == "0"]
    return max(
        (seconds for kind in used_up or _RESETS if (seconds := resets[kind]) is not None), default=None
    )


def _wait_of_body(body: object, said: str) -> float | None:
    """The same where it is told in other places: by Gemini in its details, by others in words."""
    for part in _parts(body):
        for each in [part, *(_parts(part.get("details")))]:
            if isinstance(delay := each.get("retryDelay"), str) and (seconds := _seconds(delay)) is not None:
                return seconds
    if (told := _WAIT.search(said)) is None:
        return None
    return float(told[1]) * _UNITS[told[2].lower().replace("milli", "ms")]


def _seconds(text: str) -> float | None:
    """Return the seconds until a limit is over, read from a duration such as ``6m0s``, seconds, or a time since the epoch."""
    with suppress(ValueError):
        number = float(text)
        if number < _EPOCH:
            return max(0.0, number)
        return max(0.0, (number / 1000 if number > 1000 * _EPOCH else number) - time.time())
    parts = _DURATION.findall(text)
    if not parts or "".join(map("".join, parts)) != text:
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def asked_server(error: BaseException) -> str:
    """The server of the request that an error of a model client is about, as :func:`named_server` has it."""
    return named_server(getattr(getattr(error, "request", None), "url", None))


def named_server(address: object) -> str:
    """A model's server in a sentence, with its address unless that is ``None``, and without what may be a credential there."""
    if address is None:
        return "the model's server"
    bare = without_user_info(str(address).partition("?")[0])
    return f"the model's server at {_ENDPOINT.sub('', bare)}"


def in_one_line(text: str) -> str:
    """The beginning of what a server or a client has said, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."
