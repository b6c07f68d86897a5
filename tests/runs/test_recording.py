"""How a run is recorded, seen from the loop that it runs in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.cost import SHORT, longest_turn
from support.recorded import result

from codeact_team.config.loading import read_config
from codeact_team.core.effects import Numbers
from codeact_team.core.events import Opened
from codeact_team.journal.log import read_log
from codeact_team.journal.run_directory import RunDirectory
from codeact_team.runs.recording import Recording, RunConfig

CONFIG: dict[str, Any] = {
    "provider": "codeact_team.CodeActAgent",
    "config": {
        "name": "coder",
        "model_client": {
            "provider": "autogen_ext.models.replay.ReplayChatCompletionClient",
            "config": {"chat_completions": ["Done."]},
        },
        "code_executor": {"provider": "codeact_team.ConfinedSessionCodeExecutor", "config": {}},
    },
}


@pytest.mark.long
async def test_the_loop_goes_on_while_the_last_entries_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIVE_API_KEY", "s3cr3t-k")
    directory = RunDirectory(tmp_path / "run")
    recording = Recording(directory)
    recording.begin(RunConfig.of(read_config(CONFIG)), "Go.", [], Opened(), lambda _: None, Numbers())
    recording(result(answer="s3cr3t-k" * (1 << 19)))
    assert await longest_turn(recording.end()) < SHORT / 4
    assert [entry["type"] for entry in read_log(directory.lines)] == ["opened", "result"]
