"""The grammar of hosts, ports, methods and paths. What is outside is refused before a rule is read.

Two programs may read such a text in two ways, and a rule must mean what the server, the resolver and the proxy mean.
"""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv6Address

import idna

_LONGEST_HOST = 253
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_ENDS_IN_NUMBER = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")
"""Which resolvers take for an IPv4 address in one of many notations."""
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = re.compile(rf"{_BYTE}(?:\.{_BYTE}){{3}}")
_IPV6 = re.compile(r"[0-9a-f:]{2,39}")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_AUTHORITY = re.compile(r"(?:\[(?P<ipv6>[^\[\]]*:[^\[\]]*)\]|(?P<name>[^:\[\]]*))(?::(?P<port>[^:]*))?")
_METHOD = re.compile(r"[A-Z][A-Z0-9_-]{0,31}")
_VISIBLE = re.compile(r"[!-~]*")
ESCAPE = re.compile(r"%[0-9A-Fa-f]{2}")
_KEEP_ESCAPED = frozenset("#%;?")
"""Characters that mean something else in a path than as an escape."""
_SHOWN_CHARS = 80

_HOST_FAULTS = (
    (re.compile(r"/"), "a host has no scheme and no path"),
    (re.compile(r"\.\Z"), "leave out the dot at the end"),
    (re.compile(r"[\[\]]"), "write an IPv6 address without brackets"),
    (re.compile(r"%"), "a host has no escapes, and no scope of an IPv6 address"),
    (
        re.compile(r":"),
        "a port is no part of a host, and an IPv6 address has hexadecimal digits and colons only",
    ),
    (re.compile(r"_"), "names of hosts have no underscore"),
    (re.compile(r"\A\.|\.\."), "there is nothing before a dot"),
    (re.compile(r"[^.]{64}"), "no part between dots has more than 63 characters"),
    (re.compile(r"(?:\A|\.)-|-(?:\.|\Z)"), "no part begins or ends with a hyphen"),
)
_PATH_FAULTS = (
    (re.compile(r"%(?![0-9A-Fa-f]{2})"), "has a percent sign without two hexadecimal digits"),
    (re.compile(r"%(?:25)*2e", re.IGNORECASE), "has an encoded dot"),
    (re.compile(r"\\|%(?:25)*5c", re.IGNORECASE), "has a backslash"),
    (re.compile(r"%(?:25)*2f", re.IGNORECASE), "has an encoded slash"),
    (re.compile(r"%(?:[01][0-9a-f]|7f)", re.IGNORECASE), "has an encoded control character"),
    (re.compile(r"//"), "has two slashes in a row"),
    (re.compile(r"/\.\.?(?:/|\Z)"), "has a part that is only dots"),
    (re.compile(r";"), "has a semicolon"),
)


CONNECT = "CONNECT"
"""The method of a connection that is passed through as it is."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods by which nothing is changed at a server, so that they may be sent again (RFC 9110, section 9.2.1)."""
DEFAULT_PORTS = {"http": 80, "https": 443}


class NameRefusedError(ValueError):
    """A host, a port, a method or a path outside the grammar. Its text is visible ASCII, and quotes nothing of a path."""


def host_of(text: str) -> str:
    """Return the canonical form of a host.

    That is a name in lower case, of another script in Punycode; four decimal numbers; or a compressed IPv6 address without
    brackets.

    Raises:
        NameRefusedError: If it is none, or is this machine's own by its name.
    """
    if len(text) > _LONGEST_HOST:
        raise NameRefusedError(f"a host has at most {_LONGEST_HOST} characters, and this one {len(text):,}")
    _refuse_user(text)
    host = text.lower() if text.isascii() else _in_punycode(text)
    if host.count(":") > 1 and _IPV6.fullmatch(host) is not None:
        return _ipv6(host)
    if _NAME.fullmatch(host) is None:
        raise NameRefusedError(f"{_shown(text)} is no host: {_host_fault(host)}")
    if _ENDS_IN_NUMBER.fullmatch(host) is not None:
        if _IPV4.fullmatch(host) is None:
            raise NameRefusedError(
                f"{_shown(text)} is no host: an IPv4 address is four decimal numbers from 0 to 255 without leading zeros"
            )
        _refuse_own(host, is_own=host.startswith("127."))
    _refuse_own(host, is_own=f".{host}".endswith(".localhost"))
    return host


def is_address(host: str) -> bool:
    """Whether a canonical host is an IP address."""
    return ":" in host or _IPV4.fullmatch(host) is not None


def host_and_port(text: str, default: int | None) -> tuple[str, int]:
    """Read a host and its port, such as ``example.org:443`` or ``[2001:db8::1]:443``.

    Args:
        text: The text, without a user.
        default: The port if the text has none; ``None`` if it must have one.

    Raises:
        NameRefusedError: If it is something else.
    """
    _refuse_user(text)
    found = _AUTHORITY.fullmatch(text)
    if found is None:
        raise NameRefusedError(
            f"{_shown(text)} is no host with a port: write example.org:443 or [2001:db8::1]:443"
        )
    host = host_of(found["ipv6"] or found["name"])
    if found["port"] is not None:
        return host, _port_of(found["port"])
    if default is None:
        raise NameRefusedError(f"{_shown(text)} has no port: write it behind a colon")
    return host, default


def authority_of(host: str, port: int, *, scheme: str | None = None) -> str:
    """Write a host with its port, as in a URL; a scheme leaves out the port that is its own."""
    named = f"[{host}]" if ":" in host else host
    return named if scheme is not None and DEFAULT_PORTS[scheme] == port else f"{named}:{port}"


def split_url(url: str) -> tuple[str, str, str]:
    """The scheme of a URL in small letters, empty if it has none, its authority, and the rest, which begins with a slash."""
    scheme, separator, rest = url.partition("://")
    end = min((place for mark in "/?" if (place := rest.find(mark)) >= 0), default=len(rest))
    target = rest[end:]
    return scheme.lower() if separator else "", rest[:end], target if target.startswith("/") else f"/{target}"


def method_of(text: str) -> str:
    """Return a method, which is in capitals.

    Raises:
        NameRefusedError: If it is none. Servers may take ``post`` for ``POST``, and rules do not.
    """
    if _METHOD.fullmatch(text) is None:
        advice = f": write {text.upper()}" if _METHOD.fullmatch(text.upper()) and text.isascii() else ""
        raise NameRefusedError(f"{_shown(text)} is no method in capitals{advice}")
    return text


def path_of(target: str) -> str:
    """Return the path of what a request asks for, such as ``/a`` of ``/a?b=c``, in its canonical form.

    There, an escape of a visible character is that character, except ``#``, ``%``, ``;`` and ``?``, and all other escapes are
    in capitals. So two paths that a server decodes to the same are one for the rules.

    Raises:
        NameRefusedError: If a server might read it in another way than a rule does.
    """
    if _VISIBLE.fullmatch(target) is None or "#" in target:
        raise NameRefusedError("what is asked for has characters other than visible ASCII, or a '#'")
    path = target.partition("?")[0]
    if not path.startswith("/"):
        raise NameRefusedError("the path does not begin with a slash")
    for pattern, words in _PATH_FAULTS:
        if pattern.search(path) is not None:
            raise NameRefusedError(
                f"the path {words}, so a server may read it in another way than a rule does"
            )
    return ESCAPE.sub(lambda found: seen(found[0]), path)


def seen(escape: str) -> str:
    """Return what rules see of an escape in a path, such as ``%7e``: the character, or the escape in capitals."""
    char = chr(int(escape[1:], 16))
    return char if "!" <= char <= "~" and char not in _KEEP_ESCAPED else escape.upper()


def _in_punycode(text: str) -> str:
    try:
        return idna.encode("".join(map(_lower, text)), strict=True, std3_rules=True).decode("ascii")
    except idna.IDNAError:
        # whose words quote the text
        raise NameRefusedError(
            f"{_shown(text)} is no host: it is no name by the rules of IDNA 2008"
        ) from None


def _lower(char: str) -> str:
    """The small letter, unless it is of another script than the capital one, or several characters."""
    lower = char.lower()
    return lower if len(lower) == 1 and lower.isascii() == char.isascii() else char


def _ipv6(text: str) -> str:
    try:
        address = IPv6Address(text)
    except AddressValueError:
        raise NameRefusedError(f"{_shown(text)} is no IPv6 address") from None
    if (mapped := address.ipv4_mapped) is not None:
        raise NameRefusedError(f"{address} is an IPv4 address in an IPv6 address: write {mapped}")
    _refuse_own(str(address), is_own=address.is_loopback)
    return str(address)


def _refuse_user(text: str) -> None:
    if "@" in text:
        # what stands before it may be a password, so it is not quoted
        raise NameRefusedError("a host has no user in front of it: leave out all up to the '@'")


def _refuse_own(host: str, *, is_own: bool) -> None:
    if is_own:
        raise NameRefusedError(f"{_shown(host)} is the sandbox itself, and no host of the network")


def _host_fault(host: str) -> str:
    if not host:
        return "it is empty"
    return next(
        (words for pattern, words in _HOST_FAULTS if pattern.search(host) is not None),
        "a host has letters, digits, hyphens and dots only",
    )


def _port_of(text: str) -> int:
    if _PORT.fullmatch(text) is None or int(text) > 65535:
        raise NameRefusedError(f"{_shown(text)} is no port: write a number from 1 to 65535")
    return int(text)


def _shown(text: str) -> str:
    return ascii(text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}...")
