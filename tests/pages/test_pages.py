"""Pages as files: what is in them, and what it takes to write them."""

from __future__ import annotations

import io
import re
import tracemalloc
from collections.abc import Iterable, Iterator
from dataclasses import replace
from hashlib import sha256
from html import unescape
from itertools import chain

import pytest
from autogen_agentchat.messages import CodeGenerationEvent
from autogen_core.code_executor import CodeBlock
from autogen_core.models import RequestUsage
from shown_runs import Shown, session
from support.recorded import result
from support.variations import mostly_long

from codeact_team.core.effects import Event
from codeact_team.core.events import (
    ArtifactReference,
    BlockBegan,
    BlockEnded,
    Code,
    MessageSent,
    ModelCallBegan,
    ModelCallEnded,
    OpenQuestion,
    ProcessBegan,
    ProcessEnded,
    QuestionAnswered,
    QuestionAsked,
    RequestBegan,
    RequestDenied,
    RequestEnded,
    RunBegan,
    RunParked,
    ToolCallBegan,
)
from codeact_team.core.execution import Artifact
from codeact_team.core.executor_interface import Change
from codeact_team.exports.pages.page import write_page
from codeact_team.journal.result import RunEnding, RunFile, RunResult


def page(events: Iterable[Event], shown: Shown | None = None) -> str:
    file = io.StringIO()
    write_page(file.write, events, shown or Shown(), title="a run")
    return file.getvalue()


@pytest.mark.long
def test_a_long_run_is_written_without_being_held_in_memory():
    def blocks() -> Iterator[Event]:
        yield RunBegan(span=1, task="Go on.")
        for number in range(40):
            yield BlockBegan(span=number, agent="coder", blocks=[Code("python", "go_on()")])
            yield BlockEnded(span=number, agent="coder", exit_code=0, output=f"{number} " * 100_000)

    class Size(io.StringIO):
        total = 0

        def write(self, text: str) -> int:
            self.total += len(text)
            return len(text)

    file = Size()
    tracemalloc.start()
    try:
        write_page(file.write, blocks(), Shown(), title="a run")
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert file.total > 9_000_000
    assert most < 5_000_000


PNG = b"\x89PNG\r\n\x1a\n"
FILES = {
    "growth.png": PNG + b"1",
    "photo.jpeg": b"\xff\xd8\xff\xe0",
    "sales.csv": b"region,total\nNorth,<b>12</b>\n",
    "fake.png": b"<svg onload=alert(1)>",
    "drawn.svg": b"<svg onload=alert(2)>",
    "page.html": b"<script>alert(3)</script>",
    "broken.csv": b"\xff\xfe\x00",
}


def made(files: dict[str, bytes], **told: str) -> tuple[list[RunFile], Shown]:
    shown = Shown(*(Artifact("", data) for data in files.values()))
    listed = [
        RunFile(path, len(data), Change.MADE, told.get("found_at"), sha256=sha256(data).hexdigest())
        for path, data in files.items()
    ]
    return listed, shown


def test_pictures_and_tables_that_a_run_has_made_are_shown_beside_its_answer():
    files, shown = made(FILES)
    written = page([RunBegan(span=1, task="Draw."), result(answer="See growth.png", files=files)], shown)
    assert re.findall(r'<img src="data:(image/\w+);base64,', written) == ["image/png", "image/jpeg"]
    assert (
        "<tr><th>region</th><th>total</th></tr><tr><td>North</td><td>&lt;b&gt;12&lt;/b&gt;</td></tr>"
        in written
    )
    assert "alert" not in written
    assert "<figcaption>growth.png</figcaption>" in written


def test_a_picture_that_a_step_has_shown_is_not_shown_twice():
    files, shown = made({"step-1-1.png": PNG})
    reference = ArtifactReference.of(Artifact("image/png", PNG))
    steps = session("draw()", "", reference)
    written = page(
        [*(event for event in steps if not isinstance(event, RunResult)), result(files=files)], shown
    )
    assert written.count("<img") == 1


@pytest.mark.long
def test_a_page_has_no_more_pictures_than_a_browser_can_hold():
    files, shown = made({f"{number}.png": PNG + str(number).encode() for number in range(50)})
    files.append(replace(files[0], size=1 << 40))
    assert page([result(files=files)], shown).count("<img") == 20
    files, shown = made({f"{number}.png": PNG + bytes([number]) + bytes(3 << 20) for number in range(9)})
    assert page([result(files=files)], shown).count("<img") == 5


def test_the_last_answer_is_on_top_of_a_conversation():
    told = page(chain(session("1", "", answer="First."), session("2", "", answer="Second.")))
    top, _, below = told.partition("<main>")
    assert "Second." in top
    assert "First." not in top
    assert re.findall("<h2>(Task.*)</h2>", below) == ["Task", "Task 2"]


def test_the_files_of_all_tasks_are_listed_once_with_the_task_that_changed_them_last():
    def task(number: int, *files: RunFile) -> list[Event]:
        return [RunBegan(span=number, task=f"Number {number}."), result(files=files)]

    a, b = (RunFile(name, 54, Change.MADE, f"/work/{name}") for name in "ab")
    told = page([*task(1, a), *task(2, b), *task(3, replace(a, size=1_500, change=Change.CHANGED))])
    listed = re.sub("<[^>]*>", " ", told.partition('<details class="files"')[2].partition("</details>")[0])
    assert " ".join(listed.split()).endswith(
        "2 files made /work/a 1.5 kB task 3 made /work/b 54 bytes task 2"
    )
    assert "task 1" not in page(task(1, a))


@pytest.mark.parametrize(
    ("cached", "tokens"),
    [
        ([True, True], "2 calls answered from the cache"),
        ([False, True], "1,200 in, 80 out; 1 call answered from the cache"),
        ([False], "1,200 in, 80 out"),
        ([], "0 in, 0 out"),
    ],
)
def test_tokens_of_answers_from_a_cache_are_not_spent(cached: list[bool], tokens: str):
    usage = RequestUsage(1_200, 80)
    calls = [
        event
        for span, is_cached in enumerate(cached)
        for event in (
            ModelCallBegan(span=span, agent="coder", model="m"),
            ModelCallEnded(span=span, agent="coder", model="m", usage=usage, cached=is_cached),
        )
    ]
    told = page([RunBegan(span=9, task="Look."), *calls, result()])
    shown = re.search("<dt>Tokens</dt><dd>(.*?)</dd>", told, re.DOTALL)
    assert shown is not None
    assert shown[1].strip() == tokens


def test_a_run_that_was_killed_says_what_has_no_end():
    told = page(
        [
            RunBegan(span=1, task="Look."),
            BlockBegan(span=2, agent="coder", blocks=[Code("python", "tools.buy(1)")]),
            ToolCallBegan(span=3, parent=2, agent="coder", name="buy", arguments='{"pieces": 1}'),
            ProcessBegan(span=4, argv=["make", "all things"], is_job=True),
        ]
    )
    assert "No end is recorded of a process: <code>make &#39;all things&#39;</code>" in told
    assert "no end" in told.partition("<main>")[0]
    assert "No end is recorded of this code" in told
    assert "No end is recorded of a call of a tool: <code>tools.buy {&#34;pieces&#34;: 1}</code>" in told


def test_a_process_of_a_program_is_one_line():
    told = page(
        [
            ProcessBegan(span=2, argv=["grep", "-q", "a b"], at=1.0),
            ProcessEnded(span=2, returncode=1, at=2.5),
        ]
    )
    (line,) = [line for line in told.splitlines() if "grep" in line]
    assert (
        "✗ <code>$ grep -q &#39;a b&#39;</code> · exit code 1 · 1.5 s"
        in line + told.partition(line)[2][:60].strip()
    )


def test_a_request_is_one_line_and_a_denial_says_what_would_allow_it():
    told = page(
        [
            BlockBegan(span=1, agent="coder", blocks=[Code("python", "ask()")]),
            RequestBegan(span=2, parent=1, agent="coder", method="GET", url="https://a.test/?<b>"),
            RequestEnded(
                span=2,
                parent=1,
                agent="coder",
                method="GET",
                url="https://a.test/?<b>",
                status=404,
                received=12,
            ),
            RequestDenied(parent=1, agent="coder", host="b.test", port=80, reason="no rule", entry="b.test"),
            RequestBegan(span=3, parent=1, agent="coder", method="CONNECT", url="c.test:443"),
        ]
    )
    assert "✗ <code>GET https://a.test/?&lt;b&gt;</code> · 404 · 12 bytes received · 0.0 s" in told
    assert (
        "✗ b.test:80 is denied: no rule · to allow it, add to <code>egress</code>: <code>b.test</code>"
        in told
    )
    assert "No end is recorded of a request: <code>CONNECT c.test:443</code>" in told


def test_a_run_that_is_parked_says_for_which_question():
    told = page(
        [
            RunBegan(span=1, task="Look."),
            QuestionAsked(span=2, agent="coder", text="May I <look>?"),
            RunParked(
                record="runs/1", questions=[OpenQuestion(17, "", "coder", "approval", "May I <look>?", True)]
            ),
            QuestionAnswered(span=2, agent="coder", error="CancelledError: the run is parked"),
            result(RunEnding.PARKED, stop_reason="it waits for an answer: codeact-team answer runs/1"),
        ]
    )
    assert '<span class="state parked">parked</span>' in told.partition("<main>")[0]
    assert "codeact-team answer runs/1" in told
    assert "May I &lt;look&gt;?" in told
    assert "until question 17 is answered <span" in told


def test_code_is_folded_where_the_model_has_just_written_it():
    block = BlockBegan(span=1, agent="coder", blocks=[Code("python", "print(1)")])
    told = MessageSent(
        message=CodeGenerationEvent(
            source="coder",
            content="```python\nprint(1)\n```",
            code_blocks=[CodeBlock(code="print(1)", language="python")],
            retry_attempt=0,
        )
    )
    assert '<details class="ran" open>' in page([block])
    assert '<details class="ran"><summary>Ran python, as written above' in page([told, block])


@pytest.mark.parametrize(
    "language",
    mostly_long(["python", "yaml", "bash", "json", "diff"], usual=2),
)
def test_code_that_takes_a_lexer_a_minute_has_no_colours(language: str):
    hostile = " \n" * 25_000 + "@" * 25_000
    told = page([BlockBegan(span=1, agent="coder", blocks=[Code(language, hostile)])])
    assert "@" * 4_000 in told
    assert '<span class="' not in told.partition("<main>")[2]


@pytest.mark.parametrize(
    "html",
    mostly_long(
        [b"<div>" * 20_000 + b"<table><tr><td>1", b"<table><tr><td>" + bytes(300_000), b"<p>no table</p>"]
    ),
)
def test_html_that_is_no_table_of_a_usual_size_is_shown_in_a_frame(html: bytes):
    shown = Shown(Artifact("text/html", html))
    told = page(session("table", "", *shown.references), shown)
    assert (
        '<figure>\n<iframe sandbox loading=lazy srcdoc="&lt;meta http-equiv=&#34;Content-Security-Policy'
        in told
    )
    assert "What it loads" not in told


@pytest.mark.long
def test_html_that_is_too_large_for_a_frame_is_shown_as_text():
    shown = Shown(Artifact("text/html", b"<p>" + b"a" * (4 << 20)))
    assert "<figure>\n<pre class=output>" in page(session("table", "", *shown.references), shown)


def test_scripts_of_html_are_no_part_of_the_page():
    html = b"<SCRIPT src='https://cdn.example/x.js'>let a = '<script>'</script><link rel=preconnect href=//x>"
    shown = Shown(Artifact("text/html", html))
    told = page(session("chart", "", *shown.references), shown)
    [nonce] = re.findall("script-src 'nonce-([0-9a-f]{64})'", told)
    frame = unescape(
        told.partition('<iframe sandbox="allow-scripts" loading=lazy srcdoc="')[2].partition('"')[0]
    )
    # the one script of ours; those of the code are a string in it
    assert frame.count("<script") == 1
    assert frame.count(f"\\u003cscript nonce={nonce}") == 2
    assert "<link" not in frame
    assert "\\u003clink" not in frame
    assert "What it loads from the network is missing here" in told
    assert nonce not in page(session("chart", "", *shown.references), shown)


@pytest.mark.parametrize(
    ("forms", "found"),
    mostly_long(
        [
            ({"text/html": b"<p>", "image/png": PNG, "text/plain": b"<P>"}, '<img src="data:image/png'),
            ({"image/svg+xml": b"<svg/>", "application/json": b"{}"}, '<img src="data:image/svg+xml'),
            ({"text/latex": b"$x$", "text/markdown": b"*x*", "text/plain": b"x"}, "<pre class=output>\n*x*"),
            ({"application/x-own": b"own", "application/json": b"[1]"}, "<pre class=output>\n[1]"),
            ({"text/latex": b"$x<b>$", "text/plain": b"x"}, "<pre class=output>\n$x&lt;b&gt;$"),
        ],
        usual=2,
    ),
)
def test_of_the_forms_of_a_value_the_page_shows_the_one_that_it_shows_best(
    forms: dict[str, bytes], found: str
):
    (kind, data), *others = forms.items()
    shown = Shown(Artifact(kind, data, other_forms=dict(others)))
    told = page(session("x", "", *shown.references), shown)
    assert found in told.partition("<figure>")[2]
    assert told.count("<figure>") == 1


def test_what_was_not_kept_is_told():
    gone = Shown(Artifact("image/png", b"gone"))
    assert "This was not kept." in page(session("1", "", *gone.references))


def test_python_that_runs_a_shell_is_marked_and_shown_as_it_was_written():
    told = page([BlockBegan(span=1, agent="coder", blocks=[Code("python", "%%bash\nls")])])
    assert "<summary>Ran python, which runs a shell</summary>" in told
    assert "%%bash" in re.sub("<[^>]*>", "", told)
    told = page([BlockBegan(span=1, agent="coder", blocks=[Code("python", "'!ls'"), Code("bash", "ls")])])
    assert "runs a shell" not in told
