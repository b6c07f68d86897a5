"""What a journal does not write twice, and reads again as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from autogen_agentchat.messages import TextMessage
from autogen_ext.models.replay import ReplayChatCompletionClient
from support.codeact import py
from support.executing import why_not_confined

from codeact_team import CodeActAgent, ConfinedSessionCodeExecutor, open_team
from codeact_team.agents.observations import EXECUTION_KEY, ExecutionRecord
from codeact_team.core.events import BlockBegan, MessageSent
from codeact_team.runs.journal.recorded_run import RecordedRun
from codeact_team.runs.journal.run_directory import RunDirectory

FIRST = "squares = [number * number for number in range(100)]  # a list\nlen(squares)"
SECOND = "final_answer('the number of the squares is ' + str(len(squares)) + ' \\\\ \"é\"')"


async def test_a_line_of_code_is_in_two_entries_and_each_message_comes_back_whole(tmp_path: Path) -> None:
    if (reason := why_not_confined()) is not None:
        pytest.skip(reason)
    model = ReplayChatCompletionClient([py(FIRST), py(SECOND)])
    config = CodeActAgent("coder", model, ConfinedSessionCodeExecutor()).dump_component().model_dump()
    async with open_team(config, record=tmp_path / "run") as team:
        messages = (await team.run(task="Go.")).messages
    run = RecordedRun(RunDirectory(tmp_path / "run"))
    for line in FIRST.splitlines()[0], "the number of the squares is ' +":
        written = [entry for entry in run.directory.lines.read_text().splitlines() if line in entry]
        assert len(written) == 2
        assert not any(line.encode() in blob.read_bytes() for blob in run.directory.blobs.rglob("*/*"))
    events = list(run.events())
    assert [event.message for event in events if isinstance(event, MessageSent)][-1] == messages[-1]
    assert isinstance(messages[-1], TextMessage)
    record = ExecutionRecord.model_validate_json(messages[-1].metadata[EXECUTION_KEY])
    assert [block.code for block in [*record.superseded, *record.blocks]] == [f"{FIRST}\n", f"{SECOND}\n"]
    asked = [event.blocks for event in events if isinstance(event, BlockBegan)]
    assert [block.code for blocks in asked for block in blocks] == [f"{FIRST}\n", f"{SECOND}\n"]
