"""Keys that code uses and never has: put into its requests on their way out, and taken out of the answers."""

from __future__ import annotations

import base64
import binascii
import json
import re
import secrets
import string
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from codeact_team.errors import SettingError
from codeact_team.network.decoding import Decoder
from codeact_team.network.http import Headers, values_of, without_fields
from codeact_team.network.spellings import Spellings, Unpicklable

# the proxy starts without what models of settings need
if TYPE_CHECKING:
    from codeact_team.network.rules import Credential

_SHORTEST = 8
_UNFIT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]|\A\s|\s\Z")
"""Control characters, halves of characters, and blanks at an end, which no header can have there."""
_BASIC = re.compile(rb"(basic +)([A-Za-z0-9+/]+={0,2})", re.IGNORECASE)
_ECHOING = frozenset({"TRACE", "OPTIONS"})
"""Methods whose answers repeat a request, or for which no server needs a key."""


class SecretRefusedError(ValueError):
    """A request that would take a key, or its placeholder, where it must not be; its text is for the code."""


def with_values(credentials: Sequence[Credential], values: Mapping[str, str]) -> list[dict[str, Any]]:
    """Write credentials with their values, for the proxy, and with new placeholders, for one sandbox.

    Args:
        credentials: The credentials.
        values: Their values by name.

    Returns:
        What :class:`Secrets` is made of: JSON data that must neither be shown nor kept.

    Raises:
        SettingError: A value is missing, or cannot be one.
    """
    return [
        {
            "name": one.name,
            "hosts": one.hosts,
            "header": one.header_name,
            "text": _with_basic(one.header_text(_checked(one.name, values.get(one.name, "")))),
            "placeholder": None if one.placeholder is None else _new_placeholder(one.placeholder),
            "value": values[one.name],
        }
        for one in credentials
    ]


class _Held(NamedTuple):
    """What may be said of a credential: all but its value.

    Attributes:
        name: Its name.
        hosts: Its hosts.
        header: The name of its header.
        placeholder: What stands for its value in the sandbox, if anything does.
    """

    name: str
    hosts: Sequence[str]
    header: str
    placeholder: str | None

    def refused(self, where: str) -> SecretRefusedError:
        hosts = " or ".join(self.hosts)
        return SecretRefusedError(
            f"the placeholder of {self.name} may stand in the header {self.header} of requests to {hosts} by TLS, not {where}"
        )


class Secrets(Unpicklable):
    """The credentials of one sandbox with their values, which nothing that is written or shown contains.

    Args:
        credentials: The credentials, as :func:`with_values` has written them.
    """

    def __init__(self, credentials: Sequence[Mapping[str, Any]]) -> None:
        self._held = {
            one["name"]: _Held(one["name"], one["hosts"], one["header"], one["placeholder"])
            for one in credentials
        }
        self._values: dict[str, str] = {one["name"]: one["value"] for one in credentials}
        self._texts: dict[str, str] = {one["name"]: one["text"] for one in credentials}
        self._placeholders = Spellings(
            {name: held.placeholder for name, held in self._held.items() if held.placeholder is not None}
        )
        self._spelled_values: dict[tuple[str, ...], Spellings] = {}
        """Those that one host may be sent, by their names."""

    def put_in(
        self, host: str, method: str, is_tls: bool, headers: Headers, target: str
    ) -> list[tuple[bytes, bytes]]:
        """Put into a request what it may take along. It then asks for an answer that is not compressed.

        Args:
            host: The host that the connection goes to, whatever the request says.
            method: The method.
            is_tls: Whether the connection is encrypted, and the host proves who it is.
            headers: The headers as the client sends them.
            target: The path and query.

        Returns:
            The headers to send.

        Raises:
            SecretRefusedError: A placeholder stands where it must not, or a header that holds a key is there twice.
        """
        for held in self._found_in(target.encode()):
            raise held.refused("in the path or the query")
        takes = is_tls and method.upper() not in _ECHOING
        sent: list[tuple[bytes, bytes]] = []
        for name, value in headers:
            for held in self._found_in(name):
                raise held.refused("in the name of a header")
            for held in self._found_in(value):
                if _lower(held.header) != name.lower():
                    raise held.refused(f"in {name.decode('latin-1')[:60]!a}")
                if host not in held.hosts:
                    raise held.refused(f"to {host}")
                if not takes:
                    raise held.refused(f"with {method.upper()}" if is_tls else "over plain HTTP")
                value = self._replaced(held, value)
            sent.append((name, value))
        return self._completed(host, takes, sent) if self._names_for(host) else sent

    def _completed(self, host: str, takes: bool, sent: Headers) -> list[tuple[bytes, bytes]]:
        """Put in what the client does not send."""
        added = [(b"Accept-Encoding", b"identity")]
        for name in self._names_for(host) if takes else ():
            held = self._held[name]
            is_there = len(values_of(sent, _lower(held.header)))
            if is_there > 1:
                raise SecretRefusedError(
                    f"the request has the header {held.header}, which holds a key, twice"
                )
            if not is_there and held.placeholder is None:
                added.append((held.header.encode(), self._texts[name].encode()))
        return [*without_fields(sent, b"accept-encoding"), *added]

    def body_search(self) -> BodySearch:
        """What looks for placeholders in the body of a request."""
        return BodySearch(self._placeholders)

    def clean_headers(self, host: str, headers: Headers) -> list[tuple[bytes, bytes]]:
        """Take the values that a host may be sent out of the headers of its answer."""
        if not self._names_for(host):
            return [*headers]
        cleaner = self._cleaner(host, "")
        return [(cleaner.clean(name), cleaner.clean(value)) for name, value in headers]

    def cleaning(self, host: str, headers: Headers) -> Cleaner | None:
        """What decodes and cleans the body of an answer with these headers; ``None`` where nothing is to be cleaned.

        Raises:
            HttpError: It is encoded in an unknown way.
        """
        encodings = values_of(headers, b"content-encoding")
        encoding = b", ".join(encodings).decode("latin-1")
        return self._cleaner(host, encoding) if self._names_for(host) else None

    def _cleaner(self, host: str, encoding: str) -> Cleaner:
        names = self._names_for(host)
        if (spellings := self._spelled_values.get(names)) is None:
            spellings = Spellings({name: self._values[name] for name in names})
            self._spelled_values[names] = spellings
        replacements = {name: (self._held[name].placeholder or f"[{name}]").encode() for name in names}
        return Cleaner(spellings, replacements, encoding)

    def _names_for(self, host: str) -> tuple[str, ...]:
        return tuple(name for name, held in self._held.items() if host in held.hosts)

    def _found_in(self, data: bytes) -> list[_Held]:
        """The credentials of which the placeholders are in some bytes."""
        return [self._held[name] for name in self._placeholders.names_in(data)]

    def _replaced(self, held: _Held, header: bytes) -> bytes:
        """Put a value in the place of its placeholder, as it is or in what Basic encodes."""
        placeholder, value = (held.placeholder or "").encode(), self._values[held.name].encode()
        replaced = header.replace(placeholder, value)
        if replaced == header and (basic := _BASIC.fullmatch(header)) is not None:
            try:
                decoded = base64.b64decode(basic[2], validate=True)
            except binascii.Error:
                decoded = b""
            replaced = basic[1] + base64.b64encode(decoded.replace(placeholder, value))
        if held in self._found_in(replaced) or replaced == header:
            raise held.refused("encoded otherwise than by Basic")
        return replaced


class BodySearch:
    """Looks for placeholders in the body of one request, where none is replaced, over the ends of its pieces, too.

    Args:
        placeholders: Finds them.
    """

    def __init__(self, placeholders: Spellings) -> None:
        self._placeholders = placeholders
        self._kept = b""

    def find(self, piece: bytes, *, is_last: bool) -> str | None:
        """Find the credential whose placeholder stands in this piece, or ends there."""
        data = self._kept + piece
        found, end = self._placeholders.find(data, is_last=is_last)
        self._kept = data[end:]
        return found[0].name if found else None


class Cleaner(Unpicklable):
    """Takes secrets out of one answer, in whatever way they are spelled, over the ends of its pieces, too.

    A server that reverses, encrypts or cuts a secret is not seen through.

    Args:
        spellings: Finds the secrets.
        replacements: What comes in their places, by name.
        encoding: How the body is compressed.

    Raises:
        HttpError: It is so in an unknown way.
    """

    def __init__(self, spellings: Spellings, replacements: Mapping[str, bytes], encoding: str = "") -> None:
        self._spellings = spellings
        self._replacements = replacements
        self._decoder = Decoder(encoding)
        self._kept = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Clean what has come. Only that is kept back in which a secret may have begun.

        Raises:
            HttpError: It cannot be decompressed.
        """
        for decoded in self._decoder.feed(data):
            cleaned, self._kept = self._cleaned(self._kept + decoded, is_last=False)
            if cleaned:
                yield cleaned

    def end(self) -> bytes:
        """Clean what was kept back, as nothing more comes.

        Raises:
            HttpError: It ends in the middle of what was compressed.
        """
        self._decoder.end()
        cleaned, self._kept = self._cleaned(self._kept, is_last=True)
        return cleaned

    def clean(self, data: bytes) -> bytes:
        """Clean something whole, such as the value of a header."""
        return self._cleaned(data, is_last=True)[0]

    def _cleaned(self, data: bytes, *, is_last: bool) -> tuple[bytes, bytes]:
        """Clean bytes up to those that are kept back."""
        found, end = self._spellings.find(data, is_last=is_last)
        pieces: list[bytes] = []
        place = 0
        for name, begin, its_end in found:
            pieces += data[place:begin], self._replacements[name]
            place = its_end
        return b"".join([*pieces, data[place:end]]), data[end:]


def _lower(header: str) -> bytes:
    return header.lower().encode()


def _with_basic(text: str) -> str:
    """Encode a user and a password for Basic, if they are not so already."""
    scheme, _, rest = text.partition(" ")
    if scheme.lower() == "basic" and ":" in rest:
        return f"{scheme} {base64.b64encode(rest.strip().encode()).decode()}"
    return text


def _checked(name: str, value: str) -> str:
    if not value:
        raise SettingError(f"the credential {name} has no value")
    if len(value) < _SHORTEST:
        raise SettingError(
            f"the value of the credential {name} has fewer than {_SHORTEST} characters: one that short stands in other texts "
            "by chance, so that answers cannot be cleaned of it"
        )
    if _UNFIT.search(value) is not None:
        raise SettingError(
            f"the value of the credential {name} begins or ends with a blank, or holds a control character, such as the "
            "end of a line, which no header may"
        )
    return value


_LETTERS = string.ascii_letters + string.digits


def _new_placeholder(shape: str) -> str:
    if shape == "jwt":
        return _new_jwt()
    return "".join(secrets.choice(_LETTERS) if character == "*" else character for character in shape)


def _new_jwt() -> str:
    """Make a token that clients take for one that is valid for ten years."""
    now = int(time.time())
    head = {"alg": "HS256", "typ": "JWT"}
    claims = {"jti": secrets.token_hex(16), "iat": now, "exp": now + 10 * 365 * 86_400}
    parts = [json.dumps(part, separators=(",", ":")).encode() for part in (head, claims)]
    return ".".join(
        base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in (*parts, secrets.token_bytes(32))
    )
