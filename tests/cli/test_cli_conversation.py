"""What people read of a run, message by message."""

from __future__ import annotations

import pytest
from autogen_agentchat.messages import (
    BaseAgentEvent,
    BaseChatMessage,
    CodeExecutionEvent,
    CodeGenerationEvent,
    ModelClientStreamingChunkEvent,
    TextMessage,
    ThoughtEvent,
    ToolCallSummaryMessage,
)
from autogen_core.code_executor import CodeBlock, CodeResult
from autogen_core.models import RequestUsage

from codeact_team import ExecutionResult, Outcome, Verdict
from codeact_team.cli.conversation import Conversation
from codeact_team.cli.screen import Screen
from codeact_team.observations import Ending as AgentEnding
from codeact_team.observations import ExecutionRecord
from codeact_team.runs import Ending, RunResult

Message = BaseAgentEvent | BaseChatMessage


async def told(
    capsys: pytest.CaptureFixture[str], *messages: Message, result: RunResult | None = None
) -> str:
    conversation = Conversation(Screen())
    conversation.opened([])
    for message in messages:
        conversation.message(message)
    if result is not None:
        conversation.ended(result)
    return capsys.readouterr().out


def say(text: str, source: str = "coder", **metadata: str) -> TextMessage:
    return TextMessage(content=text, source=source, metadata=metadata)


def chunk(text: str, source: str = "executor") -> ModelClientStreamingChunkEvent:
    return ModelClientStreamingChunkEvent(content=text, source=source)


def executed(output: str, exit_code: int = 0, outcome: Outcome = Outcome.COMPLETED) -> CodeExecutionEvent:
    result = ExecutionResult(exit_code=exit_code, output=output, outcome=outcome)
    return CodeExecutionEvent(result=result, retry_attempt=0, source="executor")


def respond(output: str, exit_code: int = 0, outcome: Outcome = Outcome.COMPLETED) -> TextMessage:
    record = ExecutionRecord(blocks=[], exit_code=exit_code, outcome=outcome, output=output)
    return TextMessage(content=output, source="executor", metadata=record.to_metadata())


async def test_a_speaker_is_named_once_for_what_comes_in_one_go(capsys: pytest.CaptureFixture[str]):
    out = await told(capsys, say("one"), say("two"), say("three", "other"))
    assert out == "── coder\none\ntwo\n\n── other\nthree\n"


async def test_output_that_was_streamed_is_not_repeated(capsys: pytest.CaptureFixture[str]):
    out = await told(capsys, chunk("a\n"), chunk("b"), executed("a\nb"), respond("a\nb"))
    assert out == "── executor\na\nb\n✓ exit code 0\n"


async def test_output_that_was_not_streamed_is_shown_once(capsys: pytest.CaptureFixture[str]):
    assert await told(capsys, executed("a"), respond("a")) == "── executor\na\n✓ exit code 0\n"
    assert await told(capsys, respond("a", 3)) == "── executor\na\n✗ exit code 3\n"


async def test_an_executor_of_autogen_s_own_is_shown_the_same(capsys: pytest.CaptureFixture[str]):
    event = CodeExecutionEvent(
        result=CodeResult(exit_code=1, output="boom"), retry_attempt=0, source="executor"
    )
    assert await told(capsys, event) == "── executor\nboom\n✗ exit code 1\n"


async def test_what_an_answer_adds_to_the_output_is_shown(capsys: pytest.CaptureFixture[str]):
    out = await told(capsys, chunk("a"), executed("a", 1), respond("a\nNo further attempt: hopeless", 1))
    assert out == "── executor\na\n✗ exit code 1\nNo further attempt: hopeless\n"


async def test_what_an_agent_without_a_model_adds_to_streamed_output_is_shown(
    capsys: pytest.CaptureFixture[str],
):
    answer = respond("a", 0)
    answer.content += "\n[Code not run, its language is not supported here: perl]"
    out = await told(capsys, chunk("a\n"), answer)
    assert out == (
        "── executor\na\n[Code not run, its language is not supported here: perl]\n✓ exit code 0\n"
    )


async def test_pieces_of_one_speaker_hide_nothing_of_another(capsys: pytest.CaptureFixture[str]):
    out = await told(capsys, chunk("a"), chunk("b", "coder"), say("c", "third"))
    assert out == "── executor\na\n\n── coder\nb\n\n── third\nc\n"


async def test_a_reflection_of_the_executor_itself_is_its_answer(capsys: pytest.CaptureFixture[str]):
    out = await told(capsys, chunk("a"), executed("a"), say("It printed a.", "executor"))
    assert out == "── executor\na\n✓ exit code 0\nIt printed a.\n"


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (Outcome.TIMED_OUT, "✗ exit code 124 (timed out)"),
        (Outcome.DENIED, "✗ exit code 124 (denied)"),
        (Outcome.NOT_RUN, "✗ exit code 124 (not run)"),
    ],
)
async def test_an_ending_other_than_the_code_s_own_is_named(
    capsys: pytest.CaptureFixture[str], outcome: Outcome, status: str
):
    assert status in await told(capsys, executed("x", 124, outcome))
    assert status in await told(capsys, respond("x", 124, outcome))


async def test_a_correction_stands_out_and_new_code_is_shown(capsys: pytest.CaptureFixture[str]):
    proposal = CodeGenerationEvent(
        content="Attempt number: 1\nProposed correction: Use 2.\nNot 0.",
        code_blocks=[],
        retry_attempt=0,
        source="executor",
    )
    code = CodeGenerationEvent(
        content="```python\n1 / 2\n```\n",
        code_blocks=[CodeBlock(code="1 / 2", language="python")],
        retry_attempt=1,
        source="executor",
    )
    out = await told(capsys, proposal, code)
    assert out == ("── executor\n↻ Proposed correction (attempt 1): Use 2.\nNot 0.\n```python\n1 / 2\n```\n")


@pytest.mark.parametrize(
    ("verdict", "shown"),
    [
        (Verdict(accepted=True), "✓ Accepted.\n"),
        (
            Verdict(accepted=False, problems=["No."], next_step="Do."),
            "✗ Not accepted.\n- No.\nNext: Do.\n",
        ),
    ],
)
async def test_a_verdict_is_marked(capsys: pytest.CaptureFixture[str], verdict: Verdict, shown: str):
    message = TextMessage(content=verdict.to_text(), source="reflection", metadata=verdict.to_metadata())
    assert await told(capsys, message) == f"── reflection\n{shown}"


async def test_a_model_s_words_that_were_streamed_are_not_repeated(capsys: pytest.CaptureFixture[str]):
    out = await told(capsys, chunk("Hel", "coder"), chunk("lo.", "coder"), say("Hello."), say("Bye."))
    assert out == "── coder\nHello.\nBye.\n"


async def test_a_line_break_that_comes_in_two_halves_is_one(capsys: pytest.CaptureFixture[str]):
    assert await told(capsys, chunk("a\r"), chunk("\nb\n"), executed("a\nb\n")) == (
        "── executor\na\nb\n✓ exit code 0\n"
    )


async def test_a_flood_is_cut_and_counted(capsys: pytest.CaptureFixture[str]):
    out = await told(capsys, *(chunk("#" * 1000) for _ in range(150)), executed("#"))
    assert out.count("#") == 100_000
    assert "[... 50000 more characters are not shown ...]\n✓ exit code 0\n" in out


def answer(text: str, ending: AgentEnding = AgentEnding.ANSWERED) -> TextMessage:
    metadata = {**respond("42\n").metadata, **ending.to_metadata()}
    return TextMessage(content=text, source="executor", metadata=metadata)


async def test_an_answer_that_is_what_the_code_printed_is_shown_as_the_answer_all_the_same(
    capsys: pytest.CaptureFixture[str],
):
    out = await told(capsys, chunk("42\n"), executed("42\n"), answer("42"))
    assert out == "── executor\n42\n✓ exit code 0\n42\n"


async def test_an_answer_that_came_in_pieces_is_not_repeated_after_the_reflection_on_it(
    capsys: pytest.CaptureFixture[str],
):
    thought = ThoughtEvent(content="Accepted.", source="executor")
    verdict = answer("It is 42.")
    verdict.metadata |= Verdict(accepted=True).to_metadata()
    out = await told(capsys, executed("42\n"), chunk("It is "), chunk("42."), thought, verdict)
    assert out == "── executor\n42\n✓ exit code 0\nIt is 42.\nAccepted.\n"
    out = await told(capsys, executed("42\n"), thought, verdict)
    assert out == "── executor\n42\n✓ exit code 0\nAccepted.\nIt is 42.\n"


async def test_code_that_was_cancelled_is_no_answer_to_be_shown_again(capsys: pytest.CaptureFixture[str]):
    cancelled = executed("Code execution was cancelled.", 1, Outcome.CANCELLED)
    out = await told(capsys, cancelled, answer("Code execution was cancelled.", AgentEnding.CANCELLED))
    assert out == "── executor\nCode execution was cancelled.\n✗ exit code 1 (cancelled)\n"


async def test_what_somebody_has_just_typed_is_not_printed_again_and_each_answer_has_its_header(
    capsys: pytest.CaptureFixture[str],
):
    conversation = Conversation(Screen(), echo=False)
    for question in ("one", "two"):
        conversation.message(say(question, "user"))
        conversation.message(say(f"answer to {question}"))
        conversation.ended(RunResult(Ending.ACCEPTED, RequestUsage(0, 0), 2, 0.0))
    summary = "\n── accepted · 2 messages · 0.0 s\n"
    assert capsys.readouterr().out == (
        f"\n── coder\nanswer to one\n{summary}\n── coder\nanswer to two\n{summary}"
    )


async def test_thoughts_and_messages_of_other_types_are_shown(capsys: pytest.CaptureFixture[str]):
    summary = ToolCallSummaryMessage(content="4 files", source="coder", tool_calls=[], results=[])
    out = await told(capsys, ThoughtEvent(content="Hm.", source="coder"), summary)
    assert out == "── coder\nHm.\n4 files\n"


async def test_markup_and_control_characters_in_any_part_are_shown_as_they_are(
    capsys: pytest.CaptureFixture[str],
):
    hostile = "[red]x[/] :smile: \x1b[2J\x1b]52;c;aGk=\x07\x9b1m"
    verdict = Verdict(accepted=False, problems=[hostile], next_step=hostile)
    out = await told(
        capsys,
        say(hostile, "user\x1b[1m"),
        say(hostile),
        chunk(hostile),
        executed(hostile, 1),
        CodeGenerationEvent(
            content=f"Attempt number: 1\nProposed correction: {hostile}",
            code_blocks=[],
            retry_attempt=0,
            source="executor",
        ),
        ThoughtEvent(content=hostile, source="executor"),
        TextMessage(content="", source="reflection", metadata=verdict.to_metadata()),
        result=RunResult(Ending.NOT_ACCEPTED, RequestUsage(0, 0), 3, 1.0, stop_reason=hostile),
    )
    assert out.count("[red]x[/] :smile: ␛[2J␛]52;c;aGk=␇\ufffd1m") == 8
    assert "\x1b" not in out
    assert "\x9b" not in out
