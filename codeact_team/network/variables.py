"""The variables by which programs in a sandbox find the proxy, and trust its certificates."""

from __future__ import annotations

from codeact_team.network.inside.first_line import PROXY

_HERE = "localhost,127.0.0.1,::1"
"""The names of the sandbox itself. Not all of 127.0.0.0/8, where the names of the rules are."""
_OF_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
"""Some programs know only the lower case: curl the third, wget both of these."""
_OF_CERTIFICATES = (
    # OpenSSL, and so Python's ssl, httpx, Ruby, PHP; uv and other programs in Rust; Go; Node with --use-openssl-ca
    "SSL_CERT_FILE",
    # requests, and so conda, twine and others
    "REQUESTS_CA_BUNDLE",
    # curl, R, and requests without the one before
    "CURL_CA_BUNDLE",
    # Node, and so npm, pnpm and yarn; Bun. It adds to Node's own
    "NODE_EXTRA_CA_CERTS",
    # Deno; it adds as well
    "DENO_CERT",
    # git, whatever its library for TLS is
    "GIT_SSL_CAINFO",
    # pip, which has roots of its own
    "PIP_CERT",
    # boto3, and the AWS command
    "AWS_CA_BUNDLE",
    # gcloud
    "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
    # httplib2, and so Google's older libraries
    "HTTPLIB2_CA_CERTS",
    # gRPC in C, and so in Python, Ruby and PHP
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "CARGO_HTTP_CAINFO",
    "HEX_CACERTS_PATH",
    "JULIA_SSL_CA_ROOTS_PATH",
    "NIX_SSL_CERT_FILE",
)
"""Most replace the roots that a program has, so the file has to have those of the machine, too."""


def variables(certificates: str | None = None) -> dict[str, str]:
    """The variables for all programs of a sandbox that has a proxy.

    Args:
        certificates: The path in the sandbox of a file with the certificate of the proxy's authority, and those that the machine
            trusts; ``None`` if the proxy opens no connection.
    """
    host, port = PROXY
    found = dict.fromkeys(_OF_PROXIES, f"http://{host}:{port}")
    found |= {"NO_PROXY": _HERE, "no_proxy": _HERE}
    # Node reads them since 22.21 only if told to. As an option in NODE_OPTIONS, older ones would not start, and it could
    # replace options that are there
    found["NODE_USE_ENV_PROXY"] = "1"
    if certificates is not None:
        found |= dict.fromkeys(_OF_CERTIFICATES, certificates)
    return found
