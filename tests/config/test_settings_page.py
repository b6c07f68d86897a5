"""What the JSON Schema and the page for people say of settings."""

from __future__ import annotations

import functools
import re
from typing import Any

from markdown_it import MarkdownIt
from pydantic import BaseModel, Field

from codeact_team.agents.agent_config import ToolLimits
from codeact_team.agents.code_executor import CodeExecutorAgent
from codeact_team.agents.codeact.agent import CodeActAgent
from codeact_team.config.schema import config_reference, config_schema
from codeact_team.core.settings import field_docs
from codeact_team.executors.docker import DockerSessionCodeExecutor

schema = functools.cache(config_schema)


def test_every_setting_of_ours_is_described_in_the_schema() -> None:
    for provider, path in providers_and_configs():
        if provider.startswith("codeact_team."):
            properties = definition(path)["properties"]
            assert [name for name, field in properties.items() if not field.get("description")] == [], (
                provider
            )
    limits = definition("#/$defs/ToolLimits")["properties"]
    assert limits["max_calls"]["description"] == "The most calls in one run of the agent."


def providers_and_configs() -> list[tuple[str, str]]:
    return [
        (rule["if"]["properties"]["provider"]["enum"][0], rule["then"]["properties"]["config"]["$ref"])
        for rule in schema()["$defs"]["Component"]["allOf"]
    ]


def definition(path: str) -> dict[str, Any]:
    return schema()["$defs"][path.rpartition("/")[2]]


class Base(BaseModel):
    kept: int = 1
    """Said
    once."""
    changed: int = Field(1, ge=0)
    """Said by the base."""
    silent: int = 1


class Derived(Base):
    changed: int = 2
    """Said by the subclass."""


def test_a_subclass_describes_anew_what_it_inherits() -> None:
    assert field_docs(Derived) == {"kept": "Said once.", "changed": "Said by the subclass."}


def test_the_page_for_people_has_every_setting_with_its_kind_its_default_and_what_it_is() -> None:
    page = config_reference()
    for component in (CodeActAgent, CodeExecutorAgent, DockerSessionCodeExecutor):
        section = page.partition(f"## {component.component_provider_override}\n")[2].partition("\n## ")[0]
        for name in component.component_config_schema.model_fields:
            assert f"\n| `{name}` |" in section
    assert "| `max_steps` | whole number ≥ 1 | `20` | The most replies of the model" in page
    assert "| `name` | text | required | Name of the agent" in page
    assert '| `pull` | `missing` or `always` or `never` | `"missing"` |' in page
    assert "component (ChatCompletionClient)" in page
    # what is a mapping of its own has its own section, and each link leads to one
    headings = {line.removeprefix("## ").lower() for line in page.splitlines() if line.startswith("## ")}
    links = set(re.findall(r"\(#([^)]*)\)", page))
    assert ToolLimits.__name__.lower() in links
    assert links <= headings
    tables = [token for token in MarkdownIt().enable("table").parse(page) if token.type == "table_open"]
    assert len(tables) == len(headings)
