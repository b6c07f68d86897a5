from __future__ import annotations

import pytest

from codeact_team.text.redaction import holds_credential, is_credential_key


@pytest.mark.parametrize(
    "key",
    [
        "Authorization",
        "proxy-authorization",
        "X-API-Key",
        "api_key",
        "apikey",
        "API KEY",
        "azure_ad_token",
        "HF_TOKEN",
        "token",
        "client_secret",
        "password",
        "Set-Cookie",
        "Ocp-Apim-Subscription-Key",
        "AWS_SECRET_ACCESS_KEY",
    ],
)
def test_keys_of_credentials(key: str) -> None:
    assert is_credential_key(key)


@pytest.mark.parametrize(
    "key", ["max_tokens", "tokenizer", "key", "keyword", "secretary", "monkey", "X-Title", ""]
)
def test_other_keys(key: str) -> None:
    assert not is_credential_key(key)


@pytest.mark.parametrize(
    "text",
    ["https://me:pw@host/x", "redis://:pw@host", "https://host/?token=x", "https://host/x?a=b&api_key=x#y"],
)
def test_urls_with_credentials(text: str) -> None:
    assert holds_credential(text)


@pytest.mark.parametrize(
    "text",
    [
        "https://host/x",
        "http://host:80/a@b",
        "https://host/?tokens=x",
        "me:pw@host",
        "see https://me:pw@host",
        "",
    ],
)
def test_other_text(text: str) -> None:
    assert not holds_credential(text)
