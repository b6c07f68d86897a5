"""The task of a run: what the user gives, or the one that a conversation was recorded for."""

from __future__ import annotations

from typing import Any, cast

from codeact_team.config.document import Document
from codeact_team.errors import SettingError


def given_task(config: Document, task: str | None) -> str:
    """The task to run a config with: what the user gives, or else its description, if its models replay a conversation.

    Any other description is for people only: AutoGen fills it with a class's docstring.

    Raises:
        SettingError: If there is no task.
    """
    if task is None:
        data = config.data
        if _is_recorded(data):
            task = str(data.get("description") or "")
    if task is None or not task.strip():
        raise SettingError(
            "there is no task: give it as the second argument, by --file FILE, or as `-` to read it from standard input"
        )
    return task.strip()


def _is_recorded(value: Any) -> bool:
    """Whether a model in this part of a document replays a recorded conversation."""
    if isinstance(value, dict):
        mapping = cast(dict[str, Any], value)
        provider = mapping.get("provider")
        if isinstance(provider, str) and provider.endswith(".ReplayChatCompletionClient"):
            return True
        return any(map(_is_recorded, mapping.values()))
    return isinstance(value, list) and any(map(_is_recorded, cast(list[Any], value)))
