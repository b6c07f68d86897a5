"""The recipes for traces send a run to the path, and with the headers, that each backend asks for."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from documents import PAGES, blocks_of
from support.command_line import codeact_team
from support.otlp_receiver import receiving
from support.variations import mostly_long

RECIPES = {
    block.file: block.text
    for block in blocks_of(PAGES["guides/budgets"])
    if "OTEL_EXPORTER_OTLP_HEADERS" in block.text and block.file is not None
}
KEYS = {"LANGFUSE_PUBLIC_KEY": "pk-lf-1", "LANGFUSE_SECRET_KEY": "sk-lf-2", "LOGFIRE_TOKEN": "pylf_v1_us_3"}

ASKED = {
    "phoenix.sh": ("http://localhost:6006", "/v1/traces", {"x-project-name": "bakery"}),
    "langfuse.sh": (
        "https://cloud.langfuse.com",
        "/api/public/otel/v1/traces",
        {"authorization": "Basic cGstbGYtMTpzay1sZi0y", "x-langfuse-ingestion-version": "4"},
    ),
    "logfire.sh": ("https://logfire-us.pydantic.dev", "/v1/traces", {"authorization": "pylf_v1_us_3"}),
}
"""By the documents of each: its address, the path there, and headers."""


def test_each_recipe_is_tried() -> None:
    assert RECIPES.keys() == ASKED.keys()


@pytest.mark.parametrize("recipe", mostly_long(ASKED))
def test_a_recipe_sends_a_run_where_its_backend_takes_it(tmp_path: Path, recipe: str) -> None:
    address, path, headers = ASKED[recipe]
    text = RECIPES[recipe]
    with receiving() as receiver:
        (tmp_path / recipe).write_text(text.replace(address, receiver.endpoint))
        set_by = subprocess.run(
            ["bash", "-c", f"source ./{recipe} && env"],
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", **KEYS},
            capture_output=True,
            text=True,
            check=True,
        )
        variables = dict(re.findall(r"^((?:OTEL|AUTOGEN)_\w+)=(.*)$", set_by.stdout, re.MULTILINE))
        result = codeact_team("run", "quickstart", "-q", cwd=tmp_path, **variables)
    assert result.stderr == ""
    assert address in text
    assert {*receiver.paths} == {path}
    for sent in receiver.headers:
        assert headers.items() <= {name.lower(): value for name, value in sent.items()}.items()
    names = {span.name for span in receiver.spans}
    assert {"invoke_workflow quickstart", "invoke_agent coder", "execute_tool execute_code"} <= names
    assert not any(name.startswith("autogen ") for name in names), "AutoGen's runtime is left out"
    assert b"tools.orders(" in receiver.body, "contents are not"
