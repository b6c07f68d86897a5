"""``codeact-team answer``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict

from autogen_agentchat.messages import BaseChatMessage

from codeact_team.approval.asked_question import AskedQuestion
from codeact_team.cli.json_lines import print_json
from codeact_team.cli.line_reader import decode
from codeact_team.cli.screen import Screen
from codeact_team.events import MessageSent, OpenQuestion
from codeact_team.journal import RecordedRun, RunDirectory
from codeact_team.runs.answering import ParkedRun
from codeact_team.sandbox_description import without_note


def answer_command(
    screen: Screen, directory: RunDirectory, words: Sequence[str], number: int | None, *, as_json: bool
) -> int:
    """Answer a question of a run that is parked, or show what is open where there are no ``words``; the exit code."""
    run = ParkedRun(directory)
    if not words:
        questions = run.open if number is None else [run.question(number)]
        for question in questions:
            if as_json:
                print_json(asdict(question))
            else:
                _show(screen, question, directory)
        if not as_json:
            _tell_what_is_left(screen, run, directory)
        return 0
    text = " ".join(words)
    if text == "-":
        text = decode(sys.stdin.buffer.read(), "the answer from standard input").removesuffix("\n")
    question = run.answer(text, number)
    if as_json:
        print_json({"answered": question.n, "key": question.key, "open": [each.n for each in run.open]})
        return 0
    screen.text(f"✓ question {question.n} of {question.agent} is answered", "green")
    _tell_what_is_left(screen, run, directory)
    return 0


def _show(screen: Screen, question: OpenQuestion, directory: RunDirectory) -> None:
    screen.text(f"── question {question.n}", "bold yellow")
    if question.kind != AskedQuestion.kind and (said := _said_last(directory)) is not None:
        # the prompt alone says little
        screen.text(f"{said.source} has said:", "dim")
        screen.quote(without_note(said).to_text(), None)
    screen.text(question.text)
    if question.is_lost:
        screen.notice(
            "warning", f"what has asked question {question.n} is not done twice: no answer reaches it"
        )


def _said_last(directory: RunDirectory) -> BaseChatMessage | None:
    said: BaseChatMessage | None = None
    for event in RecordedRun(directory).events():
        if isinstance(event, MessageSent) and isinstance(event.message, BaseChatMessage):
            said = event.message
    return said


def _tell_what_is_left(screen: Screen, run: ParkedRun, directory: RunDirectory) -> None:
    path = directory.path
    answerable = [question for question in run.open if not question.is_lost]
    if not answerable:
        is_of_a_program = RecordedRun(directory).about.task is None
        how = "when its program runs again" if is_of_a_program else f"by: codeact-team resume {path}"
        screen.notice("note", f"the run goes on {how}")
        return
    ways = "yes, no (a reason may follow) or always"
    if all(question.kind != AskedQuestion.kind for question in answerable):
        ways = "a text, or - to read it from standard input"
    which = f" --question {answerable[0].n}" if run.open[1:] else ""
    screen.notice("note", f"to answer: codeact-team answer {path}{which} ANSWER, which is {ways}")
