"""What the tests of batches share: a config that is quick, its scripted model, and what a batch has left."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.openai_server import AnyReply, Text

from codeact_team.core.effects import Event

MODEL_INFO = {
    "vision": False,
    "function_calling": False,
    "json_output": True,
    "structured_output": False,
    "family": "unknown",
}


def coder(base_url: str, **settings: Any) -> dict[str, Any]:
    """A config for an agent whose code runs confined, in a session that starts quickly."""
    client = {
        "model": "scripted-model",
        "base_url": base_url,
        "api_key": "none",
        "max_retries": 2,
        "model_info": MODEL_INFO,
    }
    executor: dict[str, Any] = {"confinement": "best_effort", "packages": [], "work_dir": "shared"}
    return {
        "provider": "codeact_team.CodeActAgent",
        "config": {
            "name": "coder",
            "model_client": {
                "provider": "autogen_ext.models.openai.OpenAIChatCompletionClient",
                "config": client,
            },
            "code_executor": {
                "provider": "codeact_team.ConfinedSessionCodeExecutor",
                "config": executor,
            },
            **settings,
        },
    }


def said(body: Any) -> list[str]:
    """What was said in a conversation that a model is asked to go on with."""
    return [str(message["content"]) for message in body["messages"]]


def task_of(body: Any) -> str:
    """The task of that conversation."""
    return next(str(message["content"]) for message in body["messages"] if message["role"] == "user")


def doubling(body: Any) -> AnyReply:
    """A model that has the number of its task doubled by code, and answers with what that has printed."""
    number = task_of(body).split()[1]
    if len(body["messages"]) < 4:
        code = f"open('made.txt', 'w').write('{number}')\nprint('twice:', 2 * {number})"
        return Text(f"```python\n{code}\n```")
    return Text(said(body)[-1].split("twice:")[1].split()[0])


def at_once(body: Any) -> AnyReply:
    """A model that answers the same without any code, for what does not depend on it: a sandbox costs most of a run."""
    return Text(str(2 * int(task_of(body).split()[1].rstrip("."))))


def numbers(count: int) -> list[dict[str, Any]]:
    """Tasks for these models."""
    return [{"id": f"n{n}", "text": f"Double {n} please.", "expected": 2 * n} for n in range(1, count + 1)]


def results(out: Path) -> list[dict[str, Any]]:
    """What is in the results of a batch."""
    return [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]


def of_type(events: list[Event], name: str) -> list[Any]:
    return [event for event in events if event.type == name]


Replying = Callable[[Any], AnyReply]
