"""The packages that a config asks for: there, or told to be missing, before a model is paid."""

from __future__ import annotations

from pathlib import Path

import pytest
from recording import Recording, runner
from support.openai_server import ScriptedServer, Text
from support.wheels import make_wheel, use_index

from codeact_team.core.events import ModelCallBegan, SandboxPreparing, SandboxStarted
from codeact_team.journal.result import RunEnding

ANSWER = Text("```python\nimport shapes\nfinal_answer(shapes.version)\n```")


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return use_index(tmp_path, monkeypatch)


@pytest.mark.long
async def test_packages_are_got_before_a_model_is_asked(index: Path, monkeypatch: pytest.MonkeyPatch):
    make_wheel(index, "shapes", "2.0")
    async with ScriptedServer([ANSWER]) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        recording = Recording()
        asked = ["config.code_executor.config.packages=[shapes]", "config.code_executor.config.work_dir=null"]
        result = await runner("codeact-confined", recording, overrides=asked).run_once("Which version?")
    assert (result.ending, result.error) == (RunEnding.ANSWERED, None)
    told = [type(event) for event in recording.events]
    assert told.index(SandboxPreparing) < told.index(ModelCallBegan)
    [started] = [event for event in recording.events if isinstance(event, SandboxStarted)]
    assert started.packages == {"shapes": "2.0"}


@pytest.mark.long
async def test_packages_that_cannot_be_had_cost_no_call_of_a_model(monkeypatch: pytest.MonkeyPatch):
    async with ScriptedServer([ANSWER]) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        asked = ["config.code_executor.config.packages=[shapes]"]
        result = await runner("codeact-confined", Recording(), overrides=asked).run_once("Which version?")
        assert server.requests == []
    assert (result.ending, result.exit_code, result.messages) == (RunEnding.FAILED, 2, 0)
    assert result.error is not None
    assert "the packages shapes cannot be installed for CPython" in result.error
