"""The terminal of a command, and its errors in words."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from errno import EIO
from functools import partial
from signal import SIGINT, SIGPIPE

import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task
from rich.segment import Segment
from rich.text import Text

from codeact_team.cli.echo import Echo
from codeact_team.cli.rendering import RenderedProse, highlighted
from codeact_team.cli.signals import output_terminals, silence
from codeact_team.core.notices import Level, logs_as_notices
from codeact_team.text.visibility import CONTINUED, EDGE, edge_breaks, visible

_STYLES: dict[Level, str] = {"note": "dim", "warning": "bold yellow", "error": "bold red"}
_LONGEST_HIGHLIGHTED = 50_000
"""Characters; longer text is shown without colours, as these take time."""
_TAB = 4
_SILENCE = 0.4
"""Seconds without output after which there is a sign of life."""
_COMMAND = re.compile(r"[^\s`]*(?:`[^`\n]*`[^\s`]*)+|codeact-team [^\n]*|\S+")
"""Pieces that no line break may divide: words, and commands, which people copy."""


class Screen:
    """Where everything is printed. No text is taken for markup, none reaches a terminal with control characters."""

    def __init__(self) -> None:
        self._out = _Console(highlight=False, markup=False, emoji=False)
        self._err = _Console(stderr=True, highlight=False, markup=False, emoji=False)
        self._notices: set[str] = set()
        self._working: Progress | None = None
        self._live: Live | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_mid_line = False
        self._held: list[Callable[[], None]] | None = None
        self._terminals = output_terminals()
        self._echo = Echo()
        began = time.monotonic()
        self._waits_for = lambda: f"working {clock(time.monotonic() - began)}"

    @property
    def renders(self) -> bool:
        """Whether it is a terminal that can show rendered Markdown and signs of life."""
        return self._out.is_terminal and not self._out.is_dumb_terminal

    def say_while_waiting(self, describe: Callable[[], str]) -> None:
        """Set what the sign of life says: what ``describe`` returns, which another thread calls."""
        self._waits_for = describe

    def text(self, text: str, style: str = "", *, end: str = "\n") -> None:
        """Print text as it is, in one style."""
        self._print(Text(visible(text), style), end=end)

    def quote(self, text: str, language: str | None) -> None:
        """Print foreign text, highlighted if it is in a language; each line has an edge, also where it is broken."""
        for line in self.quoted(text, language):
            self.styled_line(line)

    def styled_line(self, line: Text) -> None:
        """Print a line, such as one of :meth:`quoted`."""
        self._print(line)

    def quoted(self, text: str, language: str | None) -> Iterator[Text]:
        """The lines that :meth:`quote` prints, none of which the terminal breaks."""
        text, width = visible(text).expandtabs(_TAB), self.width
        if language is not None and self._out.is_terminal and len(text) <= _LONGEST_HIGHLIGHTED:
            lines: Iterable[Text] = highlighted(text, language).split("\n", allow_blank=True)
        else:
            lines = map(Text, text.split("\n"))
        for line in lines:
            for number, part in enumerate(line.divide(edge_breaks(line.plain, width))):
                yield Text.assemble((CONTINUED if number else EDGE, "dim"), part)

    @property
    def width(self) -> int:
        """Cells in a line of the terminal; what ``COLUMNS`` says may be older than its window."""
        with suppress(OSError):
            return min(self._out.width, os.get_terminal_size(1).columns or self._out.width)
        return self._out.width

    @property
    def height(self) -> int:
        """Lines of the terminal; what ``LINES`` says may be older than its window."""
        with suppress(OSError):
            return min(self._out.height, os.get_terminal_size(1).lines or self._out.height)
        return self._out.height

    def prose(self, text: str) -> None:
        """Print a model's text: its Markdown is rendered on a terminal, and stays as it is written in a file."""
        prose = Prose(self, rendered=len(text) <= _LONGEST_HIGHLIGHTED)
        prose.add(text.rstrip())
        prose.end()
        self.begin_line()

    def line(self, *parts: tuple[str, str], indent: int = 0) -> None:
        """Print a line of ours, of texts and their styles. On a terminal it is broken between words, where it has to be.

        What follows a break begins below the cell ``indent``.
        """
        line = Text.assemble(*((visible(text), style) for text, style in parts))
        self._show(partial(self._print_lines, line, indent))

    def rendered(self, lines: Iterable[Text]) -> None:
        """Print lines that :class:`RenderedProse` has made."""
        for line in lines:
            self._print(line)

    def notice(self, level: Level, text: str, *, again: bool = False) -> None:
        """Print a notice on standard error; the same one only once, unless it may be printed ``again``."""
        if text in self._notices and not again:
            return
        self._notices.add(text)
        if self._is_mid_line and _is_one_output():
            self.begin_line()
        label = "" if level == "note" else f"{level}: "
        notice = Text.assemble((label, _STYLES[level]), (visible(text), "dim" if level == "note" else ""))
        self._show(partial(self._print_error, notice))

    def begin_line(self) -> None:
        """Begin a new line, unless the last one has ended."""
        if self._is_mid_line:
            self.text("")

    @contextmanager
    def held(self) -> Generator[Callable[[Text], None]]:
        """Hold all output back meanwhile, so that nothing can pass for what a person is being asked.

        Yields a function that prints a line all the same. What is typed between two prompts is not shown. Needs a running
        event loop.
        """
        self.close()
        self._echo.suppress()
        self._held = []
        try:
            yield lambda line: self._show_now(partial(self._print_now, line))
        finally:
            held, self._held = self._held, None
            for show in held:
                show()
            self.wait()

    def work(self) -> None:
        """Show on a terminal that work goes on, until something is printed."""
        self.close()
        if self.renders:
            self._show_work()

    def wait(self, *, anew: bool = True) -> None:
        """As :meth:`work`, but only where nothing is printed for a while. Needs a running event loop.

        Unless ``anew``, what shows already stays.
        """
        if not anew and (self._timer or self._working):
            return
        self.close()
        if self._held is None and self.renders:
            self._timer = asyncio.get_running_loop().call_later(_SILENCE, self._show_work)

    @contextmanager
    def live(self, renderable: RenderableType) -> Generator[None]:
        """Within it, show something below all that is printed, and refresh it; does nothing without a terminal."""
        self.close()
        if not self.renders:
            yield
            return
        self._live = Live(
            renderable, console=self._out, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._show_now(self._live.start)
        try:
            yield
        finally:
            live, self._live = self._live, None
            self._show_now(live.stop)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._working is not None:
            working, self._working = self._working, None
            self._show_now(working.stop)
        self._echo.restore()

    def _print(self, text: Text, *, end: str = "\n") -> None:
        self._show(partial(self._print_now, text, end=end))

    def _print_now(self, text: Text, *, end: str = "\n") -> None:
        if printed := f"{text.plain}{end}":
            self._is_mid_line = not printed.endswith("\n")
        # the terminal wraps long lines, so that copied text has no breaks of ours
        self._out.print(text if text.spans else _Plain(text, end), end=end, soft_wrap=True)

    def _print_error(self, notice: Text) -> None:
        # a live part would be drawn over it
        console = self._out if self._live is not None and self._err.is_terminal else self._err
        width = console.width if console.is_terminal else None
        for line in notice.split("\n", allow_blank=True):
            console.print(between_words(line, width), soft_wrap=True)

    def _print_lines(self, text: Text, indent: int) -> None:
        self._print_now(between_words(text, self.width if self._out.is_terminal else None, indent))

    def _show(self, show: Callable[[], None]) -> None:
        if self._held is not None:
            self._held.append(show)
            return
        self.close()
        self._show_now(show)

    def _show_now(self, show: Callable[[], None]) -> None:
        try:
            show()
        except OSError as error:
            gone = [terminal for terminal in self._terminals if not terminal.isatty()]
            if error.errno != EIO or not gone:
                raise
            # SIGHUP is on its way, and ends the command unless it is to outlive its terminal
            silence(*gone)

    def _show_work(self) -> None:
        # what a person types meanwhile would push it on, and leave a copy of it at each line
        self._echo.suppress()
        self._working = self._progress(SpinnerColumn(), _Doing(self._waits_for, lambda: self.width))
        self._working.add_task("")
        self._show_now(self._working.start)

    def _progress(self, *columns: ProgressColumn) -> Progress:
        return Progress(
            *columns,
            console=self._out,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )


class Prose:
    """A model's text on a screen, which may come in pieces.

    Args:
        screen: Where to print.
        rendered: Whether its Markdown is rendered, where the screen does that.
    """

    def __init__(self, screen: Screen, *, rendered: bool = True) -> None:
        self._screen = screen
        self._rendered = RenderedProse(screen.width) if rendered and screen.renders else None

    @property
    def unfinished(self) -> str:
        """The end of the block that has not ended, and is not printed yet."""
        return "" if self._rendered is None else self._rendered.unfinished

    def add(self, piece: str) -> None:
        """Print a piece, or the blocks that end with it."""
        if self._rendered is None:
            self._screen.text(piece, end="")
        else:
            self._screen.rendered(self._rendered.add(visible(piece)))

    def end(self) -> None:
        """Print the rest."""
        if self._rendered is not None:
            self._screen.rendered(self._rendered.end())


def clock(seconds: float) -> str:
    """Whole seconds for a person, such as ``0:01:30``."""
    return str(timedelta(seconds=int(seconds)))


def between_words(text: Text, width: int | None, indent: int = 0) -> Text:
    """A line with line breaks between words, so that it fits into ``width`` cells; commands, which people copy, stay whole.

    All but the first of the lines begin with ``indent`` blanks.
    """
    if width is None or cell_len(text.plain) <= width:
        return text
    breaks: list[int] = []
    begin, room = 0, width
    for word in _COMMAND.finditer(text.plain):
        if word.start() > begin and cell_len(text.plain[begin : word.end()]) > room:
            begin, room = word.start(), width - indent
            breaks.append(begin)
    lines = text.divide(breaks)
    for line in lines[:-1]:
        line.rstrip()
    return Text("\n" + " " * indent).join(lines)


class _Doing(ProgressColumn):
    """A column that describes the work under way, cut to one line."""

    max_refresh = 0.1

    def __init__(self, describe: Callable[[], str], width: Callable[[], int]) -> None:
        super().__init__()
        self._describe = describe
        self._width = width

    def render(self, task: Task) -> Text:
        text = Text(f"{visible(self._describe())}", "dim", no_wrap=True)
        # behind the spinner, and before the last cell, at which a terminal may begin a line
        text.truncate(max(1, self._width() - 4), overflow="ellipsis")
        return text


class _Plain:
    """Text in one style, however many lines it has: Rich would make something of each of them, which takes its time."""

    def __init__(self, text: Text, end: str) -> None:
        self._text = text
        self._end = end

    def __rich_console__(self, console: Console, _: ConsoleOptions) -> Iterator[Segment]:
        style = self._text.style
        yield Segment(self._text.plain, console.get_style(style) if style else None)
        yield Segment(self._end)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        # Rich would end the program with exit code 1, which has another meaning here
        raise BrokenPipeError


def _is_one_output() -> bool:
    """Whether standard output and standard error go to the same place."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(1), os.fstat(2))
    return False


logger = logging.getLogger(__name__)

_BAD_INPUT = 2
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


@contextmanager
def reported(*, working: bool = False) -> Generator[Screen]:
    """A screen for a command; what goes wrong in it is printed there, in one message, and becomes an exit code.

    Args:
        working: Whether it shows at once that work goes on: imports take a second or two.
    """
    screen = Screen()
    with ExitStack() as stack:
        try:
            stack.enter_context(logs_as_notices(screen.notice))
            # a sign of life that has begun in part could not be ended
            signal.pthread_sigmask(signal.SIG_BLOCK, [SIGINT])
            if signal.getsignal(SIGINT) is signal.SIG_DFL:
                signal.signal(SIGINT, signal.default_int_handler)
            if working:
                screen.work()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [SIGINT])
            yield screen
        except (typer.Exit, typer.Abort):
            raise
        except BrokenPipeError:
            # the reader has enough, and the buffer cannot be written when the interpreter ends
            silence(sys.stdout)
            raise typer.Exit(128 + SIGPIPE) from None
        except (KeyboardInterrupt, Exception) as error:
            if _is_interrupt(error):
                screen.notice("error", "interrupted")
                raise typer.Exit(128 + SIGINT) from None
            from codeact_team.journal.result import explain

            logger.debug("the command failed", exc_info=error)
            screen.notice("error", _why_nothing_is_printed(error) or explain(error))
            raise typer.Exit(_BAD_INPUT) from None
        finally:
            screen.close()


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether an error is an interrupt, or what a module has made of one while it was imported."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _why_nothing_is_printed(error: BaseException) -> str | None:
    """Return the reason if standard output cannot be written, such as to a full disk; ``None`` for another error."""
    # an error of another file has its name
    if not isinstance(error, OSError) or error.filename is not None or error.errno not in _FULL:
        return None
    silence(sys.stdout)
    return f"standard output cannot be written: {error.strerror}"
