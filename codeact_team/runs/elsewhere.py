"""Lets a config run without a trace: in directories of its own, and without the keys of models that nobody asks."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from autogen_core.code_executor import CodeExecutor
from autogen_core.models import ChatCompletionClient

from codeact_team.config.document import at
from codeact_team.config.loading import CheckedConfig
from codeact_team.config.model_access import NO_KEY, missing_key
from codeact_team.config.validation import check_components

_DIRECTORIES = ("work_dir", "bind_dir")
"""What the executors of AutoGen and of ours call a directory of this machine that their code works in."""


class Placeholders(Mapping[str, str]):
    """An environment in which every variable is set: what is missing has a value that stands for a key.

    Args:
        environ: What is there.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def __getitem__(self, name: str) -> str:
        return self._environ.get(name, NO_KEY)

    def __iter__(self) -> Iterator[str]:
        return iter(self._environ)

    def __len__(self) -> int:
        return len(self._environ)


def elsewhere(
    config: CheckedConfig, directory: Path, *, was_in: Path, asks_models: bool
) -> tuple[CheckedConfig, Mapping[str, str]]:
    """A config whose code works in new directories, which begin empty. Blocks.

    Args:
        config: What it says itself.
        directory: What holds the new ones.
        was_in: From which its relative paths lead.
        asks_models: Whether its model clients need the keys that they lack.

    Returns:
        The config, and the new directories and those that they stand for, each with the path of the latter from ``was_in``.
    """
    data = copy.deepcopy(config.document.data)
    names: dict[str, str] = {}
    for part in config.parts:
        settings: dict[str, Any] = at(data, (*part.path, "config"))
        if issubclass(part.component, CodeExecutor):
            # the files are those of the start of the run
            settings.pop("data", None)
            for setting in _DIRECTORIES:
                if (given := part.config.get(setting)) is not None:
                    settings[setting] = _new_one(was_in / str(given), directory, was_in, names)
        elif issubclass(part.component, ChatCompletionClient) and not asks_models:
            if missing_key(part.component, part.config, os.environ) is not None:
                settings["api_key"] = NO_KEY
    document = replace(config.document, data=data)
    return CheckedConfig(document, check_components(document, config.policy), config.policy), names


def _new_one(known: Path, directory: Path, was_in: Path, names: dict[str, str]) -> str:
    name = os.path.relpath(known, was_in)
    new = directory / f"workspace-{list(dict.fromkeys([*names.values(), name])).index(name)}"
    new.mkdir(exist_ok=True)
    names[str(known)] = names[str(new)] = name
    return str(new)
