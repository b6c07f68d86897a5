"""The page of a run: what came of it on top, and below how."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from importlib import resources
from tempfile import TemporaryFile
from typing import TextIO

from markupsafe import Markup

from codeact_team.effects import Event
from codeact_team.pages.artifacts import Bytes
from codeact_team.pages.markup import environment, highlighting_styles
from codeact_team.pages.story import Story
from codeact_team.runs.costs import Costs

_PIECE = 64 * 1024


def write_page(
    write: Callable[[str], object],
    events: Iterable[Event],
    artifact: Bytes,
    *,
    title: str,
    state: str = "no end",
    facts: Mapping[str, str] | None = None,
) -> None:
    """Write a page that runs no script and loads nothing, whatever is in the events.

    Args:
        write: Is given the page, piece by piece, to be written in UTF-8.
        events: Of a run, in order; they are read once, and not kept.
        artifact: Where the bytes of artifacts are.
        title: Of the page, such as the task.
        state: What is told of a run without an end.
        facts: What else is known of the run.

    Raises:
        Exception: What reading ``events`` raises.
    """
    templates = environment()
    costs = Costs()
    with TemporaryFile("w+", encoding="utf-8") as body:
        # what comes last in a run is first on its page
        story = Story(body, templates.get_template("items.html"), artifact)
        for event in events:
            costs(event)
            story(event)
        story.close()
        body.seek(0)
        style = _style()
        page = templates.get_template("page.html").generate(
            title=title,
            state=state,
            facts=facts or {},
            result=story.result,
            costs=costs,
            style=style,
            style_hash=base64.b64encode(sha256(style.encode()).digest()).decode(),
            body=_pieces(body),
        )
        for piece in page:
            write(piece)


def _pieces(file: TextIO) -> Iterator[Markup]:
    while piece := file.read(_PIECE):
        yield Markup(piece)


def _style() -> Markup:
    light, dark = highlighting_styles()
    own = resources.files("codeact_team.pages").joinpath("templates", "style.css").read_text(encoding="utf-8")
    return Markup(f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n{own}")
