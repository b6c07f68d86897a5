"""``attempts``: several attempts at a task side by side, and the agent goes on with the best."""

from __future__ import annotations

import asyncio
import os
import re
from ast import literal_eval
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from autogen_agentchat.base import Response
from autogen_agentchat.messages import HandoffMessage, ThoughtEvent
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from autogen_core.model_context import BufferedChatCompletionContext
from support.agents import Item, contents, record_of, replay, response, turn
from support.codeact import agent_of, outputs, own_session, py
from support.openai_server import AnyReply, Body, HttpError, Json, ScriptedServer, Slow, Text, ToolCalls

from codeact_team.agents.agent_config import ToolLimits
from codeact_team.agents.observations import Ending
from codeact_team.core import events
from codeact_team.core.effects import Dispatcher, Event
from codeact_team.core.executor_interface import SessionCodeExecutor
from codeact_team.errors import SandboxError, SettingError
from codeact_team.executors.confined import ConfinedSessionCodeExecutor
from codeact_team.executors.docker import DockerSessionCodeExecutor
from codeact_team.journal.promoted import PromotedListener

Session = ConfinedSessionCodeExecutor
CHOOSE = "Choose the one whose answer is to be given."


def steps_since_the_task(body: Body) -> int:
    roles = [message["role"] for message in body["messages"]]
    task = max(n for n, message in enumerate(body["messages"]) if "Work out" in str(message["content"]))
    return roles[task:].count("assistant")


def side_by_side(*attempts: Sequence[AnyReply], best: AnyReply | str = "") -> Callable[[Body], AnyReply]:
    """A model whose conversations go these ways, in the order in which they begin, and that chooses an answer with these words."""
    begun: list[Sequence[AnyReply]] = []

    def reply(body: Body) -> AnyReply:
        text = str(body["messages"])
        if CHOOSE in text:
            if not isinstance(best, str):
                return best
            accounts = re.split(r"Answer \d+, after", contents(body)[-1])
            account = next(number for number, told in enumerate(accounts) if best in told)
            return Json({"reason": "It is the best.", "answer": account})
        if not steps_since_the_task(body):
            begun.append(attempts[len(begun) % len(attempts)])
            return begun[-1][0]
        said = [each["content"] for each in body["messages"] if each["role"] == "assistant"]
        ways = [way for way in attempts if any(isinstance(one, Text) and one.text in said for one in way)]
        return ways[-1][steps_since_the_task(body)]

    return reply


def thoughts(items: Sequence[Item]) -> list[str]:
    return [item.content for item in items if isinstance(item, ThoughtEvent)]


def way(number: int) -> list[AnyReply]:
    """An attempt that binds a number, writes it to a file, and answers it."""
    code = f"number = base + {number}\nwith open('found.txt', 'w') as file: print(number, file=file)\nprint(number)"
    return [Text(py(code)), Text(f"It is {10 + number}.")]


async def run(executor: SessionCodeExecutor, code: str) -> str:
    """What code has written last that runs in the session beside that of the agent."""
    result = await executor.execute_code_blocks([CodeBlock(code, "python")], CancellationToken())
    return result.output.rstrip().rpartition("\n")[2]


async def value(executor: SessionCodeExecutor, expression: str) -> str:
    return await run(executor, f"print(repr(({expression})))")


async def forks_of(executor: SessionCodeExecutor) -> set[str]:
    """The directories of forks that are there; what was promoted before is removed some time later."""
    code = "import glob; print(glob.glob('.codeact-team/forks-*/*'))"
    return set(literal_eval(await run(executor, code)))


async def test_the_agent_goes_on_with_the_attempt_that_is_chosen(fresh_session: Session) -> None:
    await run(fresh_session, "base = 10")
    async with ScriptedServer(side_by_side(way(1), way(2), way(3), best="It is 12.")) as server:
        agent = agent_of(server, fresh_session, attempts=3)
        items = await turn(agent)
        assert isinstance(items[-1], Response)
        assert items[-1].chat_message.to_text() == "It is 12."
        assert outputs(items) == ["12\n"]
        assert await value(fresh_session, "number, open('found.txt').read()") == "(12, '12\\n')"
        # three of two steps each, and the choice
        assert len(server.requests) == 7
        usage = items[-1].chat_message.models_usage
        assert usage is not None
        assert usage.prompt_tokens == 7 * 100
    began, chosen = thoughts(items)
    assert began == "3 attempts at the task are made side by side."
    assert chosen.startswith("Attempt ")
    assert chosen.endswith("of 3 is chosen: It is the best.")


async def test_its_conversation_is_that_of_the_attempt(fresh_session: Session) -> None:
    await run(fresh_session, "base = 10")
    async with ScriptedServer(side_by_side(way(1), way(2), best="It is 11.")) as server:
        agent = agent_of(server, fresh_session, attempts=2, model_context=BufferedChatCompletionContext(50))
        await turn(agent)
        said = [str(message.content) for message in await agent.model_context.get_messages()]
    assert len(said) == 4
    assert "base + 1" in said[1]
    assert said[3] == "It is 11."


async def test_attempts_are_made_at_the_same_time(fresh_session: Session) -> None:
    together = asyncio.Barrier(3)

    async def meet() -> int:
        """Wait for the others."""
        await together.wait()
        return 1

    ways = [[Text(py(f"final_answer({n} * tools.meet())"))] for n in (1, 2, 3)]
    async with ScriptedServer(side_by_side(*ways, best="\n2\n")) as server:
        agent = agent_of(
            server, fresh_session, attempts=3, tools=[meet], tool_limits=ToolLimits(repeatable=["meet"])
        )
        assert (await response(agent)).chat_message.to_text() == "2"


async def test_until_one_is_chosen_only_repeatable_tools_are_called(fresh_session: Session) -> None:
    called: list[str] = []

    def look() -> int:
        """Look at the number."""
        called.append("look")
        return 7

    def order() -> int:
        """Order something."""
        called.append("order")
        return 1

    code = "seen = tools.look()\ntry:\n    tools.order()\nexcept tools.ToolDenied as error:\n    print(seen, error)"
    way = [Text(py(code)), Text("Looked.")]
    async with ScriptedServer(side_by_side(way)) as server:
        agent = agent_of(
            server,
            fresh_session,
            attempts=2,
            tools=[look, order],
            tool_limits=ToolLimits(repeatable=["look"]),
        )
        items = await turn(agent)
    assert called == ["look", "look"]
    [output] = outputs(items)
    assert output.startswith("7 order is not called now: several attempts at the task are made side by side")
    assert isinstance(items[-1], Response)
    calls = record_of(items[-1].chat_message).tool_calls
    assert [(call.name, call.outcome.value) for call in calls] == [("look", "ok"), ("order", "denied")]


async def test_the_model_is_not_asked_to_choose_among_equal_answers(fresh_session: Session) -> None:
    same = [[Text(py(f"n = {n}\nfinal_answer(6)"))] for n in (1, 2)]
    async with ScriptedServer(side_by_side(*same)) as server:
        items = await turn(agent_of(server, fresh_session, attempts=2))
        assert len(server.requests) == 2
    assert thoughts(items)[-1] == "Attempt 1 of 2 is chosen: the answers are the same."


async def test_the_only_answer_needs_no_choice(fresh_session: Session) -> None:
    goes_on = [Text(py(f"print({n})")) for n in (1, 2)]
    ways = [[*goes_on, Text("I have no answer.")], [Text("It is 5.")]]
    async with ScriptedServer(side_by_side(*ways)) as server:
        items = await turn(agent_of(server, fresh_session, attempts=2, max_steps=2))
        # the one that has used up its steps is asked for the best that it has
        assert len(server.requests) == 4
    assert isinstance(items[-1], Response)
    assert items[-1].chat_message.to_text() == "It is 5."
    assert Ending.from_metadata(items[-1].chat_message.metadata) is Ending.ANSWERED
    assert thoughts(items)[-1].endswith("is chosen: no other has an answer that counts.")


async def test_where_none_has_come_to_an_answer_the_first_gives_the_best_it_has(
    fresh_session: Session,
) -> None:
    way = [Text(py("print(1)")), Text("Nothing is sure.")]
    async with ScriptedServer(side_by_side(way)) as server:
        items = await turn(agent_of(server, fresh_session, attempts=2, max_steps=1))
    assert isinstance(items[-1], Response)
    assert items[-1].chat_message.to_text() == "Nothing is sure."
    assert Ending.from_metadata(items[-1].chat_message.metadata) is Ending.MAX_STEPS
    assert thoughts(items)[-1] == "Attempt 1 of 2 is chosen: none has come to an answer."


async def test_a_choice_that_cannot_be_used_is_asked_for_once_more(fresh_session: Session) -> None:
    replies = iter([Json({"reason": "It is.", "answer": 9}), Json({"reason": "It is.", "answer": 2})])
    model = side_by_side([Text("It is 1.")], [Text("It is 2.")])
    async with ScriptedServer(lambda body: next(replies) if CHOOSE in str(body) else model(body)) as server:
        items = await turn(agent_of(server, fresh_session, attempts=2))
        assert "there is no answer 9, only 1 to 2" in contents(server.requests[-1])[-1]
    assert thoughts(items)[-1] == "Attempt 2 of 2 is chosen: It is."


async def test_where_no_choice_can_be_read_it_is_the_first_answer(fresh_session: Session) -> None:
    model = side_by_side([Text("It is 1.")], [Text("It is 2.")], best=Text("The better one."))
    async with ScriptedServer(model) as server:
        items = await turn(agent_of(server, fresh_session, attempts=2))
        assert len(server.requests) == 4
    assert thoughts(items)[-1].startswith("Attempt 1 of 2 is chosen: The choice could not be read.")


async def test_answers_that_a_reflection_accepts_come_first(fresh_session: Session) -> None:
    model = side_by_side([Text("It is 1."), Text("It is 1, really.")], [Text("It is 2.")])

    def reply(body: Body) -> AnyReply:
        if "Judge the work above now." not in str(body):
            return model(body)
        is_good = "It is 2." in str(body)
        return Json({"problems": [], "accepted": is_good, "next_step": ""})

    async with ScriptedServer(reply) as server:
        agent = agent_of(server, fresh_session, attempts=2, max_reflections=1, max_steps=2)
        items = await turn(agent)
    assert isinstance(items[-1], Response)
    assert items[-1].chat_message.to_text() == "It is 2."


async def test_one_attempt_is_made_where_the_session_cannot_be_copied(fresh_session: Session) -> None:
    called: list[int] = []

    def order() -> int:
        """Order something."""
        called.append(1)
        return 1

    await run(fresh_session, "log = open('log.txt', 'w')")
    async with ScriptedServer([Text(py("tools.order()")), Text("Ordered.")]) as server:
        items = await turn(agent_of(server, fresh_session, attempts=3, tools=[order]))
    assert called == [1]
    [note] = thoughts(items)
    assert note.startswith("One attempt is made instead of 3, as the session cannot be copied: ")
    assert "log.txt" in note or "log is open" in note


async def test_code_that_ends_its_fork_ends_no_other_attempt(fresh_session: Session) -> None:
    dying = [Text(py("import os; os._exit(3)")), Text("It has gone wrong.")]
    async with ScriptedServer(side_by_side(dying, [Text(py("n = 5")), Text("It is 5.")])) as server:
        items = await turn(agent_of(server, fresh_session, attempts=2))
        assert isinstance(items[-1], Response)
        assert items[-1].chat_message.to_text() == "It is 5."
    assert await value(fresh_session, "n") == "5"


async def test_an_answer_whose_variables_are_lost_is_given_all_the_same(fresh_session: Session) -> None:
    await run(fresh_session, "n = 1")
    dying = [Text(py("n = 2\nimport os; os._exit(3)")), Text("It is 2.")]
    async with ScriptedServer(side_by_side(dying)) as server:
        agent = agent_of(server, fresh_session, attempts=2)
        assert (await response(agent)).chat_message.to_text() == "It is 2."
        told = str((await agent.model_context.get_messages())[-1].content)
    assert "The variables, functions and files of the code above are lost: " in told
    assert await value(fresh_session, "n") == "1"


async def test_an_answer_that_counts_fails_where_what_its_code_has_made_is_lost(
    fresh_session: Session,
) -> None:
    dying = (
        "import os, threading\nopen('made.txt', 'w').close()\nthreading.Timer(0.3, os._exit, [{}]).start()"
    )
    ways = [[Text(py(dying.format(number))), Text(f"It is {number}.")] for number in (1, 2)]
    choice = Slow(1, Json({"reason": "It is the best.", "answer": 1}))
    async with ScriptedServer(side_by_side(*ways, best=choice)) as server:
        with pytest.raises(
            SandboxError, match=r"what the code of attempt 1 has made is lost: .*the fork has lost"
        ):
            await response(agent_of(server, fresh_session, attempts=2))


async def test_what_is_cancelled_leaves_the_variables_as_they_were(fresh_session: Session) -> None:
    await run(fresh_session, "n = 1")
    before = await forks_of(fresh_session)
    token, running = CancellationToken(), asyncio.Semaphore(0)

    def began() -> None:
        """Say that it has begun."""
        running.release()

    way = [Text(py("n = 2\ntools.began()\nwhile True: pass"))]
    async with ScriptedServer(side_by_side(way)) as server:
        agent = agent_of(
            server, fresh_session, attempts=2, tools=[began], tool_limits=ToolLimits(repeatable=["*"])
        )
        working = asyncio.ensure_future(response(agent, token=token))
        for _ in range(2):
            await running.acquire()
        token.cancel()
        answer = (await working).chat_message
        assert len(server.requests) == 2
    assert Ending.from_metadata(answer.metadata) is Ending.CANCELLED
    assert await value(fresh_session, "n") == "1"
    assert await forks_of(fresh_session) <= before


async def test_what_is_cancelled_while_its_sandbox_starts_is_answered_as_cancelled() -> None:
    token = CancellationToken()

    def cancel(event: Event) -> None:
        if isinstance(event, events.SandboxStarting):
            token.cancel()

    async with own_session() as executor, ScriptedServer([]) as server:
        dispatcher = Dispatcher()
        dispatcher.listen(cancel)
        with dispatcher:
            agent = agent_of(server, executor, attempts=2, system_message="")
            answer = (await response(agent, token=token)).chat_message
        assert server.requests == []
    assert Ending.from_metadata(answer.metadata) is Ending.CANCELLED


async def test_a_task_that_is_cancelled_ends_all_attempts(fresh_session: Session) -> None:
    before = await forks_of(fresh_session)
    running = asyncio.Semaphore(0)

    def began() -> None:
        """Say that it has begun."""
        running.release()

    way = [Text(py("tools.began()\nwhile True: pass"))]
    async with ScriptedServer(side_by_side(way)) as server:
        agent = agent_of(
            server, fresh_session, attempts=2, tools=[began], tool_limits=ToolLimits(repeatable=["*"])
        )
        heard: list[Event] = []
        with Dispatcher() as dispatcher:
            dispatcher.listen(heard.append)
            working = asyncio.ensure_future(response(agent))
            for _ in range(2):
                await running.acquire()
            working.cancel()
            with pytest.raises(asyncio.CancelledError):
                await working
    ended = [event for event in heard if isinstance(event, events.AttemptEnded)]
    assert [(event.ending, event.error) for event in ended] == [("cancelled", None)] * 2
    assert await forks_of(fresh_session) <= before


async def test_a_model_that_fails_in_one_attempt_ends_the_turn(fresh_session: Session) -> None:
    before = await forks_of(fresh_session)
    ways = [[Text(py("n = 2")), HttpError(401)], [Text(py("n = 3")), Text("It is 3.")]]
    async with ScriptedServer(side_by_side(*ways)) as server:
        with pytest.raises(Exception, match="401"):
            await response(agent_of(server, fresh_session, attempts=2))
    assert await forks_of(fresh_session) <= before


@pytest.mark.long
async def test_an_attempt_may_hand_the_work_over(fresh_session: Session) -> None:
    handing = [Text(py("n = 4")), ToolCalls([("transfer_to_planner", {})])]
    async with ScriptedServer(side_by_side(handing, [Text("It is 1.")], best="planner")) as server:
        items = await turn(agent_of(server, fresh_session, attempts=2, handoffs=["planner"]))
    assert isinstance(items[-1], Response)
    assert isinstance(items[-1].chat_message, HandoffMessage)
    assert await value(fresh_session, "n") == "4"


async def test_code_that_fails_is_set_back_in_its_fork(fresh_session: Session) -> None:
    way = [Text(py("n = 1")), Text(py("n = 2\n1 / 0")), Text(py("final_answer(n)"))]
    async with ScriptedServer(side_by_side(way)) as server:
        agent = agent_of(server, fresh_session, attempts=2, rollback_on_error=True)
        assert (await response(agent)).chat_message.to_text() == "1"


async def test_each_attempt_is_a_span_of_its_own(fresh_session: Session) -> None:
    heard: list[Event] = []
    dispatcher = Dispatcher()
    dispatcher.listen(heard.append)
    await run(fresh_session, "base = 10")
    async with ScriptedServer(side_by_side(way(1), way(2), best="It is 12.")) as server:
        with dispatcher:
            agent = agent_of(server, fresh_session, attempts=2)
            await turn(agent)
    began = {event.span: event.attempt for event in heard if isinstance(event, events.AttemptBegan)}
    assert sorted(began.values()) == [1, 2]
    blocks = [event for event in heard if isinstance(event, events.BlockBegan)]
    assert sorted(began[block.parent or 0] for block in blocks) == [1, 2]
    [promoted] = [event for event in heard if isinstance(event, events.PromotionEnded)]
    chosen = next(block for block in blocks if "base + 2" in block.blocks[0].code)
    assert promoted.attempt == began[chosen.parent or 0]
    assert promoted.loss is None


async def test_whoever_hears_of_what_is_promoted_hears_of_one_attempt(fresh_session: Session) -> None:
    class Heard(PromotedListener):
        def __init__(self) -> None:
            super().__init__()
            self.events: list[Event] = []

        def hear(self, event: Event) -> None:
            self.events.append(event)

    heard, dispatcher = Heard(), Dispatcher()
    dispatcher.listen(heard)
    await run(fresh_session, "base = 10")
    async with ScriptedServer(side_by_side(way(1), way(2), way(3), best="It is 12.")) as server:
        with dispatcher:
            agent = agent_of(server, fresh_session, attempts=3)
            await turn(agent)
    ended = [event.attempt for event in heard.events if isinstance(event, events.AttemptEnded)]
    assert sorted(ended) == [1, 2, 3]
    outputs = [event.output for event in heard.events if isinstance(event, events.BlockEnded)]
    assert outputs == ["12\n"]


def test_it_needs_forks() -> None:
    class Unforked(Session):
        fork = SessionCodeExecutor.fork  # pyright: ignore[reportAssignmentType]

    with pytest.raises(SettingError, match="attempts: Unforked cannot be forked"):
        agent_of(replay(), Unforked(), attempts=2)


@pytest.mark.long
@pytest.mark.docker
async def test_attempts_in_a_container() -> None:
    async with DockerSessionCodeExecutor() as executor:
        await run(executor, "base = 10")
        async with ScriptedServer(side_by_side(way(1), way(2), way(3), best="It is 13.")) as server:
            agent = agent_of(server, executor, attempts=3)
            assert (await response(agent)).chat_message.to_text() == "It is 13."
        assert await value(executor, "number, open('found.txt').read()") == "(13, '13\\n')"


async def test_files_are_those_of_the_attempt_that_is_chosen(tmp_path: Path) -> None:
    ways = [[Text(py(f"open('n{n}.txt', 'w').close()")), Text(f"It is {n}.")] for n in (1, 2, 3)]
    async with own_session(work_dir=tmp_path) as executor:
        async with ScriptedServer(side_by_side(*ways, best="It is 3.")) as server:
            await turn(agent_of(server, executor, attempts=3))
    assert os.listdir(tmp_path) == ["n3.txt"]
