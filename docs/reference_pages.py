"""Directives for the parts of the reference that are made from the package itself: ``{commands}``, ``{settings}``, ``{events}``."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from docutils import nodes
from event_classes import event_types
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from typer import Context
from typer.cli import get_docs_for_click
from typer.main import get_command

from codeact_team.cli.app import app
from codeact_team.config.schema import config_reference


def commands() -> str:
    """Every command with its arguments and options, from its help."""
    command = get_command(app)
    text = get_docs_for_click(obj=command, ctx=Context(command), name="codeact-team", indent=0)
    own, *sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    # the page itself lists the commands
    return "".join(["#", own.partition("**Commands**:")[0], *sections])


def settings() -> str:
    """Every component with its settings, from the JSON Schema of configs."""
    _, *sections = re.split(r"^(?=## )", config_reference(), flags=re.MULTILINE)
    # the page itself says to what package they belong; a bound stays on one line with its sign
    text = re.sub(r"^## codeact_team\.", "## ", "".join(sections), flags=re.MULTILINE)
    return re.sub(r"(?<=[≥≤>]) (?=\d)", "\N{NO-BREAK SPACE}", text)


def _directive(make: Callable[[], str]) -> type[SphinxDirective]:
    """What puts Markdown that a function makes in the place of the directive."""

    class Made(SphinxDirective):
        has_content = True
        """What a reader of the source sees in its place."""

        def run(self) -> list[nodes.Node]:
            self.env.note_reread()  # what it is made from is no file of these pages
            return self.parse_text_to_nodes(make(), allow_section_headings=True)

    return Made


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives."""
    for name, make in (("commands", commands), ("settings", settings), ("events", event_types)):
        app.add_directive(name, _directive(make))
    return {"parallel_read_safe": True}
