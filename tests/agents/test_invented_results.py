"""A model that goes on behind its code as if that had run: only what stands before the invented result counts."""

from __future__ import annotations

import pytest
from autogen_agentchat.messages import TextMessage
from support.agents import Foreign, answer, contents, yes
from support.codeact import agent_of, py
from support.openai_server import ScriptedServer, Text, Truncated

from codeact_team.agents.code_executor import CodeExecutorAgent
from codeact_team.executors.confined import ConfinedSessionCodeExecutor
from codeact_team.text.markdown import extract_before_invention

FIRST, SECOND = py("total = 40 + 2"), py("print('deleted', total)")
LEFT_OUT = "[Left out: what follows the code as if it had run already]"
TURNS = [
    "Human: Observation: 42",
    "Observation:\n42",
    "**Observation:** 42",
    "### Human: It printed 42.",
    "<output>\n42\n</output>",
    "<|im_start|>user\n42<|im_end|>",
    "User: 42",
    "Execution result:\n```\n42\n```",
]


@pytest.mark.parametrize("turn", TURNS)
def test_code_behind_an_invented_result_is_not_run(turn: str) -> None:
    found = extract_before_invention(f"I add.\n{FIRST}\n{turn}\n\nNow:\n{SECOND}", ["python"])
    assert [block.code for block in found.blocks] == ["total = 40 + 2\n"]
    assert found.invented is not None


@pytest.mark.parametrize(
    "text",
    [
        f"Human: what is it?\n{FIRST}\n{SECOND}",
        f"{FIRST}\nThe user: he asks.\n{SECOND}",
        f"{FIRST}\nIn compose.yaml:\n```yaml\nweb:\n  user: root\nUser: me\n```\n{SECOND}",
        py("text = '''\nObservation: 1\n'''") + "\n" + SECOND,
    ],
    ids=["before any code", "in prose", "in a quotation", "in a string"],
)
def test_a_mark_elsewhere_changes_nothing(text: str) -> None:
    found = extract_before_invention(text, ["python"])
    assert (len(found.blocks), found.invented) == (2, None)


def test_marks_without_end_take_no_time() -> None:
    text = FIRST + "\n```text\n" + "Observation: 1\n" * 50_000 + "```\n"
    assert len(extract_before_invention(text, ["python"]).blocks) == 1


@pytest.mark.parametrize("reply", [Text, Truncated])
async def test_the_model_goes_on_with_what_its_code_has_printed(
    session: ConfinedSessionCodeExecutor, reply: type[Text | Truncated]
) -> None:
    invented = f"{FIRST}\nHuman: Observation: 43\n{SECOND}"
    async with ScriptedServer([reply(invented), Text(py("print(total)")), Text("It is 42.")]) as server:
        message = await answer(agent_of(server, session))
    assert message.content == "It is 42."
    told = contents(server.requests[1])
    assert LEFT_OUT in told[-1]
    assert "43" not in "".join(told)
    assert "42\n" in contents(server.requests[2])[-1]


async def test_an_executor_of_others_code_runs_what_stands_before_it() -> None:
    executor = Foreign()
    agent = CodeExecutorAgent("executor", executor, approval_func=yes)
    text = f"{FIRST}\nObservation: 42\n{SECOND}"
    message = await answer(agent, TextMessage(content=text, source="coder"))
    assert [block.code for block in executor.executed] == ["total = 40 + 2\n"]
    assert LEFT_OUT in message.content
