"""Tags between which models write code to run."""

from __future__ import annotations

import re
from typing import NamedTuple


class Tag(NamedTuple):
    """How code stands behind an opening tag."""

    end: str
    language: str = "python"
    on_own_lines: bool = False
    """Whether both tags stand on lines of their own, since they may mean something else, too."""
    may_end_text: bool = False
    """Whether the code usually goes on to the end of the text."""


TAGS = {
    "<execute>": Tag("</execute>"),
    "<execute_ipython>": Tag("</execute_ipython>"),
    "<execute_bash>": Tag("</execute_bash>", "bash"),
    "[PYTHON]": Tag("[/PYTHON]"),
    "<code>": Tag("</code>", on_own_lines=True),
    "<|python_tag|>": Tag("<|eom_id|>", may_end_text=True),
}
"""By the opening tag: of CodeAct, of OpenHands, of Code Llama, of smolagents and of Llama."""

STARTS = "|".join(map(re.escape, TAGS))
ENDS = "|".join(re.escape(tag.end) for tag in TAGS.values())
