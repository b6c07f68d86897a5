"""The program that runs blocks of Python code in one namespace, and reports on each. A child of the supervisor."""

from __future__ import annotations

import atexit
import builtins
import gc
import os
import sys
import threading
from _thread import _count as count_threads  # pyright: ignore[reportPrivateUsage]  # includes those of threading
from contextlib import suppress
from functools import partial
from os import getpid
from types import ModuleType

from codeact_team.session.protocol import RUN_HEAD, Kind
from codeact_team.session.runner.interpreter.blocks import Blocks, Interrupts
from codeact_team.session.runner.interpreter.channel import Channel, Streams, decode, encode, room
from codeact_team.session.runner.interpreter.open_files import OpenFiles
from codeact_team.session.runner.interpreter.outputs import Outputs
from codeact_team.session.runner.interpreter.reports import FinalAnswer, Names
from codeact_team.session.runner.interpreter.showing import ImportWatcher, Showing
from codeact_team.session.runner.interpreter.sources import Sources, find_classes
from codeact_team.session.runner.interpreter.user_code import (
    LibraryFinder,
    forget_for_debuggers,
    formatted,
    get_ipython,
    interruptible,
    interruptible_module,
    keep_for_debuggers,
    offer_shell,
    one_line,
)
from codeact_team.session.runner.user_site import prepare_user_site, written_by_code_last

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import CodeType
    from typing import Any

    from codeact_team.session.runner.interpreter.forking import Forks
    from codeact_team.session.runner.interpreter.magics import InteractiveShell
    from codeact_team.session.runner.interpreter.tools_module import Tools

_FAILED = 1
_INTERRUPTED = 130

_PACKAGE = __name__.rpartition(".")[0]
_TOOLS, _FORKING, _MAGICS, _WORKERS = (
    f"{_PACKAGE}.{name}" for name in ("tools_module", "forking", "magics", "workers")
)
"""Loaded when they are needed."""


class _Interpreter:
    """Runs the blocks that arrive through ``channel``, one after the other."""

    def __init__(self, channel: Channel, control: int, load: Callable[[str], Any]) -> None:
        self._channel = channel
        self._control = control
        os.set_inheritable(control, False)
        self._load = load
        self._tools: Tools | None = None
        self._shell: InteractiveShell | None = None
        self._forks: Forks | None = None
        self._seeded = False
        # one, if a thread has become this process
        self._lost_threads = count_threads()
        self._pid = getpid()
        module = ModuleType("__main__")
        sys.modules["__main__"] = module
        self._namespace: dict[str, Any] = module.__dict__
        self._namespace["__builtins__"] = builtins
        # not among the builtins, where libraries look for it to decide whether they are in a notebook
        self._namespace["get_ipython"] = get_ipython
        offer_shell(self._get_shell)
        self._streams = Streams()
        self._sources = Sources()
        self._interrupts = Interrupts()
        self._blocks = Blocks(self._namespace, self._interrupts, self._keep_displayhook)
        self._answer = FinalAnswer()
        self._parts: Sequence[CodeType] = ()
        self._names: Names | None = None
        self._shown: object = None
        self._outputs = Outputs()
        self._prints: Callable[[object], None] = sys.__displayhook__
        self._hook = sys.displayhook = self._displayhook
        self._denied = False
        # code rewrites its modules faster than the times in compiled files tell
        sys.dont_write_bytecode = True
        self._showing = Showing(load, self._streams.write_error, self._interrupts.check)
        self._files = OpenFiles()
        self._home = ""
        """The directory of its session."""
        # no object that exists now will ever be garbage
        gc.freeze()

    def serve(self) -> bool:
        """Run what arrives, until nothing more will, or the code has closed a pipe that this needs.

        Returns whether the code has left files that an end of Python in order may complete.
        """
        while (command := self._channel.receive()) is not None:
            kind, token, payload = command
            if self._forks is not None:
                self._forks.reap()
            if kind is Kind.TOOLS:
                self._declare(decode(payload.decode())["tools"])
                continue
            if kind in (Kind.FORK, Kind.SEAL):
                self._fork_or_seal(kind, token, decode(payload.decode()))
                continue
            if kind is Kind.FINISH:
                return self._finish(token)
            if kind is Kind.MOVE:
                moved = decode(payload.decode())
                self._home = moved["to"]
                # the code may have removed the directory
                with suppress(OSError):
                    self._load(_FORKING).change_directory(**moved)
                continue
            if not self._home:
                self._home = os.getcwd()
            _, number = RUN_HEAD.unpack_from(payload)
            name = f"<block {number}>"
            code = payload[RUN_HEAD.size :].decode()
            self._outputs.begin(number, code)
            # random generators that a setup has seeded stay so in forks of this interpreter
            self._seeded = self._seeded or (kind is Kind.SETUP and "seed" in code)
            if kind is Kind.SETUP:
                with written_by_code_last():
                    report = self._run(code, name, token)
            else:
                report = self._run(code, name, token)
            self._channel.send(Kind.REPORT, token, report)
            # the supervisor does not wait for this
            self._sources.settle(name, self._parts)
            self._streams.restore()
        return False

    def _finish(self, token: bytes) -> bool:
        leaves_files = self._files.flush()
        if leaves_files:
            report = {"left_open": self._files.left_open(self._home)}
            self._channel.send(Kind.REPORT, token, b"\0" + _encoded(report))
            threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
        if leaves_files:
            # as Python does with the names of a script; what was frozen keeps it from doing so
            for name in self._namespace.keys() - {"__builtins__"}:
                self._namespace[name] = None
            gc.unfreeze()
            gc.collect()
        self._files.flush()
        # to take all else apart takes long with large libraries
        return leaves_files

    def _declare(self, tools: list[dict[str, Any]]) -> None:
        if self._tools is None:
            if not tools:
                return
            tools_class: type[Tools] = self._load(_TOOLS).Tools
            self._tools = tools_class(self._channel, self._interrupts, self._namespace)
        self._tools.declare(tools)

    def _fork_or_seal(self, kind: Kind, token: bytes, request: dict[str, Any]) -> None:
        if self._forks is None:
            forks_class: type[Forks] = self._load(_FORKING).Forks
            self._forks = forks_class(
                self._channel, self._streams, self._control, self._blocks, self._lost_threads
            )
        calls = None if self._tools is None else self._tools.calls
        own_threads = 0 if calls is None else calls.threads
        if kind is Kind.SEAL:
            is_fork = False
            refused = self._forks.seal(request, own_threads=own_threads, keeps_random_numbers=self._seeded)
        else:
            is_fork, refused = self._forks.fork(request, own_threads=own_threads)
        if not is_fork:
            self._channel.send(Kind.FORKED, token, _encoded({"refused": refused}))
            return
        self._pid = getpid()
        if calls is not None:
            calls.begin_process()
        self._forks.send_birth()

    def _run(self, code: str, name: str, token: bytes) -> bytes:
        self._answer.begin()
        self._parts, self._names, self._denied = (), None, False
        self._showing.begin()
        if self._tools is not None:
            self._tools.calls.begin(token)
        self._interrupts.arm()
        try:
            exit_code, interrupted = self._guarded(self._execute, code, name)
            if getpid() != self._pid:
                # a child that the code has forked also reaches the end of the block
                os._exit(exit_code)
            if not interrupted:
                _, interrupted = self._guarded(self._send_artifacts, token)
        except KeyboardInterrupt:
            # it came while a failure was being reported
            exit_code, interrupted = _INTERRUPTED, True
        self._interrupts.disarm()
        if interrupted:
            exit_code = _INTERRUPTED
            self._interrupts.stop_threads()
        if self._tools is not None:
            self._tools.calls.end()
        self._shown = None
        self._files.flush()
        if exit_code == 0:
            forget_for_debuggers()
        return self._report(exit_code, interrupted)

    def _guarded(self, work: Callable[..., None], *arguments: Any) -> tuple[int, bool]:
        """Call ``work``. Returns its exit code, and whether it was interrupted."""
        try:
            work(*arguments)
        except SystemExit as error:
            exit_code, text = _exit_status(error)
            interrupted = False
        except BaseException as error:
            # not isinstance(), which may call the error itself
            interrupted = issubclass(type(error), KeyboardInterrupt) and self._interrupts.came
            self._denied = self._tools is not None and self._tools.is_denial(error)
            is_short = self._shell is not None and self._shell.hides_tracebacks
            text = f"{one_line(error)}\n" if is_short else formatted(error)
            exit_code = _INTERRUPTED if interrupted else _FAILED
            keep_for_debuggers(error)
        else:
            return 0, False
        self._streams.write_error(text)
        return exit_code, interrupted

    @interruptible
    def _execute(self, code: str, name: str) -> None:
        if self._shell is not None:
            self._shell.before_block()
        self._sources.add(name, code)
        try:
            self._parts = self._blocks.compile(code, name)
        except SyntaxError:
            parts = self._load(_MAGICS).compiled(self._blocks, self._sources, code, name)
            if parts is None:
                raise
            self._namespace.setdefault("get_ipython", get_ipython)
            self._parts = parts
        self._names = Names(self._namespace, self._parts)
        try:
            self._blocks.run(self._parts)
        finally:
            self._streams.flush()
            if self._shell is not None:
                self._shell.after_block()

    @interruptible
    def _get_shell(self) -> InteractiveShell:
        if self._shell is None:
            shell_class: type[InteractiveShell] = self._load(_MAGICS).InteractiveShell
            self._shell = shell_class(self._namespace)
        return self._shell

    @interruptible
    def _keep_displayhook(self) -> None:
        # that of the code prints values; they are artifacts, too
        if sys.displayhook is not self._hook:
            self._prints, sys.displayhook = sys.displayhook, self._hook

    @interruptible
    def _displayhook(self, value: object) -> None:
        if value is not self._shown:
            self._shown = value
            self._outputs.note(value)
        # a hook of the code may call this one
        prints, self._prints = self._prints, sys.__displayhook__
        try:
            prints(value)
        finally:
            self._prints = prints

    def _send_artifacts(self, token: bytes) -> None:
        self._showing.send(self._shown, partial(self._channel.send, Kind.ARTIFACT, token))

    def _report(self, exit_code: int, interrupted: bool) -> bytes:
        names, omitted = self._names.describe() if self._names else ([], 0)
        denied = self._denied and not interrupted
        code = exit_code.to_bytes(1, "big")
        if not names and self._answer.text is None and not denied:
            return code
        report = {"names": names, "omitted_names": omitted, "denied": denied}
        if len(data := code + _encoded(report | self._answer.report())) > room(Kind.REPORT):
            self._answer.shorten()
            data = code + _encoded(report | self._answer.report())
        return data


def _encoded(report: dict[str, Any]) -> bytes:
    # one unencodable character would make the whole report unreadable
    return encode(report).encode("utf-8", "replace")


def _exit_status(error: SystemExit) -> tuple[int, str]:
    """The exit code that ``error`` requests, and the text for standard error."""
    try:
        code = error.code
        if code is None:
            return 0, ""
        if isinstance(code, int):
            return int.__and__(code, 0xFF), ""
        return _FAILED, f"{code}\n"
    except BaseException as second:
        # including the interrupt of a __str__ that does not end
        return _FAILED, formatted(second)


def _prepare_workers(sources: dict[str, Any], spawn: Any) -> None:
    """Let workers of ``multiprocessing`` find what blocks define. ``spawn`` is the module that starts them."""
    if not hasattr(spawn, "get_preparation_data"):
        # a module of the code
        return
    import marshal

    # pickles name it, and import no module inside a package without that
    name, (_, _, code) = "<workers>", sources[_WORKERS]
    interruptible_module(_WORKERS)
    if isinstance(code, str):
        code = marshal.dumps(compile(code, f"<{_WORKERS}>", "exec"))
    module: Any = ModuleType(name)
    sys.modules[name] = module
    exec(marshal.loads(code), module.__dict__)
    module.install(code)


def main(sources: dict[str, Any], load: Callable[[str], Any], arguments: list[str]) -> None:
    """Run blocks until the supervisor closes the pipe, then exit; with ``EX_SOFTWARE`` after a failure."""
    status, is_to_end_in_order = 0, False
    try:
        *pipes, control = map(int, arguments)
        LibraryFinder().install()
        channel = Channel(*pipes)
        prepare_user_site()
        watches = {"multiprocessing.spawn": partial(_prepare_workers, sources), "inspect": find_classes}
        sys.meta_path.insert(0, ImportWatcher(watches))
        is_to_end_in_order = _Interpreter(channel, control, load).serve()
    except BaseException as error:
        status = os.EX_SOFTWARE
        with suppress(OSError):
            text = f"the interpreter cannot go on: {one_line(error)}\n"
            os.write(2, text.encode("utf-8", "backslashreplace"))
    if is_to_end_in_order:
        raise SystemExit
    # without waiting for threads that the code has left
    os._exit(status)
