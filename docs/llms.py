"""Makes ``llms.txt``, the pages with their titles and first sentences for a model: ``python docs/llms.py`` writes it anew."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt

DOCS = Path(__file__).parent
FILE = DOCS / "llms.txt"

_END_OF_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`“])")


def llms_txt(ending: str = ".md") -> str:
    """The text, in which the files of the pages have this ending."""
    title, first = _title_and_sentence("index")
    lines = [f"# {title}", "", f"> {first}", "", "In a terminal, `codeact-team help TOPIC` prints a guide."]
    for section, pages in _sections():
        lines += ["", f"## {section}", ""]
        for page in pages:
            title, first = _title_and_sentence(page)
            lines.append(f"- [{title}]({page}{ending}): {first}")
    return "\n".join([*lines, ""])


def _sections() -> Iterator[tuple[str, list[str]]]:
    """The captions of the index's tables of contents, with the pages of each."""
    for token in MarkdownIt().parse((DOCS / "index.md").read_text()):
        if token.type == "fence" and token.info == "{toctree}":
            lines = list(filter(None, token.content.splitlines()))
            captions = [line.removeprefix(":caption: ") for line in lines if line.startswith(":caption:")]
            yield captions[0] if captions else "Begin here", [line for line in lines if line[0] != ":"]


def _title_and_sentence(page: str) -> tuple[str, str]:
    tokens = MarkdownIt().enable("table").parse((DOCS / f"{page}.md").read_text())
    texts = [
        " ".join(content.content.split())
        for block, content in pairwise(tokens)
        if block.type in ("heading_open", "paragraph_open")
    ]
    without_links = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", texts[1])
    return texts[0], _END_OF_SENTENCE.split(without_links)[0].rstrip(":.") + "."


if __name__ == "__main__":
    FILE.write_text(llms_txt())
