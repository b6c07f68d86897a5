"""What code asks of the network, as the command tells of it: while it runs, at the end, and of the record."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from support.command_line import in_this_process, lines
from support.egress import LOOPBACK, name_loopback

ASK = """
import urllib.error, urllib.request
for url in {urls}:
    try:
        print(urllib.request.urlopen(url).read().decode())
    except urllib.error.HTTPError as error:
        print(error.code)
"""


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"x" * 1500
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def served() -> Generator[int]:
    """A server in a thread of its own, as the command takes this one; the value is its port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def run(urls: list[str], egress: object, *arguments: str, **settings: object) -> Any:
    """Run code that asks for these, as the task of an executor."""
    executor = {
        "provider": "codeact_team.ConfinedCommandLineCodeExecutor",
        "config": {"confinement": "best_effort", "egress": egress, **settings},
    }
    task = f"```python\n{ASK.format(urls=urls)}\n```"
    return in_this_process(
        "run", "executor", task, "-s", f"config.code_executor={json.dumps(executor)}", *arguments
    )


def allowing(port: int, **more: object) -> dict[str, object]:
    return {"host": "a.test", "ports": [port], "networks": LOOPBACK, "decision": "allow", **more}


def test_requests_and_denials_are_told_as_they_happen_and_of_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name_loopback(monkeypatch)
    with served() as port:
        urls = [
            f"http://a.test:{port}/x?key=1",
            "http://b.test/",
            f"http://b.test:{port}/",
            "http://b.test/y",
        ]
        result = run(urls, [allowing(port, methods=["GET"])])
    assert result.returncode == 0, result.stderr
    asked = f"GET http://a.test:{port}/x?key=1 · 200 · 1.5 kB received · 0."
    denied = ["b.test:80 is denied: no rule allows b.test at port 80", f"b.test:{port} is denied: no rule"]
    assert f"⇄ {asked}" in result.stdout
    for told in denied:
        assert result.stdout.count(f"✗ {told}") == 1
        assert f"\n[{told}" in result.stdout
    assert result.stderr.endswith(
        "in `egress` of the config or by --egress HOST:\n"
        f"  - b.test\n  - {{host: b.test, ports: [{port}], decision: allow}}\n"
    )
    shown = in_this_process("show", "last")
    assert f"⇄ {asked}" in shown.stdout
    assert all(shown.stdout.count(f"✗ {told}") == 1 for told in denied)
    events = lines(in_this_process("show", "last", "--json").stdout)
    [block] = [event for event in events if event["type"] == "block_began"]
    [ended] = [event for event in events if event["type"] == "request_ended"]
    assert (ended["parent"], ended["method"], ended["status"], ended["received"]) == (
        block["span"],
        "GET",
        200,
        1500,
    )
    assert [event["entry"] for event in events if event["type"] == "request_denied"] == [
        "b.test",
        f"{{host: b.test, ports: [{port}], decision: allow}}",
    ]
    for file, words in {
        "run.md": [f"- `{asked}"],
        "run.ipynb": [f"- `{asked}"],
        "run.html": [f"<code>GET http://a.test:{port}/x?key=1</code> · 200 · 1.5 kB received", denied[0]],
    }.items():
        exported = in_this_process("export", "last", file)
        assert exported.returncode == 0, exported.stderr
        text = Path(file).read_text()
        assert all(word in text for word in words), text


@pytest.mark.long
def test_a_log_for_inspect_has_the_requests_and_the_denials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name_loopback(monkeypatch)
    with served() as port:
        result = run([f"http://a.test:{port}/x", "http://b.test/"], [allowing(port, methods=["GET"])])
    assert result.returncode == 0, result.stderr
    exported = in_this_process("export", "last", "run.json")
    assert exported.returncode == 0, exported.stderr
    text = Path("run.json").read_text()
    assert '"send_request"' in text
    assert '"request_denied"' in text


def test_a_dry_run_denies_all_and_lists_what_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = name_loopback(monkeypatch)
    result = run([f"http://{name}.test/" for name in "abc"], "report", "-q")
    assert result.returncode == 0, result.stderr
    assert "the code asked for hosts that no rule is for." in result.stderr
    assert result.stderr.endswith("  - a.test\n  - b.test\n  - c.test\n")
    assert asked == []


def test_a_budget_of_requests_refuses_what_is_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name_loopback(monkeypatch)
    with served() as port:
        executor = {
            "provider": "codeact_team.ConfinedCommandLineCodeExecutor",
            "config": {"confinement": "best_effort", "egress": [allowing(port, methods=["GET"])]},
        }
        member = {
            "provider": "codeact_team.CodeExecutorAgent",
            "config": {"name": "runner", "code_executor": executor},
        }
        budget = {"provider": "codeact_team.BudgetTermination", "config": {"max_requests": 1}}
        team = {
            "provider": "autogen_agentchat.teams.RoundRobinGroupChat",
            "config": {"participants": [member], "termination_condition": budget, "max_turns": 1},
        }
        Path("team.json").write_text(json.dumps(team))
        task = f"```python\n{ASK.format(urls=[f'http://a.test:{port}/'] * 2)}\n```"
        result = in_this_process("run", "team.json", task, "--json")
    events = lines(result.stdout)
    assert [event["status"] for event in events if event["type"] == "request_ended"] == [200, None]
    spent = [event for event in events if event["type"] == "budget_spent"][-1]
    assert (spent["spent"]["requests"], spent["spent"]["bytes"], spent["left"]["requests"]) == (1, 1500, 0)
    assert spent["used_up"].startswith("the budget is used up: 1 of 1 requests; a higher max_requests of ")
