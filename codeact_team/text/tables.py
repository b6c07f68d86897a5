"""Tables in HTML of hostile code, without anything else of it but text."""

from __future__ import annotations

import nh3

from codeact_team.text.visibility import visible

_LONGEST, _MAX_TAGS = 256 * 1024, 10_000
"""Bytes, and signs that open a tag: an HTML parser takes quadratic time for nested ones."""
_TAGS = {"table", "caption", "thead", "tbody", "tfoot", "tr", "th", "td"}
_TEXT_TAGS = {"p", "br", "b", "strong", "i", "em", "code", "pre", "ul", "ol", "li", "sub", "sup"}
_MAX_SPAN = 100


def tables_in(html: bytes) -> str | None:
    """The tables in an HTML document as HTML, without anything else of it but text; ``None`` if it has none, or is too large."""
    if len(html) > _LONGEST or html.count(b"<") > _MAX_TAGS:
        return None
    clean = nh3.clean(
        html.decode(errors="replace"),
        tags=_TAGS | _TEXT_TAGS,
        attributes={"td": {"colspan", "rowspan"}, "th": {"colspan", "rowspan"}},
        attribute_filter=_only_small_spans,
        link_rel=None,
        url_schemes=set(),
    )
    return visible(clean) if "<table>" in clean else None


def _only_small_spans(tag: str, name: str, value: str) -> str | None:
    return value if value.isdecimal() and value.isascii() and int(value[:4]) <= _MAX_SPAN else None
