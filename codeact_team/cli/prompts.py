"""Questions to the person at the terminal."""

from __future__ import annotations

import asyncio
import os
import re
import select
import signal
import stat
import sys
import termios
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path

from rich.text import Text

from codeact_team.cli.screen import Screen
from codeact_team.core.aio import FairLock
from codeact_team.errors import JournalError, SettingError
from codeact_team.files.opening import read_regular
from codeact_team.runs.foreign_runs import Confirm, ForeignRun
from codeact_team.text.visibility import all_visible, readable, visible
from codeact_team.tools.approval_rules import Question
from codeact_team.tools.approvals import Answer, asking, read_answer

_READ_BYTES = 65_536
_MOST_READ = 1 << 20
"""Bytes of a text: no model reads more."""


class LineReader:
    """Messages on standard input, each a line; read without a thread, which would have to be waited for at the end."""

    def __init__(self) -> None:
        mode = os.fstat(0).st_mode
        # a file can be read at once, and an event loop cannot wait for it
        self._is_awaited = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(0)
        self._complete: deque[bytes] = deque()
        self._begun = b""
        self._ended = False

    async def read(self) -> str | None:
        """The next line; ``None`` at the end."""
        while not self._complete and not self._ended:
            if self._is_awaited:
                loop, readable = asyncio.get_running_loop(), asyncio.Event()
                loop.add_reader(0, readable.set)
                try:
                    await readable.wait()
                finally:
                    loop.remove_reader(0)
            data = os.read(0, _READ_BYTES)
            *complete, self._begun = (self._begun + data).split(b"\n")
            self._complete += complete
            if len(self._begun) > _MOST_READ:
                raise SettingError(f"a message from standard input has more than {_MOST_READ:,} bytes")
            if not data:
                self._ended = True
                self._complete.append(self._begun)
        if not self._complete:
            return None
        return decode(self._complete.popleft(), "a message from standard input")


def read_file(path: Path, what: str) -> str:
    """The text in a file; ``what`` names it in errors.

    Raises:
        SettingError: If it cannot be read, is larger than a text may be, or is not UTF-8 text.
    """
    try:
        return decode(read_regular(path, _MOST_READ), f"{what} from {path}")
    except OSError as error:
        raise SettingError(f"{what} cannot be read from {path}: {error.strerror}") from error


def has_piped_input() -> bool:
    """Whether standard input is a pipe or a file, and not a terminal or nothing."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def is_input_ready(seconds: float) -> bool:
    """Whether standard input has something to read, or its end, within so many seconds. Blocks."""
    return bool(select.select([0], [], [], seconds)[0])


def read_standard_input(what: str) -> str:
    """All the text on standard input.

    Raises:
        SettingError: If it is more than a text may be, or no UTF-8 text.
    """
    data = sys.stdin.buffer.read(_MOST_READ + 1)
    if len(data) > _MOST_READ:
        raise SettingError(f"{what} from standard input has more than {_MOST_READ:,} bytes")
    return decode(data, f"{what} from standard input")


def decode(data: bytes, what: str) -> str:
    """The text of ``data``, or a SettingError if it is not UTF-8 text."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SettingError(f"{what} is not UTF-8 text") from error


_Say = Callable[[Text], None]

_KEYS = "Ctrl-C stops the work, and Ctrl-D leaves the question open"
_HINT = f"y allows it, n does not (a reason may follow), a allows it always; {_KEYS}"
_PAGE_HINT = f"there is more to read before it can be allowed: Enter shows it, n denies it; {_KEYS}"
_TOO_EARLY = "what you typed before this was shown is ignored"
_SHORTEST_PAGE, _LINES_AROUND_A_PAGE = 5, 4
"""Lines. Around a page are the headline, the prompt, and a hint."""


def is_person_there(*, as_json: bool) -> bool:
    """Whether a person at a terminal can be asked, and no program reads the output."""
    return not as_json and os.isatty(0) and os.isatty(1)


def asking_the_person(
    screen: Screen, leave: Callable[[], object], *, as_json: bool
) -> AbstractContextManager[object]:
    """Within it, the person at the terminal approves, if there is one.

    Args:
        screen: Where to ask.
        leave: Ends the work, which cancels the question, as the person leaves it open.
        as_json: Whether a program reads the output.
    """
    return asking(_ApprovalPrompt(screen, leave)) if is_person_there(as_json=as_json) else nullcontext()


class _ApprovalPrompt:
    """Asks one thing at a time. Output of others waits for the answer."""

    def __init__(self, screen: Screen, leave: Callable[[], object]) -> None:
        self._screen = screen
        self._leave = leave
        self._turns = FairLock()

    async def __call__(self, question: Question) -> Answer:
        async with self._turns:
            self._screen.begin_line()
            with self._screen.held() as say:
                answer = await self._asked(question, say)
                _say(say, question, answer)
        return answer

    async def _asked(self, question: Question, say: _Say) -> Answer:
        # nothing is shown before it can be answered: who reads it types at once
        keyboard, lines = _Keyboard(), await self._lines(question)
        try:
            refusal = await _show_pages(keyboard, lines, self._screen.height, say)
            prompt = f"Allow? y yes, n no, a always ({question.grant}) > "
            answer = read_answer(refusal or await keyboard.enter(prompt, read_answer, _HINT))
            assert answer is not None, "nothing else can be entered"
            if answer.allowed or answer.reason:
                return answer
            return Answer(False, (await keyboard.enter("Why not? (may stay empty) > ")).strip())
        except EOFError:
            self._leave()
        except KeyboardInterrupt:
            # at a prompt, Ctrl-C is a key; it is meant for the whole run
            signal.raise_signal(signal.SIGINT)
        # which cancels this
        return await asyncio.get_running_loop().create_future()

    async def _lines(self, question: Question) -> Sequence[Text]:
        language = question.name if question.kind == "code" else None
        # there may be as many lines as characters
        lines = await asyncio.to_thread(lambda: [*self._screen.quoted(question.details, language)])
        if question.reason:
            lines.append(Text(question.shown_reason, "yellow"))
        return [Text(visible(f"── {question.headline}"), "bold yellow"), *lines]


async def _show_pages(keyboard: _Keyboard, lines: Sequence[Text], height: int, say: _Say) -> str:
    """Show a headline and lines a page at a time, so that none leaves the screen unread.

    Returns what a person has entered who refuses before the end.
    """
    size = max(_SHORTEST_PAGE, height - _LINES_AROUND_A_PAGE)
    headline, *lines = lines
    for start in range(0, max(1, len(lines)), size):
        if start:
            prompt = f"{start} of {len(lines)} lines shown. Enter for more, n no > "
            if text := (await keyboard.enter(prompt, _read_turn, _PAGE_HINT)).strip():
                return text
        if keyboard.drop():
            say(Text(_TOO_EARLY, "dim"))
        if not start:
            say(headline)
        for line in lines[start : start + size]:
            say(line)
    return ""


def _read_turn(text: str) -> bool | None:
    answer = read_answer(text)
    return True if not text.strip() or (answer is not None and not answer.allowed) else None


class _Keyboard:
    """The keyboard of a person who is asked something; making it takes a tenth of a second, of imports that most runs do not need."""

    def __init__(self, *, erase: bool = True) -> None:
        from prompt_toolkit import PromptSession

        self._session: PromptSession[str] = PromptSession(erase_when_done=erase, validate_while_typing=False)

    def drop(self) -> bool:
        """Drop what was typed until now, which was not meant for what is shown next; returns whether there was anything."""
        from prompt_toolkit.input.typeahead import get_typeahead

        keys, typed = self._session.input, bool(get_typeahead(self._session.input))
        # a terminal that edits lines does not tell of one that has not ended
        with keys.raw_mode():
            typed = is_input_ready(0) or typed
            termios.tcflush(keys.fileno(), termios.TCIFLUSH)
        return typed

    async def enter(self, prompt: str, read: Callable[[str], object] | None = None, hint: str = "") -> str:
        """Let the person enter a line; if ``read`` is given, only one that it can read, else the ``hint`` is shown."""
        from prompt_toolkit.validation import Validator

        self._session.validator = read and Validator.from_callable(
            lambda text: read(text) is not None, error_message=hint, move_cursor_to_end=True
        )
        return await self._session.prompt_async(prompt, handle_sigint=False, set_exception_handler=False)


def _say(say: _Say, question: Question, answer: Answer) -> None:
    if answer.always:
        said, style = f"✓ allowed from now on: {question.grant}", "green"
    elif answer.allowed:
        said, style = f"✓ allowed: {question.deed}", "green"
    else:
        said, style = f"✗ denied: {question.deed}{f' ({answer.reason})' if answer.reason else ''}", "red"
    say(Text(visible(said), style))


_MOST_SHOWN = 64 << 10
"""Characters of a task or a config that a person can be expected to read."""
_YES_OR_NO = re.compile(r"\s*(y|yes|n|no)\s*", re.IGNORECASE)


def confirming(screen: Screen, *, as_json: bool) -> Confirm | None:
    """A function that lets a person confirm a foreign run; ``None`` where none is there."""
    return partial(_confirm, screen) if is_person_there(as_json=as_json) else None


def _confirm(screen: Screen, run: ForeignRun) -> Collection[str] | None:
    task, config = run.about.task or "", run.config or ""
    not_yours = f"the run in {readable(str(run.directory.path))} was not recorded by you on this machine"
    if len(task) > _MOST_SHOWN or len(config) > _MOST_SHOWN:
        raise JournalError(f"{not_yours}, and its task or config is too long to be confirmed")
    screen.begin_line()
    screen.notice(
        "warning",
        f"{not_yours}, or was changed since. Whoever wrote it chooses which code runs, with which arguments your tools "
        "are called, and what counts as approved",
    )
    parts = {
        "its task": (task, None),
        "its config": (config, "yaml"),
        "it asks for": ("\n".join(run.wanted), None),
    }
    lines: list[Text] = []
    for title, (text, language) in parts.items():
        if text or title == "its task":
            lines += [Text(f"── {title}", "bold yellow"), *screen.quoted(all_visible(text), language)]
    if not asyncio.run(_has_read(lines, screen)):
        return None
    if not asyncio.run(asked_yes_or_no("Go on with this run? y yes, n no > ")):
        return None
    question = "Give {} of this machine to its code and its models? y yes, n no > "
    return [name for name in run.names if asyncio.run(asked_yes_or_no(question.format(all_visible(name))))]


async def _has_read(lines: Sequence[Text], screen: Screen) -> bool:
    with suppress(EOFError, KeyboardInterrupt):
        return not await _show_pages(_Keyboard(), lines, screen.height, screen.styled_line)
    return False


async def asked_yes_or_no(prompt: str) -> bool:
    """Ask the person at the terminal; Ctrl-C and Ctrl-D say no."""
    keyboard = _Keyboard(erase=False)
    keyboard.drop()
    with suppress(EOFError, KeyboardInterrupt):
        text = await keyboard.enter(prompt, _YES_OR_NO.fullmatch, "y is yes, n is no")
        return text.strip().lower().startswith("y")
    return False
