"""The commands ``init`` and ``schema``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from codeact_team.cli.run import whole_file
from codeact_team.cli.screen import Screen
from codeact_team.config.schema import config_reference, config_schema
from codeact_team.core.providers import did_you_mean
from codeact_team.core.shipped import shipped_configs
from codeact_team.errors import SettingError


def write_schema(screen: Screen, file: Path | None) -> None:
    """Print the JSON Schema of configs, or write it to ``file``; a Markdown file gets a page for people instead."""
    if file is not None and file.suffix == ".md":
        _write(file, "the page", config_reference())
        screen.text(f"wrote {file}")
        return
    text = json.dumps(config_schema(), indent=2) + "\n"
    if file is None:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    _write(file, "the schema", text)
    screen.text(
        f"wrote {file}; a YAML file names it by `# yaml-language-server: $schema={file}` on its first line"
    )


def write_starter(screen: Screen, file: Path, template: str, *, force: bool) -> None:
    """Write the shipped config ``template`` to ``file``, over one that is there only if forced to."""
    shipped = shipped_configs()
    if template not in shipped:
        near = did_you_mean(template, shipped) or f"; there are {', '.join(shipped)}"
        raise SettingError(f"there is no template {template!r}{near}")
    if file.exists() and not force:
        raise SettingError(f"{file} exists already; --force overwrites it")
    _write(file, "the config", shipped[template].read_text(encoding="utf-8"), replace=force)
    screen.text(f'wrote {file}; next: codeact-team validate {file}, and codeact-team run {file} "a task"')


def _write(file: Path, what: str, text: str, *, replace: bool = True) -> None:
    with whole_file(file, what, replace=replace) as whole:
        whole.write(text.encode())
