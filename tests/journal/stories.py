"""Teams that come to the same end whenever they are run: what their models say depends on the conversation only."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from support.fork_server import forked_by_command
from support.openai_server import AnyReply, Body, Json, Text, ToolCalls

GIVEN_UP = "It is not known."
"""The answer where it is not known what became of a call."""


@dataclass(frozen=True)
class Story:
    """A config, what its model says to a request, and what has to come of it.

    Attributes:
        config: Of the team.
        reply: What its model says to a request.
        answer: What the run prints; empty if that is known only when it has run.
        effects: What its tools do, in any order.
        files: What is in which file.
        repeats: Whether all calls of its tools may be made twice.
        new_each_time: Files whose content the model chooses anew in each run.
        delivered: The files that the person gets; ``None`` if that is known only when it has run.
    """

    config: dict[str, Any]
    reply: Callable[[Body], AnyReply]
    answer: str
    effects: Sequence[str] = ()
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    repeats: bool = False
    new_each_time: frozenset[str] = frozenset()
    delivered: Mapping[str, bytes] | None = None


def text_of(body: Body) -> str:
    return json.dumps(body["messages"])


def said_before(body: Body) -> int:
    return sum(message["role"] == "assistant" for message in body["messages"])


def is_given_up(body: Body) -> bool:
    return any(told in text_of(body) for told in ("it is unknown", "is not known"))


def python(code: str) -> Text:
    return Text(f"```python\n{code}\n```")


def verdict(is_accepted: bool, answer: str = "It is done.") -> Json:
    if not is_accepted:
        return Json({"problems": ["More."], "accepted": False, "next_step": "Once more."})
    return Json({"problems": [], "accepted": True, "next_step": "", "answer": answer})


def step_by_step(*replies: AnyReply) -> Callable[[Body], AnyReply]:
    """An agent that says one thing after the other, and gives up where it has to."""

    def reply(body: Body) -> AnyReply:
        if is_given_up(body):
            return python(f"final_answer({GIVEN_UP!r})")
        return replies[min(said_before(body), len(replies) - 1)]

    return reply


CLIENT = {
    "provider": "autogen_ext.models.openai.OpenAIChatCompletionClient",
    "config": {"model": "gpt-4o", "max_retries": 0},
}
CONFINED = {"confinement": "best_effort"}
IN_WORK = {**CONFINED, "work_dir": "work"}
LOG = {"work/log.txt": "one\ntwo\nthree\n"}


def component(provider: str, **config: Any) -> dict[str, Any]:
    return {"provider": provider, "config": config}


def coder(executor: str = "Confined", settings: dict[str, Any] = IN_WORK, **more: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"name": "coder", "model_client": CLIENT, "tools": ["killed_run:book"]}
    session = component(f"codeact_team.{executor}SessionCodeExecutor", **settings)
    return component("codeact_team.CodeActAgent", **{**given, "code_executor": session, **more})


def assistant(says: str, name: str = "coder", **more: Any) -> dict[str, Any]:
    return component(
        "autogen_agentchat.agents.AssistantAgent",
        **{
            "name": name,
            "description": says,
            "model_client": CLIENT,
            "system_message": says,
            "reflect_on_tool_use": False,
            "tool_call_summary_format": "{result}",
            **more,
        },
    )


def runner(executor: str = "Confined", **settings: Any) -> dict[str, Any]:
    code_executor = component(f"codeact_team.{executor}CommandLineCodeExecutor", **(settings or IN_WORK))
    return component(
        "codeact_team.CodeExecutorAgent", name="executor", code_executor=code_executor, reflect=False
    )


def team(*participants: dict[str, Any], kind: str = "RoundRobinGroupChat", **settings: Any) -> dict[str, Any]:
    made = component(f"autogen_agentchat.teams.{kind}", participants=participants, **settings)
    return {**made, "component_type": "team"}


REVIEWER = component("codeact_team.ReflectionAgent", name="reviewer", model_client=CLIENT)
ACCEPTED: dict[str, Any] = {"termination_condition": component("codeact_team.ReflectionTermination")}


# one agent

of_the_agent = step_by_step(
    python("open('log.txt', 'a').write('one\\n')\nfirst = tools.book(amount=5)\nprint(first)"),
    python("numbers = [first, 7]\nopen('log.txt', 'a').write('two\\n')\nprint(numbers)"),
    python(
        "first += tools.book(amount=3)\nopen('log.txt', 'a').write('three\\n')\n"
        "final_answer(f'{first} {numbers} {open(\"log.txt\").read().split()}')"
    ),
)
_ANSWER = "3 [1, 7] ['one', 'two', 'three']"
SESSION = Story(coder(), of_the_agent, _ANSWER, ["5", "3"], LOG)
DOCKER = Story(coder("Docker", {}), of_the_agent, _ANSWER, ["5", "3"])


def of_the_renamer(body: Body) -> AnyReply:
    """Files that have their names only when they are whole, and those that go again."""
    blocks = [
        (
            "open('draft.tmp', 'w').write('draft')\ntime.sleep(0.1)\nos.rename('draft.tmp', 'draft.txt')\n"
            "open('scratch.txt', 'w').write('scratch')\nprint('drafted')"
        ),
        (
            "try:\n    for n in range(4):\n        open('part.tmp', 'w').write(f'part {n}')\n        time.sleep(0.05)\n"
            "        os.rename('part.tmp', f'part-{n}.txt')\nexcept BaseException:\n    open('why.txt', 'w').write('stopped')\n    raise\n"
            "os.remove('scratch.txt')\nprint('parted')"
        ),
        "os.remove('part-0.txt')\nos.rename('draft.txt', 'whole.txt')\ntime.sleep(0.1)\nprint('done')",
    ]
    if "You judge." in text_of(body):
        return verdict("done" in text_of(body))
    if said_before(body) < len(blocks):
        return python(f"import os, time\n{blocks[said_before(body)]}")
    return python("final_answer('It is done.')")


RENAMES = Story(coder(settings=CONFINED, tools=[]), of_the_renamer, "It is done.")
TEAM_THAT_RENAMES = Story(
    team(
        assistant("You write code."),
        runner(**CONFINED),
        component(
            "codeact_team.ReflectionAgent", name="reviewer", model_client=CLIENT, system_message="You judge."
        ),
        **ACCEPTED,
    ),
    of_the_renamer,
    "It is done.",
)

SIDE_BY_SIDE = Story(
    # calls of tools in one block
    coder(tools=["killed_run:note"]),
    step_by_step(
        python(
            "import asyncio\nopen('log.txt', 'a').write('one\\ntwo\\n')\n"
            "noted = await asyncio.gather(*(tools.note.aio(amount=n) for n in (1, 2, 3)))\nprint(noted)"
        ),
        python(
            "open('log.txt', 'a').write('three\\n')\n"
            "noted += await asyncio.gather(*(tools.note.aio(amount=n) for n in (4, 4)))\nfinal_answer(str(noted))"
        ),
    ),
    "[1, 2, 3, 4, 4]",
    ["1", "2", "3", "4", "4"],
    LOG,
)

SET_BACK = Story(
    # the code that fails leaves variables and files as they were, and what its tools have done
    coder(rollback_on_error=True),
    step_by_step(
        python("open('log.txt', 'a').write('one\\n')\nfirst = tools.book(amount=5)\nprint(first)"),
        python(
            "first += tools.book(amount=3)\nlater = 1\nopen('log.txt', 'a').write('half\\n')\n"
            "open('more.txt', 'w').close()\n1 / 0"
        ),
        python("open('log.txt', 'a').write('two\\n')\nprint(first)"),
        python(
            "import os\nopen('log.txt', 'a').write('three\\n')\n"
            'final_answer(f\'{first} {"later" in globals()} {os.path.exists("more.txt")}\')'
        ),
    ),
    "1 False False",
    ["5", "3"],
    LOG,
)

APPROVED = Story(
    coder(
        approval=[{"tool": "book", "decision": "ask"}, {"code": "*", "decision": "ask"}],
        approval_handler="killed_run:agree",
    ),
    of_the_agent,
    _ANSWER,
    ["5", "3"],
    LOG,
)

_begun = count(1)


def of_the_attempts(body: Body) -> AnyReply:
    """An agent whose attempts differ by a number, in the variables and files that the next turn finds."""
    text = text_of(body)
    if "Choose the one whose answer is to be given." in text:
        return Json({"reason": "It is as good as any.", "answer": 2})
    if "You judge." in text:
        return verdict("the second" in text)
    return [
        python(
            f"lot = {next(_begun)}\nopen('log.txt', 'a').write('one\\n')\nopen('lot.txt', 'w').write(str(lot))\n"
            "try:\n    tools.book(amount=5)\nexcept tools.ToolDenied:\n    print('denied')"
        ),
        python("rows = [str(lot) == open('lot.txt').read(), tools.double(amount=7)]\nprint(rows)"),
        python("open('log.txt', 'a').write('two\\n')\nfinal_answer(f'the first {lot}')"),
        # in its next turn
        python("print(rows, str(lot) == open('lot.txt').read())"),
        python("open('log.txt', 'a').write('three\\n')\nrows.append(str(lot) == open('lot.txt').read())"),
        python("final_answer(f'the second {rows} {open(\"log.txt\").read().split()}')"),
    ][said_before(body)]


ATTEMPTS = Story(
    team(
        coder(
            attempts=3, tools=["killed_run:book", "killed_run:double"], tool_limits={"repeatable": ["double"]}
        ),
        component(
            "codeact_team.ReflectionAgent", name="reviewer", model_client=CLIENT, system_message="You judge."
        ),
        **ACCEPTED,
    ),
    of_the_attempts,
    "the second [True, 14, True] ['one', 'two', 'three']",
    files=LOG,
    repeats=True,
    new_each_time=frozenset({"lot.txt"}),
)

_DIGEST = """\
import hashlib, types
def described(value, seen):
    if id(value) in seen:
        return f'the {seen.index(id(value))}th'
    if isinstance(value, (int, float, str, bytes, type(None))):
        return repr(value)
    seen.append(id(value))
    if isinstance(value, types.FunctionType):
        code = value.__code__
        held = [code.co_code, [one for one in code.co_consts if not hasattr(one, 'co_code')], value.__defaults__]
    elif isinstance(value, type):
        held = [vars(value)[name] for name in sorted(vars(value)) if not name.startswith('__')]
    elif isinstance(value, dict):
        held = [part for item in value.items() for part in item]
    elif isinstance(value, (list, tuple)):
        held = list(value)
    elif isinstance(value, (set, frozenset)):
        held = sorted(value)
    elif hasattr(value, '__dict__') and not isinstance(value, types.ModuleType):
        held = [value.__dict__]
    else:
        held = []
    return type(value).__name__ + str([described(part, seen) for part in held])
def digest():
    there = {name: value for name, value in globals().items() if not name.startswith('_')}
    return hashlib.sha256(str([(name, described(there[name], [])) for name in there]).encode()).hexdigest()
"""
VARIABLES = Story(
    # the answer is a digest of everything that the interpreter has by then
    coder(),
    step_by_step(
        python(f"{_DIGEST}import random\nrandom.seed(7)\nchance = random.Random(3)\nprint(len(digest()))"),
        python(
            "class Account:\n    rate = 1.5\n    def __init__(self, n):\n        self.n, self.others = n, []\n"
            "mine = Account(tools.book(amount=5))\nmine.others.append(mine)\nwords = {'ä', 'b', 'c'}\n"
            "print(chance.random())"
        ),
        python("same = numbers = [random.random(), chance.random(), b'\\xff']\n1 / 0"),
        python(
            "double = lambda n, by=[2]: n * by[0]\ntable = {'numbers': numbers, double(4): None}\n"
            "same.append(tools.book(amount=3))\nprint(digest())"
        ),
        python("state = random.getstate()\nfinal_answer(digest())"),
    ),
    "",
    ["5", "3"],
)


# teams


def of_the_team(body: Body) -> AnyReply:
    if "You write code." in text_of(body):
        return [
            python("open('log.txt', 'a').write('one\\n')\nprint(open('log.txt').read())"),
            python(
                "open('log.txt', 'a').write('two\\n')\nopen('log.txt', 'a').write('three\\n')\nprint('done')"
            ),
        ][min(said_before(body), 1)]
    return verdict("three" in text_of(body))


def of_the_nested_teams(body: Body) -> AnyReply:
    for line in ("one", "two"):
        if f"You write {line}." in text_of(body):
            return python(f"open('log.txt', 'a').write('{line}\\n')\nprint('done')")
    return verdict(True)


def writing(line: str, name: str) -> dict[str, Any]:
    """A team of two, one of several whose agents have the same names, and whose executors have the same directory."""
    return team(assistant(f"You write {line}."), runner(), name=name, description=f"{name}.", max_turns=2)


TEAM = Story(
    team(assistant("You write code."), runner(), REVIEWER, **ACCEPTED), of_the_team, "It is done.", files=LOG
)
DOCKER_TEAM = Story(
    team(assistant("You write code."), runner("Docker", work_dir="work"), REVIEWER, **ACCEPTED),
    of_the_team,
    "It is done.",
    files=LOG,
)
NESTED = Story(
    team(writing("one", "first"), writing("two", "second"), REVIEWER, **ACCEPTED),
    of_the_nested_teams,
    "It is done.",
    files={"work/log.txt": "one\ntwo\n"},
)


def of_the_selector(body: Body) -> AnyReply:
    text = text_of(body)
    if "Who is next?" not in text:
        return of_the_nested_teams(body)
    return Text(["second", "first", "reviewer"][text.count("executor: ")])


SELECTOR = Story(
    team(
        writing("one", "first"),
        writing("two", "second"),
        REVIEWER,
        kind="SelectorGroupChat",
        model_client=CLIENT,
        selector_prompt="{roles} {history} Who is next?",
        allow_repeated_speaker=True,
        **ACCEPTED,
    ),
    of_the_selector,
    "It is done.",
    files={"work/log.txt": "two\none\n"},
)


def of_the_swarm(body: Body) -> AnyReply:
    text = text_of(body)
    if "You judge." in text:
        return Text("It is done. TERMINATE")
    if "You plan." in text:
        if is_given_up(body):
            return Text(f"{GIVEN_UP} TERMINATE")
        if "Transferred to planner" in text:
            return ToolCalls([("transfer_to_judge", {})])
        return ToolCalls([("transfer_to_coder", {})] if "booked 1" in text else [("Booking", {"amount": 1})])
    if is_given_up(body):
        return python(f"final_answer('{GIVEN_UP} TERMINATE')")
    if "the sum is 5" in text:
        return ToolCalls([("transfer_to_planner", {})])
    return python(
        "open('log.txt', 'a').write('one\\n')\ntotal = 3 + tools.book(amount=5)\nprint('the sum is', total)"
    )


SWARM = Story(
    team(
        assistant(
            "You plan.",
            "planner",
            tools=[component("killed_run.Booking")],
            handoffs=[{"target": "coder"}, {"target": "judge"}],
            max_tool_iterations=1,
        ),
        coder(handoffs=["planner", "judge"], system_message="You write code. $tools"),
        assistant("You judge.", "judge"),
        kind="Swarm",
        max_turns=12,
        termination_condition=component(
            "autogen_agentchat.conditions.TextMentionTermination", text="TERMINATE"
        ),
    ),
    of_the_swarm,
    "It is done.",
    ["1", "5"],
    {"work/log.txt": "one\n"},
)


def of_the_graph(body: Body) -> AnyReply:
    text = text_of(body)
    for name, amount in (("left", 10), ("right", 20)):
        if f"You are {name}." in text:
            if is_given_up(body):
                return python(f"final_answer({GIVEN_UP!r})")
            return [
                python(f"open('log.txt', 'a').write('{name}\\n')\nfound = tools.note(amount={amount})"),
                python("final_answer(f'{tools.note(amount=found + 1)} {open(\"log.txt\").read().split()}')"),
            ][min(said_before(body), 1)]
    if "You begin." in text:
        return Text("Begin.")
    told = [side for side in ("11 ['left']", "21 ['right']") if side in text]
    return python(f"final_answer({GIVEN_UP if is_given_up(body) else str(told)!r})")


def _side(name: str) -> dict[str, Any]:
    return coder(
        settings={**CONFINED, "work_dir": f"work/{name}"},
        name=name,
        system_message=f"You are {name}. $tools",
        tools=["killed_run:note"],
    )


GRAPH = Story(
    # two forks that work side by side, and a join
    team(
        assistant("You begin.", "start"),
        _side("left"),
        _side("right"),
        _side("both"),
        kind="GraphFlow",
        graph={
            "nodes": {
                "start": {"name": "start", "edges": [{"target": "left"}, {"target": "right"}]},
                "left": {"name": "left", "edges": [{"target": "both"}]},
                "right": {"name": "right", "edges": [{"target": "both"}]},
                "both": {"name": "both", "edges": []},
            },
        },
    ),
    of_the_graph,
    """["11 ['left']", "21 ['right']"]""",
    ["10", "11", "20", "21"],
    {"work/left/log.txt": "left\n", "work/right/log.txt": "right\n"},
)


def of_the_assistant(body: Body) -> AnyReply:
    if "You book." not in text_of(body):
        return verdict(True, GIVEN_UP if is_given_up(body) else "It is done.")
    if is_given_up(body):
        return Text(GIVEN_UP)
    return [
        ToolCalls([("Booking", {"amount": 5})]),
        # side by side
        ToolCalls([("Booking", {"amount": 3}), ("Noting", {"amount": 4})]),
        Text("Booked."),
    ][min(said_before(body), 2)]


def _team_of_tools(**tools: Any) -> dict[str, Any]:
    return team(assistant("You book.", max_tool_iterations=5, **tools), REVIEWER, **ACCEPTED)


_TOOLS = [component("killed_run.Booking"), component("killed_run.Noting")]
TOOLS = Story(_team_of_tools(tools=_TOOLS), of_the_assistant, "It is done.", ["5", "3", "4"])
WORKBENCH = Story(
    _team_of_tools(workbench=[component("autogen_core.tools.StaticWorkbench", tools=_TOOLS)]),
    of_the_assistant,
    "It is done.",
    ["5", "3", "4"],
)


def with_a_server() -> Story:
    """Tools of a real MCP server, which is killed with the run."""
    command, *arguments = forked_by_command(str(Path(__file__).with_name("booking_server.py")))
    server = {"type": "StdioServerParams", "command": command, "args": arguments, "read_timeout_seconds": 60}
    workbench = component("autogen_ext.tools.mcp.McpWorkbench", server_params=server)
    return Story(_team_of_tools(workbench=[workbench]), of_the_assistant, "It is done.", ["5", "3", "4"])
