"""The variables by which programs find the proxy: read by real clients, of this process's Python and of this machine."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
import requests.utils

from codeact_team.network.variables import variables

PROXY = "http://127.1.0.1:3128"


def test_programs_of_either_case_find_the_proxy_and_reach_the_sandbox_itself_without() -> None:
    found = variables()
    assert {found[name] for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")} == {PROXY}
    assert found["NO_PROXY"] == found["no_proxy"] == "localhost,127.0.0.1,::1"
    # as a variable, so that options of NODE_OPTIONS stay, and an old Node starts
    assert found["NODE_USE_ENV_PROXY"] == "1"
    assert "NODE_OPTIONS" not in found


def test_requests_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables().items():
        monkeypatch.setenv(name, value)
    for url in ("http://example.org/", "https://example.org/"):
        assert requests.utils.select_proxy(url, requests.utils.get_environ_proxies(url)) == PROXY
    for here in ("http://localhost:80/", "http://127.0.0.1:8000/", "http://[::1]/"):
        assert requests.utils.get_environ_proxies(here) == {}


def test_certificates_are_named_only_where_there_are_some() -> None:
    place = "/run/codeact-team/certificates.pem"
    named = {name for name, value in variables(place).items() if value == place}
    assert {"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"} < named
    assert named.isdisjoint(variables())


def test_python_takes_its_roots_from_the_file(tmp_path: Path) -> None:
    code = "import ssl; print(ssl.get_default_verify_paths().cafile)"
    bundle = tmp_path / "certificates.pem"
    bundle.write_text("")
    environment = {**os.environ, **variables(str(bundle))}
    said = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == str(bundle)
    assert ssl.get_default_verify_paths().openssl_cafile_env == "SSL_CERT_FILE"
