"""Which addresses may be dialled, and how names are looked up."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeact_team.network import addresses
from codeact_team.network.addresses import AddressRefusedError, Network, range_refusal_of, refusal_of, resolve

EVERYTHING: Sequence[Network] = (ip_network("0.0.0.0/0"), ip_network("::/0"))
PUBLIC = "203.0.113.7"
LookUp = Callable[[str], Sequence[str]]


def alone(address: str) -> Sequence[Network]:
    return (ip_network(address),)


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[[LookUp], None]:
    """Lets a function look names up, in place of the machine."""

    def replace(look_up: LookUp) -> None:
        def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
            return [
                (
                    socket.AF_INET6 if ":" in found else socket.AF_INET,
                    socket.SOCK_STREAM,
                    6,
                    "",
                    (found, port),
                )
                for found in look_up(host)
            ]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    return replace


@pytest.mark.parametrize(
    "address", [PUBLIC, "8.8.8.8", "172.32.0.1", "100.128.0.1", "2001:4860:4860::8888", "2606:4700::1"]
)
def test_a_public_address_may_be_dialled(address: str) -> None:
    assert refusal_of(address, ()) is None


@pytest.mark.parametrize(
    ("address", "is_a"),
    [
        ("10.1.2.3", "a private address"),
        ("172.16.0.1", "a private address"),
        ("172.31.255.255", "a private address"),
        ("192.168.1.1", "a private address"),
        ("100.64.0.1", "a private address"),
        ("100.127.255.255", "a private address"),
        ("198.19.0.1", "a private address"),
        ("fd12::1", "a private address"),
        ("fec0::1", "a private address"),
        ("127.0.0.1", "a loopback address"),
        ("127.255.1.1", "a loopback address"),
        ("::1", "a loopback address"),
        ("64:ff9b::cb00:7107", "an IPv4 address in an IPv6 address"),
    ],
)
def test_a_private_or_loopback_address_is_opened_by_a_network_that_holds_it(address: str, is_a: str) -> None:
    assert refusal_of(address, ()) == is_a
    assert refusal_of(address, (ip_network("10.9.0.0/16"), ip_network("fd99::/16"))) == is_a
    assert refusal_of(address, EVERYTHING) is None


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "169.254.170.2",
        "169.254.0.23",
        "169.254.1.1",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "fd00:ec2::254",
        "fd00:ec2::23",
        "fd20:ce::254",
        "fd00:c1::a9fe:a9fe",
        "fd00:42::42",
        "fe80::1",
    ],
)
def test_an_address_of_metadata_is_opened_by_itself_alone(address: str) -> None:
    assert refusal_of(address, ()) is not None
    assert refusal_of(address, EVERYTHING) is not None
    assert refusal_of(address, alone(address)) is None


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",
        "0.1.2.3",
        "::",
        "224.0.0.1",
        "239.255.255.250",
        "ff02::1",
        "255.255.255.255",
        "240.0.0.1",
        "192.0.0.1",
        "192.88.99.1",
        "100::1",
        "5f00::1",
        "2001:10::1",
        "fe80::1%eth0",
        "2606:4700::1%2",
    ],
)
def test_no_rule_opens_what_is_no_address_of_a_host(address: str) -> None:
    assert refusal_of(address, EVERYTHING) is not None
    assert "%" in address or refusal_of(address, alone(address)) is not None


@pytest.mark.parametrize(
    "address",
    [
        # mapped, compatible, translated, behind a NAT64, behind a local one, 6to4, Teredo
        "::ffff:203.0.113.7",
        "::203.0.113.7",
        "::ffff:0:203.0.113.7",
        "64:ff9b::203.0.113.7",
        "64:ff9b:1::203.0.113.7",
        "2002:cb00:7107::1",
        "2001:0:cb00:7107::1",
    ],
)
def test_an_ipv4_address_in_an_ipv6_address_is_refused_as_such(address: str) -> None:
    assert refusal_of(address, ()) == "an IPv4 address in an IPv6 address"


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_is_no_better_in_ipv6(address: IPv4Address) -> None:
    inner = int(address)
    for outer in (
        inner,
        0xFFFF << 32 | inner,
        0xFFFF << 48 | inner,
        0x2002 << 112 | inner << 80,
        0x20010000 << 96 | inner,
    ):
        assert range_refusal_of(str(IPv6Address(outer)), EVERYTHING) is not None or outer == 1
    behind_nat = str(IPv6Address(0x64FF9B << 96 | inner))
    assert range_refusal_of(behind_nat, ()) is not None
    assert range_refusal_of(behind_nat, (ip_network("64:ff9b::/96"),)) == range_refusal_of(str(address), ())


@given(st.ip_addresses())
def test_what_is_not_global_is_never_dialled_unasked(address: IPv4Address | IPv6Address) -> None:
    # what the standard library knows of these ranges, which the documents' own count as
    documents = [
        ip_network(text)
        for text in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32", "3fff::/20")
    ]
    if not address.is_global and not any(address in network for network in documents):
        assert range_refusal_of(str(address), ()) is not None


def test_an_address_of_this_machine_is_opened_by_itself_alone() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # which sends nothing
            probe.connect((PUBLIC, 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        own = str(probe.getsockname()[0])
    assert refusal_of(own, EVERYTHING) == "an address of this machine"
    assert refusal_of(own, alone(own)) is None


async def test_a_name_has_the_addresses_that_may_be_dialled_in_their_order(
    answer: Callable[[LookUp], None],
) -> None:
    answer(lambda _: ["2606:4700::1", "10.0.0.1", PUBLIC, PUBLIC, "fe80::1%eth0", "169.254.169.254"])
    assert await resolve("example.org", 443, ()) == ["2606:4700::1", PUBLIC]
    assert await resolve("example.org", 443, [ip_network("10.0.0.0/8")]) == [
        "2606:4700::1",
        "10.0.0.1",
        PUBLIC,
    ]


async def test_a_name_is_looked_up_once_for_addresses_that_are_dialled_as_they_are(
    answer: Callable[[LookUp], None],
) -> None:
    answers = [[PUBLIC], ["127.0.0.1"]]
    answer(lambda _: answers.pop(0))
    assert await resolve("rebound.example.org", 443, ()) == [PUBLIC]
    assert answers == [["127.0.0.1"]]


async def test_a_name_without_any_such_address_is_refused_in_words(answer: Callable[[LookUp], None]) -> None:
    answer(lambda _: ["10.0.0.1", "127.0.0.1", "192.168.1.1"])
    with pytest.raises(AddressRefusedError) as refused:
        await resolve("rebound.example.org", 443, ())
    assert (
        str(refused.value)
        == "rebound.example.org may not be reached, as it has a loopback address and a private address"
    )


async def test_an_address_is_not_looked_up(answer: Callable[[LookUp], None]) -> None:
    answer(lambda host: pytest.fail(f"{host} was looked up"))
    assert await resolve(PUBLIC, 443, ()) == [PUBLIC]
    with pytest.raises(
        AddressRefusedError, match=r"^10\.0\.0\.1 may not be reached, as it has a private address$"
    ):
        await resolve("10.0.0.1", 443, ())


async def test_a_name_that_is_unknown_is_an_error_in_words(answer: Callable[[LookUp], None]) -> None:
    def unknown(_: str) -> Sequence[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    answer(unknown)
    with pytest.raises(
        OSError, match=r"^example\.org could not be looked up: Name or service not known$"
    ) as failed:
        await resolve("example.org", 443, ())
    assert not isinstance(failed.value, AddressRefusedError)


async def test_many_addresses_of_a_hostile_server_are_not_all_looked_at(
    answer: Callable[[LookUp], None],
) -> None:
    answer(lambda _: [str(ip_address(0xCB007100 + number)) for number in range(200)])
    assert len(await resolve("example.org", 443, ())) == addresses.MOST_ADDRESSES


async def test_only_so_many_names_are_looked_up_at_once(answer: Callable[[LookUp], None]) -> None:
    all_at_once, go_on = threading.Barrier(addresses.LOOKUPS + 1), threading.Event()
    under_way, most = 0, 0
    counting = threading.Lock()

    def slow(_: str) -> Sequence[str]:
        nonlocal under_way, most
        with counting:
            under_way += 1
            most = max(most, under_way)
        if not go_on.is_set():
            all_at_once.wait()
            go_on.wait()
        with counting:
            under_way -= 1
        return [PUBLIC]

    answer(slow)
    names = [f"{number}.example.org" for number in range(3 * addresses.LOOKUPS)]
    looking = asyncio.gather(*(resolve(name, 443, ()) for name in names))
    # passes when as many as may be are there
    await asyncio.to_thread(all_at_once.wait)
    go_on.set()
    assert await looking == [[PUBLIC]] * len(names)
    assert most == addresses.LOOKUPS


async def test_a_name_that_is_not_answered_in_time_is_an_error_in_words(
    answer: Callable[[LookUp], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    end = threading.Event()

    def silent(_: str) -> Sequence[str]:
        end.wait()
        return []

    answer(silent)
    monkeypatch.setattr(addresses, "LOOKUP_SECONDS", 0.01)
    try:
        with pytest.raises(TimeoutError, match=r"^example\.org could not be looked up within 0\.01 seconds$"):
            await resolve("example.org", 443, ())
    finally:
        end.set()
