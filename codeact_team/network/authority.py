"""Certificates: a certificate authority for one sandbox, and the roots that this machine trusts."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from codeact_team.errors import SettingError

# to import cryptography takes a fifth of a second, so each function that needs it does
if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

_LIFE = timedelta(days=365)
_SKEW = timedelta(days=1)
"""How much the clock of a sandbox, or of an emulated machine, may be behind."""
_MOST_LEAVES = 256
"""Hosts whose certificates are kept."""

_CERTIFICATE = re.compile(
    r"-----BEGIN CERTIFICATE-----\s[A-Za-z0-9+/=\s]*-----END CERTIFICATE-----", re.ASCII
)
_HASHED = re.compile(r"[0-9a-f]{8}\.[0-9]+")
"""The names under which OpenSSL finds certificates in a directory."""


class Authority:
    """A certificate authority that one sandbox trusts, and nothing else.

    Args:
        key: Its key.
        certificate: Its certificate.

    Attributes:
        certificate_pem: Its certificate as PEM, for the sandbox to trust.
    """

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        from cryptography.hazmat.primitives.serialization import Encoding

        self._key = key
        self._certificate = certificate
        self.certificate_pem: str = certificate.public_bytes(Encoding.PEM).decode()
        self._leaves = lru_cache(maxsize=_MOST_LEAVES)(self._new_leaf)

    @classmethod
    def create(cls) -> Authority:
        """Make a key and a certificate for it, which is valid for a year."""
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        began = datetime.now(UTC) - _SKEW
        name = _name("codeact-team, for one sandbox")
        builder = _builder(name, key, began, began + _LIFE).issuer_name(name)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
        return cls(key, _signed(builder, key))

    @classmethod
    def of(cls, pem: str) -> Authority:
        """Go on with an authority that was made before.

        Args:
            pem: Its :attr:`pem`.
        """
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        key = load_pem_private_key(pem.encode(), password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return cls(key, x509.load_pem_x509_certificate(pem.encode()))

    @property
    def pem(self) -> str:
        """Its key and its certificate as PEM: whoever has it can be any host for the sandbox."""
        return _key_pem(self._key) + self.certificate_pem

    def leaf_for(self, host: str) -> ssl.SSLContext:
        """The server's side of TLS for a host, with HTTP/1.1 inside.

        Args:
            host: A name of DNS or an address, in its canonical form.
        """
        return self._leaves(host)

    def _new_leaf(self, host: str) -> ssl.SSLContext:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import Encoding
        from cryptography.x509.oid import ExtendedKeyUsageOID

        key = ec.generate_private_key(ec.SECP256R1())
        # a name of DNS may be longer than one of a subject
        builder = _builder(
            _name("codeact-team"),
            key,
            datetime.now(UTC) - _SKEW,
            self._certificate.not_valid_after_utc,
        ).issuer_name(self._certificate.subject)
        builder = builder.add_extension(x509.SubjectAlternativeName([_general_name(host)]), critical=False)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
        builder = builder.add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
        )
        builder = builder.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
        )
        certificate = _signed(builder, self._key).public_bytes(Encoding.PEM).decode()
        return _server_side(certificate, _key_pem(key))


def _server_side(certificate: str, key: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    with _readable(certificate) as certificate_file, _readable(key) as key_file:
        context.load_cert_chain(certificate_file, key_file)
    return context


def _name(text: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: x509.Name, key: ec.EllipticCurvePrivateKey, begin: datetime, end: datetime
) -> x509.CertificateBuilder:
    from cryptography import x509

    public = key.public_key()
    builder = x509.CertificateBuilder().subject_name(subject).public_key(public)
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(begin).not_valid_after(end)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _signed(builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    from cryptography.hazmat.primitives.hashes import SHA256

    return builder.sign(key, SHA256())


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


@contextmanager
def _readable(text: str) -> Generator[str]:
    """Give a text, shorter than a pipe holds, the name of a file that can be read once, and that no disk ever has."""
    reader, writer = os.pipe()
    try:
        try:
            os.write(writer, text.encode())
        finally:
            os.close(writer)
        yield f"/dev/fd/{reader}"
    finally:
        os.close(reader)


def trusted_bundle(extra: Sequence[Path]) -> str:
    """Write the certificates of all that are trusted to say who a host is, as PEM.

    Variables such as ``SSL_CERT_FILE`` are not read: they replace the machine's roots, and may have been set for a
    sandbox.

    Args:
        extra: Files with further certificates, such as a company's.

    Returns:
        The roots of the machine, or those of certifi where it has none, and the further ones.

    Raises:
        SettingError: A further file cannot be read, or holds anything but certificates in PEM.
    """
    texts = _roots_of_machine() or _certificates_in(_roots_of_certifi())
    for file in extra:
        texts += _checked(file)
    # in its order, each once
    return "".join(f"{text}\n" for text in dict.fromkeys(texts))


def _roots_of_machine() -> list[str]:
    paths = ssl.get_default_verify_paths()
    files = [Path(paths.openssl_cafile)]
    if (directory := Path(paths.openssl_capath)).is_dir():
        files += sorted(file for file in directory.iterdir() if _HASHED.fullmatch(file.name))
    return [text for file in files if file.is_file() for text in _certificates_in(file)]


def _roots_of_certifi() -> Path:
    import certifi

    return Path(certifi.where())


def _certificates_in(file: Path) -> list[str]:
    """Find the certificates between what else a file says, such as their names."""
    return _CERTIFICATE.findall(file.read_text(encoding="utf-8", errors="replace"))


def _checked(file: Path) -> list[str]:
    try:
        found = _certificates_in(file)
    except OSError as error:
        raise SettingError(f"{file}: cannot be read: {error.strerror}") from error
    if not found:
        raise SettingError(
            f"{file}: has no certificates in PEM, which begin with -----BEGIN CERTIFICATE-----"
        )
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata="\n".join(found))
    except ssl.SSLError as error:
        raise SettingError(f"{file}: has a certificate that cannot be read: {error}") from None
    return found
