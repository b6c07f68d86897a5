"""A recorded run as a notebook for Jupyter, which shows what came of the code then, and can run it again."""

from __future__ import annotations

import base64
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pprint import pformat
from typing import Any

from pydantic import JsonValue

from codeact_team.agents.tool_calls import ToolCall
from codeact_team.core.events import BlockEnded, Code
from codeact_team.core.execution import ArtifactReference, Bytes, CallOutcome, Outcome, bare_type
from codeact_team.exports.story import Ended, Happened, Ran, Said, Story, told_in_markdown, told_of_code
from codeact_team.journal.history import History
from codeact_team.journal.recorded_run import RecordedRun
from codeact_team.text.fences import language_of
from codeact_team.text.quoting import fenced
from codeact_team.text.visibility import readable, visible

Cell = dict[str, JsonValue]

_MAGICS = {"sh": "%%sh\n", "bash": "%%bash\n", "python": ""}
"""What runs a block of a language in a notebook of Python."""
_PLAIN = "text/plain"
_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):\n", re.MULTILINE)
_MAX_NAMES = 20
_FINAL_ANSWER = re.compile(r"\bfinal_answer\(")
_SETUP = "# What the sandbox of the run had, and this notebook has not.\n"
_DEFINE_FINAL_ANSWER = """
def final_answer(value):
    return value
"""
_DEFINE_TOOLS = """
import json, sys, types

# The calls of tools of the run. Nothing is called again: each gets the answer that it got then.
CALLS = {calls}


class Tool:
    def __init__(self, calls):
        self.calls = calls

    def __call__(self, *values, **named):
        values, named = json.loads(json.dumps([values, named], default=str))
        for call in self.calls:
            given = call["arguments"]
            if [*given.values()][: len(values)] == values and {{**given, **named}} == given:
                # the same call gets the next answer
                self.calls.append(self.calls.pop(self.calls.index(call)))
                if call["error"]:
                    raise tools.ToolError(call["error"])
                return call["value"]
        raise LookupError(f"the run has not made this call: {{values}}, {{named}}")

    async def aio(self, *values, **named):
        return self(*values, **named)


tools = sys.modules["tools"] = types.ModuleType("tools")
tools.ToolError = type("ToolError", (Exception,), {{}})
for name, calls in CALLS.items():
    group, _, last = name.rpartition(".")
    place = tools.__dict__.setdefault(group, types.SimpleNamespace()) if group else tools
    setattr(place, last, Tool(calls))
"""


def notebook_of(run: RecordedRun, story: Story) -> bytes:
    """The notebook of a run, in the format 4.5 of nbformat, which the same story always gives.

    Raises:
        JournalError: If the run cannot be read.
    """
    versions: dict[str, str] = {}
    python = run.about.versions.get("python", "")
    for sandbox in story.sandboxes:
        versions.update(sandbox.packages)
        python = (sandbox.python or python).removeprefix("Python ")
    # what is damaged cannot be read as a whole
    calls = {} if story.damage is not None else _calls_of(run, story.began)
    files: Sequence[str] = [] if story.damage is not None else _files_of(run)
    cells = [_markdown(_introduction(run, python, versions, files, calls))]
    if setup := _setup(story, calls):
        cells.append(_code(setup, [], None, metadata={"jupyter": {"source_hidden": True}}))
    for item in story.items:
        cells += _cells(item, run.artifact)
    executed = 0
    for number, cell in enumerate(cells, 1):
        cell["id"] = f"cell-{number}"
        if cell["cell_type"] == "code" and cell["execution_count"] is not None:
            executed += 1
            cell["execution_count"] = executed
    metadata: dict[str, JsonValue] = {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
        "language_info": {"name": "python", "version": python},
        "codeact_team": {"run": run.about.id, "packages": {**versions}},
    }
    notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": cells}
    # half a surrogate is escaped, as JSON has it
    return f"{json.dumps(notebook, indent=1, ensure_ascii=False)}\n".encode(errors="backslashreplace")


def _introduction(
    run: RecordedRun, python: str, versions: Mapping[str, str], files: Sequence[str], calls: Mapping[str, Any]
) -> str:
    wanted = [f"Python {python}"] if python else []
    if versions:
        pinned = " ".join(f"{name}=={version}" for name, version in versions.items())
        wanted.append(f"the packages of `pip install {pinned}`")
    needed = " and ".join(wanted) or "what it had then"
    lines = [f"*The run {run.about.id} of `codeact-team`. To run its code again takes {needed}.*"]
    if files:
        named = ", ".join(f"`{readable(name)}`" for name in files[:_MAX_NAMES])
        more = f" and {len(files) - _MAX_NAMES:,} more" if files[_MAX_NAMES:] else ""
        lines.append(f"*It had these files, which belong beside this notebook: {named}{more}.*")
    if calls:
        named = ", ".join(f"`{name}`" for name in calls)
        lines.append(f"*Its tools are not called again. They answer what they answered then: {named}.*")
    return "\n\n".join(lines)


def _files_of(run: RecordedRun) -> Sequence[str]:
    """The files, and directories, of the workspaces before any code ran."""
    files = History(run.directory).files
    paths = [path for workspace in files for path in files.before(workspace, 1)]
    return sorted({f"{top}/" if inner else top for top, inner, _ in (path.partition("/") for path in paths)})


def _calls_of(run: RecordedRun, began: float | None) -> dict[str, list[dict[str, JsonValue]]]:
    """The calls that code has made of tools, by the name of the tool; of a resumed run, those since."""
    calls: defaultdict[str, list[dict[str, JsonValue]]] = defaultdict(list)
    for effect in run.effects():
        if effect.kind != ToolCall.kind or effect.outcome is None or effect.began < (began or 0):
            continue
        request, answer = _object(effect.request), _object(effect.outcome)
        values = [piece.get("value") for piece in answer["content"]]
        error = answer["error"] if answer["outcome"] != CallOutcome.OK else ""
        value = values[0] if len(values) == 1 else values or None
        call = {"arguments": request["arguments"], "value": value, "error": error}
        calls[str(request["tool"])].append(call)
    return dict(calls)


def _object(value: JsonValue) -> dict[str, Any]:
    assert isinstance(value, dict), "a tool call has objects"
    return value


def _setup(story: Story, calls: Mapping[str, Any]) -> str:
    ran = "\n".join(block.code for item in story.items if isinstance(item, Ran) for block in item.blocks)
    setup = _DEFINE_FINAL_ANSWER if _FINAL_ANSWER.search(ran) else ""
    if calls:
        setup += _DEFINE_TOOLS.format(calls=pformat(dict(calls), width=100, sort_dicts=False))
    return _SETUP + setup if setup else ""


def _cells(item: Said | Ran | Happened | Ended, artifact: Bytes) -> Iterator[Cell]:
    match item:
        case Said() | Happened() | Ended():
            if text := told_in_markdown(item):
                yield _markdown(text)
        case Ran():
            *others, last = item.blocks
            for block in others:
                yield _ran(item, block, [])
            yield _ran(item, last, [] if item.end is None else [*_outputs(item.end, artifact)])
            if told := told_of_code(item):
                yield _markdown(told)


def _ran(item: Ran, block: Code, outputs: list[JsonValue]) -> Cell:
    magic = _MAGICS.get(language_of(block.language))
    if magic is None or not item.has_run:
        # nothing that Jupyter is to run
        why = "" if item.has_run or item.end is None else f"\n\n*{visible(item.end.output.strip())}*"
        return _markdown(f"{fenced(visible(block.code).rstrip(), block.language)}{why}")
    has_failed = item.end is not None and item.end.exit_code != 0
    # the cells behind it run all the same
    tags: dict[str, JsonValue] = {"tags": ["raises-exception"]} if has_failed else {}
    return _code(magic + block.code.rstrip("\n"), outputs, 1, metadata=tags)


def _outputs(end: BlockEnded, artifact: Bytes) -> Iterator[JsonValue]:
    """The outputs of a cell: what is printed of a value is in the place where it was printed, with its other forms."""
    rest = end.output
    waiting: list[JsonValue] = []
    for reference in end.artifacts:
        bundle = _bundle(reference, artifact)
        if not bundle:
            continue
        shown: dict[str, JsonValue] = {"output_type": "display_data", "data": bundle, "metadata": {}}
        printed = bundle.get(_PLAIN)
        before, found, behind = rest.partition(f"{printed}\n") if isinstance(printed, str) else (rest, "", "")
        if not found:
            waiting.append(shown)
            continue
        rest = behind
        yield from [*_stream(before), *waiting, shown]
        waiting.clear()
    begins = [found.start() for found in _TRACEBACK.finditer(rest)] if end.exit_code else []
    text, traceback = (rest[: begins[-1]], rest[begins[-1] :]) if begins else (rest, "")
    yield from [*_stream(text), *waiting]
    if traceback:
        yield _error(traceback)
    if end.error or end.limit:
        yield from _stream(f"{end.error or end.limit}\n", "stderr")
    elif end.outcome not in (None, Outcome.COMPLETED):
        yield from _stream(f"{end.outcome.value.replace('_', ' ')}\n", "stderr")


def _stream(text: str, name: str = "stdout") -> Iterator[JsonValue]:
    if text:
        yield {"output_type": "stream", "name": name, "text": text}


def _error(traceback: str) -> JsonValue:
    lines = traceback.rstrip("\n").split("\n")
    # its frames are indented, and its own text may have several lines
    last = next((n for n, line in enumerate(lines[1:], 1) if not line.startswith(" ")), 0)
    name, _, value = "\n".join(lines[last:]).partition(": ")
    return {"output_type": "error", "ename": name, "evalue": value, "traceback": [*lines]}


def _bundle(reference: ArtifactReference, artifact: Bytes) -> dict[str, JsonValue]:
    """The forms of an artifact as a notebook has them."""
    bundle: dict[str, JsonValue] = {}
    for form in (reference, *reference.other_forms):
        if (data := artifact(form.sha256)) is None:
            continue
        kind = bare_type(form.mime_type)
        if kind.startswith("text/") or kind == "image/svg+xml" or kind.endswith("+xml"):
            bundle[kind] = data.decode(errors="replace")
        elif kind.endswith("json"):
            bundle[kind] = _json(data)
        else:
            bundle[kind] = base64.b64encode(data).decode()
    return {} if bundle.keys() <= {_PLAIN} else bundle


def _json(data: bytes) -> JsonValue:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        # code can show anything as JSON
        return data.decode(errors="replace")


def _markdown(text: str) -> Cell:
    return {"cell_type": "markdown", "id": "", "metadata": {}, "source": text}


def _code(
    source: str, outputs: list[JsonValue], count: int | None, *, metadata: dict[str, JsonValue]
) -> Cell:
    return {
        "cell_type": "code",
        "execution_count": count,
        "id": "",
        "metadata": metadata,
        "outputs": outputs,
        "source": source,
    }
