"""The magics that are Python: the methods of :class:`Commands`, ``line_NAME`` for ``%NAME`` and ``cell_NAME`` for ``%%NAME``."""

from __future__ import annotations

import builtins
import os
import shlex
import sys
import time
from resource import RUSAGE_SELF, getrusage

from codeact_team.session.runner.interpreter.autoreload import Autoreload
from codeact_team.session.runner.interpreter.shell_magics import run_cell, run_pip, say
from codeact_team.session.runner.interpreter.user_code import interruptible_module
from codeact_team.text.magics import split_timeit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import CodeType
    from typing import Any

interruptible_module(__name__)

_RUNS = 7
_UNITS = ((60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_NOT_SHOWN = ("get_ipython", "tools")
_LONGEST = 80


class UsageError(Exception):
    """A magic is not known, or cannot be used as it is."""


# as tracebacks show it
UsageError.__module__ = "builtins"


class Commands:
    """The magics of a session, whose variables are ``namespace``. Each takes the text behind its name."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self._namespace = namespace
        self._last_directory = os.getcwd()
        self.autoreload: Autoreload = Autoreload(namespace)
        self.hides_tracebacks: bool = False

    def line_cd(self, text: str) -> None:
        """Change the directory: to that of the user, to the last one (``-``), or to the one that is named."""
        present = os.getcwd()
        target = self._last_directory if text == "-" else os.path.expanduser(_one_word(text) or "~")
        os.chdir(target)
        self._last_directory = present
        say(os.getcwd())

    def line_pwd(self, text: str) -> str:
        """Return the directory."""
        return os.getcwd()

    def line_env(self, text: str) -> Any:
        """Return the environment or one variable; set that to a value behind ``=`` or a blank."""
        name, sign, value = text.partition("=") if "=" in text else text.partition(" ")
        name = name.strip()
        if not name:
            return dict(os.environ)
        if not sign:
            if name not in os.environ:
                raise UsageError(f"there is no variable {name} in the environment")
            return os.environ[name]
        os.environ[name] = value.strip()
        say(f"env: {name}={value.strip()}")
        return None

    def line_set_env(self, text: str) -> None:
        """Set a variable of the environment."""
        if "=" not in text and " " not in text:
            raise UsageError("write %set_env NAME=VALUE")
        self.line_env(text)

    def line_who(self, text: str) -> None:
        """Print the names of all variables, or of those of the types that are named."""
        say("   ".join(name for name, _ in self._variables(text)) or "There are no variables.")

    def line_whos(self, text: str) -> None:
        """Print all variables with their types and values."""
        for name, value in self._variables(text):
            shown = repr(value).partition("\n")[0]
            say(f"{name:<15} {type(value).__name__:<15} {shown[:_LONGEST]}")

    def line_who_ls(self, text: str) -> list[str]:
        """Return the names that ``%who`` prints."""
        return [name for name, _ in self._variables(text)]

    def line_reset(self, text: str) -> None:
        """Forget all variables, without asking (``-f``)."""
        if text != "-f":
            raise UsageError("write %reset -f, as nobody can be asked")
        for name in self._namespace.keys() - _NOT_SHOWN:
            if name[:2] != "__":
                del self._namespace[name]

    def line_pip(self, text: str) -> None:
        """Run pip where there is a network; else say how a package can be added."""
        run_pip(text, self._namespace)

    def line_matplotlib(self, text: str) -> None:
        """Do nothing: figures are shown at the end of a block."""
        if text not in ("", "inline", "agg"):
            say(
                f"%matplotlib {text}: has no effect, as there is no window; figures are shown at the end of a block"
            )

    def line_config(self, text: str) -> None:
        """Set nothing: how figures look is a matter of who shows them."""
        if not text.startswith("InlineBackend."):
            say(f"%config {text}: has no effect, as there is nothing of IPython to be set")

    def line_load_ext(self, text: str) -> None:
        """Load nothing: there are no extensions but ``autoreload``, which is there."""
        if text != "autoreload":
            say(f"%load_ext {text}: has no effect, as there are no extensions of IPython here")

    def line_autoreload(self, text: str) -> None:
        """Load modules anew that have changed: now, or before each block (``2``) until ``0``."""
        if text in ("", "now"):
            self.autoreload.reload()
        else:
            self.autoreload.is_on = text not in ("0", "off")
            self.autoreload.note()

    def line_xmode(self, text: str) -> None:
        """Show of each error its last line only (``Minimal``), or the traceback of Python again (``Plain``)."""
        mode = text.capitalize()
        if mode not in ("Minimal", "Plain"):
            raise UsageError("write %xmode Minimal or %xmode Plain")
        self.hides_tracebacks = mode == "Minimal"
        say(f"Exception reporting mode: {mode}")

    def line_run(self, text: str) -> None:
        """Run a file like a program, and take its variables over; with ``-i`` it sees those of the blocks."""
        words = shlex.split(text)
        shares = words[:1] == ["-i"]
        if not (words := words[shares:]) or words[0].startswith("-"):
            raise UsageError("write %run [-i] FILE ARGUMENTS")
        path = words[0] if os.path.exists(words[0]) else f"{words[0].removesuffix('.py')}.py"
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
        own = {"__name__": "__main__", "__file__": path, "__builtins__": builtins}
        arguments, sys.argv = sys.argv, [path, *words[1:]]
        sys.path.insert(0, directory := os.path.dirname(os.path.abspath(path)))
        try:
            exec(code, self._namespace if shares else own)
        except SystemExit as error:
            if error.code not in (None, 0):
                raise
        finally:
            sys.argv = arguments
            if directory in sys.path:
                sys.path.remove(directory)
            if not shares:
                self._namespace.update((name, value) for name, value in own.items() if name[:2] != "__")

    def line_pinfo(self, text: str) -> None:
        """Tell what is known of an object."""
        self._describe(text, with_source=False)

    def line_pinfo2(self, text: str) -> None:
        """Tell what is known of an object, with its source."""
        self._describe(text, with_source=True)

    def cell_html(self, text: str, body: str) -> None:
        """Show the lines below as HTML."""
        _show("text/html", body)

    def cell_markdown(self, text: str, body: str) -> None:
        """Show the lines below as Markdown."""
        _show("text/markdown", body)

    def cell_latex(self, text: str, body: str) -> None:
        """Show the lines below as LaTeX."""
        _show("text/latex", body)

    def cell_svg(self, text: str, body: str) -> None:
        """Show the lines below as a picture in SVG."""
        _show("image/svg+xml", body)

    def cell_javascript(self, text: str, body: str) -> None:
        """Show the lines below as a script, which runs nowhere."""
        _show("application/javascript", body)

    def cell_python(self, text: str, body: str) -> None:
        """Run the lines below in another Python. Raises a ``CalledProcessError`` if they fail."""
        run_cell(sys.executable, text, body, self._namespace)

    cell_python3 = cell_python

    def cell_writefile(self, text: str, body: str) -> None:
        """Write the lines below into a file; with ``-a`` at its end."""
        words = shlex.split(text)
        appends = words[:1] in (["-a"], ["--append"])
        if len(words := words[appends:]) != 1:
            raise UsageError("write %%writefile [-a] FILE")
        path = os.path.expanduser(words[0])
        doing = "Appending to" if appends else "Overwriting" if os.path.exists(path) else "Writing"
        say(f"{doing} {path}")
        with open(path, "a" if appends else "w", encoding="utf-8") as file:
            file.write(body if body.endswith("\n") or not body else f"{body}\n")

    def time(self, before: CodeType, value: CodeType | None, local: Mapping[str, Any]) -> Any:
        """Run statements and a last expression, and print how long it took. Returns the value of that."""
        began = Moment()
        exec(before, self._namespace, local)
        # the last expression of its code
        result = None if value is None else eval(value, self._namespace, local)  # pyright: ignore[reportArgumentType]
        say(began.until(Moment()))
        return result

    def timeit(self, code: Sequence[str], local: Mapping[str, Any]) -> None:
        """Run code many times, and print how long it takes: behind its options, and if there are two, the first before the clock starts."""
        from timeit import Timer

        options, first = split_timeit(code[0])
        words = options.replace("-n", " -n ").replace("-r", " -r ").split()
        chosen = dict(zip(words[::2], map(int, words[1::2]), strict=True))
        setup, statement = (first or "pass", code[1]) if len(code) > 1 else ("pass", first)
        timer = Timer(statement, setup, globals={**self._namespace, **local})
        number = chosen.get("-n") or timer.autorange()[0]
        times = [seconds / number for seconds in timer.repeat(chosen.get("-r") or _RUNS, number)]
        mean = sum(times) / len(times)
        deviation = (sum((one - mean) ** 2 for one in times) / len(times)) ** 0.5
        runs = f"{len(times)} run{'' if len(times) == 1 else 's'}, {number:,} loop{'' if number == 1 else 's'} each"
        say(f"{_duration(mean)} ± {_duration(deviation)} per loop (mean ± std. dev. of {runs})")

    def _variables(self, types: str) -> Iterable[tuple[str, Any]]:
        wanted = types.split()
        for name, value in sorted(self._namespace.items()):
            if name[0] != "_" and name not in _NOT_SHOWN and (not wanted or type(value).__name__ in wanted):
                yield name, value

    def _describe(self, name: str, *, with_source: bool) -> None:
        import inspect

        if name.startswith("%"):
            name = name.strip("%")
            value = getattr(self, f"line_{name}", None) or getattr(self, f"cell_{name}", None)
            say(f"%{name}: {inspect.getdoc(value)}" if value else f"There is no magic {name!r}.")
            return
        if "*" in name:
            self._search(name)
            return
        try:
            value = eval(name, self._namespace)
        except Exception:
            say(f"Object `{name}` not found.")
            return
        for title, text in _facts(value, inspect, with_source=with_source):
            say(f"{title}: {text}" if "\n" not in text else f"{title}:\n{text.rstrip()}")

    def _search(self, pattern: str) -> None:
        from fnmatch import filter

        owner, _, names = pattern.rpartition(".")
        known = dir(eval(owner, self._namespace)) if owner else self._namespace
        for name in sorted(filter(known, names)):
            say(f"{owner}.{name}" if owner else name)


def _show(kind: str, body: str) -> None:
    builtins.__dict__["display"]({kind: body}, raw=True)


def _facts(value: Any, inspect: Any, *, with_source: bool) -> Iterable[tuple[str, str]]:
    if callable(value):
        try:
            yield "Signature", f"{getattr(value, '__name__', '')}{inspect.signature(value)}"
        except (TypeError, ValueError):
            # many of those that are written in C have none
            pass
    yield "Type", type(value).__name__
    if not callable(value):
        yield "Value", repr(value)[: 10 * _LONGEST]
    try:
        yield "File", inspect.getsourcefile(value) or ""
        if with_source:
            yield "Source", inspect.getsource(value)
            return
    except (TypeError, OSError):
        # it has none
        pass
    yield "Docstring", inspect.getdoc(value) or "none"


class Moment:
    """A point in time, on the clock of the wall and on that of the processor."""

    def __init__(self) -> None:
        used = getrusage(RUSAGE_SELF)
        self._wall, self._user, self._system = time.perf_counter(), used.ru_utime, used.ru_stime

    def until(self, end: Moment) -> str:
        """The time from here to ``end``, in IPython's words."""
        user, system = end._user - self._user, end._system - self._system
        return (
            f"CPU times: user {_duration(user)}, sys: {_duration(system)}, total: {_duration(user + system)}\n"
            f"Wall time: {_duration(end._wall - self._wall)}"
        )


def _duration(seconds: float) -> str:
    scale, unit = next((one for one in _UNITS if seconds >= one[0]), _UNITS[-1])
    return f"{seconds / scale:.3g} {unit}"


def _one_word(text: str) -> str:
    """The one word of a command line; a path with blanks may stand without quotes."""
    try:
        words = shlex.split(text)
    except ValueError:
        return text
    return words[0] if len(words) == 1 else text
