"""Draws the README's picture of what was measured: bars, each ten times as long for ten times ten."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.conftest import Figure

WIDTH, LEFT, RIGHT, BAR, GAP, TITLE = 760, 150, 90, 16, 18, 24
SHORTEST = 0.1
"""Milliseconds of a bar without any length."""
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #24292f } .title { font-weight: 600 }
.ours { fill: #1a7f64 } .other { fill: #afb8c1 }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .ours { fill: #2ea583 } .other { fill: #57606a } }
"""


def drawn(figures: Sequence[Figure]) -> str:
    """The picture, as SVG."""
    groups = [*_groups(figures)]
    longest = max(milliseconds for _, bars in groups for _, milliseconds in bars)
    scale = (WIDTH - LEFT - RIGHT) / math.log10(longest / SHORTEST)
    parts, top = list[str](), 0
    for title, bars in groups:
        top += TITLE
        parts.append(f'<text class="title" x="0" y="{top - 8}">{title}</text>')
        for name, milliseconds in bars:
            length = scale * math.log10(milliseconds / SHORTEST)
            kind = "ours" if name in ("Docker", "confined") else "other"
            middle = top + BAR - 4
            parts += [
                f'<text x="{LEFT - 8}" y="{middle}" text-anchor="end">{name}</text>',
                f'<rect class="{kind}" x="{LEFT}" y="{top}" width="{length:.0f}" height="{BAR - 3}" rx="2"/>',
                f'<text x="{LEFT + length + 6:.0f}" y="{middle}">{milliseconds:g} ms</text>',
            ]
            top += BAR
        top += GAP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" role="img" aria-label="The table below, as bars">'
    return "\n".join([head, f"<style>{STYLE}</style>", *parts, "</svg>", ""])


def _groups(figures: Sequence[Figure]) -> Iterator[tuple[str, Sequence[tuple[str, float]]]]:
    from benchmarks.conftest import DECIDING, PEERS, pair

    for title, start in DECIDING.items():
        docker, confined = pair(figures, start)
        told = {"Docker": docker.ours, "confined": confined.ours, "AutoGen": docker.theirs}
        told |= {name: docker.peers.get(name, "") for name in PEERS}
        bars = [
            (name, float(found[1]))
            for name, text in told.items()
            if (found := re.match(r"([\d.]+) ms", text))
        ]
        if bars:
            yield title, bars
