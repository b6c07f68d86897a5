"""Which hosts, ports, methods and paths there are, and what nobody gets past the grammar with."""

from __future__ import annotations

import ipaddress
import posixpath
import re
import socket
from collections.abc import Callable
from urllib.parse import quote, unquote_to_bytes

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from codeact_team.network.names import (
    NameRefusedError,
    host_and_port,
    host_of,
    is_address,
    method_of,
    path_of,
)

names = st.from_regex(
    r"([a-zA-Z0-9]([a-zA-Z0-9-]{0,8}[a-zA-Z0-9])?\.){0,3}[a-zA-Z][a-zA-Z0-9]{0,8}", fullmatch=True
).filter(lambda name: not f".{name}".lower().endswith(".localhost"))
ports = st.integers(1, 65535)
odd_texts = st.lists(
    st.sampled_from(
        [
            *"aZ09.-_%@:/\\[]#?; \0\t\r\n\x7f",
            "example.org",
            "%2e",
            "xn--",
            "..",
            "0x",
            "\u212a",
            "\u3002",
            "\uff0e",
            "\u0131",
            "ß",
            "ü",
        ]
    )
    | st.text(max_size=2),
    max_size=12,
).map("".join)
numbers = st.sampled_from(
    [
        "0",
        "1",
        "01",
        "127",
        "0x7f",
        "0X7F",
        "255",
        "256",
        "0377",
        "4294967295",
        "2130706433",
        "00",
        "0x",
        "8.8",
    ]
)
numeric_hosts = st.lists(numbers, min_size=1, max_size=5).map(".".join)


def tried(read: Callable[[str], str], text: str) -> tuple[str | None, str]:
    """What is read, or ``None`` and why it is refused."""
    try:
        return read(text), ""
    except NameRefusedError as refused:
        return None, str(refused)


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("example.org", "example.org"),
        ("API.GitHub.com", "api.github.com"),
        ("intern", "intern"),
        ("r3---sn-4g5e.example.org", "r3---sn-4g5e.example.org"),
        ("1and1.example", "1and1.example"),
        ("xn--mnchen-3ya.de", "xn--mnchen-3ya.de"),
        ("münchen.de", "xn--mnchen-3ya.de"),
        ("MÜNCHEN.de", "xn--mnchen-3ya.de"),
        ("notlocalhost", "notlocalhost"),
        ("localhost.example.org", "localhost.example.org"),
        ("203.0.113.7", "203.0.113.7"),
        ("2001:DB8:0::1", "2001:db8::1"),
        (".".join(["a" * 63] * 3), ".".join(["a" * 63] * 3)),
    ],
)
def test_a_host_has_one_form(text: str, host: str) -> None:
    assert host_of(text) == host


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is empty"),
        ("evil\0.example.org", "letters, digits, hyphens and dots only"),
        ("evil\r\nexample.org", "letters, digits"),
        ("example.org\n", "letters, digits"),
        ("example .org", "letters, digits"),
        ("example%2eorg", "no escapes"),
        ("fe80::1%eth0", "no scope"),
        ("user:password@example.org", "no user"),
        ("example.org@evil", "no user"),
        ("[2001:db8::1]", "without brackets"),
        ("example.org:443", "a port is no part of a host"),
        ("https://example.org/", "no scheme and no path"),
        ("https://example.org:8080/", "no scheme and no path"),
        ("example.org/a", "no scheme and no path"),
        ("example.org.", "leave out the dot at the end"),
        ("203.0.113.7.", "leave out the dot at the end"),
        (".example.org", "nothing before a dot"),
        ("a..b", "nothing before a dot"),
        ("-a.example.org", "hyphen"),
        ("a-.example.org", "hyphen"),
        ("my_host.example.org", "no underscore"),
        ("a" * 64, "63 characters"),
        (".".join(["a" * 63] * 4), "at most 253 characters"),
        ("ü" * 60 + ".example.org", "IDNA"),
        # short enough as it is written, and too long in Punycode
        (".".join(["aüböcä" * 8] * 5), "IDNA"),
        ("example\u3002org", "IDNA"),
        ("\uff45xample.org", "IDNA"),
        # the sign of Kelvin is a small k in small letters
        ("\u212a.example.org", "IDNA"),
        ("\u0130.example.org", "IDNA"),
        ("\u0661\u0662\u0667.0.0.1.", "IDNA"),
        ("a\u200db.example.org", "IDNA"),
        ("127.1", "four decimal numbers"),
        ("2130706433", "four decimal numbers"),
        ("0177.0.0.1", "four decimal numbers"),
        ("0x7f.0.0.1", "four decimal numbers"),
        ("0X7F000001", "four decimal numbers"),
        ("203.0.113.256", "four decimal numbers"),
        ("203.0.113.7.1", "four decimal numbers"),
        ("example.123", "four decimal numbers"),
        ("::ffff:203.0.113.7", "hexadecimal digits and colons only"),
        ("::ffff:cb00:7107", "write 203.0.113.7"),
        ("1::2::3", "no IPv6 address"),
        ("localhost", "the sandbox itself"),
        ("a.LocalHost", "the sandbox itself"),
        ("127.0.0.1", "the sandbox itself"),
        ("127.1.2.3", "the sandbox itself"),
        ("0::1", "the sandbox itself"),
    ],
)
def test_what_somebody_may_read_in_another_way_is_no_host(text: str, said: str) -> None:
    with pytest.raises(NameRefusedError) as refused:
        host_of(text)
    assert said in str(refused.value)
    assert "password" not in str(refused.value)


@given(odd_texts | st.text(max_size=20) | names | numeric_hosts)
@example("\u212a")
def test_what_gets_through_is_canonical_whatever_is_asked_for(text: str) -> None:
    host, words = tried(host_of, text)
    if host is None:
        assert re.fullmatch(r"[ -~]{1,250}", words)
        return
    assert host_of(host) == host == host_of(text.upper() if text.isascii() else text)
    if is_address(host):
        assert str(ipaddress.ip_address(host)) == host
    else:
        assert len(host) <= 253
        assert all(re.fullmatch(r"(?!-)[a-z0-9-]{1,63}(?<!-)", label) for label in host.split("."))


@given(numeric_hosts | st.text("0123456789abcdefxX.", max_size=16))
def test_the_resolver_reads_no_address_that_rules_take_for_a_name(text: str) -> None:
    try:
        read = socket.inet_ntoa(socket.inet_aton(text))
    except OSError:
        return
    host, _ = tried(host_of, text)
    assert host == (text if read == text and not read.startswith("127.") else None)


@given(names, ports)
def test_a_host_and_its_port_are_read_together(name: str, port: int) -> None:
    assert host_and_port(f"{name}:{port}", None) == host_and_port(name, port) == (name.lower(), port)


@given(st.ip_addresses(v=6), ports)
def test_an_address_with_colons_has_brackets_before_a_port(address: ipaddress.IPv6Address, port: int) -> None:
    assume(address.ipv4_mapped is None and not address.is_loopback)
    assert host_and_port(f"[{address.exploded}]:{port}", None) == (str(address), port)
    assert host_and_port(f"[{address}]", 80) == (str(address), 80)
    with pytest.raises(NameRefusedError):
        host_and_port(str(address), 80)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":80",
        "example.org:",
        "example.org:0",
        "example.org:080",
        "example.org:65536",
        "example.org:+80",
        "example.org:8 0",
        "example.org:\u0661",
        "example.org:80:80",
        "user@example.org:80",
        "[example.org]:80",
        "[203.0.113.7]:80",
        "[2001:db8::1",
        "[2001:db8::1]80",
        "[2001:db8::1%25eth0]:80",
        "x[2001:db8::1]:80",
        "2001:db8::1",
    ],
)
def test_anything_else_is_no_host_with_a_port(text: str) -> None:
    with pytest.raises(NameRefusedError):
        host_and_port(text, 443)


def test_a_port_has_to_be_there_unless_there_is_a_usual_one() -> None:
    with pytest.raises(NameRefusedError, match="has no port"):
        host_and_port("example.org", None)


@pytest.mark.parametrize("text", ["get", "Post", "", "GET ", "GET\r\n", "G\0T", "GÉT", "A" * 40, "1"])
def test_a_method_is_in_capitals(text: str) -> None:
    assert method_of("PROPFIND") == "PROPFIND"
    with pytest.raises(NameRefusedError):
        method_of(text)


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/", "/"),
        ("/a?b=c", "/a"),
        ("/a?b=//../;%zz", "/a"),
        ("/a/", "/a/"),
        ("/.hidden/...", "/.hidden/..."),
        ("/%61%2D%7e", "/a-~"),
        ("/users/%40me", "/users/@me"),
        ("/%c3%a4%20b", "/%C3%A4%20b"),
        ("/a%3fb%23c%25d%3be", "/a%3Fb%23c%25d%3Be"),
    ],
)
def test_a_path_has_one_form(target: str, path: str) -> None:
    assert path_of(target) == path


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("", "slash"),
        ("*", "slash"),
        ("a", "slash"),
        ("https://example.org/", "slash"),
        ("?a", "slash"),
        ("/a/../b", "only dots"),
        ("/a/./b", "only dots"),
        ("/a/..", "only dots"),
        ("/..?a", "only dots"),
        ("/a/%2e%2E/b", "encoded dot"),
        ("/a/.%2e/b", "encoded dot"),
        ("/a/%252e%252e/b", "encoded dot"),
        ("/a%2fb", "encoded slash"),
        ("/a%2Fb", "encoded slash"),
        ("/a%25252fb", "encoded slash"),
        ("/a\\b", "backslash"),
        ("/a%5cb", "backslash"),
        ("//a", "two slashes"),
        ("/a//b", "two slashes"),
        ("/a;b=c", "semicolon"),
        ("/a%", "percent sign"),
        ("/a%2", "percent sign"),
        ("/a%zz", "percent sign"),
        ("/a%00", "control character"),
        ("/a%0d%0aX: y", "visible ASCII"),
        ("/a%0d%0aX:y", "control character"),
        ("/a b", "visible ASCII"),
        ("/a\tb", "visible ASCII"),
        ("/a\r\nX: y", "visible ASCII"),
        ("/\0", "visible ASCII"),
        ("/ä", "visible ASCII"),
        ("/a?b c", "visible ASCII"),
        ("/a?ä", "visible ASCII"),
        ("/a#b", "visible ASCII"),
        ("/a?b#c", "visible ASCII"),
    ],
)
def test_a_path_that_a_server_may_read_in_another_way_is_refused(target: str, said: str) -> None:
    with pytest.raises(NameRefusedError, match=said):
        path_of(target)


targets = st.lists(
    st.sampled_from(
        [
            *"/aA.-~@;:%?#\\ ",
            "%2e",
            "%2F",
            "%61",
            "%41",
            "%7E",
            "%25",
            "%C3%A4",
            "%40",
            "%20",
            "/..",
            "/.",
            "//",
            "secret",
        ]
    )
    | st.characters(max_codepoint=300),
    max_size=10,
).map(lambda pieces: f"/{''.join(pieces)}")


@given(targets)
def test_a_path_that_gets_through_has_no_detour_and_one_form(target: str) -> None:
    path, words = tried(path_of, target)
    if path is None:
        assert "secret" not in words
        return
    raw = target.partition("?")[0]
    assert path_of(path) == path
    decoded = unquote_to_bytes(path)
    assert decoded == unquote_to_bytes(raw)
    assert posixpath.normpath(decoded) == (decoded.rstrip(b"/") or b"/")
    # a server decodes all of these to the same
    everything = "".join(f"%{byte:02x}" if byte not in b"/." else chr(byte) for byte in decoded)
    if not re.search(rb"[\x00-\x1f\x7f]", decoded):
        assert path_of(everything) == path == path_of(quote(decoded, safe="/"))
