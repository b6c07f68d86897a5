"""The model is text that can be wrong: whatever it writes has an outcome that it can read."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from autogen_agentchat.messages import CodeGenerationEvent
from autogen_core import FunctionCall
from autogen_core.models import CreateResult, RequestUsage
from support.agents import answer, contents, record_of, replay, turn, user
from support.codeact import agent_of, outputs, py
from support.openai_server import (
    AnyReply,
    Filtered,
    Garbage,
    Refusal,
    ScriptedServer,
    Text,
    ToolCalls,
    Truncated,
)
from support.variations import mostly_long

from codeact_team.agents.codeact.reply import read_reply
from codeact_team.agents.messages import NO_ANSWER
from codeact_team.agents.observations import Ending
from codeact_team.errors import ModelError
from codeact_team.executors.confined import ConfinedSessionCodeExecutor
from codeact_team.text.markdown import extract_code

Session = ConfinedSessionCodeExecutor

LANGUAGES = ["python", "sh"]
RUBY = "```ruby\nputs 42\n```"
UNLABELLED = "The table:\n```\nprint(table)\n```"


def said(content: str | list[FunctionCall], finish_reason: str = "stop") -> CreateResult:
    return CreateResult(
        content=content,
        finish_reason=finish_reason,  # pyright: ignore[reportArgumentType]
        usage=RequestUsage(0, 0),
        cached=False,
    )


@pytest.mark.parametrize("text", ["It is 42.", "```json\n{}\n```", "Use `print`.", "~~~text\nx\n~~~"])
def test_words_are_an_answer_even_where_they_quote_something(text: str):
    reply = read_reply(said(text), LANGUAGES)
    assert (reply.blocks, reply.remark, reply.text) == ([], None, text)


@pytest.mark.parametrize(
    "quoted",
    [
        "region  total\nNorth   34.5 %\nSouth   12",
        '{"North": 34.5, "new": [true, null]}',
        "| region | total |\n|---|---|\n| North | 3 |",
        "42",
        "2026-01-01  3 orders",
    ],
)
def test_an_answer_may_quote_figures_without_a_label(quoted: str):
    text = f"North grew most:\n```\n{quoted}\n```\nThat is all."
    reply = read_reply(said(text), LANGUAGES)
    assert (reply.blocks, reply.remark, reply.text) == ([], None, text)


@pytest.mark.parametrize(
    "code",
    [
        "print(table)",
        "table",
        "total = 3",
        "a, b = 1, 2",
        "table['total'].sum()",
        "1 + 1",
        "import pandas as pd\npd.read_csv('sales.csv'",
        "[row for row in rows]",
        "ls -la",
        "cat sales.csv",
        "$ wc -l *.csv",
        "./run.sh",
        "cd data && head *.csv",
    ],
)
def test_code_without_a_label_is_remarked_on_and_not_taken_for_an_answer(code: str):
    reply = read_reply(said(f"Now I look:\n```\n{code}\n```"), LANGUAGES)
    assert reply.remark is not None
    assert "a code block is run if it has one of the labels python, sh" in reply.remark


def test_code_is_run_and_what_is_not_run_beside_it_is_named():
    reply = read_reply(said(f"{py('1')}\n{RUBY}"), LANGUAGES)
    assert ([block.code for block in reply.blocks], reply.unsupported, reply.remark) == (
        ["1\n"],
        ["ruby"],
        None,
    )


@pytest.mark.parametrize(
    ("result", "remark"),
    [
        (said(RUBY), "ruby is not run here, only python, sh."),
        (said(UNLABELLED), "if it has one of the labels python, sh."),
        (said(" \n"), "empty"),
        (said("It is", "length"), "cut off"),
        (said("It is", "content_filter"), "content filter"),
    ],
)
def test_what_is_neither_code_nor_an_answer_is_remarked_on_but_may_be_an_answer(
    result: CreateResult, remark: str
):
    reply = read_reply(result, LANGUAGES)
    assert reply.remark is not None
    assert remark in reply.remark
    assert (reply.blocks, reply.may_be_answer) == ([], True)


@pytest.mark.parametrize("finish_reason", ["length", "content_filter", "unknown"])
def test_code_that_was_cut_off_is_not_run(finish_reason: str):
    reply = read_reply(said("```python\nimport os\nos.remove('", finish_reason), LANGUAGES)
    assert reply.remark is not None
    assert (reply.blocks, reply.may_be_answer) == ([], False)


def test_a_call_of_a_tool_that_is_not_there_is_no_answer():
    reply = read_reply(said([FunctionCall(id="1", name="search", arguments='{"q": 1}')]), LANGUAGES)
    assert reply.remark is not None
    assert "search" in reply.remark
    assert (reply.text, reply.may_be_answer) == ('search({"q": 1})', False)


REMARKED: dict[str, AnyReply] = {
    "a language that is not run": Text(RUBY),
    "no label": Text(UNLABELLED),
    "blank": Text(" \n"),
    "refused": Refusal(),
    "filtered": Filtered(),
    "cut off": Truncated("Well, it is"),
    "cut off in code": Truncated("```python\nprint((4"),
    "a tool call": ToolCalls([("search", {})]),
}


@pytest.mark.parametrize("reply", mostly_long(REMARKED.values(), usual=3), ids=list(REMARKED))
async def test_the_model_is_told_and_goes_on(session: Session, reply: AnyReply):
    # an unsupported language ended the team
    async with ScriptedServer([reply, Text(py("6 * 7")), Text("It is 42.")]) as server:
        items = await turn(agent_of(server, session))
        assert server.requests[1]["messages"][-1]["role"] == "user"
    steps = [item.retry_attempt for item in items if isinstance(item, CodeGenerationEvent)]
    assert steps == [0, 1], "it counts as a step"
    assert outputs(items) == ["42\n"]


@pytest.mark.parametrize(
    ("reply", "text", "ending"),
    mostly_long(
        [
            (Text(RUBY), RUBY, Ending.ANSWERED),
            (Text(UNLABELLED), UNLABELLED, Ending.ANSWERED),
            (Refusal(), "I cannot help with that.", Ending.REFUSED),
            (Filtered(), NO_ANSWER, Ending.REFUSED),
            (Text(""), NO_ANSWER, Ending.NO_ANSWER),
        ]
    ),
    ids=["ruby", "unlabelled", "refused", "filtered", "empty"],
)
async def test_given_again_it_is_the_answer(session: Session, reply: AnyReply, text: str, ending: Ending):
    async with ScriptedServer([reply, reply]) as server:
        message = await answer(agent_of(server, session))
    assert (message.content, Ending.from_metadata(message.metadata)) == (text, ending)


NEVER: dict[str, tuple[AnyReply, str, Ending]] = {
    "a tool call": (
        ToolCalls([("search", {})]),
        "(The model called a tool that it was not offered: search.)",
        Ending.NO_SUCH_TOOL,
    ),
    "cut-off code": (Truncated("~~~python\nprint((4"), "~\u200b~\u200b~python\nprint((4", Ending.CUT_OFF),
    "cut-off words": (Truncated("Well, it is"), "Well, it is", Ending.CUT_OFF),
    "nothing but a cut-off thought": (Truncated("<think>\nWell"), NO_ANSWER, Ending.CUT_OFF),
}


@pytest.mark.parametrize(("reply", "last", "ending"), mostly_long(NEVER.values()), ids=list(NEVER))
async def test_what_can_never_be_an_answer_ends_by_a_last_call_after_a_few_times(
    session: Session, reply: AnyReply, last: str, ending: Ending
):
    async with ScriptedServer([reply, reply, reply, Text("I cannot.")]) as server:
        message = await answer(agent_of(server, session))
    assert (message.content, Ending.from_metadata(message.metadata)) == ("I cannot.", ending)
    async with ScriptedServer([reply] * 4) as server:
        message = await answer(agent_of(server, session))
    assert (message.content, Ending.from_metadata(message.metadata)) == (last, ending)


async def test_code_in_another_notation_is_run_or_remarked_on(session: Session):
    # both were silently taken for the answer
    replies = [
        Text("<execute_ipython>\nprint(42)\n</execute_ipython>"),
        Text('{"code": "print(43)"}'),
        Text("42"),
    ]
    async with ScriptedServer(replies) as server:
        items = await turn(agent_of(server, session))
    assert outputs(items) == ["42\n"]
    assert "JSON with a field 'code' is not run here" in contents(server.requests[2])[-1]


async def test_code_in_a_last_answer_that_was_cut_off_is_run_by_nobody(session: Session):
    async with ScriptedServer([Text(py("1")), Truncated(f"{py('2')}\nand")]) as server:
        message = await answer(agent_of(server, session, max_steps=1))
    assert message.content.endswith("and")
    assert extract_code(message.content, LANGUAGES).blocks == []


async def test_the_remarks_are_counted_anew_after_code(session: Session):
    replies = [RUBY, py("1"), RUBY, py("2"), RUBY, "Done."]
    message = await answer(agent_of(replay(*replies), session))
    assert message.content == "Done."


async def test_code_that_is_not_run_is_named_beside_the_result(session: Session):
    # an unsupported language was dropped silently beside a supported one
    async with ScriptedServer([Text(f"{py('1')}\n{RUBY}"), Text("1")]) as server:
        message = await answer(agent_of(server, session))
    assert contents(server.requests[1])[-1].endswith(
        "[Code not run, its language is not supported here: ruby]"
    )
    assert [block.language for block in record_of(message).blocks] == ["python"]


QUOTED: Sequence[str] = [
    "````text\n```python\nprint('quoted')\n```\n````",
    "```text\n<execute>print('quoted')</execute>\n```",
]


@pytest.mark.parametrize("text", QUOTED)
async def test_code_that_is_only_quoted_is_not_run(session: Session, text: str):
    # a python fence inside a text fence was executed
    items = await turn(agent_of(replay(text), session))
    assert outputs(items) == []


async def test_code_in_the_users_message_is_not_run(session: Session):
    items = await turn(
        agent_of(replay("It prints 1."), session), user(f"What does this do?\n{py('print(1)')}")
    )
    assert outputs(items) == []


@pytest.mark.filterwarnings("ignore:No text content")
async def test_a_stream_that_is_none_is_an_error_and_no_silent_model(session: Session):
    async with ScriptedServer([Garbage()]) as server:
        with pytest.raises(ModelError, match=r"not a streamed chat completion: check `base_url`"):
            await answer(agent_of(server, session, model_client_stream=True))
