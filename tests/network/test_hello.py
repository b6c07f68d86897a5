"""Of whatever begins a connection, only a whole ClientHello is read, and only if it names one host for certain."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeact_team.network.hello import ClientHello, HelloRefusedError, read_hello


def made_hello(name: str | None, protocols: Sequence[str] = ()) -> bytes:
    """What OpenSSL sends first, in one record."""
    context = ssl.create_default_context()
    context.check_hostname = False
    if protocols:
        context.set_alpn_protocols(protocols)
    sent = ssl.MemoryBIO()
    connection = context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        connection.do_handshake()
    return sent.read()


def vector(size: int, data: bytes) -> bytes:
    return len(data).to_bytes(size, "big") + data


def extension(kind: int, data: bytes) -> bytes:
    return kind.to_bytes(2, "big") + vector(2, data)


def names(*names: bytes, kind: int = 0) -> bytes:
    return extension(0, vector(2, b"".join(bytes([kind]) + vector(2, name) for name in names)))


def message(extensions: bytes | None, *, version: bytes = b"\3\3", after: bytes = b"") -> bytes:
    fields = version + bytes(32) + vector(1, bytes(32)) + vector(2, b"\x13\1") + vector(1, b"\0")
    fields += b"" if extensions is None else vector(2, extensions)
    return b"\1" + vector(3, fields + after)


def in_records(message: bytes, *ends: int) -> bytes:
    places = sorted({0, len(message), *ends, *range(0, len(message), 1 << 14)})
    pieces = [message[begin:end] for begin, end in pairwise(places)]
    return b"".join(b"\x16\3\1" + vector(2, piece) for piece in pieces)


REAL = made_hello("Example.ORG", ["h2", "http/1.1"])
READ = ClientHello("example.org", ("h2", "http/1.1"), False)


def test_a_hello_of_openssl_is_read() -> None:
    assert read_hello(REAL) == READ
    assert read_hello(made_hello(None)) == ClientHello(None, (), False)
    # what follows is early data, for which no other record is read
    assert read_hello(REAL + b"\x14\3\3\0\1\1") == READ


@given(st.sets(st.integers(1, len(REAL) - 6)), st.data())
def test_a_hello_may_come_in_any_records_and_pieces(ends: set[int], data: st.DataObject) -> None:
    split = in_records(REAL[5:], *ends)
    assert read_hello(split) == READ
    assert read_hello(split[: data.draw(st.integers(0, len(split) - 1))]) is None


def test_each_byte_may_have_a_record_of_its_own() -> None:
    short = message(names(b"a.example"))
    assert read_hello(in_records(short, *range(len(short)))) == ClientHello("a.example", (), False)
    long = message(names(b"a.example") + extension(51, bytes(2000)))
    with pytest.raises(HelloRefusedError, match="more than 1,024 records"):
        read_hello(in_records(long, *range(len(long))))


@pytest.mark.parametrize("size", [1_200, 17_000, 60_000])
def test_a_name_behind_large_key_shares_is_found(size: int) -> None:
    hello = in_records(message(extension(51, bytes(size)) + names(b"late.example")))
    assert read_hello(hello) == ClientHello("late.example", (), False)
    assert read_hello(hello[:-1]) is None


def test_a_hello_that_does_not_end_is_refused() -> None:
    claimed = b"\1" + (1 << 17).to_bytes(3, "big")
    with pytest.raises(HelloRefusedError, match="more than 65,536 bytes"):
        read_hello(in_records(claimed))
    with pytest.raises(HelloRefusedError, match="more than 65,536 bytes"):
        read_hello(in_records(b"\1\0\xff\xff" + bytes(1 << 16))[: 1 << 16])


@pytest.mark.parametrize("kind", [0xFE0D, 0xFFCE])
def test_a_hello_within_the_hello_is_noticed(kind: int) -> None:
    hello = read_hello(in_records(message(names(b"outer.example") + extension(kind, bytes(200)))))
    assert hello == ClientHello("outer.example", (), True)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"GET / HTTP/1.1\r\n", "does not begin with TLS"),
        (b"PRI * HTTP/2.0\r\n", "does not begin with TLS"),
        (b"SSH-2.0-x\r\n", "does not begin with TLS"),
        # a hello of SSL 2
        (b"\x80\x2e\1\0\2\0\x15\0\0\0\x10", "does not begin with TLS"),
        (b"\x16\2\0", "does not begin with TLS"),
        (b"\x15\3\1\0\2\2\x28", "does not begin with TLS"),
        (b"\x16\3\1\0\0", "empty, or longer than TLS allows"),
        (b"\x16\3\1\x40\1", "empty, or longer than TLS allows"),
        (in_records(b"\2" + vector(3, bytes(40))), "does not begin with a ClientHello"),
        (in_records(b"\1\0\0\0"), "is empty"),
        (in_records(message(b"", version=b"\3\0")), "no known version"),
        (in_records(message(b"", version=b"\3\4")), "no known version"),
        (in_records(message(b"", after=b"x")), "follow the extensions"),
        (in_records(message(b"") + b"x"), "follow the ClientHello in its last record"),
        (in_records(message(names(b"a.example") * 2)), "the extension 0 twice"),
        (in_records(message(extension(16, vector(2, b"\2h2")) * 2)), "the extension 16 twice"),
        (in_records(message(extension(0xFAFA, b"") * 2)), "twice"),
        (in_records(message(names(b"a.example", b"b.example"))), "more than one server name"),
        (in_records(message(names(b"a.example", kind=1))), "no host's"),
        (in_records(message(names())), "empty or too short"),
        (in_records(message(extension(0, b""))), "longer than what holds it"),
        (in_records(message(extension(16, vector(2, b"\0\0")))), "empty or too short"),
        (in_records(message(extension(16, vector(2, b"\3h2")))), "longer than what holds it"),
        (in_records(message(extension(0, vector(2, b"\0" + vector(2, b"a")) + b"x"))), "follow the list"),
        (in_records(message(b"\0\0\0\5x")), "longer than what holds it"),
    ],
)
def test_what_is_no_well_formed_hello_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(HelloRefusedError, match=words):
        read_hello(data)


@pytest.mark.parametrize(
    "name",
    [b"", b"evil\0.a.example", b"a.example.", b".a", b"a..b", b"-a.example", b"a b", b"a%2eb", b"a@b", b"\xc3\xa9.example",
     b"192.0.2.1", b"[::1]", b"::1", b"a_b.example", b"0x7f000001", b"a" * 64, b"a.example\n", b"a." * 127 + b"b"],
)  # fmt: skip
def test_a_name_that_others_might_read_differently_is_refused(name: bytes) -> None:
    with pytest.raises(HelloRefusedError):
        read_hello(in_records(message(names(name))))


@given(st.integers(5, len(REAL) - 1), st.binary(min_size=1, max_size=3))
def test_a_hello_with_wrong_bytes_is_read_or_refused(place: int, wrong: bytes) -> None:
    changed = REAL[:place] + wrong + REAL[place + len(wrong) :]
    _read_or_refused(changed)


@given(st.integers(4, len(REAL) - 6))
def test_of_a_message_that_is_cut_off_no_name_is_read(end: int) -> None:
    """Its length says less than its fields."""
    hello = _read_or_refused(in_records(b"\1" + vector(3, REAL[9 : 5 + end])))
    assert hello in (None, ClientHello(None, (), False))


@given(
    st.binary(max_size=300) | st.binary(max_size=300).map(lambda data: in_records(b"\1" + vector(3, data)))
)
def test_whatever_comes_nothing_else_is_raised(data: bytes) -> None:
    _read_or_refused(data)


def _read_or_refused(data: bytes) -> ClientHello | None:
    try:
        return read_hello(data)
    except HelloRefusedError:
        return None
