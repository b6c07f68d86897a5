"""Runs as notebooks: what is in their cells, and that Jupyter opens and runs them."""

from __future__ import annotations

import base64
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from autogen_agentchat.messages import CodeGenerationEvent, TextMessage
from autogen_core.code_executor import CodeBlock
from support.command_line import codeact_team, in_this_process
from support.recorded import recorder, result

from codeact_team.core.effects import Event
from codeact_team.core.events import BlockBegan, BlockEnded, Code, MessageSent, RunBegan
from codeact_team.core.execution import Artifact, ArtifactReference, Outcome
from codeact_team.journal.result import RunEnding

PNG = b"\x89PNG\r\n\x1a\n\x00"
TABLE = Artifact("text/html", b"<table><td>1</td></table>", None, {"text/plain": b"   a\n0  1"})
FIGURE = Artifact("image/png", PNG, None, {"text/plain": b"<Figure>"})
DATA = Artifact("application/json", b'{"a": 1}')
FAILED = 'Traceback (most recent call last):\n  File "<block 1>", line 1, in <module>\nValueError: no\nsuch: place\n'


def said(text: str, code: str) -> Event:
    blocks = [CodeBlock(code=code, language="python")]
    message = CodeGenerationEvent(source="coder", content=text, code_blocks=blocks, retry_attempt=0)
    return MessageSent(message=message)


def ran(span: int, code: str, language: str = "python", **end: Any) -> Iterator[Event]:
    settings: dict[str, Any] = {"exit_code": 0, "outcome": Outcome.COMPLETED, **end}
    yield BlockBegan(span=span, agent="coder", blocks=[Code(language, code)])
    yield BlockEnded(span=span, agent="coder", **settings)


def exported(folder: Path, *events: Event, shown: list[Artifact] | None = None) -> dict[str, Any]:
    """The notebook of a run with these events."""
    writer = recorder(folder / "runs", "1", *events)
    for artifact in shown or []:
        for data in artifact.forms.values():
            writer.blobs.keep(data)
    writer.close()
    told = in_this_process("export", "1", str(folder / "1.ipynb"), "--run-dir", str(folder / "runs"))
    assert (told.returncode, told.stdout) == (0, f"{folder}/1.ipynb\n"), told.stderr
    return json.loads((folder / "1.ipynb").read_text())


def test_a_notebook_has_what_was_said_and_run_in_order_and_each_thing_once(tmp_path: Path):
    notebook = exported(
        tmp_path,
        RunBegan(span=1, task="Sum\nit."),
        said("I sum.\n```python\nsum([1])\n```\nSo.", "sum([1])"),
        *ran(2, "sum([1])\n", output="1\n"),
        *ran(3, "echo 2", "sh", output="2\n"),
        *ran(4, "drop()", outcome=Outcome.DENIED, exit_code=1, output="A person said no."),
        MessageSent(message=TextMessage(source="coder", content="It is 1.")),
        result(RunEnding.ANSWERED, answer="It is 1."),
    )
    _, *cells = notebook["cells"]
    assert [(cell["cell_type"], cell["source"]) for cell in cells] == [
        ("markdown", "> Sum\n> it."),
        ("markdown", "I sum.\n\nSo."),
        ("code", "sum([1])"),
        ("code", "%%sh\necho 2"),
        ("markdown", "```python\ndrop()\n```\n\n*A person said no.*"),
        ("markdown", "It is 1."),
    ]
    assert cells[2]["outputs"] == [{"output_type": "stream", "name": "stdout", "text": "1\n"}]
    assert [cell["execution_count"] for cell in cells[2:4]] == [1, 2]


def test_figures_and_tables_are_where_they_were_printed_in_all_their_forms(tmp_path: Path):
    shown = [FIGURE, TABLE, DATA]
    output = "before\n   a\n0  1\nbehind\n"
    references = [ArtifactReference.of(artifact) for artifact in shown]
    block = ran(2, "show()", output=output, artifacts=references)
    notebook = exported(tmp_path, RunBegan(span=1, task="Show."), *block, shown=shown)
    (cell,) = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [each.get("text") or each["data"] for each in cell["outputs"]] == [
        "before\n",
        {"image/png": base64.b64encode(PNG).decode(), "text/plain": "<Figure>"},
        {"text/html": "<table><td>1</td></table>", "text/plain": "   a\n0  1"},
        "behind\n",
        {"application/json": {"a": 1}},
    ]


def test_an_error_is_one_and_does_not_keep_the_cells_behind_it_from_running(tmp_path: Path):
    block = ran(2, "look()", exit_code=1, output=f"looking\n{FAILED}")
    late = ran(3, "wait()", exit_code=124, outcome=Outcome.TIMED_OUT, limit="timeout: 30")
    notebook = exported(tmp_path, RunBegan(span=1, task="Look."), *block, *late)
    failed, stopped = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert failed["metadata"] == stopped["metadata"] == {"tags": ["raises-exception"]}
    text, error = failed["outputs"]
    assert text["text"] == "looking\n"
    assert (error["ename"], error["evalue"]) == ("ValueError", "no\nsuch: place")
    assert stopped["outputs"] == [{"output_type": "stream", "name": "stderr", "text": "timeout: 30\n"}]


def test_half_a_surrogate_and_an_end_that_is_missing_are_no_obstacle(tmp_path: Path):
    begun = BlockBegan(span=2, agent="coder", blocks=[Code("python", "'\udc80'")])
    notebook = exported(tmp_path, RunBegan(span=1, task="Look."), begun)
    assert notebook["cells"][-1]["source"] == "'\udc80'"
    assert notebook["cells"][-1]["outputs"] == []


def test_work_that_does_not_count_says_so(tmp_path: Path):
    ended = result(RunEnding.NOT_ACCEPTED, answer="Perhaps 7.", objection="the last code failed")
    notebook = exported(tmp_path, RunBegan(span=1, task="Look."), ended)
    assert notebook["cells"][-1]["source"] == "Perhaps 7.\n\n*not accepted · the last code failed*"


ANALYST = """
provider: codeact_team.CodeActAgent
config:
  name: analyst
  code_executor:
    provider: codeact_team.ConfinedSessionCodeExecutor
    config: {confinement: best_effort, data: [sales.csv]}
  tools: ["codeact_team.quickstart:orders"]
  model_client:
    provider: autogen_ext.models.replay.ReplayChatCompletionClient
    config:
      chat_completions:
        - "```python\\nimport pandas as pd\\nsales = pd.read_csv('sales.csv')\\nsales\\n```"
        - "```python\\nsales.plot.bar(x='region');\\nsales.missing\\n```"
        - "```python\\nprint(sales.amount.sum() + len(tools.orders(month='August')))\\n```"
        - "```bash\\nwc -l < sales.csv\\n```"
        - "```python\\nfinal_answer(f'It is {sales.amount.sum()}.')\\n```"
"""


@pytest.mark.long
def test_a_kernel_of_jupyter_runs_the_notebook_of_a_run_again(tmp_path: Path):
    nbformat: Any = importlib.import_module("nbformat")
    nbclient: Any = importlib.import_module("nbclient")
    (tmp_path / "agent.yaml").write_text(ANALYST)
    (tmp_path / "sales.csv").write_text("region,amount\nNorth,120\nSouth,80\n")
    ran = codeact_team("run", "agent.yaml", "What was sold?", cwd=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    told = codeact_team("export", "last", "report.ipynb", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    notebook = nbformat.read(tmp_path / "report.ipynb", 4)
    nbformat.validate(notebook)
    assert "`sales.csv`" in notebook.cells[0].source
    then = outputs_of(notebook)
    nbclient.NotebookClient(
        notebook, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    again = outputs_of(notebook)
    assert again == then
    assert [kinds for kinds, _ in then] == [
        set(),
        {"text/html"},
        {"image/png", "AttributeError"},
        set(),
        set(),
        set(),
    ]
    assert [text for _, text in then] == ["", "", "", "204\n", "3\n", ""]


def outputs_of(notebook: Any) -> list[tuple[set[str], str]]:
    """Of each cell of code: the kinds of figures, tables and errors in its outputs, and what it has printed."""
    found: list[tuple[set[str], str]] = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            rich = {kind for each in cell.outputs for kind in each.get("data", ()) if kind != "text/plain"}
            errors = {each.ename for each in cell.outputs if each.output_type == "error"}
            found.append((rich | errors, "".join(each.get("text", "") for each in cell.outputs)))
    return found
