"""HTML that runs nothing outside the frames of artifacts, and a run's artifacts in it."""

from __future__ import annotations

import base64
import csv
import json
import re
import shlex
from collections.abc import Container, Iterable
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup, escape
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers.data import JsonLexer
from pygments.lexers.python import PythonLexer
from pygments.lexers.shell import BashLexer

from codeact_team.core.execution import ArtifactReference, Bytes, FormReference, bare_type
from codeact_team.core.showing import PICTURES
from codeact_team.journal.result import RunFile
from codeact_team.text.amounts import counted, size_of
from codeact_team.text.tables import tables_in
from codeact_team.text.visibility import cut, is_lexed_quickly, visible

_LANGUAGES = {
    **dict.fromkeys(("python", "python3", "py"), PythonLexer),
    **dict.fromkeys(("bash", "sh", "shell"), BashLexer),
    "json": JsonLexer,
}
"""Lexers of the languages that are highlighted."""
_LONGEST_PROSE = 20_000
"""Characters; a longer text is shown as it is written."""
_HEAD_LINES, _TAIL_LINES, _PART_CHARS = 20, 8, 4_000
"""Lines and characters of a long text that are shown before it is unfolded."""


def _prose(text: str) -> Markup:
    """A model's text, with its Markdown rendered but for links and pictures, which stay as they are written."""
    if len(text) > _LONGEST_PROSE:
        return _folded(text)
    # what it means by entities may be unfit to be seen, too
    return Markup('<div class="prose">{}</div>').format(Markup(visible(_markdown().render(visible(text)))))


def _code(text: str, language: str) -> Markup:
    """Code, highlighted if it is in a language that is known; folded if it is long."""
    text = visible(text)
    lexer = _LANGUAGES.get(language.strip().lower())
    if lexer is None or not is_lexed_quickly(text, language):
        return _folded(text, "code")
    # no element goes over the end of a line
    lines = (
        highlight(text, lexer(stripnl=False, ensurenl=False), HtmlFormatter[str](nowrap=True))
        .removesuffix("\n")
        .split("\n")
    )
    if len(lines) <= 2 * (_HEAD_LINES + _TAIL_LINES):
        return _pre("code", Markup("\n".join(lines)))
    parts = lines[:_HEAD_LINES], lines[_HEAD_LINES:-_TAIL_LINES], lines[-_TAIL_LINES:]
    head, middle, tail = (Markup("\n".join(part)) for part in parts)
    return _fold("code", head, middle, tail, f"{len(parts[1]):,} more lines")


def _folded(text: str, kind: str = "output") -> Markup:
    """Text as it is. Of a long one the middle is folded."""
    text = visible(text).removesuffix("\n")
    if len(text) < _PART_CHARS and text.count("\n") < _HEAD_LINES:
        # so are most
        return _pre(kind, escape(text))
    head = "\n".join(text[:_PART_CHARS].split("\n", _HEAD_LINES)[:_HEAD_LINES])
    tail = "\n".join(text[-_PART_CHARS:].rsplit("\n", _TAIL_LINES)[-_TAIL_LINES:])
    middle = text[len(head) : len(text) - len(tail)]
    lines = middle.count("\n")
    if lines < _HEAD_LINES and len(middle) < _PART_CHARS:
        return _pre(kind, escape(text))
    more = f"{lines - 1:,} more lines" if lines > 1 else f"{len(middle):,} more characters"
    middle = middle.removeprefix("\n").removesuffix("\n")
    return _fold(kind, escape(head), escape(middle), escape(tail), more)


def environment() -> Environment:
    """Jinja with the templates of pages. Whatever they print is escaped, and fit to be seen."""
    made = Environment(
        loader=PackageLoader("codeact_team.exports.pages"),
        autoescape=True,
        finalize=_fit,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    functions: dict[str, Any] = {
        "prose": _prose,
        "code": _code,
        "folded": _folded,
        "command_line": shlex.join,
        "counted": counted,
        "size_of": size_of,
    }
    made.globals.update(functions)
    return made


def highlighting_styles() -> tuple[str, str]:
    """The style sheets for highlighted code, in the light and in the dark."""
    return _style_sheet("default"), _style_sheet("github-dark")


def _style_sheet(style: str) -> str:
    return HtmlFormatter[str](style=style).get_style_defs(".code")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def _fit(value: Any) -> Any:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _markdown() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "highlight": _fence}).enable("table")
    return parser.disable(["link", "image", "autolink", "reference"])


def _fence(text: str, language: str, _: str) -> str:
    return _code(text.removesuffix("\n"), language)


def _fold(kind: str, head: Markup, middle: Markup, tail: Markup, more: str) -> Markup:
    return Markup("{}<details class=fold><summary>{}</summary>{}</details>{}").format(
        _pre(kind, head), more, _pre(kind, middle), _pre(kind, tail)
    )


def _pre(kind: str, text: Markup) -> Markup:
    # the first line break in it counts for nothing
    return Markup("<pre class=%s>\n%s</pre>") % (kind, text)


_MAX_FILES = 20
"""Of a run that are shown."""
_LARGEST_FILE, _MAX_BYTES = 4 << 20, 16 << 20
"""Bytes of a file, and of all of them."""
_MAGIC = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/gif": re.compile(rb"GIF8[79]a"),
    "image/webp": re.compile(rb"RIFF....WEBP", re.DOTALL),
}
"""The first bytes of the pictures that are shown, as names of files prove nothing."""
_TABLE_ENDINGS = (".csv", ".tsv")
_MAX_ROWS, _MAX_COLUMNS, _MAX_CELL = 20, 12, 100


def files_shown(files: Iterable[RunFile], content: Bytes, known: Container[str]) -> list[tuple[str, Markup]]:
    """The pictures and tables among the files of a run, with their names: so many as a page can hold.

    Args:
        files: The files; those whose content was not kept are left out.
        content: Where their bytes are, by the digest.
        known: Digests of those that are shown already.
    """
    found: list[tuple[str, Markup]] = []
    left = _MAX_BYTES
    for file in files:
        if len(found) == _MAX_FILES:
            break
        if file.sha256 is None or file.sha256 in known or file.size > min(left, _LARGEST_FILE):
            continue
        # a journal can claim any size
        data = (content(file.sha256) or b"")[: _LARGEST_FILE + 1]
        if len(data) == file.size and (markup := _file(file.path, data)) is not None:
            left -= len(data)
            found.append((file.found_at or file.path, markup))
    return found


def _file(path: str, data: bytes) -> Markup | None:
    kind = next((kind for kind, begin in _MAGIC.items() if begin.match(data)), None)
    if kind is not None:
        return _image(kind, data, path)
    if path.lower().endswith(_TABLE_ENDINGS):
        return _rows(data, "\t" if path.lower().endswith(".tsv") else ",")
    return None


def _image(kind: str, data: bytes, description: str) -> Markup:
    source = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    return Markup('<img src="{}" alt="{}">').format(source, visible(description))


def _rows(data: bytes, separator: str) -> Markup | None:
    """The first rows of a table in text; ``None`` if it is none."""
    try:
        lines = visible(data.decode("utf-8-sig")).splitlines()
        rows = list(csv.reader(lines[: _MAX_ROWS + 1], delimiter=separator))
    except (UnicodeDecodeError, csv.Error):
        return None
    if not rows:
        return None
    head, *body = (
        Markup("").join(
            Markup("<{0}>{1}</{0}>").format(tag, cut(cell, _MAX_CELL)) for cell in row[:_MAX_COLUMNS]
        )
        for tag, row in zip(["th", *["td"] * len(rows)], rows, strict=False)
    )
    cells = Markup("").join(Markup("<tr>{}</tr>").format(row) for row in [head, *body])
    more = len(lines) - len(rows)
    note = Markup("<p class=note>{:,} more rows</p>").format(more) if more else ""
    return Markup("<div class=table><table>{}</table></div>{}").format(cells, note)


_BEST_FIRST = (*PICTURES, "text/html", "text/markdown", "text/latex", "application/json")
"""The forms that a page shows rather than others."""

_LARGEST_FRAME = 4 << 20
"""Bytes of HTML in a frame."""
_LOADS = re.compile(r"<(?=/?(?:link|meta|base|iframe|frame|object|embed)\b)", re.IGNORECASE)
"""The begin of tags that load another document, or that make a browser look up or connect to another host."""
_SCRIPT = re.compile(r"<script\b", re.IGNORECASE)
_POLICY = (
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data:; font-src data:\">"
    '<meta http-equiv="x-dns-prefetch-control" content="off">'
)
"""Of a frame; without it a browser may look up the hosts of links. The policy of the page holds there, too, but lets a script with the nonce come from anywhere."""
_RUN = "Run its scripts, which were written in the sandbox"
_START = """
document.querySelector("button").onclick = () => { document.open(); document.write(%s); document.close(); };
"""
"""A script can tell others what it knows by ways that no policy closes, such as names of hosts: it runs if a reader wants it."""
_ELSEWHERE = re.compile(r"""(?:src|href|import|url)\s*[=(]?\s*["']?(?:https?:)?//""", re.IGNORECASE)


def shown(artifact: ArtifactReference, content: Bytes, nonce: str) -> Markup:
    """An artifact in the form that a page shows best, by the types that the code has given; else that it is there.

    Args:
        artifact: The artifact.
        content: Where its bytes are, by the digest.
        nonce: What the policy of the page asks of scripts, for those in frames. No code may have known it.
    """
    forms: dict[str, FormReference] = {}
    for form in (artifact, *artifact.other_forms):
        forms.setdefault(bare_type(form.mime_type), form)
    # the printed text of a value is there already
    kinds = [kind for kind in _BEST_FIRST if kind in forms]
    kinds += [kind for kind in forms if kind not in kinds and (kind != "text/plain" or len(forms) == 1)]
    for kind in kinds:
        if (data := content(forms[kind].sha256)) is not None:
            return _shown_form(kind, forms[kind].mime_type, data, nonce)
    return Markup("<p class=note>This was not kept.</p>")


def _shown_form(kind: str, mime_type: str, data: bytes, nonce: str) -> Markup:
    if kind in PICTURES:
        # a picture runs no scripts and loads nothing, SVG included
        return _image(kind, data, mime_type)
    if kind == "text/html" and (found := _html(data, nonce)) is not None:
        return found
    if kind.startswith("text/") or kind.endswith(("json", "xml")):
        return _folded(data.decode(errors="replace"))
    return Markup("<p class=note>A browser cannot show this.</p>")


def _html(data: bytes, nonce: str) -> Markup | None:
    """A table as one of the page, other HTML in a frame, which cannot reach the page; ``None`` if it is too large."""
    text = data.decode(errors="replace")
    has_scripts = _SCRIPT.search(text) is not None
    if not has_scripts and (found := tables_in(data)) is not None:
        return Markup("<div class=table>{}</div>").format(Markup(found))
    if len(data) > _LARGEST_FRAME:
        return None
    document = _LOADS.sub("&lt;", text)
    missing = _MISSING if _ELSEWHERE.search(text) else Markup("")
    if not has_scripts:
        return Markup('<iframe sandbox loading=lazy srcdoc="{}"></iframe>{}').format(
            _POLICY + document, missing
        )
    # unquoted, as it may get into a string of a script
    document = _POLICY + _SCRIPT.sub(f"<script nonce={nonce}", document)
    literal = json.dumps(document).replace("<", "\\u003c")
    starter = f"{_POLICY}<button>{_RUN}</button><script nonce={nonce}>{_START % literal}</script>"
    return Markup('<iframe sandbox="allow-scripts" loading=lazy srcdoc="{}"></iframe>{}').format(
        starter, missing
    )


_MISSING = Markup(
    "<p class=note>What it loads from the network is missing here: a page loads nothing. Open the file itself to see it.</p>"
)
