"""Where the container engine is: at the address that its own command would use."""

from __future__ import annotations

import os
import ssl
import stat
from dataclasses import dataclass
from typing import cast

from docker.context import ContextAPI
from docker.tls import TLSConfig

from codeact_team.errors import EngineError
from codeact_team.text.redaction import without_user_info

_DEFAULT_SOCKET = "/var/run/docker.sock"
_SYSTEM_PODMAN = "/run/podman/podman.sock"
_SCHEMES = ("unix", "tcp", "http", "https", "ssh")


@dataclass(frozen=True)
class Certificates:
    """Certificates by which an engine and its client prove who they are.

    Attributes:
        authority: The file of the authority that has signed the engine's certificate; ``None`` for the system's authorities.
        own: The files of the client's certificate and its key; ``None`` if it has none.
        verify: Whether the engine has to prove itself.
    """

    authority: str | None = None
    own: tuple[str, str] | None = None
    verify: bool = True

    def context(self) -> ssl.SSLContext:
        """For connections to the engine. Raises an ``OSError`` for a file that cannot be used."""
        context = ssl.create_default_context(cafile=self.authority)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.own is not None:
            context.load_cert_chain(*self.own)
        return context


def engine_url() -> str:
    """The address of the engine that the ``docker`` command would use; ``https://`` means TLS.

    ``DOCKER_HOST`` decides, then ``DOCKER_CONTEXT``, then the current Docker context. Where none of them does and Docker is not
    at its usual place, the only socket of a rootless Docker or of Podman is used.

    Raises:
        EngineError: If that is not an address, or several engines have a socket.
    """
    return _endpoint()[0]


def certificates(url: str) -> Certificates:
    """The certificates for the engine at an ``https://`` address. Raises an ``EngineError`` if none are known here."""
    current, known = _endpoint()
    if current != url or known is None:
        raise EngineError(
            f"the certificates for the container engine at {without_user_info(url)} are not known here: DOCKER_HOST and "
            "DOCKER_CERT_PATH, or the Docker context, name another engine"
        )
    return known


def _endpoint() -> tuple[str, Certificates | None]:
    if host := os.environ.get("DOCKER_HOST", ""):
        known = _environments_certificates()
    else:
        host, known = _context_endpoint(os.environ.get("DOCKER_CONTEXT"))
    if host.startswith("http+unix://"):
        host = "unix://" + host.removeprefix("http+unix://")
    scheme = host.partition("://")[0] if "://" in host else ""
    if scheme not in _SCHEMES:
        raise EngineError(
            f"{without_user_info(host)!r} is not an engine's address: set DOCKER_HOST to something like "
            "unix:///var/run/docker.sock, ssh://me@machine or tcp://localhost:2375"
        )
    if scheme in ("unix", "ssh"):
        return host, None
    if known is None and scheme != "https":
        return host, None
    return f"https://{host.partition('://')[2]}", known or Certificates()


def _environments_certificates() -> Certificates | None:
    """Those of ``DOCKER_CERT_PATH``; ``None`` where the environment asks for no TLS."""
    verify = bool(os.environ.get("DOCKER_TLS_VERIFY"))
    if not (verify or os.environ.get("DOCKER_TLS")):
        return None
    place = os.environ.get("DOCKER_CERT_PATH") or os.path.expanduser("~/.docker")
    authority, *own = (os.path.join(place, name) for name in ("ca.pem", "cert.pem", "key.pem"))
    return Certificates(
        authority if os.path.exists(authority) else None,
        (own[0], own[1]) if all(map(os.path.exists, own)) else None,
        verify,
    )


def _context_endpoint(name: str | None) -> tuple[str, Certificates | None]:
    """The address in a Docker context, and its certificates."""
    try:
        context = ContextAPI.get_context(name)
    # docker raises a bare Exception, or a KeyError, for a file that it does not understand
    except Exception as error:
        raise EngineError(
            f"the Docker context cannot be read: {error}; `docker context ls` shows it"
        ) from error
    # despite docker's stubs, a context may be missing, and one without an endpoint has no host
    if cast(object, context) is None:
        raise EngineError(
            f"there is no Docker context {name or 'of the current name'!r}: `docker context ls`"
        )
    if not context.Host or context.Name == "default":
        return _socket_found(), None
    host, known = str(context.Host), context.TLSConfig
    if not isinstance(known, TLSConfig):
        return host, None
    return host, Certificates(known.ca_cert, known.cert, bool(known.verify))


def _socket_found() -> str:
    """The address of the only engine of this machine that has a socket for this user; else Docker's usual one."""
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    others = [f"{runtime}/docker.sock", f"{runtime}/podman/podman.sock", _SYSTEM_PODMAN]
    found = [path for path in others if _is_socket(path)]
    if os.path.exists(_DEFAULT_SOCKET) or not found:
        return f"unix://{_DEFAULT_SOCKET}"
    if len(found) > 1:
        names = ", ".join(f"unix://{path}" for path in found)
        raise EngineError(f"several container engines have a socket here: set DOCKER_HOST to one of {names}")
    return f"unix://{found[0]}"


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False
