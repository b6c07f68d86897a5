"""Choosing among the answers that several attempts at a task have come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated

from autogen_core import CancellationToken
from autogen_core.models import ChatCompletionClient, LLMMessage, SystemMessage, UserMessage
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, create_model

from codeact_team.observations import shorten
from codeact_team.parsing import as_data, make_inert
from codeact_team.reflection import REFLECTION_SYSTEM_MESSAGE
from codeact_team.structured import Answer, ask

_CHOOSE = (
    "The task above was worked on {count} times, each time from the beginning and without knowledge of the others. This is "
    "what each has come to; code that was run and its output are those of its last step.\n\n{accounts}\n\n"
    "Choose the one whose answer is to be given. What the results show counts, not how sure an answer sounds; that several "
    "answers agree speaks for them. Answer with two fields:\n"
    "- 'reason': why it is the best, in one or two sentences.\n"
    "- 'answer': its number, from 1 to {count}."
)
_NUMBER = "The number of the answer that is to be given."
_MAX_CHARS = 60_000
"""How much of all the accounts the model reads together."""


def _as_text(value: object) -> object:
    return "" if value is None else value


class Choice(BaseModel):
    """The choice of one among several answers."""

    # a default would be part of the JSON schema, which strict structured output does not allow
    reason: Annotated[str, BeforeValidator(_as_text)] = Field(
        default_factory=str, description="Why this answer is the best."
    )
    answer: int = Field(description=_NUMBER)


@dataclass(frozen=True)
class Account:
    """What an attempt has come to.

    Attributes:
        answer: Its answer.
        steps: How often its model has written.
        code: What it has run last; empty if nothing.
        output: What came of that.
        verdict: What a reflection on the answer says; empty if there was none.
    """

    answer: str
    steps: int
    code: str = ""
    output: str = ""
    verdict: str = ""

    def to_text(self, number: int, limit: int) -> str:
        """The account as a model reads it, in about ``limit`` characters."""
        parts = [f"Answer {number}, after {self.steps} step{'' if self.steps == 1 else 's'}:"]
        parts.append(as_data(make_inert(shorten(self.answer, limit // 2))))
        if self.code:
            parts += ["Its last code:", as_data(make_inert(shorten(self.code, limit // 4)))]
            parts += ["The output of that:", as_data(make_inert(shorten(self.output, limit // 4)))]
        if self.verdict:
            parts += ["A review of it said:", as_data(make_inert(shorten(self.verdict, limit // 8)))]
        return "\n".join(parts)


async def choose(
    client: ChatCompletionClient,
    task: Sequence[LLMMessage],
    accounts: Sequence[Account],
    cancellation_token: CancellationToken,
) -> Answer[Choice]:
    """Ask the model which of several answers is the best.

    Args:
        client: The model.
        task: What was to be done, as the model can read it.
        accounts: What the attempts have come to, two or more.
        cancellation_token: Stops the call.

    Returns:
        The choice. Where the model did not give one that can be read, it is the first answer.

    Raises:
        Exception: As :func:`codeact_team.structured.ask`.
    """
    limit = _MAX_CHARS // len(accounts)
    shown = "\n\n".join(account.to_text(number, limit) for number, account in enumerate(accounts, 1))
    question = UserMessage(content=_CHOOSE.format(count=len(accounts), accounts=shown), source="user")
    messages = [SystemMessage(content=REFLECTION_SYSTEM_MESSAGE), *task, question]
    read = await ask(client, messages, _choice_of(len(accounts)), cancellation_token=cancellation_token)
    return read.or_else(Choice(answer=1, reason=f"The choice could not be read. {read.problem}"))


@cache
def _choice_of(count: int) -> type[Choice]:
    """The choice among so many, which has no other number."""

    def is_there(number: int) -> int:
        if not 1 <= number <= count:
            raise ValueError(f"there is no answer {number}, only 1 to {count}")
        return number

    # strict structured output has no bounds of numbers
    numbered = Annotated[int, AfterValidator(is_there), Field(description=_NUMBER)]
    return create_model("Choice", __base__=Choice, __doc__=Choice.__doc__, answer=(numbered, ...))
