"""Finds the code blocks in the text of a chat message."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autogen_core.code_executor import CodeBlock

from codeact_team.parsing.json_code import code_in_json
from codeact_team.parsing.labels import Languages
from codeact_team.parsing.markdown import Findings, MarkdownReader


@dataclass(frozen=True)
class Extraction:
    """What :func:`extract_code` found.

    Attributes:
        blocks: The code to run, in order, with canonical names of languages.
        unsupported: The languages of code that is not supported; in order, each once, at most 20.
        unclosed: Whether the end of a block is missing or in doubt, so that the message may have been cut off.
    """

    blocks: list[CodeBlock]
    unsupported: list[str]
    unclosed: bool


_OTHER_TAG = re.compile(
    r"^[ \t]*(<(?:code|python|bash|sh|shell|tool_call|tool_code|function_calls?|function=\w{1,40}|execute_\w{1,40})"
    r"\b[^>\n]{0,80}>|\[(?:CODE|BASH|TOOL_CALLS?)\])",
    re.MULTILINE,
)


def extract_code(text: str, languages: Sequence[str], *, default_language: str | None = None) -> Extraction:
    """Find the code blocks in a chat message.

    Fences are those of CommonMark. What models write that CommonMark would misread is repaired: a fence glued to the
    prose before it or to the last line of the code, a missing closing fence or one that is too short, a bare fence
    around one with a label, a fence inside a triple-quoted Python string or a here-document. Blocks
    between tags such as ``<execute>`` are in the tag's language, unless they hold fences. What is inside a fence that is
    not run is quoted, and never run.

    Args:
        text: The message. Time and memory are linear in its length, whatever it says.
        languages: The supported labels. Aliases such as ``py`` are known; ``sh`` and ``bash`` cover each other.
        default_language: The one of ``languages`` that closed fences without a label are in. Without it these are not
            extracted, unless the label stands on the line below the fence.
    """
    supported = Languages(languages)
    findings = Findings(supported, supported.resolve(default_language) if default_language else None)
    MarkdownReader(text.replace("\r\n", "\n"), findings).read()
    return Extraction(findings.blocks, list(findings.unsupported), findings.unclosed)


def extract_from_reply(
    text: str, languages: Sequence[str], *, default_language: str | None = None
) -> Extraction:
    """Find the code in what a model has written to the agent that runs it.

    As :func:`extract_code`; beside that, code in a JSON object is read where it is unmistakable, and a notation that is
    not read is among the unsupported.
    """
    found = extract_code(text, languages, default_language=default_language)
    if found.blocks or found.unsupported:
        return found
    in_json = code_in_json(text, Languages(languages))
    if in_json is not None:
        return replace(found, blocks=in_json, unsupported=[] if in_json else ["JSON with a field 'code'"])
    other = None if "```" in text else _OTHER_TAG.search(text)
    return found if other is None else replace(found, unsupported=[other[1]])
