"""A run, told to a program: one JSON object per line."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage

from codeact_team.runs import Ending, RunResult

_SOURCE = "codeact-team"


class JsonLines:
    """An :class:`~codeact_team.runs.EventSink` that prints each event as AutoGen dumps it, and the result last."""

    def opened(self, loosenings: Sequence[str]) -> None:
        print_json({"type": "opened", "source": _SOURCE, "loosenings": list(loosenings)})

    def message(self, message: BaseAgentEvent | BaseChatMessage) -> None:
        print_json({"type": type(message).__name__, **message.model_dump(mode="json")})

    def ended(self, result: RunResult) -> None:
        print_json(
            {
                "type": "result",
                "source": _SOURCE,
                "accepted": result.ending is Ending.ACCEPTED,
                "ending": result.ending.value,
                "exit_code": result.exit_code,
                "usage": asdict(result.usage),
                "messages": result.messages,
                "seconds": round(result.seconds, 3),
                "stop_reason": result.stop_reason,
                "error": result.error,
                "tools": [{**asdict(tool), "seconds": round(tool.seconds, 3)} for tool in result.tools],
            }
        )


def print_json(value: Mapping[str, Any]) -> None:
    """Print ``value`` on a line of its own, at once, in ASCII: nothing in it can steer a terminal."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()
