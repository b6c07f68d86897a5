"""Which addresses may be dialled for a sandbox, and the looking up of names, on this machine and after the rule."""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import NamedTuple, TypeAlias

from codeact_team.network.names import is_address

Network: TypeAlias = IPv4Network | IPv6Network

LOOKUPS = 8
"""Names that are looked up at once. The others wait."""
LOOKUP_SECONDS = 10.0
"""The time for a name, its waiting included."""
MOST_ADDRESSES = 32
"""Addresses of a name that are looked at. A hostile server may answer with thousands."""


class AddressRefusedError(OSError):
    """A host has only addresses that may not be dialled."""


class _OpenedBy(Enum):
    NOTHING = "nothing"
    NAMING_IT_ALONE = "a network with this address alone"
    NETWORK = "a network that holds it"


class _Range(NamedTuple):
    network: Network
    is_a: str
    opened_by: _OpenedBy


_NAT64 = "64:ff9b::/96"


def _ranges(is_a: str, opened_by: _OpenedBy, *networks: str) -> list[_Range]:
    return [_Range(ip_network(network), is_a, opened_by) for network in networks]


_REFUSED = (
    *_ranges(
        "an address by which clouds tell machines their secrets",
        _OpenedBy.NAMING_IT_ALONE,
        # Amazon, Google, Microsoft, Oracle, OpenStack and others; containers and time servers of some have others of this range
        "169.254.169.254/32",
        # Alibaba
        "100.100.100.200/32",
        # Microsoft, too
        "168.63.129.16/32",
        # Oracle
        "192.0.0.192/32",
        "fd00:c1::a9fe:a9fe/128",
        # Amazon
        "fd00:ec2::/32",
        # Google
        "fd20:ce::254/128",
        # Scaleway
        "fd00:42::42/128",
    ),
    *_ranges("a link-local address", _OpenedBy.NAMING_IT_ALONE, "169.254.0.0/16", "fe80::/10"),
    *_ranges("a loopback address", _OpenedBy.NETWORK, "127.0.0.0/8", "::1/128"),
    *_ranges(
        "a private address",
        _OpenedBy.NETWORK,
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        # behind the NAT of a carrier
        "100.64.0.0/10",
        # for measurements; some proxies answer all names from it
        "198.18.0.0/15",
        "fc00::/7",
        "fec0::/10",
    ),
    *_ranges("no address of a host", _OpenedBy.NOTHING, "0.0.0.0/8", "::/128"),
    *_ranges("a multicast address", _OpenedBy.NOTHING, "224.0.0.0/4", "ff00::/8"),
    *_ranges("the broadcast address", _OpenedBy.NOTHING, "255.255.255.255/32"),
    # behind a NAT64 all that is IPv4 has such an address
    *_ranges("an IPv4 address in an IPv6 address", _OpenedBy.NETWORK, _NAT64),
    *_ranges(
        "an IPv4 address in an IPv6 address",
        _OpenedBy.NOTHING,
        "::/96",
        "::ffff:0:0/96",
        "::ffff:0:0:0/96",
        "64:ff9b:1::/48",
        "2001::/32",
        "2002::/16",
    ),
    *_ranges(
        "a reserved address",
        _OpenedBy.NOTHING,
        "192.0.0.0/24",
        "192.88.99.0/24",
        "240.0.0.0/4",
        "2001::/23",
    ),
)
"""The first that holds an address decides."""
_GLOBAL_IPV6 = ip_network("2000::/3")


def range_refusal_of(address: str, networks: Sequence[Network]) -> str | None:
    """Return why an address may not be dialled by its range, as words such as ``a private address``, or ``None``.

    Args:
        address: A numeric address.
        networks: The networks that a rule names. They open what they hold; metadata and link-local addresses only if it is
            the one address of a network.
    """
    if "%" in address:
        return "an address with a scope"
    parsed = ip_address(address)
    found = next((each for each in _REFUSED if _holds(each.network, parsed)), None)
    if found is None:
        is_reserved = parsed.version == 6 and not _holds(_GLOBAL_IPV6, parsed)
        return "a reserved address" if is_reserved else None
    if found.opened_by is _OpenedBy.NOTHING or not _is_named(
        parsed, networks, alone=found.opened_by is _OpenedBy.NAMING_IT_ALONE
    ):
        return found.is_a
    if found.network == ip_network(_NAT64):
        return range_refusal_of(str(IPv4Address(int(parsed) & 0xFFFFFFFF)), networks)
    return None


def refusal_of(address: str, networks: Sequence[Network]) -> str | None:
    """Do the same as :func:`range_refusal_of`, and refuse addresses of this machine, unless a network is the address alone.

    Raises:
        OSError: If this machine cannot tell whether the address is its own.
    """
    if (refusal := range_refusal_of(address, networks)) is not None:
        return refusal
    parsed = ip_address(address)
    if parsed.is_loopback or _is_named(parsed, networks, alone=True) or not _is_own(parsed):
        return None
    return "an address of this machine"


async def resolve(host: str, port: int, networks: Sequence[Network]) -> list[str]:
    """Look up a host, and return its addresses that may be dialled, in the order of the system.

    Args:
        host: A canonical host. An address is not looked up.
        port: Where it is to be dialled.
        networks: The networks that the rules for it name.

    Raises:
        AddressRefusedError: If none of its addresses may be dialled.
        TimeoutError: If the answer takes too long.
        OSError: If there is no such name, or it cannot be looked up.
    """
    addresses = [host] if is_address(host) else await _look_up(host, port)
    refusals = {address: refusal_of(address, networks) for address in addresses[:MOST_ADDRESSES]}
    allowed = [address for address, refusal in refusals.items() if refusal is None]
    if allowed:
        return allowed
    words = " and ".join(sorted({refusal for refusal in refusals.values() if refusal is not None}))
    raise AddressRefusedError(f"{host} may not be reached, as it has {words}")


async def _look_up(host: str, port: int) -> list[str]:
    loop = asyncio.get_running_loop()
    # one that hangs must not hold up whatever else this process does in threads
    looking = loop.run_in_executor(_threads(os.getpid()), _addresses, host, port)
    try:
        async with asyncio.timeout(LOOKUP_SECONDS):
            return await looking
    except TimeoutError:
        raise TimeoutError(f"{host} could not be looked up within {LOOKUP_SECONDS:g} seconds") from None
    except socket.gaierror as error:
        raise OSError(f"{host} could not be looked up: {error.strerror}") from None


def _addresses(host: str, port: int) -> list[str]:
    # the attribute of this moment, as some replace it
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


@functools.lru_cache(maxsize=1)
def _threads(process: int) -> ThreadPoolExecutor:
    """The threads of this process. Those of its parent are not in a fork."""
    return ThreadPoolExecutor(LOOKUPS, f"lookup-{process}")


def _is_named(address: IPv4Address | IPv6Address, networks: Sequence[Network], *, alone: bool) -> bool:
    return any(_holds(network, address) and not (alone and network.num_addresses > 1) for network in networks)


def _holds(network: Network, address: IPv4Address | IPv6Address) -> bool:
    return network.version == address.version and address in network


def _is_own(address: IPv4Address | IPv6Address) -> bool:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            # only a machine's own address can be bound
            probe.bind((str(address), 0))
    except OSError as error:
        if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            return False
        raise
    return True
