"""A budget in teams of AutoGen's that are built in Python: what it counts, when it refuses, and how the team ends."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent, UserProxyAgent
from autogen_agentchat.base import TerminationCondition
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import MagenticOneGroupChat, RoundRobinGroupChat
from autogen_agentchat.tools import AgentTool
from autogen_core import FunctionCall
from autogen_core.models import CreateResult, RequestUsage
from autogen_core.tools import FunctionTool
from autogen_ext.models.replay import ReplayChatCompletionClient
from support.agents import TASK, Foreign, calls_of, replay, yes
from support.codeact import agent_of, own_session, py
from support.openai_server import ScriptedServer, Slow, Text

from codeact_team.agents.code_executor import CodeExecutorAgent
from codeact_team.agents.ledger import BudgetTermination, Reading, within_budgets
from codeact_team.core.effects import Dispatcher, Effect, Event
from codeact_team.core.events import BlockEnded, BudgetSpent, ModelCallEnded, ToolCallEnded
from codeact_team.core.execution import CallOutcome
from codeact_team.errors import BudgetError, SettingError
from codeact_team.models.clients import wrap_client
from codeact_team.runs.summary import Summary, WorkEnd
from codeact_team.tools.autogen_parts import wrap

PRICES = {"clever": {"prompt": 2.0, "completion": 8.0}}


@pytest.fixture
def told() -> list[Event]:
    return []


@pytest.fixture
def dispatcher(told: list[Event]) -> Iterator[Dispatcher]:
    with Dispatcher() as dispatcher:
        dispatcher.listen(told.append, essential=True)
        yield dispatcher


def says(text: str, *, tokens: tuple[int, int] = (100, 10), cached: bool = False) -> CreateResult:
    usage = RequestUsage(*tokens)
    return CreateResult(finish_reason="stop", content=text, usage=usage, cached=cached)


def calls(name: str, **arguments: str) -> CreateResult:
    text = "{" + ", ".join(f'"{key}": "{value}"' for key, value in arguments.items()) + "}"
    call = FunctionCall(id="1", name=name, arguments=text)
    return CreateResult(
        finish_reason="function_calls", content=[call], usage=RequestUsage(100, 10), cached=False
    )


def talker(
    client: ReplayChatCompletionClient, name: str = "ann", model: str = "clever", **options: Any
) -> AssistantAgent:
    return AssistantAgent(name, wrap_client(client, model), description="Talks.", **options)


def talking(
    client: ReplayChatCompletionClient, budget: TerminationCondition, **options: Any
) -> RoundRobinGroupChat:
    return RoundRobinGroupChat(
        [talker(client, **options)], termination_condition=budget | MaxMessageTermination(9)
    )


def last(told: list[Event]) -> BudgetSpent:
    return [event for event in told if isinstance(event, BudgetSpent)][-1]


@pytest.mark.parametrize(
    ("setting", "spent"),
    [
        ({"max_model_calls": 2}, "2 of 2 model calls"),
        ({"max_tokens": 150}, "220 of 150 tokens"),
        ({"max_cost": 0.0005, "prices": PRICES}, "0.00056 of 0.0005 USD"),
    ],
)
async def test_a_team_that_may_ask_no_more_ends_between_two_turns(
    setting: Any, spent: str, dispatcher: Dispatcher, told: list[Event]
) -> None:
    client = replay(*[says("Let me see.")] * 3)
    result = await talking(client, BudgetTermination(**setting)).run(task=TASK)
    [name, *_] = setting
    assert result.stop_reason == (
        f"the budget is used up: {spent}; a higher {name} of BudgetTermination would let it go on"
    )
    assert (len(result.messages), calls_of(client)) == (3, 2)
    assert last(told).used_up == result.stop_reason
    assert last(told).left == {name.removeprefix("max_"): 0}


async def test_within_a_turn_what_is_too_much_is_refused_before_it_is_spent(
    dispatcher: Dispatcher, told: list[Event]
) -> None:
    client = replay(calls("look", at="it"), says("Done."))
    looked: list[str] = []

    def look(at: str) -> str:
        looked.append(at)
        return "nothing"

    team = talking(
        client,
        BudgetTermination(max_model_calls=1),
        tools=[wrap(FunctionTool(look, "Looks."))],
        reflect_on_tool_use=True,
    )
    with pytest.raises(
        RuntimeError, match="BudgetError: the budget is used up: 1 of 1 model calls"
    ) as raised:
        await team.run(task=TASK)
    assert isinstance(dispatcher.original_of(raised.value), BudgetError)
    assert (looked, calls_of(client)) == (["it"], 1)
    assert last(told).spent["tool_calls"] == 1


async def test_calls_of_tools_are_counted_and_refused_and_then_models_are_asked_no_more(
    dispatcher: Dispatcher, told: list[Event]
) -> None:
    looked: list[str] = []

    def look(at: str) -> str:
        looked.append(at)
        return "nothing"

    client = replay(calls("look", at="this"), calls("look", at="that"), says("Done."))
    team = talking(client, BudgetTermination(max_tool_calls=1), tools=[wrap(FunctionTool(look, "Looks."))])
    result = await team.run(task=TASK)
    assert looked == ["this"]
    assert result.stop_reason is not None
    assert result.stop_reason.startswith("the budget is used up: 1 of 1 tool calls; a higher max_tool_calls ")
    assert calls_of(client) == 2


async def test_a_call_of_code_that_is_too_much_is_refused_in_words_for_the_code_and_then_the_team_ends(
    dispatcher: Dispatcher, told: list[Event]
) -> None:
    looked: list[str] = []

    def look(at: str) -> str:
        """Look at something."""
        looked.append(at)
        return "nothing"

    code = py(
        "print(tools.look('this'))\ntry:\n    tools.look('that')\nexcept Exception as error:\n    print(error)"
    )
    async with own_session() as executor:
        agent = agent_of(replay(says(code), says("Well.")), executor, tools=[look])
        budget = BudgetTermination(max_tool_calls=1)
        with pytest.raises(RuntimeError, match="BudgetError") as raised:
            await RoundRobinGroupChat([agent], termination_condition=budget).run(task=TASK)
    assert isinstance(dispatcher.original_of(raised.value), BudgetError)
    assert looked == ["this"]
    [block] = [event for event in told if isinstance(event, BlockEnded)]
    assert "nothing\n" in block.output
    assert "the budget is used up: 1 of 1 tool calls; a higher max_tool_calls " in block.output
    calls = [event.outcome for event in told if isinstance(event, ToolCallEnded)]
    assert calls == [CallOutcome.OK, CallOutcome.REFUSED]


async def test_where_an_executor_does_not_tell_the_time_of_its_blocks_counts(
    dispatcher: Dispatcher, told: list[Event]
) -> None:
    agents = [talker(replay(says(py("6 * 7")))), CodeExecutorAgent("runner", Foreign(), approval_func=yes)]
    budget = BudgetTermination() | MaxMessageTermination(3)
    await RoundRobinGroupChat([*agents], termination_condition=budget).run(task=TASK)
    assert last(told).spent["processor_seconds"] > 0


async def test_an_agent_inside_a_tool_spends_from_the_same_budget(
    dispatcher: Dispatcher, told: list[Event]
) -> None:
    inner = talker(replay(says("Inner.")), "helper", model="small")
    agent = talker(
        replay(calls("helper", task="Help."), says("Done.")), tools=[AgentTool(inner)], max_tool_iterations=2
    )
    budget = BudgetTermination(max_model_calls=9) | MaxMessageTermination(2)
    await RoundRobinGroupChat([agent], termination_condition=budget).run(task=TASK)
    assert last(told).spent["model_calls"] == 3
    assert last(told).spent["tokens"] == 330


async def test_a_nested_team_spends_from_the_outer_budget_and_has_its_own_from_task_to_end(
    dispatcher: Dispatcher, told: list[Event]
) -> None:
    small = replay(*[says("Inner.")] * 9)
    inner = RoundRobinGroupChat(
        [talker(small, "bob")], termination_condition=BudgetTermination(max_model_calls=2), name="inner"
    )
    outer = RoundRobinGroupChat(
        [talker(replay(*[says("Outer.")] * 9)), inner],
        termination_condition=BudgetTermination(max_model_calls=6),
    )
    result = await outer.run(task=TASK)
    assert result.stop_reason is not None
    assert "6 of 6 model calls" in result.stop_reason
    # each of its tasks has the inner budget anew
    assert calls_of(small) == 4
    limits = [
        event.spent["model_calls"] + event.left["model_calls"]
        for event in told
        if isinstance(event, BudgetSpent)
    ]
    assert {2, 6} == set(limits)


async def test_answers_from_a_cache_cost_nothing(dispatcher: Dispatcher, told: list[Event]) -> None:
    client = replay(*[says("Again.", cached=True)] * 2, says("New."), says("More."))
    await talking(client, BudgetTermination(max_model_calls=2, prices=PRICES)).run(task=TASK)
    assert calls_of(client) == 4
    assert last(told).spent == {
        "model_calls": 2,
        "tokens": 220,
        "tool_calls": 0,
        "requests": 0,
        "bytes": 0,
        "processor_seconds": 0.0,
        "cost": 0.00056,
    }


async def test_an_unknown_price_is_said(dispatcher: Dispatcher, told: list[Event]) -> None:
    client = replay(says("Known."), says("Who knows?"))
    budget = BudgetTermination(prices=PRICES, currency="EUR") | MaxMessageTermination(3)
    await RoundRobinGroupChat([talker(client, model="other")], termination_condition=budget).run(task=TASK)
    event = last(told)
    assert (event.spent["cost"], event.currency, event.unpriced) == (0, "EUR", ["other"])


async def test_the_tokens_of_a_call_that_was_stopped_are_unknown_and_that_is_said(
    dispatcher: Dispatcher, told: list[Event]
) -> None:
    async with ScriptedServer([Slow(60, Text("Too late."))]) as server:
        ann = AssistantAgent("ann", wrap_client(server.client(), "clever"))
        team = RoundRobinGroupChat([ann], termination_condition=BudgetTermination(max_seconds=0.2))
        with pytest.raises(RuntimeError, match=r"of 0\.2 seconds"):
            await team.run(task=TASK)
    assert last(told).uncounted == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_where_a_server_tells_no_tokens_they_are_estimated_and_that_is_said(
    stream: bool, dispatcher: Dispatcher, told: list[Event]
) -> None:
    words = "long " * 1000
    async with ScriptedServer([Text(words, prompt_tokens=None, piece=500)] * 3) as server:
        budget = BudgetTermination(max_tokens=2000, prices=PRICES)
        client = wrap_client(server.client(), "clever")
        ann = AssistantAgent("ann", client, model_client_stream=stream)
        result = await RoundRobinGroupChat([ann], termination_condition=budget).run(task=TASK)
    assert len(server.requests) == 2
    assert result.stop_reason is not None
    # 1,250 for each reply, which are read once more, and a little for everything else
    assert re.search(r"used up: about 3,[78]\d\d of 2,000 tokens", result.stop_reason)
    calls = [event for event in told if isinstance(event, ModelCallEnded)]
    assert [event.is_estimated for event in calls] == [True, True]
    assert last(told).spent["cost"] > 0.02
    summary = Summary()
    for event in told:
        summary(event)
    told_result = summary.result(WorkEnd(), 0.0)
    assert told_result.is_estimated
    assert told_result.cost is not None
    assert told_result.cost.to_text().startswith("about 0.0")


async def test_where_money_is_limited_a_model_without_a_price_is_not_asked(dispatcher: Dispatcher) -> None:
    client = replay(says("Yes."))
    with pytest.raises(RuntimeError, match="there is no price for the model 'other'") as raised:
        await talking(client, BudgetTermination(max_cost=1, prices=PRICES), model="other").run(task=TASK)
    assert isinstance(dispatcher.original_of(raised.value), SettingError)
    assert calls_of(client) == 0


async def test_what_was_recorded_counts_and_goes_on_from_there(told: list[Event]) -> None:
    recorded: list[dict[str, Any]] = [
        {},
        {"models": {"prompt_tokens": 5000, "unpriced": ["other"]}, "seconds": 3000.0},
    ]
    read: list[Any] = []

    async def answer_readings(effect: Effect[Any], do: Callable[[], Awaitable[Any]]) -> Any:
        if not isinstance(effect, Reading):
            return await do()
        outcome = recorded.pop(0) if recorded else effect.dump(await do())
        read.append(outcome)
        return effect.load(json.loads(json.dumps(outcome)))

    with Dispatcher(answer_readings) as dispatcher:
        dispatcher.listen(told.append, essential=True)
        client = replay(says("One."), says("Two."))
        budget = BudgetTermination(max_seconds=3600, prices=PRICES) | MaxMessageTermination(3)
        await RoundRobinGroupChat([talker(client)], termination_condition=budget).run(task=TASK)
        assert 3000 <= read[2]["seconds"] < 3600
        models = read[2]["models"]
        tokens = models["prompt_tokens"] + models["completion_tokens"]
        assert (tokens, models["unpriced"]) == (5110, ["other"])
        recorded.append({"seconds": 3600.0})
        result = await RoundRobinGroupChat([talker(client)], termination_condition=budget).run(task=TASK)
    assert result.stop_reason is not None
    assert "3,600 of 3,600 seconds" in result.stop_reason


async def test_time_does_not_go_by_while_a_person_is_asked(
    dispatcher: Dispatcher, told: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    now, passed = loop.time, [0.0]
    monkeypatch.setattr(loop, "time", lambda: now() + passed[0])

    def ask(prompt: str) -> str:
        passed[0] += 10_000
        return "Go on."

    person = wrap(UserProxyAgent("bob", input_func=ask))
    budget = BudgetTermination(max_seconds=5000)
    team = RoundRobinGroupChat(
        [person, talker(replay(says("Well.")))], termination_condition=budget, max_turns=2
    )
    result = await team.run(task=TASK)
    assert (result.stop_reason, passed) == ("Maximum number of turns 2 reached.", [10_000])


async def test_the_next_task_has_the_budget_anew(dispatcher: Dispatcher) -> None:
    client = replay(*[says("Well.")] * 4)
    team = talking(client, BudgetTermination(max_model_calls=2))
    for _ in range(2):
        await team.run(task=TASK)
    assert calls_of(client) == 4


async def test_in_a_run_a_team_that_plans_before_it_asks_its_condition_is_limited_from_the_beginning(
    dispatcher: Dispatcher,
) -> None:
    client = replay(*[says("A plan.")] * 9)
    budget = BudgetTermination(max_model_calls=1) | MaxMessageTermination(9)
    team = MagenticOneGroupChat([talker(client)], wrap_client(client, "clever"), termination_condition=budget)
    with pytest.raises(BudgetError, match="1 of 1 model calls"):
        async with within_budgets(team):
            await team.run(task=TASK)
    assert calls_of(client) == 1


async def test_without_a_dispatcher_there_is_nothing_that_counts() -> None:
    with pytest.raises(SettingError, match="inside `with Dispatcher"):
        await talking(replay(says("Yes.")), BudgetTermination(max_tokens=5)).run(task=TASK)


def test_the_settings_are_all_in_the_dump() -> None:
    settings: dict[str, Any] = {
        "max_model_calls": 1,
        "max_tokens": 2,
        "max_cost": 3.5,
        "max_seconds": 4.5,
        "max_tool_calls": 0,
        "max_requests": 0,
        "max_bytes": 5,
        "max_processor_seconds": 6.5,
        "prices": PRICES,
        "currency": "EUR",
    }
    dumped = BudgetTermination(**settings).dump_component()
    assert dumped.provider == "codeact_team.BudgetTermination"
    assert dumped.config == settings
    assert TerminationCondition.load_component(dumped).dump_component() == dumped


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"max_cost": 1}, "give `prices`"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"prices": {"m": {"prompt": -1, "completion": 1}}}, "prices.m.prompt"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: Any, problem: str) -> None:
    with pytest.raises(SettingError, match=problem):
        BudgetTermination(**settings)


def test_an_unknown_setting_is_refused_as_by_any_function() -> None:
    with pytest.raises(TypeError, match="max_tokenz"):
        BudgetTermination(**dict[str, Any](max_tokenz=1))
