"""What is returned shows itself: in few words, and in a notebook by its pictures and tables. Nothing of it runs there."""

from __future__ import annotations

import base64
import re

import pytest
from autogen_ext.models.openai import OpenAIChatCompletionClient

from codeact_team import (
    Artifact,
    BoundName,
    CodeActAgent,
    ConfinedSessionCodeExecutor,
    JobResult,
    ReflectionAgent,
    RunEnding,
    SessionResult,
)
from codeact_team.core.execution import ExecutionResult
from codeact_team.sandbox.processes import ProcessOutput, ProcessResult

PNG = b"\x89PNG\r\n\x1a\n" + bytes(9_000)
TABLE = b"<style>td {}</style><table><tr><td onclick='x()'>1<script>alert(1)</script></td></tr></table>"
SVG = b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"


def bundle(shown: Artifact | ExecutionResult) -> dict[str, str]:
    """As a notebook asks for it."""
    return shown._repr_mimebundle_(include=None, exclude=None)  # pyright: ignore[reportPrivateUsage]


def test_an_artifact_tells_of_its_bytes_how_many_they_are() -> None:
    picture = Artifact("image/png", PNG, "plot.png", {"text/plain": b"<Figure>"})
    assert repr(picture) == (
        "Artifact(mime_type='image/png', size=9016, file='plot.png', other_forms=['text/plain'])"
    )


def test_a_notebook_shows_a_picture() -> None:
    shown = bundle(Artifact("text/html", b"<script>draw()</script>", None, {"image/png": PNG}))
    assert set(shown) == {"image/png", "text/plain"}
    assert base64.b64decode(shown["image/png"]) == PNG


def test_a_notebook_shows_a_table_without_anything_that_runs() -> None:
    assert bundle(Artifact("text/html", TABLE))["text/html"] == (
        "<table><tbody><tr><td>1</td></tr></tbody></table>"
    )


def test_a_drawing_is_in_an_element_that_runs_nothing() -> None:
    shown = bundle(Artifact("image/svg+xml", SVG))["text/html"]
    found = re.fullmatch(r'<img src="data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)">', shown)
    assert found is not None
    assert base64.b64decode(found[1]) == SVG


@pytest.mark.parametrize(
    "artifact",
    [
        Artifact("text/html", b"<p onclick='x()'>no table"),
        Artifact("application/javascript", b"alert(1)"),
        Artifact("image/png", bytes((4 << 20) + 1)),
        Artifact("text/html", b"<table>" + b"<td>" * 100_000),
        Artifact('image/svg+xml"><script>alert(1)</script>', SVG),
    ],
    ids=["no table", "script", "large picture", "large table", "no type"],
)
def test_what_would_run_or_is_too_large_is_told_in_words(artifact: Artifact) -> None:
    assert bundle(artifact) == {"text/plain": repr(artifact)}


def test_a_result_tells_what_is_not_as_usual() -> None:
    assert repr(SessionResult(0, "42\n")) == r"SessionResult(exit_code=0, output='42\n')"
    result = SessionResult(1, "x" * 10_000, seconds=0.12345, names=[BoundName("x", "int")], state_lost=True)
    words = repr(result)
    assert "seconds=0.123, state_lost=True, names=[BoundName(name='x', type='int')]" in words
    assert len(words) < 400


def test_a_notebook_shows_the_output_of_a_result_and_its_artifacts() -> None:
    artifacts = [Artifact("image/png", PNG), Artifact("text/html", TABLE), Artifact("text/html", b"<p>")]
    shown = bundle(SessionResult(0, "\x1b[31m<b>\n", artifacts=artifacts))
    output, picture, table, rest = shown["text/html"].splitlines()
    assert output == "<pre>␛[31m&lt;b&gt;</pre>"
    assert picture.startswith('<img src="data:image/png;base64,')
    assert table.startswith("<table>")
    assert rest == "<pre>SessionResult(exit_code=0)</pre>"


def test_what_a_notebook_shows_of_a_result_is_bounded() -> None:
    pictures = [Artifact("image/png", PNG[:8] + bytes((4 << 20) - 8))] * 20
    shown = bundle(SessionResult(0, "x\n" * 1_000_000, artifacts=pictures))
    assert sum(map(len, shown.values())) < 25 << 20


def test_a_process_tells_the_begin_of_a_text_and_the_size_of_what_is_none() -> None:
    result = ProcessResult(["cat"], 0, ProcessOutput(b"a line\n" * 1_000, bytes(range(256))))
    assert repr(result) == (
        "ProcessResult(args=['cat'], returncode=0, stdout=<7,000 bytes, "
        f"{b'a line' + bytes([10]) + (b'a line' + bytes([10])) * 13 + b'a '!r}...>, stderr=<256 bytes>)"
    )


def test_a_job_tells_what_is_not_as_usual() -> None:
    assert repr(JobResult(id="7", epoch=1, outcome=RunEnding.ANSWERED, answer="x" * 1_000)).startswith(
        "JobResult(id='7', epoch=1, outcome=<RunEnding.ANSWERED: 'answered'>, answer='xxx"
    )


def test_agents_and_executors_tell_what_they_are_and_no_secret() -> None:
    client = OpenAIChatCompletionClient(model="gpt-4.1", api_key="a-secret")
    executor = ConfinedSessionCodeExecutor(packages=["pandas"])
    assert repr(executor) == "ConfinedSessionCodeExecutor(packages=['pandas'], running=False)"
    assert repr(CodeActAgent("agent", client, executor)) == (
        f"CodeActAgent(name='agent', model='gpt-4.1', code_executor={executor!r})"
    )
    assert repr(ReflectionAgent("reviewer", client)) == "ReflectionAgent(name='reviewer', model='gpt-4.1')"
