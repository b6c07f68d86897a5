"""Tells which text is a credential, and keeps values of the environment out of errors."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from urllib.parse import unquote

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
_KEY_SHAPE = re.compile(r"\bsk-[\w*.-]{8,}|(?<=Bearer )\S+")
_SHORTEST_SECRET = 8

MASK = "*" * 10
"""What AutoGen's own dumps put in the place of a secret."""


# asked for each run of a batch, of each variable of the environment
@lru_cache(maxsize=1024)
def is_credential_key(key: str) -> bool:
    """Whether text under this key (a header's name, a variable's, a field's) is a credential."""
    return _KEY.search(re.sub(r"[_\s]", "-", key).lower()) is not None


def holds_credential(text: str) -> bool:
    """Whether this is a URL with a password or a token in it."""
    return _URL.fullmatch(text) is not None and _URL_CREDENTIAL.search(text) is not None


def without_secrets(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """``text`` with what looks like a key, and each credential of the environment, taken out."""
    return without({name: value for name, value in environ.items() if is_credential_key(name)})(text)


def without(credentials: Mapping[str, str]) -> Callable[[str], str]:
    """What takes credentials out of a text, also where they are in JSON, and whatever else looks like a key.

    Args:
        credentials: Each by the name that is put in its place. Those that may be anybody's word stay.
    """
    long = {name: value for name, value in credentials.items() if len(value) >= _SHORTEST_SECRET}
    names = {spelled: name for name, value in long.items() for spelled in (value, json.dumps(value)[1:-1])}
    # what holds another goes first
    ordered = sorted(names, key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, ordered)) or r"(?!)")

    def clean(text: str) -> str:
        named = pattern.sub(lambda found: f"${{{names[found[0]]}}}", text)
        return _KEY_SHAPE.sub("(a key)", named)

    return clean


def credentials_in(key: str, text: str) -> Iterator[str]:
    """The credentials in a text that stands under a key: the whole, or what is behind a scheme; and those of a URL."""
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


def with_references(text: str, values: Mapping[str, str], place: str = "", inside: str = "") -> str:
    """Put references in the place of the values that a message quotes, in whole or in part.

    An error of somebody else's may quote a value, or a word of it, such as a path's package or a URL's port. A short word
    may be anybody's, so it counts only where the message is about what it stands in: ``place`` is the text with references
    that it is about, ``inside`` all such text in that part of the document.
    """
    words: list[tuple[str, str, str]] = []
    for name, value in values.items():
        bare = 4 if f"${{{name}" in place else 6
        quoted = 1 if f"${{{name}" in inside else bare
        for word in {value, *re.split(r"\W+", value)} - {""}:
            if word == value or len(word) >= quoted:
                words.append((word, _pattern(word, bare), f"${{{name}}}"))
    if not words:
        return text
    # what holds another goes first
    words.sort(key=lambda each: len(each[0]), reverse=True)
    anywhere = re.compile("|".join(f"({pattern})" for _, pattern, _ in words))
    return anywhere.sub(lambda found: words[(found.lastindex or 1) - 1][2], text)


def _pattern(word: str, bare: int) -> str:
    """Finds a word, or, where it is shorter than ``bare`` characters, that word in quotes."""
    spelled = "|".join(re.escape(each) for each in {word, repr(word)[1:-1], json.dumps(word)[1:-1]})
    if len(word) >= bare:
        return rf"(?<!\w)(?:{spelled})(?!\w)"
    return rf"(?<=['\"`])(?:{spelled})(?=['\"`])"
