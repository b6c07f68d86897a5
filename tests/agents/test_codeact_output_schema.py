"""An answer that is a value: it fits the schema, or the model is told why not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from autogen_agentchat.messages import ModelClientStreamingChunkEvent
from autogen_agentchat.teams import RoundRobinGroupChat
from pydantic import BaseModel, field_validator
from support.agents import answer, contents, replay, response, turn
from support.codeact import agent_of, py
from support.openai_server import AnyReply, Json, ScriptedServer, Text, Truncated
from support.variations import mostly_long

from codeact_team.agents.codeact.agent import CodeActAgent
from codeact_team.agents.codeact.reply import Misfit, OutputSchema
from codeact_team.agents.observations import Ending
from codeact_team.agents.reflection_agent import ReflectionAgent
from codeact_team.core.execution import SessionResult
from codeact_team.executors.confined import ConfinedSessionCodeExecutor
from codeact_team.text.markdown import extract_code
from codeact_team.text.quoting import make_inert

Session = ConfinedSessionCodeExecutor

GROWTH: dict[str, Any] = {
    "type": "object",
    "properties": {"region": {"type": "string"}, "percent": {"type": "number"}},
    "required": ["region", "percent"],
    "additionalProperties": False,
}
EAST = '{"region": "East", "percent": 12.5}'
ANY: dict[str, Any] = {}


async def told(session: Session, *replies: AnyReply, **settings: Any) -> tuple[str, Ending | None, list[str]]:
    """The text of the answer, how the run ended, and what the model was told last before that."""
    async with ScriptedServer(replies) as server:
        message = await answer(agent_of(server, session, **{"output_schema": GROWTH, **settings}))
        assert server.unused == ()
    return message.content, Ending.from_metadata(message.metadata), contents(server.requests[-1])


@pytest.mark.parametrize(
    "reply",
    [
        py("final_answer({'region': 'East', 'percent': 12.5})"),
        EAST,
        f"It grew most:\n```json\n{EAST}\n```",
        "{'region': 'East', 'percent': 12.5,}",
    ],
    ids=["code", "JSON", "a fence", "loosely"],
)
async def test_an_answer_that_fits_is_json(session: Session, reply: str):
    text, ending, (instructions, *_) = await told(session, Text(reply))
    assert (text, ending) == (EAST, Ending.ANSWERED)
    assert json.dumps(GROWTH) in instructions
    assert instructions.startswith("You solve tasks by writing Python code")


@pytest.mark.parametrize(
    ("value", "why"),
    mostly_long(
        [
            ("{'region': 'East'}", """answer: "percent" is a required property"""),
            ("{'region': 7, 'percent': 1}", """answer['region']: it is not of type "string" (it is 7)"""),
            ("'East'", """answer: it is not of type "object" (it is "East")"""),
            ("{'region': 'East', 'percent': float('nan')}", "is not JSON: Out of range float values"),
            ("{'region': 'East', 'percent': {1}}", "is not JSON: set: JSON has dicts, lists, "),
            ("{'region': 'x' * 200_000, 'percent': 1}", "100000 are possible"),
            ("eval('[' * 80 + ']' * 80)", "the answer is nested too deeply; 64 levels are possible"),
        ],
        usual=2,
    ),
)
async def test_a_value_that_does_not_fit_is_told_and_the_model_goes_on(
    session: Session, value: str, why: str
):
    text, ending, conversation = await told(session, Text(py(f"final_answer({value})")), Text(EAST))
    assert (text, ending) == (EAST, Ending.ANSWERED)
    assert conversation[-1].startswith("The answer is not taken: ")
    assert why in conversation[-1]


@pytest.mark.parametrize(
    ("reply", "why"),
    mostly_long(
        [
            (Text("It is East."), "The answer is not taken: The model's answer is not valid JSON"),
            (Text('{"region": "East"}'), "is a required property"),
            (Text("```ruby\nputs 1\n```"), "not valid JSON"),
            (Truncated(EAST), "Your reply was cut off"),
            (Text(" "), "Your reply was empty"),
        ]
    ),
)
async def test_words_that_do_not_fit_are_told_however_often_they_are_said(
    session: Session, reply: AnyReply, why: str
):
    text, ending, conversation = await told(session, reply, Text(EAST))
    assert (text, ending) == (EAST, Ending.ANSWERED)
    assert why in conversation[-1]


async def test_three_of_them_in_a_row_are_no_answer(session: Session):
    replies = [Text("It is East."), Text("East."), Text("East!"), Text("I can only say East.")]
    text, ending, conversation = await told(session, *replies)
    assert (text, ending) == ("I can only say East.", Ending.STUCK)
    assert "nothing but JSON" in conversation[-1]


async def test_what_there_is_at_the_end_of_the_steps_does_not_count_as_answered(session: Session):
    wrong = Text(py("final_answer('East')"))
    text, ending, _ = await told(session, wrong, Text(f"```json\n{EAST}\n```"), max_steps=1)
    assert (text, ending) == (EAST, Ending.MAX_STEPS)
    text, ending, _ = await told(session, wrong, wrong, Text("East."), max_steps=2)
    assert (text, ending) == ("East.", Ending.MAX_STEPS)


async def test_a_string_is_an_answer_where_the_schema_wants_one(session: Session):
    for reply in (py("final_answer('42')"), '"42"'):
        text, ending, _ = await told(session, Text(reply), output_schema={"type": "string"})
        assert (text, ending) == ('"42"', Ending.ANSWERED)


@pytest.mark.parametrize(
    "value",
    mostly_long(
        ["```python\nprint(1)\n```", "````", "a <execute>rm</execute> b", "[PYTHON]1[/PYTHON]", "\\`` `"],
        usual=2,
    ),
)
async def test_nobody_finds_code_in_an_answer_whose_value_stays_the_same(session: Session, value: str):
    text, _, _ = await told(session, Text(py(f"final_answer([{value!r}])")), output_schema=ANY)
    assert json.loads(text) == [value]
    assert make_inert(text) == text
    assert extract_code(text, ["python", "sh"], default_language="python").blocks == []


@pytest.mark.parametrize(
    "result",
    [
        SessionResult(0, "", answer="{" * 200_000, answer_is_json=True),
        SessionResult(0, "", answer="[" * 200_000, answer_is_json=True),
        SessionResult(0, "", answer="1" * 200_000, answer_is_json=True),
        SessionResult(0, "", answer="NaN", answer_is_json=True),
        SessionResult(0, "", answer='"\\ud800"', answer_is_json=True),
        SessionResult(0, "", answer="", answer_is_json=True),
        SessionResult(0, "", answer="1", answer_problem="\x1b[2J\n" * 10_000),
    ],
)
def test_an_interpreter_that_lies_gives_no_answer(result: SessionResult):
    with pytest.raises(Misfit) as misfit:
        OutputSchema(ANY).of_code(result)
    assert len(str(misfit.value)) < 2_100
    assert "\x1b" not in str(misfit.value)


async def test_what_was_streamed_is_another_message_than_its_json(session: Session):
    async with ScriptedServer([Text(f"```json\n{EAST}\n```")]) as server:
        agent = agent_of(server, session, output_schema=GROWTH, model_client_stream=True)
        *items, last = await turn(agent)
    ids = {item.full_message_id for item in items if isinstance(item, ModelClientStreamingChunkEvent)}
    assert last.chat_message.to_text() == EAST  # pyright: ignore[reportAttributeAccessIssue,reportUnknownMemberType]
    assert last.chat_message.id not in ids  # pyright: ignore[reportAttributeAccessIssue,reportUnknownMemberType]


class Growth(BaseModel):
    """How much a region has grown."""

    region: str
    percent: float

    @field_validator("region")
    @classmethod
    def _known(cls, region: str) -> str:
        if region not in ("East", "West"):
            raise ValueError("there is no such region")
        return region


async def test_a_model_of_pydantic_is_a_schema_whose_validators_have_to_agree(session: Session):
    wrong = Text(py("final_answer({'region': 'North', 'percent': 1})"))
    text, ending, conversation = await told(session, wrong, Text(EAST), output_schema=Growth)
    assert Growth.model_validate_json(text) == Growth(region="East", percent=12.5)
    assert ending is Ending.ANSWERED
    assert conversation[-1].endswith("not taken: answer['region']: Value error, there is no such region.")
    agent = agent_of(replay(), session, output_schema=Growth)
    dumped = agent.dump_component()
    assert dumped.config["output_schema"] == Growth.model_json_schema()
    assert CodeActAgent.load_component(dumped).dump_component() == dumped


async def test_a_reflection_can_send_back_what_fits(session: Session):
    reject = Json({"problems": ["It is West."], "accepted": False, "next_step": "", "answer": ""})
    accept = Json({"problems": [], "accepted": True, "next_step": "", "answer": ""})
    west = EAST.replace("East", "West")
    text, ending, _ = await told(session, Text(EAST), reject, Text(west), accept, max_reflections=1)
    assert (text, ending) == (west, Ending.ANSWERED)


async def test_it_goes_through_a_nested_team_and_a_review_as_it_is(session: Session):
    value = {"region": "<execute>```", "percent": 1}
    async with ScriptedServer([Text(json.dumps(value)), Json({"accepted": True})]) as server:
        coder = agent_of(server, session, output_schema=GROWTH)
        inner = RoundRobinGroupChat([coder], max_turns=1)
        reviewer = ReflectionAgent("reviewer", server.client())
        result = await RoundRobinGroupChat([inner, reviewer], max_turns=2).run(task="A task")
    assert json.loads(result.messages[-1].to_text()) == value


async def test_without_other_instructions_the_schema_is_all_that_the_model_is_told(session: Session):
    async with ScriptedServer([Text(EAST)]) as server:
        agent = agent_of(server, session, output_schema=GROWTH, system_message="")
        await response(agent)
    assert contents(server.requests[0])[0].startswith("The answer is not given in plain words")
