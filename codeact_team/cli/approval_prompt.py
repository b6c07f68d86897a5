"""The person at the terminal, asked whether code may run, and whether it may call a tool."""

from __future__ import annotations

import asyncio
import os
import signal
import termios
from collections.abc import Callable, Generator
from contextlib import contextmanager

from codeact_team.aio import Turns
from codeact_team.approval import Answer, Question, asking
from codeact_team.approval.input_function import read_answer
from codeact_team.cli.screen import Screen

_HINT = "y allows it, n does not (a reason may follow), a allows it always; Ctrl-C stops the work"


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
            self._show(question)
            with self._screen.held() as say:
                answer = await self._asked(question)
                _say(say, question, answer)
        return answer

    def _show(self, question: Question) -> None:
        self._screen.begin_line()
        self._screen.text(f"── {question.headline}", "bold yellow")
        language = question.name if question.kind == "code" else None
        self._screen.quote(question.details, language)
        if question.reason:
            self._screen.text(question.shown_reason, "yellow")

    async def _asked(self, question: Question) -> Answer:
        try:
            text = await _enter(f"Allow? y yes, n no, a always ({question.grant}) > ", is_answer=True)
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


async def _enter(prompt: str, *, is_answer: bool = False) -> str:
    # it takes a tenth of a second to import, and most runs do not need it
    from prompt_toolkit import PromptSession
    from prompt_toolkit.input.typeahead import clear_typeahead
    from prompt_toolkit.validation import Validator

    session: PromptSession[str] = PromptSession(erase_when_done=True, validate_while_typing=False)
    if is_answer:
        session.validator = Validator.from_callable(
            lambda text: read_answer(text) is not None, error_message=_HINT, move_cursor_to_end=True
        )
        # what was typed before the question was there was not meant for it
        termios.tcflush(session.input.fileno(), termios.TCIFLUSH)
        clear_typeahead(session.input)
    return await session.prompt_async(prompt, handle_sigint=False, set_exception_handler=False)


def _say(say: Callable[[str, str], None], question: Question, answer: Answer) -> None:
    if answer.always:
        say(f"✓ allowed from now on: {question.grant}", "green")
    elif answer.allowed:
        say(f"✓ allowed: {question.deed}", "green")
    else:
        say(f"✗ denied: {question.deed}{f' ({answer.reason})' if answer.reason else ''}", "red")
