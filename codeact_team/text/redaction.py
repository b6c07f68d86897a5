"""Credentials: which texts are some, and how they are kept out of what is written or shown."""

from __future__ import annotations

import base64
import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from itertools import product
from urllib.parse import quote, quote_plus, unquote

from pydantic import JsonValue

# whole words at the end of a key: "x-api-key", "azure_ad_token", but not "max_tokens" or "tokenizer"
_KEY = re.compile(
    r"(?:^|-)(?:authorization|cookie|token|secret|password|passwd|(?:api|access|secret|private|subscription)-?key)$"
)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+")
_URL_CREDENTIAL = re.compile(
    r"://[^/?#@\s]*:(?P<password>[^/?#@\s]+)@"
    r"|[?&#](?:api[_-]?key|key|token|access_token|auth|secret|password|sig|signature)=(?P<value>[^&#\s]+)",
    re.IGNORECASE,
)
_USER_INFO = re.compile(r"://[^/\s]*@")
_KEY_SHAPE = re.compile(r"\bsk-[\w*.-]{8,}|(?<=Bearer )\S+")


# asked for each run of a batch, for each variable of the environment
@lru_cache(maxsize=1024)
def is_credential_key(key: str) -> bool:
    """Whether text under this key (a header's name, a variable's, a field's) is a credential."""
    return _KEY.search(re.sub(r"[_\s]", "-", key).lower()) is not None


def holds_credential(text: str) -> bool:
    """Whether this is a URL with a password or a token in it."""
    return _URL.fullmatch(text) is not None and _URL_CREDENTIAL.search(text) is not None


def credentials_in(key: str, text: str) -> Iterator[str]:
    """Find the credentials in a text under a key: the whole text or what follows a scheme, and those in a URL."""
    if text and is_credential_key(key):
        yield text
        if len(words := text.split()) == 2:
            # such as "Bearer" before it
            yield words[1]
    if _URL.fullmatch(text):
        for found in _URL_CREDENTIAL.finditer(text):
            quoted = found["password"] or found["value"]
            yield quoted
            if (plain := unquote(quoted)) != quoted:
                yield plain


def credentials_of_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The credentials in the environment, each under the name of its variable."""
    found: dict[str, str] = {}
    for name, value in environ.items():
        add_secrets(found, name, credentials_in(name, value))
    return found


def add_secrets(found: dict[str, str], name: str, secrets: Iterable[str]) -> None:
    """Add secrets to ``found`` under ``name``, further ones under ``name.1`` and so on; those that are there stay."""
    known = set(found.values())
    for number, secret in enumerate(secrets):
        if secret not in known:
            found[f"{name}.{number}" if number else name] = secret


def without_user_info(text: str) -> str:
    """Remove user names and passwords from the URLs in a text."""
    return _USER_INFO.sub("://", text)


def without_secrets(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """Replace the credentials of the environment, and whatever else looks like a key, in a text that is shown."""
    return secret_remover({name: value for name, value in environ.items() if is_credential_key(name)})(text)


def secret_remover(credentials: Mapping[str, str]) -> Callable[[str], str]:
    """Make a function that replaces credentials by ``${NAME}``, and whatever else looks like a key, in a text."""
    redactor = _redactor_of(frozenset(credentials.items()))
    return lambda text: _KEY_SHAPE.sub("(a key)", redactor.redact_text(text))


# to spell a credential in all encodings takes a millisecond
@lru_cache(maxsize=4)
def _redactor_of(credentials: frozenset[tuple[str, str]]) -> Redactor:
    return Redactor(dict(credentials))


_Encode = Callable[[str], str]


def _json(value: str) -> str:
    return json.dumps(value)[1:-1]


def _json_unicode(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)[1:-1]


def _write_json(encode: _Encode, escapes: tuple[str, str], slash: bool, upper: bool, value: str) -> str:
    """Encode as those JSON writers do that escape more than they must, such as characters with a meaning in HTML."""
    text = encode(value)
    escaped, digits = escapes
    if escaped:
        text = re.sub(f"[{escaped}]", lambda found: f"\\u{ord(found[0]):{digits}}", text)
    if slash:
        text = text.replace("/", "\\/")
    return re.sub(r"(?<=\\u)[0-9a-f]{4}", lambda found: found[0].upper(), text) if upper else text


def _repr(value: str | bytes) -> str:
    """Encode as ``repr`` does in a text that has both sorts of quotes, one of which is escaped then."""
    return repr('"' + value)[2:-1] if isinstance(value, str) else repr(b'"' + value)[3:-1]


def _url(quote: Callable[..., str], value: str, safe: str = "", *, escaped: str = "") -> str:
    text = quote(value, safe=safe, errors="surrogateescape")
    return text.replace(escaped, f"%{ord(escaped):02X}") if escaped else text


def in_base64(value: str, before: int, special: bytes = b"+/") -> str:
    """The part of base64 that is the same whatever surrounds a value, with ``before`` bytes, modulo 3, before it."""
    data = bytes(before) + value.encode(errors="surrogateescape")
    whole = base64.b64encode(data, special).decode()
    # the first and the last characters depend on the surrounding bytes, too
    start = (before * 8 + 5) // 6
    end = len(data) * 8 // 6
    return whole[start:end]


def _after(outer: _Encode, inner: _Encode) -> _Encode:
    return lambda value: outer(inner(value))


_PLAIN_JSON: Mapping[str, _Encode] = {"json": _json, "json-unicode": _json_unicode}
_HTML_ESCAPES = {"": ("", "")} | {
    f"-{name}{size}": (escaped, digits)
    for (name, escaped), (size, digits) in product(
        {"go": "<>&", "page": "<>&'"}.items(), {"": "04x", "-large": "04X"}.items()
    )
}
"""Characters with a meaning in HTML that some JSON writers, such as Go's, escape; and the format of the digits."""


def _json_encodings() -> Iterator[tuple[str, _Encode]]:
    for (name, encode), (html, escapes), slash, upper in product(
        _PLAIN_JSON.items(), _HTML_ESCAPES.items(), (False, True), (False, True)
    ):
        encoding = f"{name}{html}{'-slash' * slash}{'-upper' * upper}"
        yield encoding, partial(_write_json, encode, escapes, slash, upper)


def _url_encodings() -> Iterator[tuple[str, _Encode]]:
    url, form = partial(_url, quote), partial(_url, quote_plus)
    encodings: dict[str, _Encode] = {
        "url": url,
        "url-path": partial(url, safe="/"),
        "url-script": partial(url, safe="!'()*"),
        "url-whole": partial(url, safe=";,/?:@&=+$-_.!~*'()#"),
        "form": form,
        "form-tilde": partial(form, escaped="~"),
        "form-star": partial(form, safe="*", escaped="~"),
    }
    yield from encodings.items()

    def lower(text: str) -> str:
        return re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), text)

    for name, encode in encodings.items():
        yield f"{name}-lower", _after(lower, encode)


def _all_encodings() -> Iterator[tuple[str, _Encode]]:
    """Yield the encodings in the order of the search: a spelling that several produce has the name of the first."""
    yield "", str
    in_json = dict(_json_encodings())
    yield from in_json.items()
    # JSON within JSON is written by Python, or by a writer that leaves letters as they are
    for _ in range(2):
        in_json = {
            f"{outer}-{name}": _after(encode, inner)
            for outer, encode in (("j", _json), ("ju", _json_unicode))
            for name, inner in in_json.items()
        }
        yield from in_json.items()
    in_python: dict[str, _Encode] = {
        "repr": _repr,
        "repr-bytes": lambda value: _repr(value.encode(errors="surrogateescape")),
        "ascii": lambda value: ascii('"' + value)[2:-1],
    }
    in_python |= {
        f"{name}-quoted": _after(lambda text: text.replace("\\'", "'"), encode)
        for name, encode in in_python.items()
    }
    yield from in_python.items()
    for (outer, encode), (name, inner) in product(_PLAIN_JSON.items(), in_python.items()):
        yield f"{outer}-{name}", _after(encode, inner)
    for (outer, encode), (name, inner) in product(in_python.items(), _PLAIN_JSON.items()):
        yield f"{outer}-{name}", _after(encode, inner)
    yield "yaml", lambda value: value.replace("'", "''")
    yield from _url_encodings()
    # the base64 of a text that has the value depends on the value's place in it; these parts are the same in each
    for place, (name, special) in product(range(3), {"": b"+/", "-url": b"-_"}.items()):
        yield f"base64{name}-{place}", partial(in_base64, before=place, special=special)
    for place in range(3):
        encode = partial(in_base64, before=place)
        yield f"base64-slash-{place}", _after(lambda text: text.replace("/", "\\/"), encode)


_ENCODINGS: Mapping[str, _Encode] = dict(_all_encodings())
"""The spellings in which one part of a run may write a value, and another read it."""

_BASE64 = re.compile(r"(?:[\w+/-]{4})*+(?:[\w+/-]{3}=|[\w+/-]{2}==)?", re.ASCII)
_URL_SAFE = str.maketrans("-_", "+/")


def _change_all(change: Callable[[str], str], text: str) -> str:
    """Change a text, or the bytes that it has in base64, as pydantic writes them in JSON.

    Of the alphabet for URLs nothing may be left that tells it from the usual one: readers of bytes take both.
    """
    if len(text) % 4 or _BASE64.fullmatch(text) is None:
        return change(text)
    standard = text.translate(_URL_SAFE)
    data = base64.b64decode(standard)
    decoded = data.decode(errors="surrogateescape")
    # what other programs write has bits that are lost
    if (changed := change(decoded)) == decoded or base64.b64encode(data).decode() != standard:
        return change(text)
    encode = base64.urlsafe_b64encode if standard != text else base64.b64encode
    return encode(changed.encode(errors="surrogateescape")).decode()


_AS_THEY_ARE = re.compile("[A-Za-z0-9]+")
_PIECE = 1 << 20
"""Bytes that are searched at once."""


class Redactor:
    """Replaces secrets by placeholders, in every spelling that a program may give them.

    Args:
        secrets: The secrets by name, such as the name of an environment variable.
        nonce: If given, placeholders name the spelling, contain it, and can be restored. It must be unknown to all that a
            run reads or writes. Without it, a placeholder is ``${NAME}``.
        restorable: The names whose placeholders :meth:`restore` replaces; ``None`` for all.
        shortest: Shorter secrets stay, as any text might hold them.
    """

    def __init__(
        self,
        secrets: Mapping[str, str],
        nonce: str | None = None,
        restorable: Collection[str] | None = None,
        *,
        shortest: int = 8,
    ) -> None:
        self._placeholders: dict[str, str] = {}
        self._restored: dict[str, str] = {}
        spellings: defaultdict[str, list[str]] = defaultdict(list)
        for name, secret in sorted(secrets.items()):
            if len(secret) < shortest:
                continue
            for encoding, encode in _ENCODINGS.items():
                if (text := encode(secret)) in self._placeholders:
                    continue
                spelling = f"/{encoding}" if encoding else ""
                placeholder = f"${{{name}}}" if nonce is None else f"«{name}{spelling}#{nonce}»"
                self._placeholders[text] = placeholder
                spellings[_core(secret, text)].append(text)
                if nonce is not None and (restorable is None or name in restorable):
                    self._restored[placeholder] = text
        self._spellings = [*spellings.items()]
        """Each group with a text that all of it has, which is looked for first."""
        self._as_bytes = [
            (core.encode(), [text.encode(errors="surrogateescape") for text in texts])
            for core, texts in self._spellings
        ]
        self._shortest = min(map(len, self._placeholders), default=0)
        self._placeholder = re.compile(r"(?!)" if nonce is None else rf"«[^«»]*#{re.escape(nonce)}»")

    def found_in(self, data: bytes) -> bool:
        """Whether the bytes of a file hold a secret. Takes linear time, and lets other threads run meanwhile."""
        return any(
            _is_in(data, core) and any(_is_in(data, text) for text in texts) for core, texts in self._as_bytes
        )

    def redact(self, value: JsonValue) -> JsonValue:
        """Replace the secrets in all texts of a value, its keys and bytes in base64 included. Takes linear time."""
        return map_texts(value, partial(_change_all, self.redact_text)) if self._placeholders else value

    def restore(self, value: JsonValue) -> JsonValue:
        """Replace the placeholders in a value by their secrets. Placeholders of unknown secrets stay."""

        def put_back(text: str) -> str:
            return self._placeholder.sub(lambda found: self._restored.get(found[0], found[0]), text)

        return map_texts(value, partial(_change_all, put_back))

    def redact_text(self, text: str) -> str:
        """Replace the secrets in a text. Takes linear time."""
        if len(text) < self._shortest:
            return text
        # a regular expression compares with each spelling at each character; a search skips ahead
        possible = (spelling for core, texts in self._spellings if core in text for spelling in texts)
        next_places = {spelling: place for spelling in possible if (place := text.find(spelling)) >= 0}
        if not next_places:
            return text
        parts: list[str] = []
        end = 0
        while next_places:
            # one that contains another goes first
            found = min(next_places, key=lambda spelling: (next_places[spelling], -len(spelling)))
            parts += text[end : next_places[found]], self._placeholders[found]
            end = next_places[found] + len(found)
            for passed in [spelling for spelling, place in next_places.items() if place < end]:
                if (place := text.find(passed, end)) < 0:
                    del next_places[passed]
                else:
                    next_places[passed] = place
        return "".join([*parts, text[end:]])


def names_in_placeholders(nonce: str) -> re.Pattern[bytes]:
    """A pattern that finds, in a file, the names in the placeholders with this nonce."""
    return re.compile(rf"«([^«»/#]{{1,200}})(?:/[a-z0-9-]{{1,60}})?#{re.escape(nonce)}»".encode())


def _core(secret: str, spelling: str) -> str:
    """The longest run of letters and digits of a secret if the spelling has it as it is, else the whole spelling."""
    longest = max(_AS_THEY_ARE.findall(secret), key=len, default="")
    return longest if longest in spelling else spelling


def _is_in(data: bytes, value: bytes) -> bool:
    # no other thread runs during one search, so it goes piece by piece
    return any(
        data.find(value, start, start + _PIECE + len(value) - 1) >= 0 for start in range(0, len(data), _PIECE)
    )


def map_texts(value: JsonValue, change: Callable[[str], str]) -> JsonValue:
    """A value with each text in it changed, keys included."""
    match value:
        case str():
            return change(value)
        case list():
            return [map_texts(item, change) for item in value]
        case dict():
            return {change(key): map_texts(item, change) for key, item in value.items()}
        case _:
            return value
