"""Where plain text is a credential, as far as its place and its shape tell."""

from __future__ import annotations

import re

# whole words at the end of a key: "x-api-key", "azure_ad_token", but not "max_tokens" or "tokenizer"
_KEY = re.compile(
    r"(?:^|-)(?:authorization|cookie|token|secret|password|passwd|(?:api|access|secret|private|subscription)-?key)$"
)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+")
_URL_CREDENTIAL = re.compile(
    r"://[^/?#@\s]*:[^/?#@\s]+@"
    r"|[?&#](?:api[_-]?key|key|token|access_token|auth|secret|password|sig|signature)=[^&#\s]",
    re.IGNORECASE,
)

MASK = "*" * 10
"""What AutoGen's own dumps put in the place of a secret."""


def is_credential_key(key: str) -> bool:
    """Whether text under this key (a header's name, a variable's, a field's) is a credential."""
    return _KEY.search(re.sub(r"[_\s]", "-", key).lower()) is not None


def holds_credential(text: str) -> bool:
    """Whether this is a URL with a password or a token in it."""
    return _URL.fullmatch(text) is not None and _URL_CREDENTIAL.search(text) is not None
