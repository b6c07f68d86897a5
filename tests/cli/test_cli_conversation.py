"""What people read of a run, message by message."""

from __future__ import annotations

import time
from typing import Any

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
from support.cost import SHORT

from codeact_team.agents.observations import Ending, ExecutionRecord
from codeact_team.cli.conversation import Conversation
from codeact_team.cli.in_words import file_lines
from codeact_team.cli.screen import Screen
from codeact_team.core.effects import Dispatcher, Event
from codeact_team.core.events import (
    BlockBegan,
    BlockEnded,
    Code,
    MessageSent,
    ModelCallBegan,
    Output,
    ProcessBegan,
    ProcessEnded,
    RequestDenied,
    RequestEnded,
    RunBegan,
    ToolCallBegan,
    ToolCallEnded,
    Words,
    emit_message,
    emit_piece,
)
from codeact_team.core.execution import CallOutcome, ExecutionResult, Outcome
from codeact_team.core.executor_interface import Change
from codeact_team.journal.result import RunEnding, RunFile, RunResult
from codeact_team.models.verdicts import Verdict

Message = BaseAgentEvent | BaseChatMessage


async def told(
    capsys: pytest.CaptureFixture[str], *happened: Message | Event, answer_last: bool = False
) -> str:
    """What is shown of events, and of messages that come out of the team."""
    with Dispatcher() as dispatcher:
        dispatcher.listen(Conversation(Screen(), answer_last=answer_last), essential=True)
        for event in happened:
            match event:
                case Words() | Output():
                    emit_piece(event, dispatcher)
                case Event():
                    dispatcher.emit(event)
                case _:
                    emit_message(event, dispatcher)
        dispatcher.check()
    return capsys.readouterr().out


def say(text: str, source: str = "coder", id: str | None = None) -> TextMessage:
    message = TextMessage(content=text, source=source)
    return message if id is None else message.model_copy(update={"id": id})


def chunk(text: str, source: str = "coder", id: str | None = None) -> ModelClientStreamingChunkEvent:
    return ModelClientStreamingChunkEvent(content=text, source=source, full_message_id=id)


def words(text: str, id: str | None = "1", agent: str = "coder") -> Words:
    return Words(agent=agent, text=text, message_id=id)


def output(text: str, id: str = "1", agent: str = "executor") -> Output:
    return Output(agent=agent, text=text, message_id=id)


def judgement(*, accepted: bool) -> TextMessage:
    verdict = Verdict(accepted=accepted, problems=[] if accepted else ["It is wrong."])
    return TextMessage(content=verdict.to_text(), source="reviewer", metadata=verdict.to_metadata())


def executed(
    output: str, exit_code: int = 0, outcome: Outcome = Outcome.COMPLETED, id: str = "1"
) -> CodeExecutionEvent:
    result = ExecutionResult(exit_code=exit_code, output=output, outcome=outcome)
    return CodeExecutionEvent(id=id, result=result, retry_attempt=0, source="executor")


def respond(
    output: str, exit_code: int = 0, outcome: Outcome = Outcome.COMPLETED, remark: str = "", id: str = "2"
) -> TextMessage:
    """An answer that passes the output on."""
    record = ExecutionRecord(blocks=[], exit_code=exit_code, outcome=outcome, output=output, remark=remark)
    text = "\n".join(filter(None, [output, remark]))
    return TextMessage(id=id, content=text, source="executor", metadata=record.to_metadata())


async def test_a_speaker_is_named_once_for_what_comes_in_one_go(capsys: pytest.CaptureFixture[str]):
    out = await told(capsys, say("one"), say("two"), say("three", "other"))
    assert out == "── coder\none\ntwo\n\n── other\nthree\n"


async def test_output_that_was_streamed_is_not_repeated(capsys: pytest.CaptureFixture[str]):
    out = await told(capsys, output("a\n"), output("b"), executed("a\nb"), respond("a\nb"))
    assert out == "── executor\na\nb\n✓ exit code 0\n"


async def test_an_answer_that_was_just_shown_is_not_shown_again_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Screen, "renders", True)
    long = "x" * 300_000
    accepted = RunResult(
        ending=RunEnding.ACCEPTED, usage=RequestUsage(0, 0), messages=2, seconds=1.0, answer=long
    )
    for between in ([], [judgement(accepted=True)]):
        out = await told(capsys, words(long, "1"), say(long, id="1"), *between, accepted, answer_last=True)
        assert out.count("x") < 301_000
        assert out.endswith("\n── answer · as shown above\n")
    # after anything else it may be out of sight
    for between in ([say("Wait.", "other")], [judgement(accepted=False)], [output("1\n", "2")]):
        out = await told(capsys, words(long, "1"), say(long, id="1"), *between, accepted, answer_last=True)
        assert out.endswith(f"\n── answer\n{long}\n")


async def test_the_other_name_of_a_file_follows_the_answer(capsys: pytest.CaptureFixture[str]):
    files = [RunFile("growth.png", 10, Change.MADE, "result/growth-2.png")]
    result = RunResult(
        ending=RunEnding.ACCEPTED,
        usage=RequestUsage(0, 0),
        messages=2,
        seconds=1.0,
        answer="See growth.png",
        files=files,
    )
    out = await told(capsys, result, answer_last=True)
    assert out.endswith("\n── answer\nSee growth.png\n\ngrowth.png is result/growth-2.png\n")


def test_many_files_are_a_line_for_each_kind_of_change():
    made = [RunFile(f"out/f{number:03}.txt", 10, Change.MADE) for number in range(300)]
    changed = RunFile("table.csv", 2_000, Change.CHANGED)
    assert [*file_lines([*made, changed])] == [
        "made    300 files in out · 3.0 kB: f000.txt, f001.txt, f002.txt, f003.txt, f004.txt and 295 more",
        "changed 1 file · 2.0 kB: table.csv",
    ]
    assert [*file_lines([made[0], changed])] == [
        "made    out/f000.txt · 10 bytes",
        "changed table.csv · 2.0 kB",
    ]


async def test_output_that_was_not_streamed_is_shown_once(capsys: pytest.CaptureFixture[str]):
    assert await told(capsys, executed("a"), respond("a")) == "── executor\na\n✓ exit code 0\n"
    assert await told(capsys, respond("a", 3)) == "── executor\na\n✗ exit code 3\n"


async def test_an_executor_of_autogen_s_own_is_shown_the_same(capsys: pytest.CaptureFixture[str]):
    event = CodeExecutionEvent(
        result=CodeResult(exit_code=1, output="boom"), retry_attempt=0, source="executor"
    )
    assert await told(capsys, event) == "── executor\nboom\n✗ exit code 1\n"


async def test_what_an_answer_adds_to_the_output_is_shown(capsys: pytest.CaptureFixture[str]):
    answer = respond("a", 1, remark="No further attempt: hopeless")
    out = await told(capsys, output("a"), executed("a", 1), answer)
    assert out == "── executor\na\n✗ exit code 1\nNo further attempt: hopeless\n"


async def test_what_an_agent_without_a_model_adds_to_streamed_output_is_shown(
    capsys: pytest.CaptureFixture[str],
):
    answer = respond("a\n", remark="[Code not run, its language is not supported here: perl]", id="1")
    out = await told(capsys, output("a\n"), answer)
    assert out == (
        "── executor\na\n[Code not run, its language is not supported here: perl]\n✓ exit code 0\n"
    )


async def test_pieces_of_one_speaker_hide_nothing_of_another(capsys: pytest.CaptureFixture[str]):
    out = await told(capsys, output("a"), words("b", "2"), say("c", "third"))
    assert out == "── executor\na\n\n── coder\nb\n\n── third\nc\n"


async def test_a_reflection_of_the_executor_itself_is_its_answer(capsys: pytest.CaptureFixture[str]):
    # also where it says nothing but what the code has printed
    out = await told(capsys, output("a"), executed("a"), say("a", "executor"))
    assert out == "── executor\na\n✓ exit code 0\na\n"


async def test_what_was_said_is_not_repeated_when_it_comes_out_of_the_team(
    capsys: pytest.CaptureFixture[str],
):
    one, two = say("one"), say("two", "other")
    out = await told(capsys, one, one, two, words("three", "3"), one, two)
    assert out == "── coder\none\n\n── other\ntwo\n\n── coder\nthree"


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
    repeated = [chunk("Hel", id="1"), chunk("lo.", id="1"), say("Hello.", id="1"), say("Bye.", id="2")]
    out = await told(capsys, words("Hel"), words("lo."), *repeated)
    assert out == "── coder\nHello.\nBye.\n"


async def test_a_reply_that_comes_again_is_shown_once(capsys: pytest.CaptureFixture[str]):
    again = [
        words("I can", id="2"),
        words("not.", id="2"),
        say("I cannot.", id="2"),
        say("I cannot.", id="3"),
    ]
    other = [words("I can", id="4"), words(".", id="4"), say("I can.", id="4")]
    out = await told(capsys, words("I cannot.", id="1"), say("I cannot.", id="1"), *again, *other)
    assert out == "── coder\nI cannot.\nI can.\n"


@pytest.mark.parametrize("id", ["1", None])
async def test_an_agent_of_autogen_s_own_tells_of_its_model_s_words_itself(
    capsys: pytest.CaptureFixture[str], id: str | None
):
    out = await told(
        capsys, chunk("Hel", id=id), chunk("lo.", id=id), say("Hello.", id="1"), say("Bye.", id="2")
    )
    assert out == "── coder\nHello.\nBye.\n"


async def test_a_line_break_that_comes_in_two_halves_is_one(capsys: pytest.CaptureFixture[str]):
    assert await told(capsys, output("a\r"), output("\nb\n"), executed("a\nb\n")) == (
        "── executor\na\nb\n✓ exit code 0\n"
    )


async def test_a_flood_is_cut_and_counted(capsys: pytest.CaptureFixture[str]):
    out = await told(capsys, *(output("#" * 1000) for _ in range(150)), executed("#"))
    assert out.count("#") == 100_000
    assert "[... 50000 more characters are not shown ...]\n✓ exit code 0\n" in out


def answer(text: str, ending: Ending = Ending.ANSWERED, id: str = "2") -> TextMessage:
    """What an agent that acts by code has come to."""
    record = ExecutionRecord(
        blocks=[],
        exit_code=0,
        outcome=Outcome.COMPLETED,
        output="42\n",
        remark="" if ending is Ending.CANCELLED else None,
    )
    metadata = {**record.to_metadata(), **ending.to_metadata()}
    return TextMessage(id=id, content=text, source="executor", metadata=metadata)


async def test_an_answer_that_is_what_the_code_printed_is_shown_as_the_answer_all_the_same(
    capsys: pytest.CaptureFixture[str],
):
    out = await told(capsys, output("42\n"), executed("42\n"), answer("42"))
    assert out == "── executor\n42\n✓ exit code 0\n42\n"


async def test_an_answer_that_came_in_pieces_is_not_repeated_after_the_reflection_on_it(
    capsys: pytest.CaptureFixture[str],
):
    thought = ThoughtEvent(content="Accepted.", source="executor")
    judged = answer("It is 42.")
    judged.metadata |= Verdict(accepted=True).to_metadata()
    asked = ModelCallBegan(span=1, agent="executor", model="m")
    pieces = [words("It is ", "2", "executor"), words("42.", "2", "executor")]
    out = await told(capsys, executed("42\n"), asked, *pieces, asked, thought, judged)
    assert out == "── executor\n42\n✓ exit code 0\nIt is 42.\nAccepted.\n"
    out = await told(capsys, executed("42\n"), asked, thought, judged)
    assert out == "── executor\n42\n✓ exit code 0\nAccepted.\nIt is 42.\n"


async def test_code_that_was_cancelled_is_no_answer_to_be_shown_again(capsys: pytest.CaptureFixture[str]):
    cancelled = executed("Code execution was cancelled.", 1, Outcome.CANCELLED)
    out = await told(capsys, cancelled, answer("Code execution was cancelled.", Ending.CANCELLED))
    assert out == "── executor\nCode execution was cancelled.\n✗ exit code 1 (cancelled)\n"


@pytest.mark.parametrize(
    ("ending", "label"),
    [
        (RunEnding.ACCEPTED, "answer"),
        (RunEnding.NOT_ACCEPTED, "best answer so far"),
        (RunEnding.STOPPED, "best answer so far"),
    ],
)
async def test_the_answer_comes_last_and_once(
    capsys: pytest.CaptureFixture[str], ending: RunEnding, label: str
):
    ended = result(ending, answer="It is\x1b[1m 42.")
    verdict = Verdict(accepted=True, problems=["It is slow."], answer="It is 42.").to_metadata()
    reviewed = TextMessage(content="It is 42.", source="reviewer", metadata=verdict)
    summary = f"\n── {ending.value} · 2 messages · 0.0 s\n\n── {label}\nIt is␛[1m 42.\n"
    for message, shown in (
        (answer("It is 42."), "── executor\n"),
        (reviewed, "── reviewer\n✓ Accepted.\n- It is slow.\n"),
    ):
        conversation = Conversation(Screen(), answer_last=True)
        for event in (MessageSent(message=message), ended):
            conversation(event)
        assert capsys.readouterr().out == shown + summary


async def test_an_answer_that_is_not_the_last_word_is_shown_where_it_comes(
    capsys: pytest.CaptureFixture[str],
):
    conversation = Conversation(Screen(), answer_last=True)
    for event in (MessageSent(message=answer("It is 41.")), MessageSent(message=say("No.", "critic"))):
        conversation(event)
    assert capsys.readouterr().out == "── executor\nIt is 41.\n\n── critic\nNo.\n"


async def test_in_a_chat_the_reviewer_s_answer_is_shown_where_it_comes(capsys: pytest.CaptureFixture[str]):
    verdict = Verdict(accepted=True, answer="It is 42.").to_metadata()
    message = TextMessage(content="It is 42.", source="reviewer", metadata=verdict)
    out = await told(capsys, message)
    assert out == "── reviewer\n✓ Accepted.\n\nIt is 42.\n"


def call(span: int, arguments: str = "{}", parent: int | None = 1) -> ToolCallBegan:
    return ToolCallBegan(parent=parent, span=span, agent="executor", name="orders.get", arguments=arguments)


def called(span: int, outcome: CallOutcome = CallOutcome.OK, error: str = "") -> ToolCallEnded:
    return ToolCallEnded(
        span=span, agent="executor", name="orders.get", outcome=outcome, error=error, seconds=0.25
    )


async def test_a_process_of_a_program_is_one_line_once_it_has_ended(capsys: pytest.CaptureFixture[str]):
    shown = await told(
        capsys,
        ProcessBegan(span=1, argv=["serve", "8000"], is_job=True, at=1.0),
        ProcessBegan(span=2, argv=["sh", "-c", "exit 3"], at=1.0),
        ProcessEnded(span=2, returncode=3, at=3.5),
        ProcessBegan(span=3, argv=["nothing"], at=1.0),
        ProcessEnded(span=3, error="FileNotFoundError: there is none", at=1.0),
    )
    assert shown.splitlines() == [
        "$ sh -c 'exit 3' · exit code 3 · 2.5 s",
        "$ nothing · FileNotFoundError: there is none · 0.0 s",
    ]


BLOCK = BlockBegan(span=1, agent="executor", blocks=[])


async def test_requests_and_denials_are_a_line_each_and_many_are_counted(capsys: pytest.CaptureFixture[str]):
    requests = [
        RequestEnded(
            span=span,
            parent=1,
            agent="executor",
            method="GET",
            url="https://a.test/",
            status=200,
            received=2000,
        )
        for span in range(10, 35)
    ]
    out = await told(
        capsys,
        BLOCK,
        RequestEnded(
            span=2, parent=1, agent="executor", method="CONNECT", url="a.test:443", sent=10, seconds=2.0
        ),
        RequestDenied(parent=1, agent="executor", host="b.test", port=80, reason="no rule", entry="b.test"),
        *requests,
        BlockEnded(span=1, agent="executor", exit_code=0),
        # of nobody's block
        RequestEnded(
            span=3, agent="executor", method="PUT", url="https://a.test/" + "x" * 200, error="it was lost"
        ),
    )
    assert out.splitlines() == [
        "── executor",
        "⇄ CONNECT a.test:443 · 10 bytes sent, 0 bytes received · 2.0 s",
        "✗ b.test:80 is denied: no rule",
        *["⇄ GET https://a.test/ · 200 · 2.0 kB received · 0.0 s"] * 18,
        "[... 7 more calls are not shown ...]",
        f"⇄ PUT https://a.test/{'x' * 104}… · it was lost · 0 bytes received · 0.0 s",
    ]


async def test_calls_of_tools_are_told_as_they_begin_and_as_they_end(capsys: pytest.CaptureFixture[str]):
    out = await told(
        capsys,
        BLOCK,
        output("Look: "),
        call(2, '{"number":1}'),
        called(2),
        call(3, f'{{"number":"{"x" * 100}"}}'),
        called(3, CallOutcome.DENIED, "too\nlong"),
        output("done\n"),
        executed("Look: done\n"),
    )
    assert out == (
        '── executor\nLook: \n→ tools.orders.get {"number":1}\n✓ tools.orders.get · 0.2 s\n'
        f'→ tools.orders.get {{"number":"{"x" * 49}...\n✗ tools.orders.get · denied: too long · 0.2 s\n'
        "done\n✓ exit code 0\n"
    )


async def test_many_calls_are_counted_and_those_of_autogen_s_own_agents_have_messages(
    capsys: pytest.CaptureFixture[str],
):
    many = [event for span in range(2, 102) for event in (call(span), called(span))]
    out = await told(capsys, BLOCK, *many, BlockEnded(span=1, agent="executor"))
    assert out.count("→") == out.count("✓") == 20
    assert out.endswith("[... 80 more calls are not shown ...]\n")
    assert await told(capsys, call(1, parent=None), called(1)) == ""


def result(ending: RunEnding, **more: Any) -> RunResult:
    return RunResult(ending=ending, usage=RequestUsage(0, 0), messages=2, seconds=0.0, **more)


async def test_what_somebody_has_just_typed_is_not_printed_again_and_each_answer_has_its_header(
    capsys: pytest.CaptureFixture[str],
):
    conversation = Conversation(Screen(), echo=False)
    for question in ("one", "two"):
        conversation(RunBegan(span=1, task=question))
        conversation(MessageSent(message=say(question, "user")))
        conversation(MessageSent(message=say(f"answer to {question}")))
        conversation(result(RunEnding.ACCEPTED))
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
        output(hostile),
        executed(hostile, 1),
        CodeGenerationEvent(
            content=f"Attempt number: 1\nProposed correction: {hostile}",
            code_blocks=[],
            retry_attempt=0,
            source="executor",
        ),
        ThoughtEvent(content=hostile, source="executor"),
        TextMessage(content="", source="reflection", metadata=verdict.to_metadata()),
        result(RunEnding.NOT_ACCEPTED, stop_reason=hostile),
    )
    assert out.count("[red]x[/] :smile: ␛[2J␛]52;c;aGk=␇\ufffd1m") == 8
    assert "\x1b" not in out
    assert "\x9b" not in out


async def test_thoughts_among_words_that_came_in_pieces_are_not_repeated(capsys: pytest.CaptureFixture[str]):
    code = "```python\nprint(1)\n```"
    generated = CodeGenerationEvent(id="1", retry_attempt=0, content=code, code_blocks=[], source="coder")
    thought = ThoughtEvent(content="Hm.", source="coder")
    for said in (generated, say(code, id="1")):
        out = await told(capsys, words(f"<think>Hm.</think>\n{code}"), thought, said)
        assert out == f"── coder\n<think>Hm.</think>\n{code}\n"


async def test_what_is_told_after_the_words_that_came_in_pieces_is_shown(capsys: pytest.CaptureFixture[str]):
    generated = CodeGenerationEvent(
        id="1", retry_attempt=0, content="It is 42.", code_blocks=[], source="coder"
    )
    remark = ThoughtEvent(content="The answer is not taken.", source="coder")
    out = await told(capsys, words("It is 42."), generated, remark)
    assert out == "── coder\nIt is 42.\nThe answer is not taken.\n"


def test_an_answer_of_many_lines_is_printed_as_fast_as_one_of_a_single_line(
    capsys: pytest.CaptureFixture[str],
):
    screen, answer = Screen(), "x\n" * (1 << 18)
    began = time.process_time()
    screen.prose(answer)
    assert time.process_time() - began < SHORT / 4
    assert capsys.readouterr().out == answer


@pytest.mark.parametrize("of_program", [False, True])
async def test_python_that_runs_a_shell_is_marked(
    capsys: pytest.CaptureFixture[str], *, of_program: bool
) -> None:
    for code, is_marked in (("files = !ls", True), ("%%bash\nls", True), ("print('!ls')", False)):
        block = BlockBegan(span=1, agent="coder", blocks=[Code("python", code)], of_program=of_program)
        assert ("runs a shell" in await told(capsys, block)) is is_marked
