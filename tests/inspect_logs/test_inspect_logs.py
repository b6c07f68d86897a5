"""Recorded runs as logs for Inspect, read back by Inspect's own reader."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

import pytest
from autogen_core import Image
from autogen_core.models import (
    AssistantMessage,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    RequestUsage,
    UserMessage,
)
from autogen_core.tools import FunctionTool, ToolSchema
from autogen_ext.models.replay import ReplayChatCompletionClient
from inspect_ai.event import ApprovalEvent, InputEvent, ModelEvent, ScoreEvent, SpanBeginEvent, ToolEvent
from inspect_ai.log import EvalLog, EvalSample, read_eval_log
from inspect_ai.model import ContentImage, ContentReasoning, ContentText
from openai import BadRequestError
from support.codeact import agent_of, own_session, py
from support.openai_server import HttpError, ScriptedServer, Text, ToolCalls
from support.recorded import journal_of

from codeact_team.core.effects import Dispatcher
from codeact_team.core.events import (
    BlockBegan,
    Code,
    Judged,
    ModelCallBegan,
    ModelCallEnded,
    RunBegan,
    RunEnded,
)
from codeact_team.core.places import put
from codeact_team.errors import JournalError
from codeact_team.exports.inspect_logs import write_log
from codeact_team.journal.recorded_run import RecordedRun
from codeact_team.journal.recorder import Recorder
from codeact_team.journal.result import RunEnding, RunResult
from codeact_team.journal.run_directory import About, RunDirectory
from codeact_team.models.clients import ModelCall, wrap_client
from codeact_team.tools.approval_rules import Question
from codeact_team.tools.approvals import Answer

pytestmark = pytest.mark.long

PIXEL_TEXT = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
PIXEL = base64.b64decode(PIXEL_TEXT)
PRICE = ToolSchema(
    name="price",
    description="The price of an article.",
    parameters={"type": "object", "properties": {"article": {"type": "string"}}, "required": ["article"]},
)
SHOWS = f"""\
class Picture:
    def _repr_png_(self):
        return {PIXEL!r}
print(tools.price('rye'))
Picture()
"""

P = ParamSpec("P")
T = TypeVar("T")


def result(ending: RunEnding, **more: Any) -> RunResult:
    return RunResult(ending=ending, usage=RequestUsage(0, 0), messages=1, seconds=1.0, **more)


@contextmanager
def recorded(runs: Path, name: str = "one", end: RunResult | None = None) -> Generator[Dispatcher]:
    """Within it, what happens is recorded as a run."""
    about = About(
        id=name, task="What is rye?", config="shop.yaml", working_directory="/", versions={"python": "3"}
    )
    recorder = Recorder.create(runs, about, "", {})
    with Dispatcher(journal_of(recorder).intercept) as dispatcher:
        dispatcher.listen(recorder, essential=True)
        with dispatcher.span(lambda span: RunBegan(span=span, task="t"), lambda span: RunEnded(span=span)):
            yield dispatcher
        if end is not None:
            dispatcher.emit(end)
    recorder.close()


def aside(function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Call in a thread without an event loop: where there is one, Inspect changes asyncio for all that comes later."""
    with ThreadPoolExecutor() as pool:
        return pool.submit(function, *args, **options).result()


def read(file: Path, *, resolve_attachments: bool = False) -> EvalLog:
    return aside(read_eval_log, str(file), resolve_attachments=resolve_attachments)


def write(runs: Path, *names: str, kind: str = "eval") -> list[str]:
    """The problems of writing a log of these runs."""
    return aside(
        write_log,
        [RecordedRun(RunDirectory(runs / name)) for name in names or ("one",)],
        runs / f"log.{kind}",
    )


def logged(runs: Path, *names: str, kind: str = "eval") -> list[EvalSample]:
    """The samples of a log of these runs."""
    assert write(runs, *names, kind=kind) == []
    samples = read(runs / f"log.{kind}", resolve_attachments=True).samples
    assert samples is not None
    return samples


def events(sample: EvalSample, kind: type[T]) -> list[T]:
    return [event for event in sample.events if isinstance(event, kind)]


@pytest.mark.parametrize("kind", ["eval", "json"])
async def test_a_log_holds_model_calls_code_its_output_pictures_and_calls_of_tools(tmp_path: Path, kind: str):
    def price(article: str) -> float:
        """The price of an article."""
        return 2.5

    end = result(RunEnding.ACCEPTED, answer="It is 2.5.")
    with recorded(tmp_path, end=end):
        async with own_session() as executor, ScriptedServer([Text(py(SHOWS)), Text("It is 2.5.")]) as server:
            tools = [FunctionTool(price, "The price of an article.")]
            await agent_of(server, executor, tools=tools).run(task="What is rye?")
    (sample,) = logged(tmp_path, kind=kind)
    asked, again = events(sample, ModelEvent)
    assert [message.role for message in asked.input] == ["system", "user"]
    assert SHOWS.splitlines()[0] in asked.output.completion
    assert asked.output.usage is not None
    assert (asked.output.usage.input_tokens, asked.output.usage.output_tokens) == (100, 10)
    assert "2.5" in str(again.input[-1].content)
    block, call = events(sample, ToolEvent)
    assert (block.function, block.arguments["language"]) == ("execute_code", "python")
    assert str(block.arguments["code"]).strip() == SHOWS.strip()
    assert isinstance(block.result, list)
    output, picture = block.result
    assert isinstance(output, ContentText)
    assert output.text.startswith("```\n2.5\n")
    assert isinstance(picture, ContentImage)
    assert picture.image.endswith(PIXEL_TEXT)
    assert (call.function, call.arguments, call.result) == ("price", {"article": "rye"}, "2.5")
    spans = {span.id: span for span in events(sample, SpanBeginEvent)}
    assert call.span_id == block.span_id
    within, names = spans.get(str(call.span_id)), list[str]()
    while within is not None:
        names.append(within.name)
        within = spans.get(str(within.parent_id))
    assert names == ["execute_code", "coder", "shop"]
    assert sample.scores is not None
    assert (sample.scores["accepted"].value, sample.scores["accepted"].answer) == ("C", "It is 2.5.")
    assert (sample.id, sample.input, sample.output.completion) == ("one", "What is rye?", "It is 2.5.")
    (usage,) = sample.model_usage.values()
    assert usage.total_tokens == 220

    # what is large is held once
    [raw] = read(tmp_path / f"log.{kind}").samples or []
    assert any(PIXEL_TEXT in text for text in raw.attachments.values())


async def test_a_process_of_a_program_is_told_with_its_output(tmp_path: Path):
    with recorded(tmp_path, end=result(RunEnding.ACCEPTED)):
        async with own_session() as executor:
            put(executor, "config.code_executor")
            await executor.processes.run(["sh", "-c", "echo out; exit 3"])
            with pytest.raises(FileNotFoundError):
                await executor.processes.run(["no-such-program"], cwd=".")
    (sample,) = logged(tmp_path)
    failed, missing = events(sample, ToolEvent)
    assert (failed.function, failed.arguments) == (
        "run_process",
        {"argv": ["sh", "-c", "echo out; exit 3"], "cwd": None},
    )
    assert (failed.result, failed.metadata) == ("out\n", {"agent": "", "exit_code": 3})
    assert failed.error is None
    assert missing.error is not None
    assert "FileNotFoundError" in missing.error.message


async def test_approvals_questions_and_verdicts_are_told(tmp_path: Path):
    async def refuse(question: Question) -> Answer:
        return Answer(allowed=False, reason="not today")

    end = result(RunEnding.NOT_ACCEPTED, objection="Nothing was run.")
    with recorded(tmp_path, end=end) as dispatcher:
        async with own_session() as executor, ScriptedServer([Text(py("print(1)")), Text("No.")]) as server:
            rules = [{"code": "*", "decision": "ask"}]
            await agent_of(server, executor, approval=rules, approval_handler=refuse).run(task="Print.")
        dispatcher.emit(
            Judged(agent="reviewer", accepted=False, problems=["It is late."], next_step="Hurry.")
        )
    (sample,) = logged(tmp_path)
    (approval,) = events(sample, ApprovalEvent)
    assert (approval.decision, approval.call.function) == ("reject", "python")
    assert "not today" in str(approval.explanation)
    (question,) = events(sample, InputEvent)
    assert "print(1)" in str(question.message)
    (verdict,) = events(sample, ScoreEvent)
    assert (verdict.score.value, verdict.score.explanation) == ("I", "It is late.\nHurry.")
    assert (verdict.scorer, verdict.intermediate) == ("reviewer", True)
    assert sample.scores is not None
    assert (sample.scores["accepted"].value, sample.scores["accepted"].explanation) == (
        "I",
        "Nothing was run.",
    )


async def test_calls_and_thoughts_of_models_are_theirs(tmp_path: Path):
    with recorded(tmp_path):
        async with ScriptedServer(
            [ToolCalls([("price", {"article": "rye"})]), HttpError(400, "Bad words.")]
        ) as server:
            client = wrap_client(server.client(), "m")
            asked = [UserMessage(content=["Look:", Image.from_base64(PIXEL_TEXT)], source="user")]
            first = await client.create(asked, tools=[PRICE])
            assert isinstance(first.content, list)
            told = FunctionExecutionResult(content="2.5", name="price", call_id="1", is_error=False)
            said = [*asked, AssistantMessage(content=first.content, thought="Ask.", source="a")]
            with pytest.raises(BadRequestError):
                await client.create([*said, FunctionExecutionResultMessage(content=[told])])
    (sample,) = logged(tmp_path)
    asked, failed = events(sample, ModelEvent)
    [call] = asked.output.message.tool_calls or []
    assert (call.function, call.arguments) == ("price", {"article": "rye"})
    assert asked.output.stop_reason == "tool_calls"
    assert [tool.name for tool in asked.tools] == ["price"]
    picture = asked.input[0].content[1]
    assert isinstance(picture, ContentImage)
    assert "Bad words." in str(failed.error)
    assert [message.role for message in failed.input] == ["user", "assistant", "tool"]
    assert isinstance(failed.input[1].content[0], ContentReasoning)


async def test_each_run_is_a_sample_and_one_without_an_end_has_no_score(tmp_path: Path):
    for name, end in [
        ("one", result(RunEnding.ACCEPTED)),
        ("two", result(RunEnding.FAILED, error="the server is gone")),
        ("three", None),
        ("four", result(RunEnding.PARKED, stop_reason="it waits for an answer")),
    ]:
        with recorded(tmp_path, name, end):
            await wrap_client(ReplayChatCompletionClient(["Hello."]), "m").create(
                [UserMessage(content="Hi.", source="user")]
            )
    samples = {str(sample.id): sample for sample in logged(tmp_path, "one", "two", "three", "four")}
    assert {name: bool(sample.scores) for name, sample in samples.items()} == {
        "one": True,
        "two": False,
        "three": False,
        "four": False,
    }
    assert samples["four"].metadata["ending"] == "parked"
    assert samples["four"].metadata["stop_reason"] == "it waits for an answer"
    failed = samples["two"].error
    assert failed is not None
    assert failed.message == "the server is gone"
    assert samples["three"].metadata["ending"] == "it broke off"
    log = aside(read_eval_log, str(tmp_path / "log.eval"), header_only=True)
    assert (log.eval.task, log.eval.model) == ("shop", "m")
    assert log.results is not None
    assert log.results.scores[0].metrics["accuracy"].value == 1


async def test_a_call_that_was_refused_has_not_what_the_next_one_asked(tmp_path: Path):
    with recorded(tmp_path) as dispatcher:
        dispatcher.emit(ModelCallBegan(span=7, agent="", model="m"))
        dispatcher.emit(ModelCallEnded(span=7, agent="", model="m", error="BudgetError: used up"))
        await asyncio.sleep(0.001)
        await wrap_client(ReplayChatCompletionClient(["Hello."]), "m").create(
            [UserMessage(content="Hi.", source="user")]
        )
    (sample,) = logged(tmp_path)
    refused, answered = events(sample, ModelEvent)
    assert (refused.input, refused.error) == ([], "BudgetError: used up")
    assert answered.output.completion == "Hello."


async def test_what_was_under_way_when_a_run_broke_off_says_so(tmp_path: Path):
    with recorded(tmp_path) as dispatcher:
        dispatcher.emit(ModelCallBegan(span=7, agent="coder", model="m"))
        dispatcher.emit(BlockBegan(span=8, agent="coder", blocks=[Code("python", "1 / ``` 0")]))
    (sample,) = logged(tmp_path)
    (call,), (block,) = events(sample, ModelEvent), events(sample, ToolEvent)
    assert call.error == "it had not ended when the run did"
    assert block.error is not None
    assert block.view is not None
    assert block.view.content.startswith("````python\n")


def test_a_damaged_journal_is_named_and_what_is_whole_of_it_is_written(tmp_path: Path):
    with recorded(tmp_path) as dispatcher:
        dispatcher.emit(Judged(agent="reviewer", accepted=True))
    lines = (tmp_path / "one" / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "one" / "journal.jsonl").write_bytes(b"".join([*lines[:-1], b"damage\n", lines[-1]]))
    (problem,) = write(tmp_path)
    assert str(tmp_path / "one") in problem
    [sample] = read(tmp_path / "log.eval").samples or []
    assert len(events(sample, ScoreEvent)) == 1


class OddMessage(UserMessage):
    """As another version might have it."""

    type: Literal["OddMessage"] = "OddMessage"  # pyright: ignore[reportIncompatibleVariableOverride]


async def test_a_run_that_was_recorded_otherwise_is_named(tmp_path: Path):
    client = ReplayChatCompletionClient(["Hello."])
    asked = [UserMessage(content="Hi.", source="user")]
    with recorded(tmp_path) as dispatcher:
        await dispatcher.perform(
            ModelCall(client, "m", [OddMessage(content="Hi.", source="user")], {}),
            lambda: client.create(asked),
        )
    with pytest.raises(JournalError, match=r"one has something that this version .* did not write"):
        write(tmp_path)


def test_a_directory_that_is_no_run_is_named(tmp_path: Path):
    with pytest.raises(JournalError, match="empty"):
        write(tmp_path, "empty")
    assert not (tmp_path / "log.eval").exists()
