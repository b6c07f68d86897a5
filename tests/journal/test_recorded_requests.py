"""Requests of a run that is killed, resumed or replayed are answered from its journal, and not sent again."""

from __future__ import annotations

import json
import threading
from base64 import b64decode
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import killing
import pytest
import test_replay
from killing import begun_and_ended, ends_of_blocks, last_run, resume, start
from stories import CONFINED, Story, coder, python, said_before, text_of
from support.openai_server import AnyReply, Body, Json, ScriptedServer
from test_replay import replay

from codeact_team.journal.log import read_log

HELPERS = """
import urllib.error, urllib.request

def ask(url, data=None, **fields):
    request = urllib.request.Request(url, data, fields)
    try:
        return urllib.request.urlopen(request, timeout=60).read().decode()
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read().decode()}"
"""

Where = Callable[[Sequence[dict[str, Any]]], int]
"""Finds an entry of a journal; returns its number from 1."""


class Site:
    """A server on this machine, whose answers differ each time.

    Attributes:
        got: What was asked: method, path and body.
        port: Its port.
    """

    def __init__(self) -> None:
        self.got: list[str] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                site.got.append(f"{self.command} {self.path} {body}".strip())
                size = int(self.path.rpartition("/large")[2] or 0) if "/large" in self.path else 0
                said = f"{len(site.got)}".encode() + b"." * size
                self.send_response(200)
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            do_POST = do_GET

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Generator[Site]:
    named = killing.PROGRAM.with_name("named_run.py")
    monkeypatch.setattr(killing, "PROGRAM", named)
    monkeypatch.setattr(test_replay, "PROGRAM", named)
    with closing(Site()) as site:
        yield site


def story(
    site: Site, *blocks: str, rule: dict[str, Any] | None = None, executor: str = "Confined", **more: Any
) -> Story:
    """A run with these blocks, in which ``{site}`` stands for the URL of the site."""
    base = {"host": "api.test", "ports": [site.port], "networks": ["127.0.0.1/32"], "decision": "allow"}
    egress = [{**base, "paths": ["/*"], **(rule or {})}]
    said = [block.replace("SITE", f"http://api.test:{site.port}") for block in (HELPERS, *blocks)]

    def reply(body: Body) -> AnyReply:
        return python(said[min(said_before(body), len(said) - 1)])

    settings = {**(CONFINED if executor == "Confined" else {}), "egress": egress}
    return Story(coder(executor, settings, tools=[], **more), reply, "")


def entries_of(folder: Path) -> Sequence[dict[str, Any]]:
    return list(read_log(last_run(folder).lines))


BLOCKS = (
    "first = [ask('SITE/a', **{'X-Now': str(__import__('time').time())}), ask('SITE/a'), ask('SITE/b', b'data')]",
    "second = [ask('SITE/b', b'data'), ask('SITE/large5000')[:3]]\nprint(second)",
    "final_answer(f'{first} {second}')",
)


@pytest.mark.parametrize(
    "executor", ["Confined", pytest.param("Docker", marks=[pytest.mark.docker, pytest.mark.long])]
)
def test_code_that_runs_again_gets_the_answers_that_it_had_and_nothing_is_sent(
    tmp_path: Path, site: Site, executor: str
) -> None:
    one = story(site, *BLOCKS, executor=executor)
    with ScriptedServer.in_thread(one.reply) as server:
        (tmp_path / "alone").mkdir()
        code, stdout, stderr = start(tmp_path / "alone", server, one, 0)
        assert (code, stdout) == (0, "['1', '2', '3'] ['4', '5..']\n"), stderr
        last = ends_of_blocks(entries_of(tmp_path / "alone"))[2]
        site.got.clear()
        (tmp_path / "killed").mkdir()
        start(tmp_path / "killed", server, one, last)
        got = [*site.got]
        code, stdout, stderr = resume(tmp_path / "killed", server)
    assert (code, stdout) == (0, "['1', '2', '3'] ['4', '5..']\n"), stderr
    assert site.got == got == ["GET /a", "GET /a", "POST /b data", "POST /b data", "GET /large5000"]
    code, stdout, stderr = replay(tmp_path / "killed")
    assert (code, site.got) == (0, got), stdout + stderr


def killed(
    folder: Path, server: ScriptedServer, one: Story, where: Where, how: str = "after"
) -> tuple[int, str, str]:
    """Run a story, and once more until the entry that ``where`` finds in the journal of the first run; then resume it."""
    (folder / "a").mkdir()
    _, _, stderr = start(folder / "a", server, one, 0)
    nth = where(entries_of(folder / "a"))
    (folder / "k").mkdir()
    start(folder / "k", server, one, nth, how)
    (folder / "k" / "before").write_text(stderr)
    return resume(folder / "k", server)


def told(folder: Path) -> str:
    """What the journal has of the end of the last block."""
    return json.dumps([entry for entry in entries_of(folder) if "ran" in entry][-1])


def end_of_block(nth: int) -> Where:
    return lambda entries: ends_of_blocks(entries)[nth - 1]


@pytest.mark.long
def test_a_request_that_is_another_each_time_is_refused_while_code_runs_again(
    tmp_path: Path, site: Site
) -> None:
    one = story(
        site,
        "import time\nfirst = ask('SITE/b', str(time.time()).encode())",
        "print('first' in globals())",
        "final_answer(str('first' in globals()))",
    )
    with ScriptedServer.in_thread(one.reply) as server:
        code, stdout, stderr = killed(tmp_path, server, one, end_of_block(3))
    assert (code, stdout) == (0, "False\n"), stderr
    assert len(site.got) == 2, "one in each run"
    assert f"it made one request (POST http://api.test:{site.port}/b) more than before" in told(
        tmp_path / "k"
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "rule"), [("GET", {}), ("POST", {}), ("POST", {"repeatable": True})], ids=str
)
def test_a_request_that_was_under_way_is_sent_again_only_where_that_does_no_harm(
    tmp_path: Path, site: Site, method: str, rule: dict[str, Any]
) -> None:
    body = "None" if method == "GET" else "b'x'"
    one = story(site, f"final_answer(ask('SITE/b', {body}))", rule=rule)
    with ScriptedServer.in_thread(one.reply) as server:
        code, stdout, stderr = killed(
            tmp_path, server, one, lambda entries: begun_and_ended(entries, "request")[1], "before"
        )
    is_sent = method == "GET" or bool(rule)
    assert code == 0, stderr
    assert len(site.got) == (3 if is_sent else 2)
    assert stdout == "3\n" if is_sent else "whether it has reached the server is not known" in stdout


@pytest.mark.long
def test_code_that_needs_an_answer_that_was_too_long_does_not_run_again(tmp_path: Path, site: Site) -> None:
    one = story(
        site, "first = ask('SITE/large2000000')", "print(1)", "final_answer(str('first' in globals()))"
    )
    with ScriptedServer.in_thread(one.reply) as server:
        code, stdout, stderr = killed(tmp_path, server, one, end_of_block(3))
    named = f"the answer to GET http://api.test:{site.port}/large2000000"
    assert (code, stdout, len(site.got)) == (0, "False\n", 2), stderr
    assert f"{named} is not kept" in (tmp_path / "k" / "before").read_text()
    assert f"not run again, as {named} was not kept" in told(tmp_path / "k")


@pytest.mark.long
@pytest.mark.parametrize("paths", [["/*"], None], ids=["read", "passed through"])
def test_what_rules_have_counted_counts_on(tmp_path: Path, site: Site, paths: list[str] | None) -> None:
    one = story(
        site,
        "first = [ask('SITE/a'), ask('SITE/a')]",
        "print(1)",
        f"{HELPERS}\nfinal_answer(str([ask('SITE/a')[:3], ask('SITE/a')[:3]]))",
        rule={"at_most": 3, "paths": paths},
    )
    with ScriptedServer.in_thread(one.reply) as server:
        code, stdout, stderr = killed(tmp_path, server, one, end_of_block(3))
    said = "not recorded, so that code of a run that is resumed does not run again"
    assert (said in stderr) == (paths is None)
    assert (code, stdout, len(site.got)) == (0, "['6', '403']\n", 6), stderr


@pytest.mark.long
@pytest.mark.parametrize("paths", [["/*"], None], ids=["read", "passed through"])
def test_a_question_about_a_host_parks_the_run_and_its_answer_holds(
    tmp_path: Path, site: Site, paths: list[str] | None
) -> None:
    one = story(
        site,
        "first = ask('SITE/a')",
        "print(1)",
        f"{HELPERS}\nfinal_answer(ask('SITE/a'))",
        rule={"decision": "ask", "paths": paths},
        approval_timeout="park",
    )
    with ScriptedServer.in_thread(one.reply) as server:
        code, _, stderr = start(tmp_path, server, one, 0)
        assert (code, site.got) == (3, []), stderr
        assert f"coder wants to reach api.test:{site.port}" in stderr
        code, _, stderr = killing.run(tmp_path, server, 0, "after", "answer", "last", "yes")
        assert code == 0, stderr
        code, stdout, stderr = resume(tmp_path, server)
    asked_for = [entry["request"] for entry in entries_of(tmp_path) if entry.get("begin") == "approval"]
    assert (code, stdout) == (0, f"{len(site.got)}\n"), stderr
    # once more where the block runs again
    assert len(asked_for) == (2 if paths else 1)


@pytest.mark.long
def test_attempts_side_by_side_that_ask_the_same_get_their_own_answers_again(
    tmp_path: Path, site: Site
) -> None:
    one = story(site, attempts=2)
    got = f"mine = [ask('http://api.test:{site.port}/a') for _ in range(2)]"

    def reply(body: Body) -> AnyReply:
        if "Choose the one whose answer is to be given." in text_of(body):
            return Json({"reason": "It is as good as any.", "answer": 2})
        return [python(HELPERS), python(got), python("print('more')"), python("final_answer(f'{mine}')")][
            said_before(body)
        ]

    one = Story(one.config, reply, "")
    with ScriptedServer.in_thread(reply) as server:
        (tmp_path / "a").mkdir()
        code, _, stderr = start(tmp_path / "a", server, one, 0)
        assert (code, len(site.got)) == (0, 4), stderr
        ends = ends_of_blocks(entries_of(tmp_path / "a"))
        site.got.clear()
        (tmp_path / "k").mkdir()
        # each attempt has its answers by then
        start(tmp_path / "k", server, one, ends[5])
        code, stdout, stderr = resume(tmp_path / "k", server)
    had = [
        entry["outcome"]["content"] for entry in entries_of(tmp_path / "k") if entry.get("end") == "request"
    ]
    assert (code, len(site.got)) == (0, 4), stderr
    assert {b64decode(one) for one in had} == {b"1", b"2", b"3", b"4"}
    assert stdout in {f"{[str(one), str(other)]}\n" for one in range(1, 5) for other in range(one, 5)}
    assert replay(tmp_path / "k")[0] == 0
    assert len(site.got) == 4
