"""Rules on what code may reach, and its keys, in configs and as options."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from autogen_core.code_executor import CodeExecutor
from typer.testing import CliRunner

from codeact_team.cli.options import changes_of, egress_of
from codeact_team.config import yaml12
from codeact_team.config.dumping import dump_config
from codeact_team.config.loading import load_config, read_config, validate_config
from codeact_team.config.open import with_items
from codeact_team.config.overrides import ForEvery
from codeact_team.config.schema import config_schema
from codeact_team.errors import ConfigError, SettingError
from codeact_team.executors.confined import ConfinedSessionCodeExecutor

Write = Callable[..., Path]

ALONE = """\
provider: codeact_team.ConfinedSessionCodeExecutor
config:
  egress:
    - pypi.org
    - host: api.github.com
      methods: [GET]
      paths: ["/repos/*"]
      decision: allow
  credentials:
    - {name: GITHUB_TOKEN, hosts: [api.github.com]}
"""
RULE = "config.egress.1"


@pytest.fixture(autouse=True)
def nothing_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(host: Any, *_: Any, **__: Any) -> Any:
        raise AssertionError(f"{host} is looked up")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


def egress(*hosts: str) -> list[str | ForEvery]:
    return changes_of(None, egress=[*hosts])


def refused(source: Path, *overrides: str | ForEvery) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        validate_config(source, overrides=overrides)
    return [str(problem) for problem in caught.value.problems or [caught.value]]


def dumped(source: Path, overrides: Sequence[str | ForEvery]) -> Any:
    return yaml12.parse(dump_config(load_config(source, overrides=overrides)))[0]["config"]


def hosts(source: Path, *overrides: str | ForEvery) -> Any:
    rules = dumped(source, overrides)["egress"]
    return rules if isinstance(rules, str) else [rule["host"] for rule in rules]


def test_a_mistake_in_a_rule_is_told_by_its_line_and_path(write: Write) -> None:
    source = write(ALONE.replace("/repos/*", "/repos/../x").replace("name: GITHUB_TOKEN", "name: 1X"))
    path, name = refused(source)
    assert path.startswith(f"{source}:7: config.egress.1.paths: no request fits '/repos/../x': ")
    assert name.startswith(f"{source}:10: config.credentials.0.name: '1X' is no name of a variable")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("{a: 1}", "expected a list or 'report', got a mapping"),
        ("pypi.org", "write a list, such as [pypi.org], or report to have all that is asked for listed"),
    ],
)
def test_what_is_no_list_of_rules_is_told(write: Write, value: str, said: str) -> None:
    assert refused(write(ALONE), f"config.egress={value}") == [f"-s config.egress: {said}"]


def test_what_is_dumped_is_the_same_when_it_is_loaded_and_dumped_again(write: Write) -> None:
    once = dump_config(load_config(write(ALONE)))
    assert dump_config(load_config(write(once, "again.yaml"))) == once
    assert yaml12.parse(once)[0]["config"]["egress"][0]["host"] == "pypi.org"
    reported = dump_config(ConfinedSessionCodeExecutor(egress="report"))
    assert dump_config(load_config(write(reported, "report.yaml"))) == reported


def test_the_schema_of_an_editor_knows_rules_and_their_short_form() -> None:
    schema = str(config_schema())
    assert "whose addresses the host may have" in schema
    assert "goes over TLS only" in schema


def test_hosts_of_the_command_line_stand_before_the_rules_of_a_config(write: Write) -> None:
    source = write(ALONE)
    assert hosts(source, *egress("a.org", "*.b.org")) == ["a.org", "*.b.org", "pypi.org", "api.github.com"]
    assert hosts(source, "config.credentials=[]", "config.egress=[c.org]", *egress("a.org")) == [
        "a.org",
        "c.org",
    ]
    only_none = ("config.credentials=[]", "config.egress=report")
    assert hosts(source, *only_none, *egress("a.org")) == ["a.org"]
    assert hosts(source, "config.credentials=[]", *egress("report")) == "report"


def test_mistakes_behind_hosts_of_the_command_line_keep_their_places(write: Write) -> None:
    source = write(ALONE.replace("pypi.org", "pypi..org"))
    added = ForEvery(CodeExecutor, "egress", ["x y"], "--egress", adds=True, is_first=True)
    said = refused(source, f"{RULE}.ports=[0]", added, *egress("a.org"))
    assert [text.partition(": ")[0] for text in said] == ["--egress", f"-s {RULE}.ports", f"{source}:4"]


def test_report_stands_alone() -> None:
    with pytest.raises(SettingError, match="--egress report lets the code reach no host"):
        egress_of(["report", "pypi.org"])


def test_a_chat_that_goes_on_gets_hosts_before_the_rules_that_it_has(write: Write) -> None:
    config, changes = with_items(read_config(write(ALONE)), "egress", ["a.org", "pypi.org"], is_first=True)
    assert [change.partition("=")[0] for change in changes] == ["config.egress"]
    [part] = config.parts
    assert [each if isinstance(each, str) else each["host"] for each in part.config["egress"]] == [
        "a.org",
        "pypi.org",
        "api.github.com",
    ]


def test_the_three_commands_take_hosts() -> None:
    from codeact_team.cli.app import app

    for command in ("run", "chat", "batch"):
        assert "--egress" in CliRunner().invoke(app, [command, "--help"]).stdout
