"""What is said where code asks for what it may not reach."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from support.command_line import codeact_team, lines, talker
from support.executing import Kind
from support.variations import mostly_long

from codeact_team.core.effects import Dispatcher, Event
from codeact_team.core.network_events import RequestDenied

KINDS = mostly_long(["confined-session", "confined", "docker-session", "docker"])
ASKS = """
from urllib.error import HTTPError
from urllib.request import urlopen
try:
    urlopen("http://pypi.test/simple/six/")
except HTTPError as error:
    print(error.read().decode())
"""


@pytest.mark.parametrize("kind", KINDS, indirect=True)
async def test_a_dry_run_denies_all_and_says_what_would_allow_it(kind: Kind, tmp_path: Path) -> None:
    executor = kind.make(work_dir=tmp_path, egress="report")
    try:
        assert "There is no network, including DNS." in (await executor.describe()).to_text()
        assert not any("egress" in relaxation for relaxation in executor.relaxations)
        block = CodeBlock(code=ASKS, language="python")
        told: list[Event] = []
        with Dispatcher() as dispatcher:
            dispatcher.listen(told.append)
            result = await executor.execute_code_blocks([block, block], CancellationToken())
        assert {event.entry for event in told if isinstance(event, RequestDenied)} == {"pypi.test"}
        reason = "no rule allows pypi.test at port 80"
        # for the code each time, and once for whoever reads the result
        assert result.output.count(f"GET http://pypi.test/simple/six/ is not allowed: {reason}") == 2
        assert result.output.count(f"[pypi.test:80 is denied: {reason}]") == 1
        lookup = CodeBlock(
            code="import socket\nsocket.create_connection(('pypi.test', 80))", language="python"
        )
        result = await executor.execute_code_blocks([lookup], CancellationToken())
        assert "network (egress: what its rules allow; a name that none of them has in full" in (
            result.limit or ""
        )
        missing = CodeBlock(code="import sklearnish", language="python")
        result = await executor.execute_code_blocks([missing], CancellationToken())
        assert "The sandbox has no module 'sklearnish'. Use what is there." in result.output
    finally:
        await executor.stop()


def coder(folder: Path, code: str) -> str:
    """Write a config of an agent whose model writes this code, and then has done."""
    document = json.loads((folder / talker(folder, [f"```python\n{code}\n```", "Done."])).read_text())
    client = document["config"]["model_client"]
    executor = {
        "provider": "codeact_team.ConfinedSessionCodeExecutor",
        "config": {"confinement": "best_effort"},
    }
    config = {"name": "coder", "model_client": client, "code_executor": executor}
    (folder / "coder.json").write_text(
        json.dumps({"provider": "codeact_team.CodeActAgent", "config": config})
    )
    return "coder.json"


def test_a_command_ends_with_the_hosts_that_were_asked_for(tmp_path: Path) -> None:
    name = coder(tmp_path, ASKS)
    result = codeact_team("run", name, "Look.", "--egress", "report", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stderr.rstrip().endswith("in `egress` of the config or by --egress HOST:\n  - pypi.test")
    result = codeact_team("run", name, "Look.", "--egress", "a.test", "--json", cwd=tmp_path)
    assert lines(result.stdout)[-1]["missing_hosts"] == ["pypi.test"]
