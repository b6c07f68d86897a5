"""The process of the proxy: it gives up what it does not need, then serves until its host is gone."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import sys
from contextlib import suppress

from codeact_team.core.child_process import PipeChannel, connect_to_parent, take_standard_streams
from codeact_team.network.authority import Authority
from codeact_team.network.control import Closed, EgressOpened, Ready, read_message
from codeact_team.network.proxy import GatewayChannel, SandboxEnd
from codeact_team.network.secrets import Secrets
from codeact_team.sandbox.system import kernel
from codeact_team.sandbox.system.framing import receive_with_descriptors

NOBODY = 65534
_LARGEST_FILE = 1 << 20


def main() -> None:
    """Serve the process that has started this one."""
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(*take_standard_streams()))


async def _serve(incoming: int, outgoing: int) -> None:
    channel, [descriptor] = await connect_to_parent(incoming, outgoing)
    load_all()
    confine()
    channel.send(Ready().to_message())
    with socket.socket(fileno=descriptor) as sockets:
        await _Proxy(channel, sockets).serve()


class _Proxy:
    def __init__(self, channel: PipeChannel, sockets: socket.socket) -> None:
        self._channel = channel
        self._sockets = sockets
        self._gateway = GatewayChannel(channel)
        self._sandboxes: dict[int, SandboxEnd] = {}

    async def serve(self) -> None:
        try:
            while (message := await self._channel.receive()) is not None:
                match read_message(message):
                    case EgressOpened() as opened:
                        # a datagram, sent before the message
                        _, [listening], _ = receive_with_descriptors(self._sockets, 1)
                        one = self._sandboxes[opened.sandbox] = SandboxEnd(opened, self._gateway)
                        await one.listen(listening)
                    case Closed() as closed:
                        await self._sandboxes.pop(closed.sandbox).aclose()
                    case other:
                        self._gateway.take(other)
        finally:
            for one in self._sandboxes.values():
                await one.aclose()


def load_all() -> None:
    """Load what Python loads on first use only, as there are no files any more then."""
    "".encode("idna")
    host, value = "example.org", "x" * 20
    Authority.of(Authority.create().pem).leaf_for(host)
    credential = {
        "name": "K",
        "hosts": [host],
        "header": "A",
        "text": value,
        "placeholder": None,
        "value": value,
    }
    secrets = Secrets([credential])
    secrets.put_in(host, "GET", True, (), "/")
    secrets.clean_headers(host, [(b"A", value.encode())])


def confine() -> None:
    """Give up files, programs, further processes, and the rights of root, as far as this system can take them away."""
    # a certificate is a file in memory for a moment
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LARGEST_FILE, _LARGEST_FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if sys.platform != "linux":
        return
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    kernel.checked(kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1))
    kernel.checked(kernel.prctl(kernel.PR_SET_DUMPABLE, 0))
    # a change of the user has taken it back
    kernel.checked(kernel.prctl(kernel.PR_SET_PDEATHSIG, 9))
    if (abi := kernel.landlock_abi()) > 0:
        ruleset = kernel.make_ruleset(kernel.rights_over_files(abi))
        kernel.enter_domain(ruleset)
        os.close(ruleset)
    # no more processes, nor threads
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
