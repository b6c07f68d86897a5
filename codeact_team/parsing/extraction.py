"""From the text of a chat message to the code blocks in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autogen_core.code_executor import CodeBlock

from codeact_team.parsing.documents import Document, Findings
from codeact_team.parsing.labels import Languages


@dataclass(frozen=True)
class Extraction:
    """What :func:`extract_code` found.

    Attributes:
        blocks: The code to run, in order, with canonical names of languages.
        unsupported: The languages of code that is not supported; in order, each once, at most 20.
    """

    blocks: list[CodeBlock]
    unsupported: list[str]


def extract_code(text: str, languages: Sequence[str], *, default_language: str | None = None) -> Extraction:
    """Find the code blocks in a chat message.

    Fences are those of CommonMark. What models write that CommonMark would misread is repaired: a fence glued to the
    prose before it or to the last line of the code, a missing closing fence, a fence inside a triple-quoted Python
    string. ``<execute>`` blocks are Python, unless they hold fences, and count where Python is supported. What is
    inside a fence that is not run is quoted, and never run.

    Args:
        text: The message. Time and memory are linear in its length, whatever it says.
        languages: The supported labels. Aliases such as ``py`` are known; ``sh`` and ``bash`` cover each other.
        default_language: The one of ``languages`` that closed fences without a label are in. Without it these are not
            extracted, unless the label stands on the line below the fence.
    """
    supported = Languages(languages)
    findings = Findings(supported, supported.resolve(default_language) if default_language else None)
    Document(text.replace("\r\n", "\n"), findings).read()
    return Extraction(findings.blocks, list(findings.unsupported))
