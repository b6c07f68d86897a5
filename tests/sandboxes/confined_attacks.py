"""Runs inside of a sandbox, by its standard input: tries to get out, and prints what it could do. Standard library only."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import resource
import socket
import struct
import sys
from collections.abc import Callable
from typing import Any

_libc = ctypes.CDLL(None, use_errno=True)
_PRIVATE, _GROWSDOWN = 0x22, 0x100


def _call(function: str, *args: object) -> int:
    result: int = _libc[function](*args)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _capabilities() -> None:
    sets = (ctypes.c_uint32 * 6)()
    _call("capget", (ctypes.c_uint32 * 2)(0x20080522, 0), sets)
    if not any(sets):
        raise PermissionError("no capabilities")


def _new_privileges() -> None:
    # PR_GET_NO_NEW_PRIVS
    if _call("prctl", 39, 0, 0, 0, 0) == 1:
        raise PermissionError("no new privileges")


def _foreign_descriptors() -> None:
    foreign = {fd for fd in os.listdir("/proc/self/fd") if not _is_of_ctypes(fd)} - {"0", "1", "2"}
    if len(foreign) == 1:
        raise PermissionError("only the standard streams, and the listing itself")


def _is_of_ctypes(fd: str) -> bool:
    # libffi 3.5 opens itself, here as in every other process
    link = f"/proc/self/fd/{fd}"
    return os.path.exists(link) and os.path.basename(os.readlink(link)).startswith("libffi.so.")


def _foreign_environment(secret: str) -> None:
    if secret not in str(os.environ):
        raise PermissionError("a clean environment")


def _foreign_processes(host: int) -> None:
    if str(host) not in os.listdir("/proc"):
        raise PermissionError("only those of the sandbox")


def _content(path: str) -> None:
    found = os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(1)
    if not found:
        raise PermissionError("nothing is there")


def _foreign_terminals() -> None:
    if os.listdir("/dev/pts") == ["ptmx"]:
        raise PermissionError("none is open here")


def _leave_link(target: str, name: str) -> str:
    if not os.path.islink(name):
        os.symlink(target, name)
    return name


def _read_users() -> None:
    if "daemon:" not in open("/etc/passwd").read():
        raise PermissionError("those are the sandbox's own")


def _write_anywhere(places: list[str]) -> None:
    for place in places:
        name = os.path.join(place, f"planted-{os.getpid()}")
        try:
            os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
        except OSError:
            continue
        os.unlink(name)
        if os.stat(place).st_dev != os.stat(os.environ["TMPDIR"]).st_dev:
            return
    raise PermissionError("no directory of the machine can be written")


def _set_option(level: int, option: int, value: bytes, family: int = socket.AF_INET) -> Callable[[], Any]:
    return lambda: socket.socket(family).setsockopt(level, option, value)


def _connect_datagrams(family: int, address: tuple[Any, ...]) -> None:
    # sends nothing: it finds out whether there is a way
    socket.socket(family, socket.SOCK_DGRAM).connect(address)


def _receive_in_place() -> None:
    # TCP_ZEROCOPY_RECEIVE
    socket.socket().getsockopt(socket.IPPROTO_TCP, 35, 64)


def _have_much_in_a_socket() -> None:
    one, other = socket.socketpair()
    for end in (one, other):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    one.setblocking(False)
    if one.send(bytes(1 << 21)) < 1 << 20:
        raise PermissionError("buffers have their usual size")


def attacks(
    host: int, outside: str, port: int, terminal: str, places: list[str]
) -> dict[str, Callable[[], Any]]:
    """By name: what raises OSError where it is refused."""
    secret = f"{outside}/secret"
    unix = socket.AF_UNIX
    opaque = getattr(os, "O_PATH", 0)
    x86 = os.uname().machine == "x86_64"
    attributes = struct.pack("=IIQiIQQQ", 48, 0, 0, 19, 0, 0, 0, 0)
    return {
        # first, as others leave descriptors open
        "have a descriptor of the host": _foreign_descriptors,
        "read a file": lambda: open(secret),
        "read a file by a link": lambda: open(_leave_link(secret, "link")),
        "read a file by /proc": lambda: open(f"/proc/self/root{secret}"),
        "read a file by a descriptor": lambda: open(f"/proc/self/fd/{os.open(secret, opaque)}"),
        "list a directory": lambda: os.listdir(outside),
        "list the home directory": lambda: os.listdir(f"{outside}/.."),
        "read the users of this machine": _read_users,
        "read the host's environment": lambda: open(f"/proc/{host}/environ"),
        "read the first process's environment": lambda: open("/proc/1/environ"),
        "read the supervisor's environment": lambda: open(f"/proc/{os.getppid()}/environ"),
        "read the host's arguments": lambda: open(f"/proc/{host}/cmdline"),
        "read the host's arguments by a link": lambda: open(
            _leave_link(f"/proc/{host}", "host") + "/cmdline"
        ),
        "read the host's memory": lambda: open(f"/proc/{host}/mem"),
        "read the host's files": lambda: os.listdir(f"/proc/{host}/fd"),
        "list the processes": lambda: _foreign_processes(host),
        "read the kernel's keys": lambda: _content("/proc/keys"),
        "read the kernel's timers": lambda: _content("/proc/timer_list"),
        "read the kernel's symbols": lambda: _content("/proc/kallsyms"),
        "read the kernel's memory by /proc": lambda: _content("/proc/kcore"),
        "list the kernel's drivers": lambda: _content("/proc/driver"),
        "list the machine's terminals": _foreign_terminals,
        "open a terminal of the host": lambda: os.open(terminal, os.O_RDWR | os.O_NOCTTY),
        "open the host's terminal": lambda: os.open("/dev/tty", os.O_RDWR),
        "write a new file": lambda: open(f"{outside}/new", "w"),
        "write a new file anywhere": lambda: _write_anywhere(places),
        "write a file": lambda: open(secret, "a"),
        "write a file by a link": lambda: open(_leave_link(secret, "link"), "w"),
        "truncate a file": lambda: os.truncate(secret, 0),
        "remove a file": lambda: os.unlink(secret),
        "rename a file": lambda: os.rename(secret, "stolen"),
        "link a file": lambda: os.link(secret, "stolen"),
        "link a program": lambda: os.link(os.path.realpath(sys.executable), "stolen"),
        "change a mode": lambda: os.chmod(secret, 0o777),
        "change a mode by a descriptor": lambda: os.chmod(f"/proc/self/fd/{os.open(secret, opaque)}", 0o777),
        "change an owner": lambda: os.chown(secret, os.getuid(), os.getgid()),
        "change a time": lambda: os.utime(secret, (1, 1)),
        "change an attribute": lambda: os.setxattr(secret, "user.attack", b""),
        "make a device": lambda: os.mknod("memory", 0o20600, os.makedev(1, 1)),
        "change the system": lambda: open("/proc/sys/kernel/hostname", "w"),
        "change the interpreter": lambda: open(os.path.join(os.path.dirname(os.__file__), "new.py"), "w"),
        "reach a port of the host": lambda: socket.create_connection(("127.0.0.1", port), 2),
        "reach a port of the host by IPv6": lambda: socket.create_connection(("::1", port), 2),
        "reach a port of the host by any address": lambda: socket.create_connection(("0.0.0.0", port), 2),
        "find a way outside": lambda: _connect_datagrams(socket.AF_INET, ("192.0.2.1", 9)),
        "find a way outside by IPv6": lambda: _connect_datagrams(socket.AF_INET6, ("2001:db8::1", 9)),
        "find a way to the link": lambda: _connect_datagrams(socket.AF_INET6, ("fe80::1", 9, 0, 1)),
        "find a way to a group": lambda: _connect_datagrams(socket.AF_INET, ("224.0.0.1", 9)),
        "send to everybody": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(
            b"", ("255.255.255.255", 9)
        ),
        "open an ICMP socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP),
        "open a socket of many paths": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262),
        "open a socket of SCTP": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132),
        "open a socket of packets": lambda: socket.socket(socket.AF_INET6, socket.SOCK_SEQPACKET, 132),
        "open a raw IPv6 socket": lambda: socket.socket(socket.AF_INET6, socket.SOCK_RAW, 58),
        "have a filter at a socket": _set_option(1, 26, bytes(16), socket.AF_UNIX),
        "have a program at a socket": _set_option(1, 50, bytes(4), socket.AF_UNIX),
        "lend pages to a socket": _set_option(1, 60, struct.pack("i", 1)),
        "bind to a device": _set_option(1, 25, b"lo\0"),
        "have a protocol above TCP": _set_option(6, 31, b"tls\0"),
        "choose how TCP is controlled": _set_option(6, 13, b"reno"),
        "repair a connection": _set_option(6, 19, struct.pack("i", 1)),
        "receive in place": _receive_in_place,
        "join a group": _set_option(0, 35, struct.pack("4s4s", b"\xe0\0\0\1", bytes(4))),
        "set options of IP": _set_option(0, 4, bytes(4)),
        "set the tables of packets": _set_option(0, 64, bytes(128)),
        "turn an IPv6 socket into another": _set_option(41, 1, struct.pack("i", 2), socket.AF_INET6),
        "have much in a socket": _have_much_in_a_socket,
        "set up the loopback": lambda: _call(
            "ioctl", socket.socket().fileno(), 0x8914, struct.pack("16sH14x", b"lo", 0)
        ),
        "open a raw socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
        "open a packet socket": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW),
        "open a socket to the hypervisor": lambda: socket.socket(socket.AF_VSOCK),
        "open a netlink socket": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
        "open a crypto socket": lambda: socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET),
        "reach a unix socket": lambda: socket.socket(unix).connect(f"{outside}/socket"),
        "reach an abstract unix socket": lambda: socket.socket(unix).connect(f"\0{outside}"),
        "reach a datagram socket": lambda: socket.socket(unix, socket.SOCK_DGRAM).sendto(
            b"", f"{outside}/datagrams"
        ),
        "reach the container engine": lambda: socket.socket(unix).connect("/var/run/docker.sock"),
        "signal the host": lambda: os.kill(host, 0),
        "signal the supervisor": lambda: os.kill(os.getppid(), 0),
        "signal the host by a descriptor": lambda: _call("syscall", 424, os.pidfd_open(host), 0, None, 0),
        "take a file of the host": lambda: _call("syscall", 438, os.pidfd_open(host), 0, 0),
        "trace the host": lambda: _call("ptrace", 16, host, None, None),
        "trace the supervisor": lambda: _call("ptrace", 16, os.getppid(), None, None),
        "read the host's memory by a call": lambda: _call("process_vm_readv", host, None, 0, None, 0, 0),
        "limit the host": lambda: resource.prlimit(host, resource.RLIMIT_CORE, (0, 0)),
        "read the host's limits": lambda: resource.prlimit(host, resource.RLIMIT_CORE),
        # the lowest: a machine's own may be so low that the kernel refuses what is higher
        "slow the host": lambda: os.setpriority(os.PRIO_PROCESS, host, 19),
        "slow the host's group": lambda: os.setpriority(os.PRIO_PGRP, os.getpgid(host), 19),
        "slow the user": lambda: os.setpriority(os.PRIO_USER, 0, 19),
        "starve the host of disk time": lambda: _call("syscall", 251 if x86 else 30, 1, host, 3 << 13),
        "set the host's scheduling": lambda: _call("syscall", 314 if x86 else 274, host, attributes, 0),
        "set the host's parameters": lambda: os.sched_setparam(host, os.sched_param(0)),
        "schedule the host": lambda: os.sched_setscheduler(host, os.SCHED_BATCH, os.sched_param(0)),
        "pin the host": lambda: os.sched_setaffinity(host, os.sched_getaffinity(0)),
        "have a capability": _capabilities,
        "gain privileges": _new_privileges,
        "see the host's variables": lambda: _foreign_environment("host-secret"),
        "change the root": lambda: os.chroot("."),
        "mount": lambda: _call("mount", b"none", b".", b"tmpfs", 0, None),
        "make a namespace": lambda: _call("unshare", 0x10000000),
        "join a namespace": lambda: _call("setns", os.open("/proc/self/ns/net", os.O_RDONLY), 0),
        "load a kernel program": lambda: _call("syscall", 321, 0, None, 0),
        "use the key ring": lambda: _call("syscall", 250, 0, -3, 0),
        "use io_uring": lambda: _call("syscall", 425, 1, ctypes.create_string_buffer(120)),
        "read the kernel's log": lambda: _call("klogctl", 10, None, 0),
        "read the kernel's memory": lambda: open("/dev/mem"),
        "use memory that is not counted": lambda: os.memfd_create("memory"),
        "share memory": lambda: _call("shmget", 1, 4096, 0o1600),
        "set the host's name": lambda: socket.sethostname("attacked"),
        "raise a limit": lambda: resource.setrlimit(resource.RLIMIT_CORE, (1, 1)),
        "have a stack of any size": lambda: resource.setrlimit(resource.RLIMIT_STACK, (1 << 24, 1 << 24)),
        "have memory that grows by itself": lambda: mmap.mmap(-1, 4096, flags=_PRIVATE | _GROWSDOWN),
        "take a part of the disk at once": lambda: _call(
            "fallocate", os.open("allocated", os.O_CREAT | os.O_RDWR), 0, 0, 4096
        ),
        "have more descriptors": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024)),
    }


def main() -> None:
    done: list[str] = []
    host, outside, port, terminal, *places = sys.argv[1:]
    for name, attack in attacks(int(host), outside, int(port), terminal, places).items():
        try:
            attack()
        except (OSError, ValueError):
            continue
        done.append(name)
    json.dump(done, sys.stdout)


if __name__ == "__main__":
    main()
