"""Pictures and tables that code has shown, as HTML."""

from __future__ import annotations

import base64
from collections.abc import Callable

from markupsafe import Markup

from codeact_team.events import ArtifactReference
from codeact_team.pages.markup import folded, table

Bytes = Callable[[str], bytes | None]
"""Returns an artifact by its SHA-256; ``None`` where it is gone."""

_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp", "image/svg+xml")


def shown(artifact: ArtifactReference, data: bytes | None) -> Markup:
    """An artifact: a picture, a table or text, by the type that the code has given; else that it is there."""
    kind = artifact.mime_type.partition(";")[0].strip().lower()
    if data is None:
        return Markup("<p class=note>This was not kept.</p>")
    if kind in _PICTURES:
        # a picture runs no scripts and loads nothing, SVG included
        source = f"data:{kind};base64,{base64.b64encode(data).decode()}"
        return Markup('<img src="{}" alt="{}">').format(source, artifact.mime_type)
    if kind == "text/html" and (found := table(data)) is not None:
        return Markup("<div class=table>{}</div>").format(found)
    if kind.startswith("text/") or kind.endswith(("json", "xml")):
        return folded(data.decode(errors="replace"))
    return Markup("<p class=note>A browser cannot show this.</p>")
