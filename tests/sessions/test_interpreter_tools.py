from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from support.declarations import CREATE, ECHO, SEARCH, parameter, tool
from support.interpreter import Ran, RunningInterpreter


@pytest.fixture
def interpreter(interpreter: RunningInterpreter) -> RunningInterpreter:
    interpreter.declare(SEARCH, CREATE, ECHO)
    return interpreter


@pytest.fixture
def fresh_interpreter(fresh_interpreter: RunningInterpreter) -> RunningInterpreter:
    fresh_interpreter.declare(SEARCH, CREATE, ECHO)
    return fresh_interpreter


def run(interpreter: RunningInterpreter, code: str, *content: dict[str, Any]) -> Ran:
    """Run a block that makes one call, answered with ``content``."""
    interpreter.start(code)
    interpreter.send_answer({"id": interpreter.next_call().number, "content": content})
    return interpreter.finish()


def called(interpreter: RunningInterpreter, code: str) -> dict[str, Any]:
    """The arguments of the one call that a block makes."""
    interpreter.start(code)
    call = interpreter.next_call()
    interpreter.answer(call.number)
    assert interpreter.finish().exit_code == 0
    return call.arguments


def error_of(interpreter: RunningInterpreter, code: str) -> str:
    """The error of a block that makes no call."""
    ran = interpreter.run(code)
    assert ran.exit_code == 1
    assert "codeact_team" not in ran.output
    return ran.output.splitlines()[-1]


def test_tools_can_be_imported(interpreter: RunningInterpreter) -> None:
    code = (
        "import tools, tools.github, importlib\nfrom tools.github import create_issue\nfrom tools import search, ToolError\n"
        "assert importlib.import_module('tools.github') is tools.github\n"
        "assert create_issue is tools.github.create_issue and search is tools.search\nfrom tools import *\n"
        "assert echo is tools.echo and github is tools.github\ncreate_issue('x')"
    )
    assert run(interpreter, code, {"value": 1}).output == "1\n"


def test_the_module_is_no_name_that_a_block_binds(interpreter: RunningInterpreter) -> None:
    assert interpreter.run("import tools\nx = tools").names.keys() == {"x"}
    assert interpreter.run("from tools import search").names["search"]["type"] == "Tool"


def test_what_is_declared_anew_replaces_what_was_before(interpreter: RunningInterpreter) -> None:
    interpreter.run("import tools as kept\nfrom tools import github, search")
    interpreter.declare(ECHO, tool("shop.orders"))
    assert (
        interpreter.run("dir(tools)[4:], dir(kept.shop), kept is tools").output
        == "(['echo', 'shop'], ['orders'], True)\n"
    )
    assert error_of(interpreter, "github.create_issue").endswith(
        "there is no tool 'github.create_issue'; help(tools) lists those that there are"
    )
    assert "No module named 'tools.github'" in interpreter.run("import tools.github").output
    interpreter.start("search('x')")
    interpreter.refuse(interpreter.next_call().number, "not offered any more", "refused")
    assert interpreter.finish().output.endswith("tools.ToolError: not offered any more\n")


def test_a_name_that_the_code_has_bound_itself_is_not_withdrawn(interpreter: RunningInterpreter) -> None:
    interpreter.run("tools = ['hammer']")
    interpreter.declare()
    assert interpreter.run("tools").output == "['hammer']\n"


def test_code_that_breaks_the_module_gets_it_back_with_the_next_declaration(
    interpreter: RunningInterpreter,
) -> None:
    interpreter.run(
        "import sys\ndel sys.modules['tools.github']\ntools.__dict__.clear()\ndel tools, sys.modules['tools']"
    )
    interpreter.declare(ECHO, CREATE)
    assert (
        run(interpreter, "from tools.github import create_issue\ntools.echo(1)", {"value": 1}).output == "1\n"
    )


def test_workspace_files_do_not_stand_in_for_what_the_tools_need(tmp_path: Path) -> None:
    for name in ("difflib", "inspect", "_thread", "binascii", "tools", "asyncio"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('from the workspace')")
    with RunningInterpreter(tmp_path) as interpreter:
        interpreter.declare(SEARCH)
        assert "did you mean 'search'" in interpreter.run("tools.serach").output
        assert interpreter.run("str(tools.search.__signature__)[:7]").output == "'(query:'\n"
        interpreter.start("tools.search('x')")
        interpreter.answer(interpreter.next_call().number, "found")
        assert interpreter.finish().output == "'found'\n"


def test_help_shows_the_signature_and_the_docstring(fresh_interpreter: RunningInterpreter) -> None:
    output = fresh_interpreter.run("help(tools.search)").output
    signature = "search(query: str, limit: int = 10, *, user_id: int | None = ...) -> list[dict[str, Any]]"
    shown = [line.rstrip() for line in output.splitlines()]
    at = shown.index(signature)
    assert shown[at + 1 : at + 5] == ["    Search the web.", "", "    Args:", "        query: What for."]
    assert "module tools" in output


def test_help_lists_all_tools_in_a_line_each(fresh_interpreter: RunningInterpreter) -> None:
    output = fresh_interpreter.run("help(tools)").output
    assert "    tools.search(query, limit=10, *, user_id=...) - Search the web.\n" in output
    assert "    tools.github.create_issue(title) - Create an issue.\n" in output
    assert "What for" not in output
    output = fresh_interpreter.run("help(tools.github)").output
    assert "    tools.github.create_issue(title) - Create an issue.\n" in output
    assert "tools.search(" not in output


def test_tools_look_like_functions(fresh_interpreter: RunningInterpreter) -> None:
    shown = fresh_interpreter.run(
        "import inspect\nt = tools.search\nprint(t, t.__name__, t.__qualname__, t.__module__, inspect.getdoc(t)[:10])\n"
        "print(inspect.signature(t))\nprint(tools.github.create_issue.__module__, inspect.iscoroutinefunction(t.aio))\n"
        "class A:\n    f = t\nprint(A().f is t, dir(tools), tools)"
    ).output.splitlines()
    assert shown == [
        "<tool tools.search(query, limit=10, *, user_id=...)> search search tools Search the",
        "(query: str, limit: int = 10, *, user_id: int | None = ...) -> list[dict[str, Any]]",
        "tools.github True",
        "True ['Media', 'ToolDenied', 'ToolError', 'ToolTimeout', 'echo', 'github', 'search'] <module 'tools'>",
    ]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("tools.serach('x')", "AttributeError: there is no tool 'serach'; did you mean 'search'?"),
        (
            "tools.create_isue",
            "AttributeError: there is no tool 'create_isue'; did you mean 'github.create_issue'?",
        ),
        ("tools.githup.x", "AttributeError: there is no tool 'githup'; did you mean 'github'?"),
        (
            "tools.github.create",
            "AttributeError: there is no tool 'github.create'; did you mean 'github.create_issue'?",
        ),
        ("tools.q", "AttributeError: there is no tool 'q'; help(tools) lists those that there are"),
        ("tools.__path__", "AttributeError: module 'tools' has no attribute '__path__'"),
    ],
)
def test_a_missing_tool_names_the_nearest(interpreter: RunningInterpreter, code: str, message: str) -> None:
    # newer Pythons have a guess of their own
    assert error_of(interpreter, code).removesuffix(". Did you mean: '__hash__'?") == message


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("search('x')", {"query": "x"}),
        ("search('x', 2)", {"query": "x", "limit": 2}),
        ("search(limit=2, query='x')", {"query": "x", "limit": 2}),
        ("search('x', user_id=3)", {"query": "x", "user-id": 3}),
        ("search('x', **{'user-id': None})", {"query": "x", "user-id": None}),
        ("search('x', limit=3.0)", {"query": "x", "limit": 3.0}),
    ],
)
def test_arguments_are_bound_to_parameters(
    interpreter: RunningInterpreter, call: str, arguments: dict[str, Any]
) -> None:
    assert called(interpreter, f"tools.{call}") == arguments


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("search()", "TypeError: search() missing 1 required positional argument: 'query'"),
        ("search('x', 1, 2)", "TypeError: search() takes from 1 to 2 positional arguments but 3 were given"),
        ("echo(1, 2)", "TypeError: echo() takes 1 positional argument but 2 were given"),
        ("search('x', query='y')", "TypeError: search() got multiple values for argument 'query'"),
        (
            "search(qurey='x')",
            "TypeError: search() got an unexpected keyword argument 'qurey'. Did you mean 'query'?",
        ),
        ("search('x', zzz=1)", "TypeError: search() got an unexpected keyword argument 'zzz'"),
        (
            "echo([{'a': {(1, 2): 3}}])",
            "TypeError: echo(): value[0].a must have keys that are texts or whole numbers, not (1, 2)",
        ),
    ],
)
def test_calls_that_cannot_be_made_are_errors_before_anything_is_sent(
    interpreter: RunningInterpreter, call: str, message: str
) -> None:
    assert error_of(interpreter, f"tools.{call}") == message
    assert error_of(interpreter, f"await tools.{call.replace('(', '.aio(', 1)}") == message


def test_missing_arguments_are_told_as_python_does(interpreter: RunningInterpreter) -> None:
    three = [parameter(name) for name in "abc"]
    interpreter.declare(
        tool("f", *three), tool("g", parameter("d", keyword_only=True), parameter("e", keyword_only=True))
    )
    definitions = "def f(a, b, c): pass\ndef g(*, d, e): pass\n"
    for call in (
        "f()",
        "f(1)",
        "f(1, 2)",
        "f(1, c=2)",
        "f(1, 2, 3, 4)",
        "f(1, a=1)",
        "g()",
        "g(d=1)",
        "g(1)",
    ):
        # the last one is told with what else is missing by Python
        assert error_of(interpreter, f"tools.{call}").split(" (")[0] == error_of(
            interpreter, definitions + call
        )


def test_parameters_may_have_any_name(interpreter: RunningInterpreter) -> None:
    interpreter.declare(tool("f", parameter("self"), parameter("arguments"), parameter("from_", key="from")))
    assert called(interpreter, "tools.f(self=1, arguments=2, from_=3)") == {
        "self": 1,
        "arguments": 2,
        "from": 3,
    }


def test_a_tool_may_take_more_than_it_names(interpreter: RunningInterpreter) -> None:
    interpreter.declare(tool("f", parameter("a"), takes_others=True))
    assert called(interpreter, "tools.f(a=1, b=2)") == {"a": 1, "b": 2}
    assert interpreter.run("tools.f").output == "<tool tools.f(a, **others)>\n"


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ([], ""),
        ([{"value": None}], ""),
        ([{"value": [1, {"a": 0.1}]}], "[1, {'a': 0.1}]\n"),
        ([{"value": 1}, {"value": "x"}], "[1, 'x']\n"),
        ([{"value": {"mime_type": "no media"}}], "{'mime_type': 'no media'}\n"),
    ],
)
def test_results_are_python_values(
    interpreter: RunningInterpreter, content: list[dict[str, Any]], shown: str
) -> None:
    assert run(interpreter, "tools.echo(1)", *content).output == shown


@pytest.mark.parametrize(
    ("outcome", "name", "denied"),
    [
        ("failed", "ToolError", False),
        ("refused", "ToolError", False),
        ("cancelled", "ToolError", False),
        ("timed_out", "ToolTimeout", False),
        ("denied", "ToolDenied", True),
        ("unheard of", "ToolError", False),
    ],
)
@pytest.mark.parametrize("form", ["tools.echo(1)", "await tools.echo.aio(1)"])
def test_failures_are_errors_in_the_calling_code(
    interpreter: RunningInterpreter, outcome: str, name: str, denied: bool, form: str
) -> None:
    interpreter.start(f"x = 1\n{form}")
    interpreter.refuse(interpreter.next_call().number, "what is wrong", outcome)
    ran = interpreter.finish()
    assert ran.exit_code == 1
    # newer Pythons mark more places in a line
    assert [line for line in ran.output.splitlines() if line.strip(" ~^")] == [
        "Traceback (most recent call last):",
        f'  File "<block {interpreter.blocks}>", line 2, in <module>',
        f"    {form}",
        f"tools.{name}: what is wrong",
    ]
    assert ran.report["denied"] is denied


def test_errors_can_be_caught_by_what_they_are(interpreter: RunningInterpreter) -> None:
    for outcome, caught in (
        ("timed_out", "TimeoutError"),
        ("denied", "tools.ToolError"),
        ("failed", "tools.ToolError"),
    ):
        interpreter.start(f"try:\n    tools.echo(1)\nexcept {caught} as error:\n    print(error)")
        interpreter.refuse(interpreter.next_call().number, "what is wrong", outcome)
        ran = interpreter.finish()
        assert (ran.output, ran.report["denied"]) == ("what is wrong\n", False)


@pytest.mark.parametrize(
    ("code", "denied"),
    [
        ("{}", True),
        ("try:\n    {}\nexcept Exception:\n    1 / 0", False),
        ("try:\n    {}\nexcept Exception as error:\n    raise ValueError from error", False),
        ("try:\n    {}\nexcept Exception as error:\n    raise ExceptionGroup('g', [error])", True),
        (
            "try:\n    {}\nexcept Exception as error:\n    raise ExceptionGroup('g', [error, ValueError()])",
            False,
        ),
        ("async with asyncio.TaskGroup() as group:\n    group.create_task(tools.echo.aio(1))", True),
    ],
)
def test_a_block_is_denied_if_nothing_else_has_ended_it(
    interpreter: RunningInterpreter, code: str, denied: bool
) -> None:
    interpreter.start("import asyncio\n" + code.format("tools.echo(1)"))
    interpreter.refuse(interpreter.next_call().number, "no", "denied")
    ran = interpreter.finish()
    assert (ran.exit_code, ran.report["denied"]) == (1, denied)
    assert not interpreter.run("1 / 0").report["denied"]


def _media(mime_type: str, data: bytes) -> dict[str, str]:
    return {"mime_type": mime_type, "data": base64.b64encode(data).decode()}


def test_media_have_a_type_and_bytes(interpreter: RunningInterpreter) -> None:
    content = (_media("audio/wav", b"sound"), {"value": "text"})
    ran = run(
        interpreter,
        "x, y = tools.echo(1)\nprint(x, x.mime_type, x.data, y, isinstance(x, tools.Media))",
        *content,
    )
    assert ran.output == "<Media audio/wav, 5 bytes> audio/wav b'sound' text True\n"


@pytest.mark.parametrize("mime_type", ["image/png", "text/html"])
def test_media_that_can_be_shown_are_when_they_are_the_last_value(
    interpreter: RunningInterpreter, mime_type: str
) -> None:
    ran = run(interpreter, "tools.echo(1)", _media(mime_type, b"data"))
    assert ran.artifacts == [(mime_type, b"data")]
    assert ran.output == f"<Media {mime_type}, 4 bytes>\n"


def test_media_that_cannot_be_shown_are_named_only(interpreter: RunningInterpreter) -> None:
    ran = run(interpreter, "tools.echo(1)", _media("audio/wav", b"data"))
    assert (ran.artifacts, ran.output) == ([], "<Media audio/wav, 4 bytes>\n")


def test_a_picture_can_be_opened(interpreter: RunningInterpreter) -> None:
    made = interpreter.run("from PIL import Image\nImage.new('RGB', (7, 5))").artifacts[0][1]
    assert run(interpreter, "tools.echo(1).image().size", _media("image/png", made)).output == "(7, 5)\n"
