"""Tells the language of a fence's code by its label, or that the fence holds no code to run."""

from __future__ import annotations

import re
from collections.abc import Sequence

_SHELL_NAMES = frozenset({"shell", "shellscript"})
_PYTHON_NAME = re.compile(r"i?py(?:thon)?(?:-?3(?:\.?\d{1,2}(?:\.\d{1,2})?)?)?")

SHELLS = frozenset({"sh", "bash"})
"""A shell of either kind runs the other's simple scripts, so support for one covers both labels."""

# Data, prose and transcripts. A console or pycon transcript mixes prompts and output: it cannot be run as it stands.
_NOT_CODE = frozenset(
    """
    text txt plain plaintext none nohighlight output stdout stderr result results log logs traceback pytb
    console terminal shell-session shellsession sh-session session pycon python-repl python-console doctest
    json json5 jsonc jsonl ndjson yaml yml toml ini cfg conf config properties env dotenv csv tsv
    xml html xhtml svg css markdown md mdx rst asciidoc tex latex math bibtex
    diff patch http mermaid plantuml graphviz dot regex ebnf tree gitignore
    """.split()
)

# The first word of an info string, out of forms such as ``{.python .numbered}``, ``python:main.py``, ``python{1,3}``.
_WORD = re.compile(r"[\s{.]*+([A-Za-z0-9_][A-Za-z0-9_+#.-]{0,39}+)(?![^\s{}()\[\]:;,=|?&!/\"'])")


def language_of(label: str) -> str:
    """The canonical name of the language that a fence's label, or whole info string, names.

    Of ``python3.11`` or ``{.python}`` it is ``python``; it is empty where there is nothing like a label.
    """
    if (word := _WORD.match(label)) is None:
        return ""
    name = word[1].lower()
    if _PYTHON_NAME.fullmatch(name):
        return "python"
    return "sh" if name in _SHELL_NAMES else name


def is_code(language: str) -> bool:
    """Whether a fence with this canonical name claims to hold a program."""
    return bool(language) and language not in _NOT_CODE


class Languages:
    """The languages that are run, and which labels mean one of them."""

    def __init__(self, labels: Sequence[str]) -> None:
        self._verbatim = {label.strip().lower(): label for label in labels}
        self._canonical = {language_of(label) for label in labels}
        if self._canonical & SHELLS:
            self._canonical |= SHELLS

    def resolve(self, info: str) -> str | None:
        """The name under which the code of a fence with this info string is run, or ``None`` if it is not."""
        name = language_of(info)
        if name in SHELLS or name == "python":
            return name if name in self._canonical else None
        for spelling in (info.strip().lower(), name):
            if spelling in self._verbatim:
                return self._verbatim[spelling]
        return None

    def is_listed(self, label: str) -> bool:
        """Whether the label is one of the supported ones as they were given, in any case."""
        return label.lower() in self._verbatim
