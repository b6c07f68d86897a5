"""The person at the terminal, asked whether code may run, and whether it may call a tool."""

from __future__ import annotations

import asyncio
import os
import signal
import termios
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.text import Text

from codeact_team.aio import Turns
from codeact_team.approval import Answer, Question, asking
from codeact_team.approval.input_function import read_answer
from codeact_team.cli.screen import Screen
from codeact_team.visibility import visible

Say = Callable[[Text], None]

_HINT = "y allows it, n does not (a reason may follow), a allows it always; Ctrl-C stops the work"
_PAGE_HINT = (
    "there is more to read before it can be allowed: Enter shows it, n denies it; Ctrl-C stops the work"
)
_SHORTEST_PAGE, _LINES_BESIDE_A_PAGE = 5, 4
"""Lines. Beside a page there are the headline, the prompt, and what a hint takes."""


@contextmanager
def asking_the_person(screen: Screen, *, as_json: bool) -> Generator[None]:
    """Let the person at the terminal approve; where there is none, or a program reads the output, nobody is asked."""
    if as_json or not (os.isatty(0) and os.isatty(1)):
        yield
        return
    with asking(ApprovalPrompt(screen)):
        yield


class ApprovalPrompt:
    """Asks one thing at a time. What others print meanwhile comes after the answer."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._turns = Turns()

    async def __call__(self, question: Question) -> Answer:
        async with self._turns:
            self._screen.begin_line()
            self._screen.text(f"── {question.headline}", "bold yellow")
            with self._screen.held() as say:
                answer = await self._asked(question, say)
                _say(say, question, answer)
        return answer

    async def _asked(self, question: Question, say: Say) -> Answer:
        try:
            if (answer := await self._read(question, say)) is None:
                text = await _enter(f"Allow? y yes, n no, a always ({question.grant}) > ", read_answer, _HINT)
                answer = read_answer(text)
            assert answer is not None, "nothing else can be entered"
            if answer.allowed or answer.reason:
                return answer
            return Answer(False, (await _enter("Why not? (may stay empty) > ")).strip())
        except EOFError:
            return Answer(False)
        except KeyboardInterrupt:
            # Ctrl-C is a key while somebody is asked; it is meant for the whole run, which cancels this
            signal.raise_signal(signal.SIGINT)
            return await asyncio.get_running_loop().create_future()

    async def _read(self, question: Question, say: Say) -> Answer | None:
        """Show what is asked, a page at a time, so that nothing of it leaves the screen unread; what denies it ahead of its end."""
        language = question.name if question.kind == "code" else None
        # there may be as many lines as characters
        lines = await asyncio.to_thread(lambda: [*self._screen.quoted(question.details, language)])
        if question.reason:
            lines.append(Text(question.shown_reason, "yellow"))
        size = max(_SHORTEST_PAGE, self._screen.height - _LINES_BESIDE_A_PAGE)
        for start in range(0, len(lines), size):
            if start:
                prompt = f"{start} of {len(lines)} lines shown. Enter for more, n no > "
                if text := (await _enter(prompt, _read_turn, _PAGE_HINT)).strip():
                    return read_answer(text)
            for line in lines[start : start + size]:
                say(line)
        return None


def _read_turn(text: str) -> bool | None:
    answer = read_answer(text)
    return True if not text.strip() or (answer is not None and not answer.allowed) else None


async def _enter(prompt: str, read: Callable[[str], object] | None = None, hint: str = "") -> str:
    """Let the person enter a line; only what can be read, and was typed after the prompt, if ``read`` is given."""
    # it takes a tenth of a second to import, and most runs do not need it
    from prompt_toolkit import PromptSession
    from prompt_toolkit.input.typeahead import clear_typeahead
    from prompt_toolkit.validation import Validator

    session: PromptSession[str] = PromptSession(erase_when_done=True, validate_while_typing=False)
    if read is not None:
        session.validator = Validator.from_callable(
            lambda text: read(text) is not None, error_message=hint, move_cursor_to_end=True
        )
        # what was typed before the question was there was not meant for it
        termios.tcflush(session.input.fileno(), termios.TCIFLUSH)
        clear_typeahead(session.input)
    return await session.prompt_async(prompt, handle_sigint=False, set_exception_handler=False)


def _say(say: Say, question: Question, answer: Answer) -> None:
    if answer.always:
        said, style = f"✓ allowed from now on: {question.grant}", "green"
    elif answer.allowed:
        said, style = f"✓ allowed: {question.deed}", "green"
    else:
        said, style = f"✗ denied: {question.deed}{f' ({answer.reason})' if answer.reason else ''}", "red"
    say(Text(visible(said), style))
