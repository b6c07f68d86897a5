"""The events of a run or a batch for programs: one JSON object per line."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from pydantic import JsonValue

from codeact_team.agents.observations import RESULT_KEY
from codeact_team.batch.results import BatchResult
from codeact_team.core.effects import Event
from codeact_team.core.events import VERSION, ArtifactReference, MessageSent, dump
from codeact_team.core.execution import PICTURES_KEY, Artifact
from codeact_team.journal.result import RunEnding, RunResult
from codeact_team.text.redaction import without_secrets

_SOURCE = "codeact-team"
_PNG = b"\x89PNG"


class JsonLines:
    """A listener that prints the version of the lines, then each event as it comes, and the result last."""

    def __init__(self) -> None:
        self._begun = False

    def __call__(self, event: Event) -> None:
        """Print an event."""
        if not self._begun:
            self._begun = True
            print_json({"type": "format", "source": _SOURCE, "version": VERSION})
        print_json(_result(event) if isinstance(event, RunResult) else _line(event))


def print_json(value: Mapping[str, Any]) -> None:
    """Print ``value`` on a line of its own, at once, in ASCII: nothing in it can steer a terminal."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _line(event: Event) -> dict[str, Any]:
    line: dict[str, Any] = {**dump(event)}
    if isinstance(event, MessageSent):
        line["message"] = _without_bytes(line["message"])
    elif isinstance(event, BatchResult):
        line |= {"left": event.left, "exit_code": event.exit_code}
    elif isinstance(error := line.get("error"), str):
        # a server that refuses a key quotes it
        line["error"] = without_secrets(error)
    return line


def _result(result: RunResult) -> dict[str, Any]:
    return {
        "type": "result",
        "source": _SOURCE,
        "accepted": result.ending is RunEnding.ACCEPTED,
        "reviewed": result.reviewed,
        "ending": result.ending.value,
        "answer": result.answer,
        "exit_code": result.exit_code,
        "usage": asdict(result.usage),
        "is_estimated": result.is_estimated,
        "cost": None if result.cost is None else asdict(result.cost),
        "messages": result.messages,
        "steps": result.steps,
        "seconds": round(result.seconds, 3),
        "stop_reason": result.stop_reason,
        "objection": result.objection,
        "cause": None if result.cause is None else asdict(result.cause),
        "error": result.error,
        "files": [asdict(file) for file in result.files],
        "file_notes": list(result.file_notes),
        "tools": [{**asdict(tool), "seconds": round(tool.seconds, 3)} for tool in result.tools],
        "missing_hosts": list(result.missing_hosts),
    }


def _without_bytes(value: JsonValue) -> JsonValue:
    """A message with references in place of pictures, and without the code's result, which has events."""
    if isinstance(value, list):
        return [_without_bytes(item) for item in value]
    if not isinstance(value, dict):
        return value
    data = value.get("data")
    if len(value) == 1 and isinstance(data, str):
        with suppress(ValueError):
            if (picture := base64.b64decode(data, validate=True)).startswith(_PNG):
                return asdict(ArtifactReference.of(Artifact("image/png", picture)))
    return {key: _without_bytes(item) for key, item in value.items() if key not in (RESULT_KEY, PICTURES_KEY)}
