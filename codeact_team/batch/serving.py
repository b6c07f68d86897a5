"""Where the models of a batch are served, which may change between two starts: their answers do not depend on it."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256

from autogen_core.models import ChatCompletionClient

from codeact_team.config.document import at, dotted, read_document
from codeact_team.config.dumping import write_config
from codeact_team.config.loading import CheckedConfig
from codeact_team.config.models import SERVER_FIELDS
from codeact_team.config.yaml12 import Path

_SERVING = (*SERVER_FIELDS, "api_key", "azure_ad_token", "organization", "timeout")


def digest_of(config: CheckedConfig) -> str:
    """A digest of all in a config that determines what its models answer and its agents do."""
    data = copy.deepcopy(config.document.data)
    for path in _clients(config):
        settings = at(data, path)
        for name in _SERVING:
            settings.pop(name, None)
    return digest_of_text(write_config(replace(config.document, data=data)))


def digest_of_text(written: str) -> str:
    """A digest of the text of a config."""
    return sha256(written.encode(errors="backslashreplace")).hexdigest()[:32]


def changes_of_servers(config: CheckedConfig, recorded: str) -> list[str]:
    """The overrides by which the ``recorded`` text of a config gets the servers and keys of this config."""
    before, now = read_document(recorded).data, read_document(config.written).data
    changes: list[str] = []
    for path in _clients(config):
        was, wanted = at(before, path), at(now, path)
        for name in _SERVING:
            if was.get(name) != wanted.get(name):
                # JSON is YAML, and a reference in a text stays one
                changes.append(f"{dotted((*path, name))}={json.dumps(wanted.get(name))}")
    return changes


def _clients(config: CheckedConfig) -> Iterator[Path]:
    """The paths of the settings of all model clients."""
    for part in config.parts:
        if issubclass(part.component, ChatCompletionClient):
            yield (*part.path, "config")
