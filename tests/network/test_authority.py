"""A sandbox trusts certificates of its own authority, and the proxy whom this machine trusts."""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import certifi
import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store

from codeact_team.errors import SettingError
from codeact_team.network.authority import Authority, trusted_bundle

LONG_NAME = f"{'a' * 60}.{'b' * 60}.example"


def trusting(pem: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=pem)
    # what Python 3.13 checks
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


async def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> tuple[bytes, str | None]:
    """Connect over loopback; return the certificate that the server has shown, and the protocol that was agreed."""

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=server) as listening:
        port = listening.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname=host)
        connection: ssl.SSLObject = writer.get_extra_info("ssl_object")
        certificate, protocol = connection.getpeercert(binary_form=True), connection.selected_alpn_protocol()
        writer.close()
        await writer.wait_closed()
    assert certificate is not None
    return certificate, protocol


@pytest.mark.parametrize(
    "host", ["api.example.org", LONG_NAME, "xn--bcher-kva.example", "192.0.2.1", "2001:db8::1"]
)
async def test_who_trusts_the_authority_trusts_its_hosts(host: str) -> None:
    authority = Authority.create()
    client = trusting(authority.certificate_pem)
    client.set_alpn_protocols(["h2", "http/1.1"])
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        client.maximum_version = version
        assert (await shake_hands(authority.leaf_for(host), client, host))[1] == "http/1.1"


async def test_a_certificate_is_for_one_host_of_one_sandbox() -> None:
    authority, other = Authority.create(), Authority.create()
    leaf = authority.leaf_for("a.example")
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        await shake_hands(leaf, trusting(authority.certificate_pem), "b.a.example")
    with pytest.raises(ssl.SSLCertVerificationError):
        await shake_hands(leaf, trusting(other.certificate_pem), "a.example")


async def test_a_clock_that_is_behind_is_no_obstacle() -> None:
    authority = Authority.create()
    der, _ = await shake_hands(
        authority.leaf_for("a.example"), trusting(authority.certificate_pem), "a.example"
    )
    store = Store([x509.load_pem_x509_certificate(authority.certificate_pem.encode())])
    for behind in (timedelta(hours=23), timedelta(days=-360)):
        verifier = PolicyBuilder().store(store).time(datetime.now(UTC) - behind)
        leaf = x509.load_der_x509_certificate(der)
        assert len(verifier.build_server_verifier(x509.DNSName("a.example")).verify(leaf, [])) == 2


async def test_an_authority_goes_on_in_another_process() -> None:
    first = Authority.create()
    second = Authority.of(first.pem)
    assert second.certificate_pem == first.certificate_pem
    await shake_hands(second.leaf_for("a.example"), trusting(first.certificate_pem), "a.example")


def test_certificates_are_kept_in_bounds() -> None:
    authority = Authority.create()
    first = authority.leaf_for("a.example")
    assert authority.leaf_for("a.example") is first
    open_files = len(os.listdir("/dev/fd"))
    for number in range(256):
        authority.leaf_for(f"{number}.example")
    assert authority.leaf_for("a.example") is not first
    assert len(os.listdir("/dev/fd")) == open_files


def roots_of_machine(monkeypatch: pytest.MonkeyPatch, *, file: Path, directory: Path) -> None:
    paths = ssl.DefaultVerifyPaths("", "", "SSL_CERT_FILE", str(file), "SSL_CERT_DIR", str(directory))
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: paths)


def test_the_roots_are_the_machines_and_what_else_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pems = [Authority.create().certificate_pem for _ in range(4)]
    (tmp_path / "roots.pem").write_text(f"# É\n{pems[0]}\n# another\n{pems[1]}", encoding="latin-1")
    directory = tmp_path / "certs"
    directory.mkdir()
    (directory / "0123abcd.0").write_text(pems[1])
    (directory / "0123abcd.1").write_text(pems[2])
    (directory / "0123abce.0").symlink_to(tmp_path / "gone")
    (directory / "README").write_text(pems[3])
    (tmp_path / "company.pem").write_text(pems[3] + pems[0])
    # which may be those of a sandbox, and replace all others
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "company.pem"))
    roots_of_machine(monkeypatch, file=tmp_path / "roots.pem", directory=directory)
    assert trusted_bundle([]) == "".join(pems[:3])
    assert trusted_bundle([tmp_path / "company.pem"]) == "".join(pems)


def test_a_machine_without_roots_trusts_those_of_certifi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots_of_machine(monkeypatch, file=tmp_path / "gone.pem", directory=tmp_path / "gone")
    count = Path(certifi.where()).read_text(encoding="utf-8").count("BEGIN CERTIFICATE")
    assert trusted_bundle([]).count("BEGIN CERTIFICATE") == count > 100


@pytest.mark.long
def test_the_roots_of_this_machine_are_readable() -> None:
    bundle = trusted_bundle([])
    assert bundle.count("BEGIN CERTIFICATE") == bundle.count("END CERTIFICATE") > 0
    ssl.create_default_context(cadata=bundle)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no certificates in PEM"),
        (Authority.create().pem.partition("-----BEGIN CERT")[0], "has no certificates in PEM"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "cannot be read"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_file_without_certificates_is_named(text: str | None, words: str, tmp_path: Path) -> None:
    file = tmp_path / "company.pem"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SettingError, match=f"{re.escape(str(file))}: .*{words}") as caught:
        trusted_bundle([file])
    assert "PRIVATE" not in str(caught.value)
