"""A program records the team, or the agent, that it has built itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent, CodeExecutorAgent, UserProxyAgent
from autogen_agentchat.base import ChatAgent
from autogen_agentchat.conditions import MaxMessageTermination, TimeoutTermination
from autogen_agentchat.teams import RoundRobinGroupChat, SelectorGroupChat
from autogen_core.memory import ListMemory, MemoryContent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from support.command_line import codeact_team
from support.openai_server import AnyReply, Body, ScriptedServer, Text, ToolCalls
from support.text_agent import TextAgent

from codeact_team import CodeActAgent, ConfinedSessionCodeExecutor, open_sandbox, record_run, replay_run
from codeact_team.errors import JournalError, SettingError
from codeact_team.journal.recorded_run import RecordedRun
from codeact_team.journal.run_directory import RunDirectory

CONFINED: dict[str, Any] = {"confinement": "best_effort"}
KEY = "sk-of-a-program-0123456789"


class Program:
    """Builds teams whose models are asked at one server, and counts what its tool does.

    Attributes:
        booked: The days that were really booked.
        clients: Those of its models.
    """

    def __init__(self, server: ScriptedServer) -> None:
        self._server = server
        self.booked: list[str] = []
        self.clients: list[OpenAIChatCompletionClient] = []

    def client(self) -> OpenAIChatCompletionClient:
        client = OpenAIChatCompletionClient(
            model="gpt-4o-2024-08-06", api_key=KEY, base_url=self._server.base_url, max_retries=0
        )
        self.clients.append(client)
        return client

    def planner(self, **settings: Any) -> AssistantAgent:
        def book(day: str) -> str:
            """Book a day."""
            self.booked.append(day)
            return f"{day} is booked"

        return AssistantAgent("planner", self.client(), tools=[book], **settings)

    def team(self, *others: ChatAgent) -> RoundRobinGroupChat:
        coder = CodeActAgent(
            "coder",
            model_client=self.client(),
            code_executor=ConfinedSessionCodeExecutor(**CONFINED),
        )
        return RoundRobinGroupChat(
            [self.planner(), coder, *others], termination_condition=MaxMessageTermination(3)
        )


def reply(body: Body) -> AnyReply:
    if "final_answer" in str(body["messages"][0]):
        return Text("```python\nfinal_answer(6 * 7)\n```")
    return ToolCalls([("book", {"day": "Monday"})])


@pytest.fixture
async def program() -> AsyncGenerator[Program]:
    async with ScriptedServer(reply) as server:
        program = Program(server)
        yield program
        for client in program.clients:
            await client.close()


def contents(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in folder.rglob("*") if path.is_file()]


def asked(program: Program) -> int:
    return len(program._server.requests)  # pyright: ignore[reportPrivateUsage]


async def test_a_team_of_autogen_s_agents_and_ours_is_answered_from_its_journal(
    tmp_path: Path, program: Program
) -> None:
    said: list[list[str]] = []
    for _ in range(2):
        async with record_run(tmp_path / "it", program.team()) as team:
            result = await team.run(task="Book a day.")
            said.append([message.to_text() for message in result.messages])
    assert said[0] == said[1]
    assert said[0][-1] == "42"
    assert (asked(program), program.booked) == (2, ["Monday"])


async def test_its_team_is_itself_again_when_it_is_left(tmp_path: Path, program: Program) -> None:
    planner = program.planner()
    before = dict(vars(planner)), planner.component_type
    async with record_run(tmp_path / "it", planner) as agent:
        await agent.run(task="Book a day.")
    assert (dict(vars(planner)), planner.component_type) == before
    await planner.run(task="Book another.")
    assert (asked(program), program.booked) == (2, ["Monday", "Monday"])


async def test_it_is_replayed_without_a_model_and_without_its_tools(tmp_path: Path, program: Program) -> None:
    async with record_run(tmp_path / "it", program.team()) as team:
        await team.run(task="Book a day.")
    found = await replay_run(tmp_path / "it", program.team())
    assert (found.difference, found.is_whole, found.blocks) == (None, True, 1)
    assert (asked(program), program.booked) == (2, ["Monday"])


@pytest.mark.long
async def test_a_program_that_asks_for_more_than_is_recorded_is_told(
    tmp_path: Path, program: Program
) -> None:
    async with record_run(tmp_path / "it", program.team()) as team:
        await team.run(task="Book a day.")

    async def twice(team: Any) -> None:
        await team.run(task="Book a day.")
        await team.run(task="Book a day.")

    found = await replay_run(tmp_path / "it", program.team(), twice)
    assert found.difference is not None
    assert "more than is recorded" in found.difference
    assert program.booked == ["Monday"]


async def test_a_key_that_only_the_program_knows_is_in_no_file_of_the_run(
    tmp_path: Path, program: Program
) -> None:
    async with record_run(tmp_path / "it", program.planner(system_message=f"The key is {KEY}.")) as agent:
        await agent.run(task=f"Book a day with {KEY}.")
    kept = contents(tmp_path)
    assert kept
    assert not [data for data in kept if KEY.encode() in data]


@pytest.mark.filterwarnings("ignore:No approval function set")
async def test_people_memories_and_executors_of_autogen_are_asked_once(
    tmp_path: Path, program: Program
) -> None:
    heard: list[str] = []

    def person(prompt: str) -> str:
        heard.append(prompt)
        return "```python\nopen('times.txt', 'a').write('once\\n')\n```"

    def team() -> SelectorGroupChat:
        memory = ListMemory(
            memory_contents=[MemoryContent(content="Mondays are free.", mime_type="text/plain")]
        )
        planner = program.planner(memory=[memory])
        user = UserProxyAgent("user_proxy", input_func=person)
        runner = CodeExecutorAgent(
            "runner",
            ConfinedSessionCodeExecutor(**CONFINED, work_dir=tmp_path / "work"),
        )
        order = iter(["planner", "user_proxy", "runner"])
        return SelectorGroupChat(
            [planner, user, runner],
            model_client=program.client(),
            selector_func=lambda _: next(order),
            termination_condition=MaxMessageTermination(4),
        )

    for _ in range(2):
        async with record_run(tmp_path / "it", team()) as recorded:
            await recorded.run(task="Book a day.")
    assert (asked(program), program.booked, len(heard)) == (1, ["Monday"], 1)
    assert (tmp_path / "work" / "times.txt").read_text() == "once\n"


class Private(TextAgent):
    """An agent of the program's own, which does whatever it wants."""


async def test_what_acts_past_the_journal_is_refused_by_name(tmp_path: Path, program: Program) -> None:
    own = RoundRobinGroupChat(
        [program.planner(), Private("own", "An agent.")],
        termination_condition=TimeoutTermination(60) | MaxMessageTermination(3),
    )
    with pytest.raises(JournalError, match="Private 'own', TimeoutTermination would bypass its journal"):
        async with record_run(tmp_path / "it", own):
            pass
    assert not (tmp_path / "it").exists()


async def test_a_team_that_has_worked_before_is_refused(tmp_path: Path, program: Program) -> None:
    team = program.team()
    await team.run(task="Book a day.")
    with pytest.raises(JournalError, match="has worked before"):
        async with record_run(tmp_path / "it", team):
            pass


async def test_only_a_team_an_agent_or_a_sandbox_is_recorded(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="not a str"):
        record_run(tmp_path, "quickstart")  # pyright: ignore[reportCallIssue, reportArgumentType]


async def test_the_commands_say_which_program_to_start(tmp_path: Path, program: Program) -> None:
    async with record_run(tmp_path / "it", program.planner()) as agent:
        await agent.run(task="Book a day.")
    resumed = await asyncio.to_thread(codeact_team, "resume", str(tmp_path / "it"), cwd=tmp_path)
    replayed = await asyncio.to_thread(codeact_team, "replay", str(tmp_path / "it"), cwd=tmp_path)
    assert (resumed.returncode, "run it again by `python " in resumed.stderr) == (2, True)
    assert (replayed.returncode, "replay_run(directory, team)" in replayed.stderr) == (2, True)


async def test_a_run_is_not_replayed_where_it_would_overwrite_its_files(
    tmp_path: Path, program: Program
) -> None:
    def coder() -> CodeActAgent:
        executor = ConfinedSessionCodeExecutor(**CONFINED, work_dir=tmp_path / "work")
        return CodeActAgent("coder", model_client=program.client(), code_executor=executor)

    async with record_run(tmp_path / "it", coder()) as agent:
        await agent.run(task="What is six times seven?")
    with pytest.raises(JournalError, match="the files there would be overwritten"):
        await replay_run(tmp_path / "it", coder())


async def test_a_sandbox_is_replayed_by_its_program_only(tmp_path: Path) -> None:
    settings = CONFINED
    async with record_run(tmp_path / "it", open_sandbox("confined", **settings)) as sandbox:
        await sandbox.run_python("1")
    with pytest.raises(SettingError, match="give the function of the program"):
        await replay_run(tmp_path / "it", open_sandbox("confined", **settings))
    with pytest.raises(SettingError, match="apply to runs of a config only"):
        await replay_run(tmp_path / "it", open_sandbox("confined", **settings), overrides=["name=other"])
    assert RecordedRun(RunDirectory(tmp_path / "it")).about.is_built
