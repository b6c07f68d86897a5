"""What a model's reply asks an agent to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autogen_core import FunctionCall
from autogen_core.code_executor import CodeBlock
from autogen_core.models import CreateResult

from codeact_team.agents.model_replies import NOT_RUN, text_of_result, why_not_run
from codeact_team.parsing import Extraction, extract_code, extract_from_reply

_IF_ANSWER = "If that was your answer, give it again as it is."


@dataclass(frozen=True)
class Reply:
    """What a model has written."""

    text: str
    """Its words, with the code in them."""
    thought: str | None
    blocks: list[CodeBlock]
    """The code to run."""
    unsupported: list[str]
    """Labels of code that is not run."""
    calls: list[FunctionCall]
    remark: str | None
    """What to tell the model, where what it wrote can be neither run nor taken for an answer at once."""
    is_empty: bool
    """Whether there are no words."""
    is_broken: bool
    """Whether they may have been cut off."""
    may_be_answer: bool
    """Whether it may be an answer all the same."""


NOTHING = Reply("", None, [], [], [], remark=None, is_empty=True, is_broken=False, may_be_answer=False)
"""Before the model has written anything."""


def read_reply(result: CreateResult, languages: Sequence[str]) -> Reply:
    """Read what a model has written; code with one of these labels is run."""
    calls = [] if isinstance(result.content, str) else result.content
    text = text_of_result(result)
    found = extract_from_reply("" if calls else text, languages)
    is_empty = isinstance(result.content, str) and not result.content.strip()
    broken = why_not_run(result, found)
    return Reply(
        text=text,
        thought=result.thought,
        blocks=[] if broken else found.blocks,
        unsupported=found.unsupported,
        calls=calls,
        remark=_remark(result, text, found, broken, languages),
        is_empty=is_empty,
        is_broken=broken is not None,
        may_be_answer=not (calls or found.blocks or found.unclosed),
    )


def _remark(
    result: CreateResult, text: str, found: Extraction, broken: str | None, languages: Sequence[str]
) -> str | None:
    runnable = ", ".join(languages)
    if not isinstance(result.content, str):
        names = ", ".join(call.name for call in result.content)
        return f"There is no such tool: {names}. Act by writing code in a ```python block."
    if broken is not None:
        return NOT_RUN.format(broken)
    if found.blocks:
        return None
    if not result.content.strip():
        return "Your reply was empty. Go on with the task: write code, or answer in plain words."
    if found.unsupported:
        labels = ", ".join(found.unsupported)
        return f"No code was run: {labels} is not run here, only {runnable}. {_IF_ANSWER}"
    if extract_code(text, languages, default_language="python").blocks:
        return f"No code was run: a code block is run if it has one of the labels {runnable}. {_IF_ANSWER}"
    return None
