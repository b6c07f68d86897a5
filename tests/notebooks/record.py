"""Records what Jupyter shows for each cell of the notebooks here: ``record.py [NAME…]``. Read the difference before you commit it.

It needs an environment of its own, with Python 3.11 as in the containers of the tests:

    python3.11 -m venv /tmp/jupyter
    /tmp/jupyter/bin/pip install nbclient ipykernel pandas matplotlib scikit-learn jinja2 sympy
    /tmp/jupyter/bin/python tests/notebooks/record.py
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))
from support.notebooks import Shown, beginning, names, read, readable


def run(cells: Sequence[str]) -> Iterable[tuple[list[Any], dict[str, Any]]]:
    """Each cell's outputs, and the content of the kernel's last reply."""
    replies = []
    notebook = new_notebook(cells=[new_code_cell(code) for code in cells])
    with tempfile.TemporaryDirectory() as directory:
        NotebookClient(
            notebook,
            timeout=120,
            allow_errors=True,
            kernel_name="python3",
            resources={"metadata": {"path": directory}},
            on_cell_executed=lambda execute_reply, **_: replies.append(execute_reply["content"]),
        ).execute()
    return zip((cell.outputs for cell in notebook.cells), replies, strict=True)


def only_text(output: Any) -> str | None:
    """The text of an output that is nothing else, or ``None`` of any other."""
    data = output.get("data", {})
    if output["output_type"] == "stream":
        return readable(output["text"]) if output["name"] == "stdout" else None
    return readable(data["text/plain"]) if data.keys() == {"text/plain"} else None


def shown(outputs: list[Any], reply: dict[str, Any]) -> Shown:
    """What a cell shows."""
    # a figure that is open and the last value is shown twice, which nobody needs
    outputs = [output for number, output in enumerate(outputs) if not is_again(output, outputs[:number])]
    texts = [
        " ".join(map(only_text, group))
        for is_text, group in groupby(outputs, lambda output: only_text(output) is not None)
        if is_text
    ]
    rich = [sorted(output["data"].keys() - {"text/plain"}) for output in outputs if "data" in output]
    errors = [output["ename"] for output in outputs if output["output_type"] == "error"]
    error = (errors or [reply.get("ename", "")])[0]
    on_stderr = any(output.get("name") == "stderr" for output in outputs)
    in_pager = any(payload["source"] == "page" for payload in reply.get("payload", []))
    kept = [beginning(text) for text in texts if text]
    return Shown(
        texts=kept,
        rich=[types for types in rich if types],
        error=error,
        # besides the error itself, an exit has remarks of IPython's own
        more=in_pager or (on_stderr and not error) or any(map(str.__ne__, kept, filter(None, texts))),
    )


def is_again(output: Any, before: list[Any]) -> bool:
    """Whether it is a picture that was shown before."""
    return "image/png" in output.get("data", {}) and any(
        (other.get("data"), other.get("metadata")) == (output["data"], output["metadata"]) for other in before
    )


def main() -> None:
    for name in sys.argv[1:] or names():
        notebook = read(name)
        once, again = ([shown(*cell) for cell in run(notebook.cells)] for _ in range(2))
        for number, other in enumerate(again):
            if number + 1 in notebook.varying or other.texts != once[number].texts:
                once[number] = replace(other, texts=[], more=False, varies=True)
        notebook.keep(once)
        print(name, len(once))


if __name__ == "__main__":
    main()
