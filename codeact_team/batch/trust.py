"""One list of trusted certificates for all HTTP clients of a worker: to read it takes as long as all else on the host."""

from __future__ import annotations

import ssl
import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from typing import Any

_USERS = ("httpx._transports.default", "httpx2._transports.default")
"""Modules that make a context for each client, of the two packages that OpenAI's is built on."""


@contextmanager
def trust_shared() -> Generator[None]:
    """Within it, HTTP clients that ask for nothing special share what they trust; never a connection."""
    modules = [sys.modules[name] for name in _USERS if name in sys.modules]
    before = [
        (module, module.create_ssl_context) for module in modules if hasattr(module, "create_ssl_context")
    ]
    for module, make in before:
        module.create_ssl_context = _sharing(make)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        for module, make in before:
            module.create_ssl_context = make  # pyright: ignore[reportAttributeAccessIssue]


def _sharing(make: Any) -> Any:
    @cache
    def shared(trust_env: bool) -> ssl.SSLContext:
        return make(verify=True, cert=None, trust_env=trust_env)

    def create(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
        if verify is True and cert is None:
            return shared(trust_env)
        return make(verify=verify, cert=cert, trust_env=trust_env)

    return create
