"""Blocks with lines that are IPython's, and the object that runs these. Loaded when a block needs it."""

from __future__ import annotations

import re
import sys
from _ast import Expr, Expression, Module, PyCF_ALLOW_TOP_LEVEL_AWAIT, PyCF_ONLY_AST
from string import Formatter

from codeact_team.session.runner.interpreter.captures import Capture
from codeact_team.session.runner.interpreter.magic_commands import Commands, Moment, UsageError
from codeact_team.session.runner.interpreter.shell_magics import (
    Lines,
    run_cell,
    run_command,
    run_for_output,
    say,
)
from codeact_team.session.runner.interpreter.user_code import interruptible_module
from codeact_team.text.magics import SHELL_ALIASES, SHELL_CELLS, TIMING, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import CodeType, FrameType
    from typing import Any

    from codeact_team.session.runner.interpreter.blocks import Blocks
    from codeact_team.session.runner.interpreter.sources import Sources

interruptible_module(__name__)
# it runs in the sandbox under this name
interruptible_module("codeact_team.text.magics")

_AS_IN_IPYTHON = {"ls": "ls -CF"}
"""Commands of line magics that get options: into a pipe, ``ls`` would write a name a line."""


def compiled(blocks: Blocks, sources: Sources, code: str, name: str) -> list[CodeType] | None:
    """Compile a block that Python cannot parse as it stands; ``None`` if there is nothing in it that IPython adds.

    Raises a ``SyntaxError`` with the line as it was written.
    """
    block = read(code)
    if block is None:
        return None
    sources.add(name, block.source)
    written = block.source.split("\n")
    lines = {line for magic in block.magics for line in range(magic.line, magic.line + magic.lines)}
    try:
        tree = compile(
            block.code, name, "exec", PyCF_ALLOW_TOP_LEVEL_AWAIT | PyCF_ONLY_AST, dont_inherit=True
        )
    except SyntaxError as error:
        # that of the file is shown instead
        error.text = None
        if error.lineno in lines:
            error.offset = error.end_offset = None
        raise error from None
    _cover_lines(tree, {line: len(written[line - 1].encode()) for line in lines if line <= len(written)})
    parts = blocks.parts_of(tree, block.code, name)
    return parts + [compile(ending, name, "eval", dont_inherit=True) for ending in block.endings]


def _cover_lines(tree: Any, lengths: Mapping[int, int]) -> None:
    """Let all that stands on these lines, which are others in the file, cover them: tracebacks then point at no part of them."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if (length := lengths.get(getattr(node, "lineno", 0))) is not None:
            node.col_offset, node.end_col_offset, node.end_lineno = 0, length, node.lineno
        for field in getattr(node, "_fields", ()):
            value: Any = getattr(node, field, None)
            waiting += value if type(value) is list else [value] if hasattr(value, "_fields") else ()


class _Events:
    """Events that never come."""

    def register(self, event: str, function: object) -> None: ...

    def unregister(self, event: str, function: object) -> None: ...


class InteractiveShell:
    """What ``get_ipython()`` returns: runs magics as IPython does.

    Libraries that are shown it take it for none of a notebook or a terminal, and write text.

    Attributes:
        user_ns: The variables of blocks.
        config: IPython's settings, of which there are none.
        events: Takes functions, and never calls them.
    """

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.user_ns: dict[str, Any] = namespace
        self.config: dict[str, Any] = {}
        self.events: _Events = _Events()
        self._commands = Commands(namespace)

    def enable_gui(self, gui: str | None = None) -> None:
        """Do nothing, as there is no window."""

    def system(self, cmd: str) -> None:
        """Run a command in a shell, with its output in that of the block. ``_exit_code`` is how it ended."""
        self._system(cmd, sys._getframe(1))  # pyright: ignore[reportPrivateUsage]

    def getoutput(self, cmd: str, split: bool = True) -> Lines | str:
        """Run a command in a shell. Returns the lines of its output, or all of it."""
        command = self._expanded(cmd, sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        text, self.user_ns["_exit_code"] = run_for_output(command)
        return Lines(text.splitlines()) if split else text

    def run_line_magic(self, magic_name: str, line: str) -> Any:
        """Run ``%magic_name line``. Raises a ``UsageError`` for one that is not known, or cannot be used so."""
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        if magic_name in SHELL_ALIASES:
            return self._system(f"{_AS_IN_IPYTHON.get(magic_name, magic_name)} {line}".strip(), frame)
        if magic_name in TIMING:
            return self._timed(magic_name, line, None, frame)
        command = self._known(magic_name, "line", f"%{magic_name}")
        return command(self._expanded(line, frame))

    def run_cell_magic(self, magic_name: str, line: str, cell: str) -> Any:
        """Run ``%%magic_name line`` with what stands below it. Raises a ``UsageError`` like :meth:`run_line_magic`.

        Raises a ``CalledProcessError`` if a shell fails.
        """
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        if magic_name in SHELL_CELLS:
            return run_cell(magic_name, self._expanded(line, frame), cell, self.user_ns)
        if magic_name in TIMING:
            return self._timed(magic_name, line, cell, frame)
        command = self._known(magic_name, "cell", f"%%{magic_name}")
        return command(self._expanded(line, frame), cell)

    @property
    def hides_tracebacks(self) -> bool:
        """Whether errors are shown without their tracebacks."""
        return self._commands.hides_tracebacks

    def before_block(self) -> None:
        """A block is about to run: do what ``%autoreload`` has asked for."""
        if self._commands.autoreload.is_on:
            self._commands.autoreload.reload()

    def after_block(self) -> None:
        """A block has run."""
        if self._commands.autoreload.is_on:
            self._commands.autoreload.note_new()

    def begin_time(self, line: str) -> None:
        """A block with ``%%time`` begins."""
        self._began = Moment()

    def end_time(self) -> None:
        """Such a block ends: print how long it took."""
        say(self._began.until(Moment()))

    def begin_capture(self, line: str) -> None:
        """A block with ``%%capture NAME`` begins. ``--no-stdout`` and ``--no-stderr`` leave out what they name."""
        words = line.split()
        self._captured = " ".join(word for word in words if not word.startswith("-"))
        self._capture = Capture({word.removeprefix("--no-") for word in words})

    def end_capture(self) -> None:
        """Such a block ends: keep what it has written under that name."""
        captured = self._capture.end()
        if self._captured:
            self.user_ns[self._captured] = captured

    def _system(self, command: str, frame: FrameType) -> None:
        self.user_ns["_exit_code"] = run_command(self._expanded(command, frame))

    def _known(self, name: str, kind: str, shown: str) -> Callable[..., Any]:
        command = getattr(self._commands, f"{kind}_{name}", None)
        if command is not None:
            return command
        if name.startswith("%"):
            raise UsageError(f"%{name} has to begin the block, as its first line")
        known = sorted(self._names_of(kind))
        signs = "%%" if kind == "cell" else "%"
        raise UsageError(
            f"there is no magic {shown} here; there are {', '.join(signs + one for one in known)}"
        )

    def _names_of(self, kind: str) -> Iterable[str]:
        yield from (one.removeprefix(f"{kind}_") for one in dir(self._commands) if one.startswith(f"{kind}_"))
        yield from TIMING
        yield from SHELL_CELLS if kind == "cell" else SHELL_ALIASES

    def _timed(self, name: str, line: str, cell: str | None, frame: FrameType) -> Any:
        if name == "timeit":
            code = [_python(line)] if cell is None else [_python(line), _python(cell)]
            return self._commands.timeit(code, frame.f_locals)
        if cell is not None:
            raise UsageError("%%time has no code beside it: write it into the lines below")
        before, value = _nested(_python(line), frame)
        return self._commands.time(before, value, frame.f_locals)

    def _expanded(self, text: str, frame: FrameType) -> str:
        """Put values of Python in the place of ``{expression}`` and ``$name``. If one has none, the text stays as it is."""
        if not any(sign in text for sign in "{}$"):
            return text
        try:
            return _filled(text, self.user_ns, frame.f_locals)
        except Exception:
            # it is the shell's, such as ${HOME} or awk '{print $1}'
            return text


_NAME = re.compile(r"\$(\$?[\w.]+)")


def _filled(text: str, variables: dict[str, Any], local: Mapping[str, Any]) -> str:
    """Fill a text with what the expressions in its braces evaluate to, and with the values of ``$name``; ``$$name`` is ``$name``."""

    def valued(found: re.Match[str]) -> str:
        name = found[1]
        return name if name[0] == "$" else f"{eval(name, variables, local)}"  # pyright: ignore[reportArgumentType]

    fields, pieces = Formatter(), list[str]()
    for literal, expression, rest, conversion in fields.parse(text):
        # what is between single quotes is for the shell
        parts = literal.split("'")
        parts[::-2] = [_NAME.sub(valued, part) for part in parts[::-2]]
        pieces.append("'".join(parts))
        if expression is not None:
            # a colon belongs to a slice
            code = f"{expression}:{rest}" if rest else expression
            value = eval(code.strip(), variables, local)  # pyright: ignore[reportArgumentType]
            pieces.append(str(fields.convert_field(value, conversion)))  # pyright: ignore[reportArgumentType]
    return "".join(pieces)


def _python(code: str) -> str:
    """The code of a magic that times it, as Python."""
    block = read(code)
    if block is None:
        return code
    if block.endings or any(magic.name in TIMING for magic in block.magics):
        raise UsageError("what is timed cannot time something itself")
    return block.code


def _nested(code: str, frame: FrameType) -> tuple[CodeType, CodeType | None]:
    """Compile code on the line that ``frame`` executes: its statements, and its last expression."""
    name, line = frame.f_code.co_filename, frame.f_lineno
    tree: Any = compile("\n" * (line - 1) + code, name, "exec", PyCF_ONLY_AST, dont_inherit=True)
    _cover_lines(tree, {line: sys.maxsize >> 33})
    body = tree.body
    last = body.pop() if body and type(body[-1]) is Expr else None
    value = None if last is None else compile(Expression(last.value), name, "eval", dont_inherit=True)
    return compile(Module(body, []), name, "exec", dont_inherit=True), value
