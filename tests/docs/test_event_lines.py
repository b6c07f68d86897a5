"""The page of events says how the last lines of the command differ from their classes."""

from __future__ import annotations

import json
import re
from dataclasses import fields

import pytest
from autogen_core.models import RequestUsage
from documents import PAGES

from codeact_team.batch.results import BatchResult
from codeact_team.cli.json_lines import JsonLines
from codeact_team.core.effects import Event
from codeact_team.journal.result import RunEnding, RunResult


def line_of(event: Event, capsys: pytest.CaptureFixture[str]) -> set[str]:
    JsonLines()(event)
    return set(json.loads(capsys.readouterr().out.splitlines()[-1]))


def test_the_last_lines_have_the_fields_that_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    said = (
        PAGES["reference/events"].read_text().partition("## Fields of the last line\n")[2].partition("```")[0]
    )
    has, lacks, of_batch = (
        said.partition("It lacks")[0],
        *said.partition("It lacks")[2].partition("The line")[::2],
    )
    run = RunResult(ending=RunEnding.ACCEPTED, usage=RequestUsage(1, 1), messages=1, seconds=1.0)
    line, known = line_of(run, capsys), {field.name for field in fields(run)}

    assert set(re.findall(r"`(\w+)`", has)) - {"result"} == line - known - {"type"}
    assert set(re.findall(r"`(\w+)`", lacks)) == known - line
    batch = BatchResult(directory="out", jobs=1, outcomes={}, pass_at={})
    line, known = line_of(batch, capsys), {field.name for field in fields(batch)}
    assert set(re.findall(r"`(\w+)`", of_batch)) - {"batch_result"} == line - known - {"type"}
    assert known <= line
