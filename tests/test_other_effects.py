"""An effect of a kind that screens, pages and journals know nothing of is shown, recorded and resumed like any other."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import JsonValue, TypeAdapter
from support.recorded import journal_of, recorder, result

from codeact_team.cli.conversation import Conversation
from codeact_team.cli.screen import Screen
from codeact_team.core.effects import (
    Dispatcher,
    Effect,
    Event,
    OtherEffectBegan,
    OtherEffectEnded,
    OtherEvent,
)
from codeact_team.core.events import dump
from codeact_team.errors import RecordedError
from codeact_team.exports.pages.page import write_page
from codeact_team.journal.history import History
from codeact_team.journal.journal import Journal
from codeact_team.journal.log import Log
from codeact_team.journal.recorded_run import RecordedRun
from codeact_team.journal.recorder import Recorder
from codeact_team.journal.resumption import Resumption


class Fetch(Effect[dict[str, Any]]):
    """Somebody's own effect."""

    kind = "test_fetch"
    form = TypeAdapter(dict[str, Any])

    def __init__(self, url: str) -> None:
        self.source = "coder"
        self._url = url

    def request(self) -> JsonValue:
        return {"url": self._url}


async def page_of(address: str) -> dict[str, Any]:
    if "gone" in address:
        raise ConnectionError("nobody is there")
    return {"status": 200, "body": "<b>rye</b>"}


async def fetch(dispatcher: Dispatcher, url: str) -> dict[str, Any]:
    return await dispatcher.perform(Fetch(url), lambda: page_of(url))


async def test_it_is_recorded_and_shown_by_what_it_asks_for_and_what_came_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = recorder(tmp_path, "one")
    seen: list[Event] = []
    with Dispatcher(journal_of(writer).intercept) as dispatcher:
        dispatcher.listen(writer, essential=True)
        dispatcher.listen(Conversation(Screen()), essential=True)
        dispatcher.listen(seen.append)
        await fetch(dispatcher, "http://shop/rye")
        with pytest.raises(ConnectionError):
            await fetch(dispatcher, "http://gone")
        dispatcher.emit(result())
    writer.close()
    printed = capsys.readouterr().out
    assert 'test_fetch {"url": "http://shop/rye"} · done · ' in printed
    assert 'test_fetch {"url": "http://gone"} · ConnectionError: nobody is there · ' in printed
    run = RecordedRun(writer.directory)
    told = [dump(event) for event in run.events() if isinstance(event, OtherEffectBegan | OtherEffectEnded)]
    assert told == [dump(event) for event in seen if isinstance(event, OtherEffectBegan | OtherEffectEnded)]
    assert told[1]["outcome"] == {"status": 200, "body": "<b>rye</b>"}
    page = io.StringIO()
    write_page(page.write, run.events(), lambda _: None, title="a run")
    assert "✓ test_fetch" in page.getvalue()
    assert "ConnectionError: nobody is there" in page.getvalue()
    assert "<b>rye" not in page.getvalue()


async def test_it_is_answered_when_the_run_is_resumed(tmp_path: Path) -> None:
    writer = recorder(tmp_path, "one")
    with Dispatcher(journal_of(writer).intercept) as dispatcher:
        dispatcher.listen(writer, essential=True)
        before = await fetch(dispatcher, "http://shop/rye")
        with pytest.raises(ConnectionError):
            await fetch(dispatcher, "http://gone")
        await fetch(dispatcher, "http://shop/oats")
    writer.close()
    writer, history = Recorder.reopen(writer.directory, {})
    journal = Journal(Resumption(history, writer, lambda: None), writer.requests)

    async def never() -> dict[str, Any]:
        raise AssertionError("it is known")

    with Dispatcher(journal.intercept) as dispatcher:
        dispatcher.listen(writer, essential=True)
        assert await dispatcher.perform(Fetch("http://shop/rye"), never) == before
        with pytest.raises(RecordedError, match="nobody is there"):
            await dispatcher.perform(Fetch("http://gone"), never)
    writer.close()
    # whole once more, for whoever resumes it again
    assert len([*RecordedRun(writer.directory).effects()]) == 5
    assert History(writer.directory).resumed("one").answered == {"test_fetch": 2}


async def test_what_a_later_version_has_written_is_kept_and_shown(tmp_path: Path) -> None:
    writer = recorder(tmp_path, "one")
    writer.close()
    log = Log(writer.directory.lines, chain=writer.directory.chain())
    kind: dict[str, JsonValue] = {
        "span": 1,
        "parent": None,
        "agent": "coder",
        "place": "",
        "key": "k",
        "new": 1,
    }
    log.append({"at": 1.0, "begin": "of_a_later_version", **kind, "request": {"look": "up"}})
    log.append({"at": 2.0, "end": "of_a_later_version", "span": 1, "outcome": "found", "new": 2})
    log.append({"at": 3.0, "type": "of_a_later_version", "parent": None, "words": "so be it"})
    log.close()
    at_begin, began, at_end, ended, other = RecordedRun(writer.directory).events()
    assert isinstance(at_begin, OtherEvent)
    assert isinstance(at_end, OtherEvent)
    assert (at_begin.data, at_end.data) == ({"new": 1}, {"new": 2})
    assert isinstance(began, OtherEffectBegan)
    assert isinstance(ended, OtherEffectEnded)
    assert isinstance(other, OtherEvent)
    assert (began.kind, began.request, ended.outcome) == ("of_a_later_version", {"look": "up"}, "found")
    assert (other.name, other.data["words"]) == ("of_a_later_version", "so be it")
    assert json.loads(json.dumps(dump(other)))["name"] == "of_a_later_version"
