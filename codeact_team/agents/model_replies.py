"""What a model has replied, as text, and whether code in it may run."""

from __future__ import annotations

from autogen_core.models import CreateResult

from codeact_team.observations import encodable
from codeact_team.parsing import Extraction

NO_ANSWER = "(The model gave no answer, or declined to.)"
"""In a chat, and in a context, some models take no empty message."""

NOT_RUN = "Your reply was {}, so no code in it was run. Write it again, shorter."
"""What a model is told; see :func:`why_not_run`."""


def why_not_run(result: CreateResult, found: Extraction) -> str | None:
    """Why no code found in a reply is run, as what the reply was; ``None`` where nothing is known against it."""
    is_blank = isinstance(result.content, str) and not result.content.strip()
    if is_blank and not result.thought:
        return None
    if result.finish_reason == "length":
        return "cut off at the model's token limit"
    if result.finish_reason == "content_filter":
        return "stopped by the provider's content filter"
    # a model that has stopped by itself may have forgotten the closing fence; of others nobody knows
    if found.unclosed and result.finish_reason != "stop":
        return "cut off inside a code block"
    return "nothing but a thought" if is_blank else None


def text_of_result(result: CreateResult) -> str:
    """The text of what a model answered; a call of a tool that it was not offered is text as well."""
    if isinstance(result.content, str):
        return encodable(result.content) if result.content.strip() else NO_ANSWER
    return "\n".join(f"{call.name}({call.arguments})" for call in result.content)
