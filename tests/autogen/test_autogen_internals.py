"""What is used of AutoGen although it is private there: each use fails here when AutoGen changes it.

A test of a repair looks at AutoGen's defect first. Once that is gone the repair can go, too.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent, SocietyOfMindAgent
from autogen_agentchat.base import Response, Team
from autogen_agentchat.conditions import (
    HandoffTermination,
    MaxMessageTermination,
    TextMentionTermination,
    TimeoutTermination,
)
from autogen_agentchat.messages import BaseChatMessage, TextMessage
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import CancellationToken, Component, ComponentBase, ComponentLoader, FunctionCall
from autogen_core.code_executor import Alias, ImportFromModule, with_requirements
from autogen_core.memory import ListMemory
from autogen_core.model_context import (
    BufferedChatCompletionContext,
    ChatCompletionContext,
    UnboundedChatCompletionContext,
)
from autogen_core.models import AssistantMessage, CreateResult, LLMMessage, RequestUsage, UserMessage
from autogen_core.tools import FunctionTool, StaticWorkbench
from autogen_ext.models import openai
from autogen_ext.models.openai import AzureOpenAIChatCompletionClient, OpenAIChatCompletionClient
from autogen_ext.models.replay import ReplayChatCompletionClient
from openai.resources.beta import AsyncBeta
from pydantic import BaseModel
from support.model_servers import SIGNATURE, Gemini
from support.openai_server import Garbage, Json, Refusal, ScriptedServer, Text, ToolCalls
from support.text_agent import TextAgent

import codeact_team
from codeact_team.agents.agent_config import loaded
from codeact_team.core.autogen_internals import (
    WELL_KNOWN_PROVIDERS,
    build_python_functions_file,
    components_in,
    conditions_of,
    function_of,
    import_to_str,
    leave_retries,
    listed_model,
    mend_answers,
    model_table,
    reads_past_versions,
    recover,
    sets_retries,
    time_limit,
    to_stub,
)

PACKAGE = Path(codeact_team.__file__).parent
PRIVATE = re.compile(
    r"^\s*(?:from|import) autogen\w*[\w.]*\._|reportPrivateUsage(?!.*sys\._)(?!.*_thread)", re.MULTILINE
)
SAID: list[LLMMessage] = [UserMessage(content="one", source="user")]


class Speaker(TextAgent):
    """Says its name; breaks off when it is told to."""

    def __init__(self, name: str, *, breaks_off: bool = False) -> None:
        super().__init__(name, name)
        self.breaks_off = breaks_off

    async def on_messages(
        self, messages: Sequence[BaseChatMessage], cancellation_token: CancellationToken
    ) -> Response:
        if self.breaks_off:
            self.breaks_off = False
            raise RuntimeError("broken off")
        return Response(chat_message=TextMessage(content=self.name, source=self.name))


def flat(first: Speaker, second: Speaker) -> RoundRobinGroupChat:
    return RoundRobinGroupChat([first, second], termination_condition=MaxMessageTermination(3))


def nested(first: Speaker, second: Speaker) -> RoundRobinGroupChat:
    inner = RoundRobinGroupChat([first, second], name="inner", max_turns=2)
    return RoundRobinGroupChat([inner], max_turns=1)


async def speakers(team: Team) -> list[str]:
    return [
        message.source async for message in team.run_stream(task="go") if isinstance(message, TextMessage)
    ]


async def broken_off(make: Callable[[Speaker, Speaker], RoundRobinGroupChat]) -> RoundRobinGroupChat:
    team = make(Speaker("first"), Speaker("second", breaks_off=True))
    with pytest.raises(RuntimeError, match="broken off"):
        await team.run(task="go")
    return team


def test_private_names_of_autogen_are_used_in_one_module() -> None:
    files = [path for path in PACKAGE.rglob("*.py") if "runner" not in path.parts]
    used = {path.name for path in files if PRIVATE.search(path.read_text())}
    assert used == {"autogen_internals.py"}


def test_autogens_short_names_of_model_clients_stand_for_paths() -> None:
    name, path = next(
        item for item in WELL_KNOWN_PROVIDERS.items() if item[1].endswith(".OpenAIChatCompletionClient")
    )
    model = {"provider": name, "config": {"model": "gpt-4o", "api_key": "k"}}
    client: Any = ComponentLoader.load_component(model)
    assert client.dump_component().provider == path


def test_functions_become_a_module_and_stubs_for_a_prompt() -> None:
    @with_requirements(global_imports=["json", ImportFromModule("os", (Alias("path", "p"),))])
    def double(number: int) -> int:
        """Twice as much."""
        return 2 * number

    module = build_python_functions_file([double])
    assert "import json\n" in module
    assert "from os import path as p\n" in module
    assert "return 2 * number" in module
    assert to_stub(double) == 'def double(number: \'int\') -> \'int\':\n    """Twice as much."""\n    ...'
    assert import_to_str(ImportFromModule("os", (Alias("path", "p"),))) == "from os import path as p"


def test_a_function_tool_gives_its_function() -> None:
    def tell(text: str) -> str:
        return text

    assert function_of(FunctionTool(tell, description="Tell.")) is tell


def test_a_component_that_reads_past_versions_is_known() -> None:
    class Config(BaseModel):
        pass

    class Current(ComponentBase[BaseModel], Component[Config]):
        component_type = "test"
        component_config_schema = Config

    class Old(Current):
        @classmethod
        def _from_config_past_version(cls, config: dict[str, Any], version: int) -> Any:
            return cls()

    assert not reads_past_versions(Current)  # type: ignore[arg-type]
    assert reads_past_versions(Old)  # type: ignore[arg-type]


def load_as_agents_do(model: Any) -> Any:
    return loaded("model_context", model)


async def test_a_buffered_context_is_loaded_with_messages_and_not_with_dicts() -> None:
    model = BufferedChatCompletionContext(2, SAID).dump_component()
    assert await ChatCompletionContext.load_component(model).get_messages() != SAID
    made = load_as_agents_do(model)
    assert type(made) is BufferedChatCompletionContext
    assert await made.get_messages() == SAID
    assert made.dump_component() == model


async def test_a_context_of_ones_own_is_loaded_as_it_is() -> None:
    class Own(BufferedChatCompletionContext):
        component_provider_override = "test_autogen_internals.OWN"

    globals()["OWN"] = Own
    assert type(load_as_agents_do(Own(2).dump_component())) is Own
    unbounded = UnboundedChatCompletionContext().dump_component()
    assert type(load_as_agents_do(unbounded)) is UnboundedChatCompletionContext


@pytest.mark.parametrize("make", [flat, nested])
async def test_a_team_whose_run_broke_off_begins_with_its_first_speaker(
    make: Callable[[Speaker, Speaker], RoundRobinGroupChat],
) -> None:
    team = await broken_off(make)
    await recover(team)
    assert await speakers(team) == ["user", "first", "second"]


async def test_a_team_of_autogen_whose_run_broke_off_would_stop_early() -> None:
    team = await broken_off(flat)
    await team.reset()
    assert await speakers(team) != ["user", "first", "second"]


def test_the_shortest_time_out_of_a_team_is_known() -> None:
    def limit(condition: Any) -> float | None:
        return time_limit(RoundRobinGroupChat([Speaker("one")], termination_condition=condition))

    word = TextMentionTermination("stop")
    assert limit(TimeoutTermination(5)) == 5
    assert limit(word | TimeoutTermination(5) | TimeoutTermination(3)) == 3
    assert limit(word & TimeoutTermination(5)) is None
    assert limit(None) is None
    assert time_limit(Speaker("one")) is None


def test_what_a_team_ends_by_is_known_and_not_what_teams_in_it_do() -> None:
    ending = MaxMessageTermination(1) | (TextMentionTermination("x") & TimeoutTermination(2))
    inner = RoundRobinGroupChat([Speaker("one")], termination_condition=HandoffTermination("two"))
    team = RoundRobinGroupChat([inner], termination_condition=ending)
    kinds = {type(condition) for condition in conditions_of(team)}
    assert kinds >= {MaxMessageTermination, TextMentionTermination, TimeoutTermination}
    assert HandoffTermination not in kinds
    assert [*conditions_of(Speaker("one"))] == []


def next_number(number: int) -> int:
    return number + 1


def test_the_parts_of_a_component_are_found_however_deep_they_are() -> None:
    context = BufferedChatCompletionContext(3)
    client = ReplayChatCompletionClient(["x"])
    memory, tool = ListMemory(), FunctionTool(next_number, "counts")
    inner = AssistantAgent("inner", client, model_context=context, memory=[memory])
    caller = AssistantAgent("caller", client, workbench=StaticWorkbench([tool]))
    mind = SocietyOfMindAgent("mind", RoundRobinGroupChat([inner]), client)
    ending = MaxMessageTermination(1) | (TextMentionTermination("x") & TimeoutTermination(2))
    team = RoundRobinGroupChat([mind, caller], termination_condition=ending)
    kinds = {type(part) for part in components_in(team)}
    assert kinds >= {MaxMessageTermination, TextMentionTermination, TimeoutTermination, StaticWorkbench}
    found = {id(part) for part in components_in(team)}
    assert found >= {id(part) for part in (team, mind, caller, inner, client, context, memory, tool)}


def test_a_model_client_has_a_table_of_the_models_it_knows() -> None:
    assert model_table(AzureOpenAIChatCompletionClient).get_info("gpt-4o")["vision"]
    with pytest.raises((KeyError, ValueError)):
        model_table(OpenAIChatCompletionClient).get_info("no-such-model")
    assert model_table(ReplayChatCompletionClient) is None
    assert listed_model(OpenAIChatCompletionClient, "gpt-4o") == model_table(
        OpenAIChatCompletionClient
    ).get_info("gpt-4o")
    assert listed_model(OpenAIChatCompletionClient, "no-such-model") is None
    assert listed_model(ReplayChatCompletionClient, "gpt-4o") is None


def test_a_new_model_of_anthropic_s_is_not_taken_for_its_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    # the package itself imports what is not installed here; its table does not
    package = ModuleType("autogen_ext.models.anthropic")
    package.__path__ = [str(Path(openai.__file__).parents[1] / "anthropic")]
    monkeypatch.setitem(sys.modules, package.__name__, package)
    client = type("Client", (ReplayChatCompletionClient,), {"__module__": f"{package.__name__}._client"})
    assert not model_table(client).get_info("claude-haiku-4-5")["function_calling"]
    assert listed_model(client, "claude-haiku-4-5") is None
    assert listed_model(client, "no-such-model") is None
    for known in ("claude-2.1", "claude-sonnet-4-5"):
        assert listed_model(client, known) is model_table(client).get_info(known)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.filterwarnings("ignore:No text content or tool calls are available")
async def test_the_words_of_a_refusal_are_kept(stream: bool, as_json: bool):
    async def asked(client: OpenAIChatCompletionClient) -> CreateResult:
        question = [UserMessage(content="How?", source="user")]
        if not stream:
            return await client.create(question, json_output=_Shape if as_json else None)
        items = [item async for item in client.create_stream(question)]
        assert isinstance(items[-1], CreateResult)
        return items[-1]

    async with ScriptedServer([Refusal(), Refusal()]) as server:
        client = server.client()
        assert (await asked(client)).content == "", "AutoGen drops them"
        mend_answers(client)
        mend_answers(client)
        kept = await asked(client)
    assert (kept.content, kept.finish_reason) == ("I cannot help with that.", "content_filter")


def _piece(finish_reason: str | None = None, usage: Any = None, **delta: Any) -> str:
    """A piece of a streamed answer, as it is sent."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    head = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "scripted-model"}
    return f"data: {json.dumps({**head, 'choices': [choice], 'usage': usage})}\n\n"


def _call(arguments: str, name: str | None = None, **more: Any) -> dict[str, Any]:
    """A piece of a call of a tool."""
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


async def _streamed(client: OpenAIChatCompletionClient) -> CreateResult:
    items = [item async for item in client.create_stream(SAID)]
    assert isinstance(items[-1], CreateResult)
    return items[-1]


USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
A, B = ("look", '{"at": "a"}'), ("look", '{"at": "b"}')
TOGETHER = ("looklook", A[1] + B[1])


def _ending(result: CreateResult) -> object:
    return result.finish_reason, result.usage


def _calls(result: CreateResult) -> object:
    """The calls, and how many ids they have."""
    assert isinstance(result.content, list)
    ids = {call.id for call in result.content if call.id}
    return [(call.name, call.arguments) for call in result.content], len(ids)


def _ids(result: CreateResult) -> object:
    assert isinstance(result.content, list)
    return [call.id for call in result.content]


@pytest.mark.parametrize(
    ("pieces", "seen", "lost", "kept"),
    [
        pytest.param(
            [_piece(usage=USAGE, content="Hi."), _piece("length", USAGE)],
            _ending,
            ("unknown", RequestUsage(7, 5)),
            ("length", RequestUsage(7, 5)),
            id="a finish reason beside the usage",
        ),
        pytest.param(
            [_piece(usage=USAGE, content="Hi."), _piece("length")],
            _ending,
            ("length", RequestUsage(0, 0)),
            ("length", RequestUsage(7, 5)),
            id="usage before the last piece",
        ),
        pytest.param(
            [_piece(reasoning="Hm."), _piece(content="Hi."), _piece("stop")],
            attrgetter("thought"),
            None,
            "Hm.",
            id="thoughts in a field of another name",
        ),
        pytest.param(
            [
                _piece(content="I look.", tool_calls=[_call(A[1], A[0], index=0, id="1")]),
                _piece("tool_calls"),
            ],
            attrgetter("content"),
            "I look.",
            [FunctionCall(id="1", name=A[0], arguments=A[1])],
            id="a call beside words",
        ),
        pytest.param(
            [_piece("stop", tool_calls=[_call(A[1], A[0], index=0, id="1")])],
            attrgetter("finish_reason"),
            "stop",
            "function_calls",
            id="a call that ends as words do",
        ),
        pytest.param(
            [
                _piece(tool_calls=[_call(A[1][:5], A[0], id="1")]),
                _piece(tool_calls=[_call(A[1][5:])]),
                _piece("tool_calls", tool_calls=[_call(B[1], B[0], id="2")]),
            ],
            _calls,
            ([TOGETHER], 1),
            ([A, B], 2),
            id="calls without numbers",
        ),
        pytest.param(
            [_piece(tool_calls=[_call(A[1], A[0], id=""), _call(B[1], B[0], id="")]), _piece("tool_calls")],
            _calls,
            ([TOGETHER], 0),
            ([A, B], 2),
            id="calls without numbers and ids",
        ),
        pytest.param(
            [_piece(tool_calls=[_call(*reversed(each), index=0, id=each[1])]) for each in (A, B)]
            + [_piece("tool_calls")],
            _calls,
            ([TOGETHER], 1),
            ([A, B], 2),
            id="calls of the same number",
        ),
        pytest.param(
            [
                _piece(tool_calls=[_call(A[1][:5], A[0], index=0, id="1")]),
                _piece(tool_calls=[_call(A[1][5:], "", index=0, id="1")]),
                _piece("tool_calls"),
            ],
            _ids,
            ["11"],
            ["1"],
            id="an id in each piece of a call",
        ),
    ],
)
async def test_what_other_servers_stream_is_taken(
    pieces: Sequence[str], seen: Callable[[CreateResult], object], lost: object, kept: object
):
    reply = Garbage("".join([*pieces, "data: [DONE]\n\n"]).encode(), "text/event-stream")
    async with ScriptedServer([reply, reply]) as server:
        client = server.client()
        assert seen(await _streamed(client)) == lost, "AutoGen takes it so"
        mend_answers(client)
        assert seen(await _streamed(client)) == kept


async def test_a_call_of_a_tool_goes_back_with_what_the_server_has_added_to_it():
    async with ScriptedServer([ToolCalls([("look", {"at": "a"})]), Text("Hi.")], Gemini()) as server:
        client = server.client(model=Gemini.model)
        mend_answers(client)
        called = await _streamed(client)
        assert isinstance(called.content, list)
        said = [*SAID, AssistantMessage(content=called.content, source="one")]
        await client.create(said)
    (call,) = server.requests[-1]["messages"][-1]["tool_calls"]
    assert call["extra_content"] == SIGNATURE


class _Shape(BaseModel):
    answer: str


# AutoGen's log of the answer
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
async def test_a_structured_answer_does_not_need_what_takes_a_second_to_import(
    monkeypatch: pytest.MonkeyPatch,
):
    async with ScriptedServer([Json(_Shape(answer="yes"))]) as server:
        client = server.client()
        inner = client._client  # pyright: ignore[reportPrivateUsage]
        assert type(AsyncBeta(inner).chat) is type(inner.chat)
        monkeypatch.setitem(sys.modules, "openai.resources.beta", None)
        mend_answers(client)
        kept = await client.create([UserMessage(content="Is it?", source="user")], json_output=_Shape)
    assert kept.content == '{"answer":"yes"}'


def test_a_client_says_whether_its_config_sets_retries_and_leaves_them():
    client = OpenAIChatCompletionClient(model="gpt-4o", api_key="a-key")
    assert (sets_retries(client), client._client.max_retries) == (False, 2)  # pyright: ignore[reportPrivateUsage]
    leave_retries(client)
    assert client._client.max_retries == 0  # pyright: ignore[reportPrivateUsage]
    assert sets_retries(OpenAIChatCompletionClient(model="gpt-4o", api_key="a-key", max_retries=3))
    replay = ReplayChatCompletionClient([])
    leave_retries(replay)
    assert not sets_retries(replay)
