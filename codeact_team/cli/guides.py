"""The command ``help``: the guides in a terminal."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import partial
from pathlib import PurePosixPath

from markdown_it import MarkdownIt

from codeact_team.cli.rendering import RenderedProse
from codeact_team.cli.screen import Screen
from codeact_team.core.providers import did_you_mean
from codeact_team.core.shipped import shipped_guides
from codeact_team.errors import SettingError

_LINK = re.compile(r"\[(?P<text>[^]]+)\]\((?P<target>#[\w-]+|https?://[^)\s]+|[\w./-]+[./]\w+(?:#[\w-]+)?)\)")


def list_guides(screen: Screen) -> None:
    """Print the topics, each with its title."""
    guides = shipped_guides()
    width = max(map(len, guides), default=0)
    for name, path in guides.items():
        title = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        screen.text(f"{name:{width}}  {title}")
    screen.text("\ncodeact-team help TOPIC shows one; codeact-team help COMMAND the options of a command")


def show_guide(screen: Screen, topic: str, commands: Collection[str]) -> None:
    """Print a guide: rendered on a terminal, else as it is written."""
    guides = shipped_guides()
    if topic not in guides:
        known = [*guides, *commands]
        raise SettingError(
            f"no guide is called {topic!r}{did_you_mean(topic, known) or '; codeact-team help lists them'}"
        )
    text = _LINK.sub(partial(_named, guides), guides[topic].read_text(encoding="utf-8"))
    if screen.renders:
        prose = RenderedProse(screen.width)
        screen.rendered([*prose.add(_unwrapped(text)), *prose.end()])
    else:
        screen.text(text, end="")
    if topic in commands:
        screen.text(f"\nIts options: codeact-team {topic} --help")


def _unwrapped(text: str) -> str:
    """Put each paragraph on one line: a terminal may be narrower than the page, and its lines are filled."""
    lines = text.splitlines()
    for token in reversed(MarkdownIt().enable("table").parse(text)):
        if token.type == "paragraph_open" and token.map is not None:
            start, end = token.map
            lines[start:end] = [" ".join([lines[start], *map(str.strip, lines[start + 1 : end])])]
    return "\n".join([*lines, ""])


def _named(guides: Collection[str], link: re.Match[str]) -> str:
    """A link as a person follows it in a terminal."""
    text, target = link["text"], link["target"]
    if target.startswith("http"):
        return f"{text} ({target})"
    path = PurePosixPath(target.partition("#")[0])
    if path.name and path.suffix != ".md":
        return f"{text} (`{str(path).replace('../', '')}`)"
    return f"{text} (`codeact-team help {path.stem}`)" if path.stem in guides else text
