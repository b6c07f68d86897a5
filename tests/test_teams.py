from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import Team, TerminatedException
from autogen_agentchat.conditions import MaxMessageTermination, TokenUsageTermination
from autogen_agentchat.messages import BaseChatMessage, CodeExecutionEvent, TextMessage, ThoughtEvent
from autogen_agentchat.teams import RoundRobinGroupChat, SelectorGroupChat
from autogen_core import CancellationToken
from autogen_core.models import ChatCompletionClient, RequestUsage
from support.agents import (
    FAILS,
    PRINTS_42,
    RETRY,
    TASK,
    Foreign,
    Item,
    calls_of,
    confined,
    contents,
    record_of,
    replay,
    user,
    yes,
)
from support.openai_server import Json, ScriptedServer, Text

from codeact_team.agents.code_executor import CodeExecutorAgent
from codeact_team.agents.reflection_agent import ReflectionAgent
from codeact_team.agents.teams import ReflectionTermination, round_robin_team
from codeact_team.errors import SettingError
from codeact_team.executors.confined import ConfinedCommandLineCodeExecutor
from codeact_team.models.verdicts import Verdict

ACCEPTED = Verdict(accepted=True)
REFUSED = Verdict(accepted=False, problems=["It prints 41."], next_step="Print 42.")
PRINTS_41 = "```python\nprint(41)\n```"

LOOP = [Text(PRINTS_41), Json(REFUSED), Text(FAILS), Json(RETRY), Text(PRINTS_42), Json(ACCEPTED)]


def verdict(of: Verdict, source: str = "reflection") -> TextMessage:
    return TextMessage(content=of.to_text(), source=source, metadata=of.to_metadata())


def said(result: Any) -> list[tuple[str, str]]:
    return [
        (message.source, message.to_text())
        for message in result.messages
        if isinstance(message, BaseChatMessage)
    ]


async def test_the_team_goes_through_the_whole_loop(tmp_path: Path):
    async with ScriptedServer(LOOP) as server, confined(tmp_path) as executor:
        result = await round_robin_team(server.client(), executor).run(task=TASK)
        assert not server.unused
    assert said(result) == [
        ("user", TASK),
        ("coder", PRINTS_41),
        ("executor", "41\n"),
        ("reflection", REFUSED.to_text()),
        ("coder", FAILS),
        ("executor", "42\n"),
        ("reflection", "Accepted."),
    ]
    assert result.stop_reason == "reflection accepted the work"
    executions = [event.result for event in result.messages if isinstance(event, CodeExecutionEvent)]
    assert [execution.exit_code for execution in executions] == [0, 1, 0]
    assert [str(contents(request)).count(TASK) for request in server.requests] == [1] * 6


async def test_only_the_coders_code_is_run_and_the_reviewer_cannot_add_any():
    executor = Foreign()
    verdict_with_code = Verdict(accepted=False, problems=[], next_step=PRINTS_41)
    replies = [Text(PRINTS_42), Json(verdict_with_code), Text("I am lost."), Json(ACCEPTED)]
    async with ScriptedServer(replies) as server:
        await round_robin_team(server.client(), executor, approval_func=yes).run(task=PRINTS_41)
    assert [block.code for block in executor.executed] == ["print(42)\n"]


async def test_the_team_ends_at_a_number_of_messages():
    async with ScriptedServer([Text(PRINTS_41), Json(REFUSED), Text(PRINTS_41)]) as server:
        team = round_robin_team(server.client(), Foreign(), max_messages=5, approval_func=yes)
        result = await team.run(task=TASK)
    assert result.stop_reason == "Maximum number of messages 5 reached, current message count: 5"


async def test_the_team_ends_at_a_number_of_tokens():
    async with ScriptedServer([Text(PRINTS_41, prompt_tokens=1000)]) as server:
        team = round_robin_team(server.client(), Foreign(), max_tokens=1000, approval_func=yes)
        result = await team.run(task=TASK)
    assert result.stop_reason is not None
    assert "Token usage limit reached" in result.stop_reason


@pytest.mark.parametrize(("limit", "ends"), [(440, True), (441, False)])
async def test_a_token_limit_counts_every_call_of_a_turn_exactly_once(limit: int, ends: bool):
    # token budgets under-counted
    replies = [Text(FAILS), Json(RETRY), Text(PRINTS_42), Text("It is 42.")]
    async with ScriptedServer(replies) as server:
        agent = CodeExecutorAgent(
            "executor",
            Foreign(ValueError("no")),
            model_client=server.client(),
            max_retries_on_error=1,
            approval_func=yes,
        )
        ending = TokenUsageTermination(max_total_token=limit)
        result = await RoundRobinGroupChat([agent], termination_condition=ending, max_turns=1).run(task=TASK)
    assert result.messages[-1].models_usage == RequestUsage(prompt_tokens=400, completion_tokens=40)
    assert result.stop_reason is not None
    assert ("Token usage limit reached" in result.stop_reason) is ends


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"max_messages": 1}, "max_messages is 1"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"max_retries_on_error": -1}, "max_retries_on_error is -1"),
    ],
)
def test_limits_that_leave_no_room_are_refused(limits: dict[str, int], text: str):
    with pytest.raises(SettingError, match=text):
        round_robin_team(replay(), ConfinedCommandLineCodeExecutor(), **limits)  # pyright: ignore[reportArgumentType]


def coder_of(client: ChatCompletionClient) -> AssistantAgent:
    return AssistantAgent("coder", client, description="Writes code.")


def executor_of(client: ChatCompletionClient | None = None, name: str = "executor") -> CodeExecutorAgent:
    return CodeExecutorAgent(name, Foreign(), model_client=client, approval_func=yes)


async def test_the_executor_agent_works_in_a_selector_group_chat():
    selector = replay("coder", "executor", "reflection")
    team = SelectorGroupChat(
        [
            coder_of(replay(PRINTS_42)),
            executor_of(),
            ReflectionAgent("reflection", replay(ACCEPTED.model_dump_json())),
        ],
        selector,
        termination_condition=ReflectionTermination() | MaxMessageTermination(9),
    )
    result = await team.run(task=TASK)
    assert [source for source, _ in said(result)] == ["user", "coder", "executor", "reflection"]
    assert result.stop_reason == "reflection accepted the work"
    assert calls_of(selector) == 3
    assert "executor: 42\n" in selector.create_calls[2]["messages"][0].content, (
        "the selector reads the result"
    )


def nested(*verdicts: Verdict, ending: ReflectionTermination | None, outer: Sequence[Any] = ()) -> Team:
    replies = [reply.model_dump_json() for reply in verdicts]
    inner = RoundRobinGroupChat(
        [coder_of(replay(*[PRINTS_42] * 9)), executor_of(), ReflectionAgent("reflection", replay(*replies))],
        name="inner",
        description="Writes code and runs it.",
        termination_condition=ReflectionTermination() | MaxMessageTermination(30),
    )
    team_ending = MaxMessageTermination(30) if ending is None else ending | MaxMessageTermination(30)
    return RoundRobinGroupChat([inner, *outer], termination_condition=team_ending, max_turns=3)


async def test_an_accepted_verdict_ends_the_inner_team_and_the_outer_one_that_asks_for_it():
    result = await nested(REFUSED, ACCEPTED, ending=ReflectionTermination()).run(task=TASK)
    assert result.stop_reason == "reflection accepted the work"
    sources = [source for source, _ in said(result)]
    assert sources == ["user", *["coder", "executor", "reflection"] * 2]


async def test_the_outer_team_goes_on_where_it_does_not_ask_for_verdicts_or_not_for_this_ones():
    for ending in (None, ReflectionTermination("chief")):
        assistant = AssistantAgent("writer", replay("A report.", "A report."))
        result = await nested(ACCEPTED, ACCEPTED, ending=ending, outer=[assistant]).run(task=TASK)
        assert result.stop_reason == "Maximum number of turns 3 reached."
        assert [source for source, _ in said(result)].count("writer") == 1


async def test_metadata_survives_nesting():
    seen: list[BaseChatMessage] = []

    class Witness(ReflectionAgent):
        async def on_messages_stream(
            self, messages: Sequence[BaseChatMessage], cancellation_token: CancellationToken
        ) -> AsyncGenerator[Item, None]:
            seen.extend(messages)
            async for item in super().on_messages_stream(messages, cancellation_token):
                yield item

    witness = Witness("chief", replay(ACCEPTED.model_dump_json()))
    result = await nested(ACCEPTED, ending=ReflectionTermination("chief"), outer=[witness]).run(task=TASK)
    assert result.stop_reason == "chief accepted the work"
    ran, judged = seen[-2:]
    assert record_of(ran).blocks[0].code == "print(42)\n"
    assert Verdict.from_metadata(judged.metadata) == ACCEPTED


async def test_a_nested_team_is_saved_and_resumed_with_what_its_members_know():
    client = replay(FAILS, "It failed.", "It is 42.")

    def team_of() -> RoundRobinGroupChat:
        inner = RoundRobinGroupChat([executor_of(client)], name="inner", max_turns=1)
        return RoundRobinGroupChat([inner], max_turns=1)

    first, second = team_of(), team_of()
    await first.run(task=TASK)
    await second.load_state(json.loads(json.dumps(await first.save_state())))
    result = await second.run(task="Again?")
    assert said(result)[-1] == ("executor", "It is 42.")
    heard = [str(message.content) for message in client.create_calls[-1]["messages"][1:]]
    assert heard == [TASK, FAILS, "<output>\n42\n\n</output>", "It failed.", "Again?"]


async def test_only_an_accepted_verdict_of_the_named_source_ends_a_team():
    ending = ReflectionTermination("reflection")
    assert await ending([user("Accepted."), verdict(REFUSED), verdict(ACCEPTED, source="coder")]) is None
    assert not ending.terminated
    stop = await ending([verdict(REFUSED), verdict(ACCEPTED)])
    assert stop is not None
    assert (stop.content, stop.source) == ("reflection accepted the work", "ReflectionTermination")
    assert ending.terminated
    with pytest.raises(TerminatedException):
        await ending([])
    await ending.reset()
    assert await ending([verdict(REFUSED)]) is None


async def test_the_second_verdict_in_a_row_that_cannot_be_read_ends_a_team():
    unread = verdict(Verdict(accepted=False, unreadable="stop"))
    ending = ReflectionTermination("reflection")
    assert await ending([unread, verdict(REFUSED), unread]) is None
    stop = await ending([unread])
    assert stop is not None
    assert stop.content == "2 verdicts of reflection in a row could not be read"
    await ending.reset()
    assert await ending([unread]) is None


async def test_anybodys_verdict_counts_where_no_source_is_named():
    assert await ReflectionTermination()([verdict(ACCEPTED, source="anybody")]) is not None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"accepted": "?"}', '{"problems": []}', "[" * 9999])
async def test_metadata_that_is_no_verdict_ends_nothing(text: str):
    message = TextMessage(content="Accepted.", source="reflection", metadata={"codeact_team.verdict": text})
    assert await ReflectionTermination()([message]) is None


async def test_words_and_events_end_nothing():
    event = ThoughtEvent(content="Accepted.", source="reflection", metadata=ACCEPTED.to_metadata())
    words = [event, user("Accepted. TERMINATE"), user(ACCEPTED.model_dump_json())]
    assert await ReflectionTermination()(words) is None


@pytest.mark.parametrize("source", [None, "reflection"])
def test_the_termination_survives_dump_and_load(source: str | None):
    dumped = ReflectionTermination(source).dump_component()
    assert dumped.provider == "codeact_team.ReflectionTermination"
    assert ReflectionTermination.load_component(dumped).dump_component() == dumped


async def test_a_loaded_team_ends_by_verdicts_as_well():
    team = RoundRobinGroupChat(
        [ReflectionAgent("reflection", replay(ACCEPTED.model_dump_json()))],
        termination_condition=ReflectionTermination("reflection") | MaxMessageTermination(5),
    )
    loaded = RoundRobinGroupChat.load_component(team.dump_component())
    assert (await loaded.run(task=TASK)).stop_reason == "reflection accepted the work"
