"""Code uses keys that it never has: they are put in on the way out only where they belong."""

from __future__ import annotations

import base64
import copy
import gzip
import json
import pickle
import re
import traceback
from collections.abc import Mapping
from typing import Any

import pytest

from codeact_team.errors import SettingError
from codeact_team.network.http import HttpError
from codeact_team.network.rules import Credential
from codeact_team.network.secrets import SecretRefusedError, Secrets, with_values

TOKEN = "ghp_9aB8cD7eF6gH5iJ4kL3m"
KEY = "sk-real-0123456789abcdef"
HOST, OTHER = "api.github.com", "evil.example"


GITHUB = Credential(name="GITHUB_TOKEN", hosts=[HOST, "github.io"])
GITHUB_HELD = GITHUB.model_copy(update={"placeholder": "ghp_" + 16 * "*"})
OPENAI = Credential(
    name="OPENAI_API_KEY", hosts=["api.openai.com"], header="X-Api-Key: {value}", placeholder="sk-" + 16 * "*"
)
VALUES = {"GITHUB_TOKEN": TOKEN, "OPENAI_API_KEY": KEY}


def of(*credentials: Credential, **values: str) -> tuple[Secrets, dict[str, str]]:
    """The secrets of a sandbox, and the placeholders in it."""
    written = json.loads(json.dumps(with_values(credentials, VALUES | values)))
    return Secrets(written), {one["name"]: one["placeholder"] for one in written}


def put_in(
    secrets: Secrets,
    *headers: tuple[str, str],
    host: str = HOST,
    method: str = "GET",
    is_tls: bool = True,
    target: str = "/repos",
) -> list[tuple[str, str]]:
    given = [(name.encode(), value.encode()) for name, value in headers]
    sent = secrets.put_in(host, method, is_tls, given, target)
    return [(name.decode(), value.decode()) for name, value in sent]


def basic(text: str) -> str:
    return f"Basic {base64.b64encode(text.encode()).decode()}"


PLAIN = ("Accept-Encoding", "identity")
"""What a request to a host with a key asks for."""


def test_a_key_is_put_in_where_the_client_sends_none() -> None:
    secrets, _ = of(GITHUB, OPENAI)
    accept = ("accept", "*/*")
    for host in GITHUB.hosts:
        sent = put_in(secrets, accept, ("accept-encoding", "gzip, br"), host=host)
        assert sent == [accept, PLAIN, ("Authorization", f"Bearer {TOKEN}")]
    # what the client has of its own stays, and one that has a placeholder says itself what it wants
    assert put_in(secrets, ("authorization", "token own")) == [("authorization", "token own"), PLAIN]
    assert put_in(secrets, host="api.openai.com") == [PLAIN]


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"host": OTHER},
        {"host": "github.com"},
        {"host": "api.github.com.evil.example"},
        {"host": "a.github.io"},
        # to a host that a client only names, it would go over plain HTTP
        {"is_tls": False},
        # whose answers repeat it
        {"method": "TRACE"},
        {"method": "OPTIONS"},
        {"method": "trace"},
    ],
)
def test_a_key_goes_nowhere_else(elsewhere: Mapping[str, Any]) -> None:
    accept = ("accept", "*/*")
    sent = put_in(of(GITHUB)[0], accept, **elsewhere)
    assert sent == ([accept] if "host" in elsewhere else [accept, PLAIN])
    secrets, placeholders = of(GITHUB_HELD)
    with pytest.raises(
        SecretRefusedError, match="the placeholder of GITHUB_TOKEN may stand in the header Authori"
    ):
        put_in(secrets, ("authorization", f"Bearer {placeholders['GITHUB_TOKEN']}"), **elsewhere)


def test_a_placeholder_is_replaced_in_its_header() -> None:
    secrets, placeholders = of(GITHUB_HELD)
    held = placeholders["GITHUB_TOKEN"]
    # as clients write it, who send it with another scheme than the rule has
    for given, sent in [
        (f"Bearer {held}", f"Bearer {TOKEN}"),
        (f"token {held}", f"token {TOKEN}"),
        (basic(f"x-access-token:{held}"), basic(f"x-access-token:{TOKEN}")),
        (basic(f"{held}:"), basic(f"{TOKEN}:")),
        (basic(f"é{held}:x").replace("Basic", "basic"), basic(f"é{TOKEN}:x").replace("Basic", "basic")),
    ]:
        assert put_in(secrets, ("AUTHORIZATION", given)) == [("AUTHORIZATION", sent), PLAIN]


@pytest.mark.parametrize(
    ("header", "target"),
    [
        (("X-Debug", "{}"), "/"),
        (("Proxy-Authorization", "Basic {basic}"), "/"),
        (("Cookie", "a={url}"), "/"),
        (("X-{}", "1"), "/"),
        (("Accept", "*/*"), "/?key={}"),
        (("Accept", "*/*"), "/{url}"),
        # not as it is, nor in Basic
        (("Authorization", "Bearer {url}"), "/"),
        (("Authorization", "Bearer {basic}"), "/"),
        (("Authorization", "Basic ={basic}"), "/"),
    ],
)
def test_a_placeholder_elsewhere_in_a_request_is_refused(header: tuple[str, str], target: str) -> None:
    secrets, placeholders = of(GITHUB_HELD)
    held = placeholders["GITHUB_TOKEN"]

    def fill(text: str) -> str:
        url = held.replace("_", "%5f")
        return text.format(held, url=url, basic=base64.b64encode(f"me:{held}".encode()).decode())

    name, value = header
    with pytest.raises(SecretRefusedError, match="GITHUB_TOKEN may stand in") as caught:
        put_in(secrets, (fill(name), fill(value)), target=fill(target))
    assert held not in str(caught.value)
    assert TOKEN not in str(caught.value)


def test_a_placeholder_in_a_body_is_found_in_whatever_pieces_it_comes() -> None:
    secrets, placeholders = of(GITHUB, OPENAI)
    held = placeholders["OPENAI_API_KEY"]
    for body, found in [
        ('{"key": "sk-0000000000000000"}', None),
        (f'{{"key": "{held}"}}', "OPENAI_API_KEY"),
        (f"key={held.replace('-', '%2D')}", "OPENAI_API_KEY"),
        (basic(f"a:{held}"), "OPENAI_API_KEY"),
        (held[:-1], None),
    ]:
        assert secrets.body_search().find(body.encode(), is_last=True) == found
        search = secrets.body_search()
        pieces = [search.find(bytes([byte]), is_last=False) for byte in body.encode()]
        assert next(filter(None, [*pieces, search.find(b"", is_last=True)]), None) == found


def test_a_placeholder_of_another_credential_is_refused() -> None:
    secrets, placeholders = of(GITHUB_HELD, OPENAI)
    with pytest.raises(
        SecretRefusedError, match=r"OPENAI_API_KEY .* requests to api\.openai\.com by TLS, not in"
    ):
        put_in(secrets, ("authorization", f"Bearer {placeholders['OPENAI_API_KEY']}"))


def test_a_header_that_comes_twice_is_refused() -> None:
    secrets, placeholders = of(GITHUB_HELD)
    twice = [("Authorization", "own"), ("authorization", f"Bearer {placeholders['GITHUB_TOKEN']}")]
    with pytest.raises(SecretRefusedError, match="header Authorization, which holds a key, twice"):
        put_in(secrets, *twice)


def test_of_two_keys_for_one_header_the_client_chooses() -> None:
    admin = GITHUB_HELD.model_copy(update={"name": "ADMIN_TOKEN"})
    secrets, placeholders = of(GITHUB_HELD, admin, ADMIN_TOKEN="ghp_admin_token")
    for name, value in {"GITHUB_TOKEN": TOKEN, "ADMIN_TOKEN": "ghp_admin_token"}.items():
        sent = put_in(secrets, ("authorization", f"Bearer {placeholders[name]}"))
        assert sent == [("authorization", f"Bearer {value}"), PLAIN]


def test_basic_is_encoded_where_it_is_not() -> None:
    for header, value, sent in [
        ("Authorization: Basic {value}", "user:pass-word", basic("user:pass-word")),
        ("Authorization: basic x-access-token:{value}", TOKEN, basic(f"x-access-token:{TOKEN}").replace("B", "b", 1)),
        ("Authorization: Basic {value}", "dXNlcjpwYXNzd29yZA==", "Basic dXNlcjpwYXNzd29yZA=="),
    ]:  # fmt: skip
        secrets, _ = of(GITHUB.model_copy(update={"header": header}), GITHUB_TOKEN=value)
        assert put_in(secrets) == [PLAIN, ("Authorization", sent)]


def test_a_placeholder_has_the_shape_that_clients_check() -> None:
    token = Credential(name="TOKEN", hosts=["a.example"], placeholder="jwt")
    (_, first), (_, second) = (of(OPENAI, token, TOKEN=TOKEN) for _ in range(2))
    assert re.fullmatch("sk-[A-Za-z0-9]{16}", first["OPENAI_API_KEY"])
    for name in ("OPENAI_API_KEY", "TOKEN"):
        assert first[name] != second[name]
    parts = first["TOKEN"].split(".")
    head, claims, signature = (base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in parts)
    assert json.loads(head) == {"alg": "HS256", "typ": "JWT"}
    assert json.loads(claims)["exp"] > json.loads(claims)["iat"]
    assert len(signature) == 32


def test_an_answer_is_cleaned_where_its_host_may_have_the_key() -> None:
    secrets, placeholders = of(GITHUB, OPENAI)
    for host, key, stands_for_it in [
        (HOST, TOKEN, "[GITHUB_TOKEN]"),
        ("api.openai.com", KEY, placeholders["OPENAI_API_KEY"]),
    ]:
        echo = f'{{"headers": {{"key": "{key}"}}}}'.encode()
        cleaning = secrets.cleaning(host, [(b"Content-Encoding", b"gzip")])
        assert cleaning is not None
        cleaned = b"".join(cleaning.feed(gzip.compress(echo))) + cleaning.end()
        assert cleaned == echo.replace(key.encode(), stands_for_it.encode())
        headers = [(b"Location", f"https://a.example/?key={key}".encode())]
        assert secrets.clean_headers(host, headers) == [
            (b"Location", f"https://a.example/?key={stands_for_it}".encode())
        ]
    # any other has never had it, and its answers are as long as they say
    assert secrets.cleaning(OTHER, [(b"Content-Encoding", b"br")]) is None
    assert secrets.clean_headers(OTHER, [(b"A", b"b")]) == [(b"A", b"b")]
    for encodings in ([b"br"], [b"gzip", b"gzip"]):
        with pytest.raises(HttpError, match="only gzip and deflate are") as caught:
            secrets.cleaning(HOST, [(b"content-encoding", encoding) for encoding in encodings])
        assert caught.value.status == 502


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("", "has no value"),
        ("short77", "fewer than 8 characters"),
        ("key-with-end\n", "end of a line"),
        ("key\r\nX-Evil: 1", "end of a line"),
        ("key-with-nul\0", "control character"),
        (" key-with-blank", "a blank"),
        ("half-\udc80-character", "control character"),
    ],
)
def test_what_cannot_be_a_key_is_refused_without_showing_it(value: str, words: str) -> None:
    with pytest.raises(SettingError, match=f"GITHUB_TOKEN .*{words}") as caught:
        with_values([GITHUB], {"GITHUB_TOKEN": value})
    told = "".join(traceback.format_exception(caught.value))
    assert not value or value not in told


def test_a_key_without_a_value_is_named() -> None:
    with pytest.raises(SettingError, match="the credential OPENAI_API_KEY has no value"):
        with_values([GITHUB, OPENAI], {"GITHUB_TOKEN": TOKEN})


def test_nothing_that_is_written_shows_a_key() -> None:
    secrets, _ = of(GITHUB)
    for holder in (secrets, secrets.cleaning(HOST, [])):
        assert TOKEN not in repr(holder)
        assert TOKEN not in str(holder)
        for write in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="holds secrets, which are not written") as caught:
                write(holder)
            assert TOKEN not in str(caught.value)
