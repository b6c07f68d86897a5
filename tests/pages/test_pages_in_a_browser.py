"""Pages as a browser shows them: all that happened is there, and nothing of it runs, or is asked for elsewhere."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Generator, Iterable
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from shown_runs import Shown, everywhere, session
from support.browsing import Elsewhere, chromium, listening, open_page

from codeact_team.core.effects import Event
from codeact_team.core.execution import Artifact
from codeact_team.exports.pages.page import write_page

pytestmark = pytest.mark.long

BIDI = "admin\N{RIGHT-TO-LEFT OVERRIDE}gnp.exe \x1b[2J\x00"
HOSTILE = """\
</title></style></script></pre></code></details></section><!--<script>
<script>fetch("URL/script"); alert(1); document.title = "ran"</script>
<img src=URL/img onerror="alert(2)"><svg onload="alert(3)"><body onload=alert(4)>
<a href="javascript:alert(5)">a</a> [link](javascript:alert(6)) ![picture](URL/markdown)
<URL/auto> <link rel=stylesheet href=URL/css><link rel=dns-prefetch href=URL><base href=URL>
<meta http-equiv=refresh content="0;url=URL/refresh"><iframe src=URL/iframe></iframe><form action=URL><input>
<style>@import "URL/import"; body { background: url(URL/background) }</style>
{{ 7 * 7 }} {% raw %} "' onmouseover="alert(7)" x='
&#8238;&lt;script&gt;

```html "><script>alert(8)</script>
<script>alert(9)</script>
```
"""
SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="20" height="10"
     onload="alert('svg')">
<?xml-stylesheet href="URL/svg-style"?><style>@import "URL/svg-import";</style>
<script>fetch("URL/svg-script"); alert("svg")</script><image xlink:href="URL/svg-image" width="5" height="5"/>
<foreignObject width="9" height="9"><iframe xmlns="http://www.w3.org/1999/xhtml" src="URL/svg-iframe"/></foreignObject>
<a href="javascript:alert(1)"><rect width="20" height="10" onclick="alert(1)"/></a></svg>"""
TABLE = """\
<style>td { background: url(URL/table) }</style>
<table border="1" class="dataframe" style="position: fixed; background: url(URL/fixed)" onclick="alert(1)">
<thead><tr><th colspan="2" onmouseover="alert(1)">region</th></tr></thead>
<tr><td><a href="javascript:alert(1)" target=_blank>North &lt;b&gt;</a></td><td rowspan="99999">1 &#8238;200</td></tr>
</table></div></section><meta http-equiv=refresh content="0;url=URL/table-refresh"><iframe src="URL/table-frame"></iframe>
<form action="URL/form"><button>Go</button></form>"""


@pytest.fixture
def browser() -> Generator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def elsewhere() -> Generator[Elsewhere]:
    with listening() as elsewhere:
        yield elsewhere


def png() -> bytes:
    """A picture of one pixel."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    parts = chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(b"\0\0")), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def written(folder: Path, events: Iterable[Event], shown: Shown | None = None, title: str = "a run") -> Path:
    path = folder / "page.html"
    with open(path, "w", encoding="utf-8") as file:
        write_page(file.write, events, shown or Shown(), title=title, facts={"Config": title})
    return path


def test_nothing_in_a_page_runs_or_asks_for_anything_whoever_wrote_it(
    browser: Browser, elsewhere: Elsewhere, tmp_path: Path
):
    hostile, svg, html = (text.replace("URL", elsewhere.url) for text in (HOSTILE, SVG, TABLE))
    shown = Shown(
        Artifact("image/svg+xml", svg.encode()),
        Artifact("text/html", html.encode()),
        Artifact("text/html; charset=utf-8", f"<div>{hostile}".encode()),
        Artifact(f'image/png" onerror="alert(1)" {hostile}', b"no picture"),
        Artifact("image/png", b"<script>alert(1)</script>"),
        Artifact("application/json", hostile.encode()),
        Artifact("application/pdf", hostile.encode()),
    )
    path = written(tmp_path, everywhere(f"{BIDI}\n{hostile}", shown), shown, title=hostile)
    other = tmp_path / "other.html"
    other.write_text(f"<img src={elsewhere.url}/img><script>alert(1); console.log('ran')</script>")
    with open_page(browser, other) as opened:
        # what is looked at below would be seen
        assert (opened.dialogs, "ran" in opened.said) == (["1"], True)
        assert (opened.requests, elsewhere.requests) == ([f"{elsewhere.url}/img"], ["/img"])
        elsewhere.requests.clear()
    with open_page(browser, path) as opened:
        opened.page.frame_locator("iframe").get_by_role("button").dispatch_event("click")
        for folded in opened.page.locator("summary").all():
            folded.click()
        opened.page.wait_for_load_state("networkidle")
        assert (opened.dialogs, opened.requests, elsewhere.requests) == ([], [], [])
        assert all("blocked" in line or "violates" in line for line in opened.said), opened.said
        assert opened.page.title() != "ran"
        assert opened.count("iframe") == opened.count("iframe[sandbox='allow-scripts']") == 1
        running = "script, a, object, embed, form, input, button, svg, base, meta[http-equiv=refresh], body *[style]"
        assert opened.count(running) == 0
        assert opened.count("link:not([rel=icon])") == 0
        assert opened.page.evaluate(
            "[...document.querySelectorAll('*')].every(part => [...part.attributes].every(one => !/^on/.test(one.name)))"
        )
        text = opened.text
        # the task, the answer, what was said, each output and so on: shown as it was written
        assert text.count("<script>fetch(") > 30
        assert text.count("[link](javascript:alert(6))") > 30
        assert text.count("{{ 7 * 7 }}") > 30
        # what changes the order of what is read, or steers a terminal
        assert not {"\N{RIGHT-TO-LEFT OVERRIDE}", "\x1b", "\x00"} & {*text}
        assert "admin\N{REPLACEMENT CHARACTER}gnp.exe \N{SYMBOL FOR ESCAPE}[2J\N{SYMBOL FOR NULL}" in text


def test_what_needs_a_browser_is_shown_in_a_frame_that_reaches_nothing_else(
    browser: Browser, elsewhere: Elsewhere, tmp_path: Path
):
    static = f"<style>p {{ color: rgb(1, 2, 3) }}</style><p style='margin: 7px'>static</p><img src={elsewhere.url}/img>"
    chart = f"""<p id=p>chart</p><script src="{elsewhere.url}/library.js"></script><script>
        document.getElementById("p").textContent = "drawn";
        for (const reach of [() => parent.document.title = "ran", () => top.location = "{elsewhere.url}/top",
            () => localStorage.x = 1, () => open("{elsewhere.url}/open"), () => fetch("{elsewhere.url}/fetch"),
            () => document.body.append(Object.assign(new Image(), {{src: "{elsewhere.url}/image"}})),
            () => document.head.append(Object.assign(document.createElement("script"),
                {{src: "{elsewhere.url}/more.js", nonce: document.currentScript.nonce}}))]) {{ try {{ reach(); }} catch {{}} }}
    </script>"""
    shown = Shown(Artifact("text/html", static.encode()), Artifact("text/html", chart.encode()))
    path = written(tmp_path, session("1", "", *shown.references), shown, title="a run")
    with open_page(browser, path) as opened:
        page = opened.page
        quiet, running = page.frame_locator("iframe").nth(0), page.frame_locator("iframe").nth(1)
        said = quiet.locator("p")
        assert (
            said.evaluate("p => getComputedStyle(p).color + getComputedStyle(p).margin") == "rgb(1, 2, 3)7px"
        )
        # nothing of the other is there before a reader wants it
        assert running.locator("p").count() == 0
        running.get_by_role("button").click()
        running.get_by_text("drawn").wait_for(state="attached")
        page.wait_for_load_state("networkidle")
        assert (elsewhere.requests, page.title(), opened.dialogs) == ([], "a run", [])
        assert page.url == path.as_uri()


@pytest.mark.long
def test_pictures_tables_code_and_long_output_are_shown(browser: Browser, tmp_path: Path):
    shown = Shown(
        Artifact("image/png", png()),
        Artifact("image/svg+xml", SVG.replace("URL", "http://localhost").encode()),
        Artifact("text/html", TABLE.encode()),
    )
    output = "\n".join(f"line {number:07,}" for number in range(80_000))
    code = "import math\nprint(math.pi)"
    answer = "It is **3**:\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
    path = written(tmp_path, session(code, output, *shown.references, answer=answer), shown)
    assert len(output) > 1_000_000
    with open_page(browser, path) as opened:
        page = opened.page
        assert page.evaluate("[...document.images].map(image => image.naturalWidth)") == [1, 20]
        assert page.locator(".answer strong").inner_text() == "3"
        assert page.locator(".answer td").all_inner_texts() == ["1", "2"]
        assert page.locator(".table th").get_attribute("colspan") == "2"
        assert page.locator(".table td").all_inner_texts() == ["North <b>", "1 \N{REPLACEMENT CHARACTER}200"]
        assert page.locator(".table td[rowspan]").count() == 0
        # colours: the style sheet is not kept out by the policy
        assert page.locator("pre.code").inner_text() == code
        colours = page.locator("pre.code span").evaluate_all(
            "spans => spans.map(span => getComputedStyle(span).color)"
        )
        assert len({*colours}) > 2
        first, folded, last = page.locator("pre.output").all()
        assert (first.is_visible(), folded.is_visible(), last.is_visible()) == (True, False, True)
        page.get_by_text("79,972 more lines").click()
        assert folded.is_visible()
        assert "\n".join(part.text_content() or "" for part in (first, folded, last)) == output
        light = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.emulate_media(color_scheme="dark")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
