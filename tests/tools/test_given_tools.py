"""Tools as they are given to a toolbox, and how they are dumped."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Annotated, Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_core import CancellationToken, ComponentModel
from autogen_core.models import ModelInfo
from autogen_core.tools import BaseTool, FunctionTool, StaticWorkbench
from autogen_ext.models.replay import ReplayChatCompletionClient
from hosted import Shout, Text
from pydantic import Field

from codeact_team.core.providers import DEFAULT_NAMESPACES, Policy, using
from codeact_team.errors import ConfigError, NotAllowedError, SettingError
from codeact_team.tools.toolbox import Toolbox

OURS = Policy(DEFAULT_NAMESPACES | {"hosted"})

TOOLS = ModelInfo(
    vision=False, function_calling=True, json_output=False, family="unknown", structured_output=False
)


def documented(text: Annotated[str, "What to say"], times: int = 1) -> str:
    """Say something.

    As often as you like.
    """
    return text * times


class Shop:
    def order(self, sku: str) -> str:
        """Order an article."""
        return sku


class Undumpable(BaseTool[Text, Text]):
    def __init__(self) -> None:
        super().__init__(Text, Text, "undumpable", "Nothing")

    async def run(self, args: Text, cancellation_token: CancellationToken) -> Text:
        return args


async def test_a_function_is_described_by_its_docstring_and_annotations() -> None:
    (tool,) = (await Toolbox([documented]).offer()).tools
    assert tool.declaration.stub() == (
        "def tools.documented(text: str, times: int = 1) -> str:\n"
        '    """Say something.\n\n    As often as you like.\n\n    Args:\n        text: What to say.\n    """'
    )


async def test_a_method_is_a_function_too() -> None:
    (tool,) = (await Toolbox([Shop().order]).offer()).tools
    assert tool.declaration.stub() == 'def tools.order(sku: str) -> str:\n    """Order an article."""'


def _no_annotation(number, other: int = 1) -> int:  # pyright: ignore[reportUnknownParameterType, reportMissingParameterType]
    """Text."""
    return other


def _no_docstring(number: int) -> int:
    return number


def _again(text: str, times: int) -> str:
    """Say it again."""
    return text * times


async def _stream(most: int) -> AsyncGenerator[int]:
    for number in range(most):
        yield number


def _steps(most: int) -> Generator[int]:
    yield from range(most)


def _by_number(names: dict[int, str]) -> str:
    return names[1]


def _many(*numbers: int) -> int:
    """Text."""
    return sum(numbers)


def _any_keywords(**numbers: int) -> int:
    """Text."""
    return len(numbers)


def _by_position(number: int, /) -> int:
    """Text."""
    return number


def _no_schema(number: Callable[[], int]) -> int:
    """Text."""
    return number()


def _no_description(number: Annotated[int, Field(gt=1)]) -> int:
    """Text."""
    return number


async def test_what_autogens_assistant_takes_is_a_tool() -> None:
    given: list[Any] = [_no_docstring, functools.partial(_again, times=2), _stream, _steps, _by_number]
    AssistantAgent("assistant", ReplayChatCompletionClient([], TOOLS), tools=given)
    box = Toolbox(given)
    try:
        offer = await box.offer()
        assert [tool.declaration.line() for tool in offer.tools] == [
            "tools.no_docstring(number)",
            "tools.again(text, times=2)  # Say it again.",
            "tools.stream(most)",
            "tools.steps(most)",
            "tools.by_number(names)",
        ]
        assert offer.tools[0].declaration.stub() == "def tools.no_docstring(number: int) -> int:\n    ..."
        arguments: list[dict[str, Any]] = [
            {"number": 1},
            {"text": "a"},
            {"most": 2},
            {"most": 2},
            {"names": {"1": "b"}},
        ]
        returned = [
            await tool.call(tool.read(given), CancellationToken())
            for tool, given in zip(offer.tools, arguments, strict=True)
        ]
    finally:
        await box.stop()
    assert returned == [[1], ["aa"], [[0, 1]], [[0, 1]], ["b"]]


REFUSED: list[tuple[Any, str]] = [
    (_no_annotation, "parameter 'number' of _no_annotation has no annotation; write one"),
    (_many, r"_many takes \*numbers; write its parameters out"),
    (_any_keywords, r"_any_keywords takes \*\*numbers"),
    (_by_position, "_by_position takes 'number' by position only"),
    (_no_schema, "'_no_schema' has parameters of types that have no JSON schema"),
    (_no_description, r"_no_description cannot be a tool: .*Annotated\[type, 'what it is'\]"),
    (lambda: 1, "a lambda has no name"),
    (Shop, "not a function"),
    (Shop(), "not a function"),
    (3, "not a function"),
    (len, "not a function"),
    (functools.partial(len), "not a function"),
    # what AutoGen's class takes, and fails with at the first call
    (FunctionTool(_many, "Text"), r"_many takes \*numbers; write its parameters out"),
    (FunctionTool(_by_position, "Text"), "_by_position takes 'number' by position only"),
]


@pytest.mark.parametrize(("function", "said"), REFUSED)
def test_a_function_that_cannot_be_a_tool_is_refused_with_the_fix(function: Any, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        Toolbox([function])


def test_two_tools_of_the_same_name_are_refused() -> None:
    with pytest.raises(SettingError, match="two tools 'documented'"):
        Toolbox([documented, FunctionTool(documented, "The same")])


def test_a_tool_among_workbenches_is_refused() -> None:
    tool: Any = FunctionTool(documented, "Text")
    with pytest.raises(SettingError, match="not a workbench; put tools and functions into 'tools'"):
        Toolbox([], [tool])


async def test_an_import_path_leads_to_a_function_of_this_machine() -> None:
    with using(OURS):
        toolbox = Toolbox(["hosted:double"])
    tool = (await toolbox.offer()).find("double")
    assert tool is not None
    assert await tool.call(tool.read({"number": 3}), CancellationToken()) == [6]


def test_an_import_path_outside_the_allowed_namespaces_is_refused() -> None:
    with pytest.raises(NotAllowedError, match="hosted"):
        Toolbox(["hosted:double"])


def test_an_import_path_that_leads_nowhere_is_refused() -> None:
    with using(OURS), pytest.raises(ConfigError, match="did you mean 'double'"):
        Toolbox(["hosted:doubble"])


def test_an_undocumented_function_is_taken_by_its_path_as_well() -> None:
    with using(OURS):
        assert Toolbox(["hosted:undocumented"]).dump_tools() == ["hosted:undocumented"]


def test_paths_and_components_are_dumped_in_order() -> None:
    with using(OURS):
        toolbox = Toolbox(
            [Shout("loud"), "hosted:double", FunctionTool(documented, "Text")], [StaticWorkbench([])]
        )
    first, path, last = toolbox.dump_tools()
    assert path == "hosted:double"
    assert isinstance(first, ComponentModel)
    assert Shout.load_component(first).description == "Shout, loud."
    # as AutoGen does it: with its source, which only a policy that allows it loads
    assert isinstance(last, ComponentModel)
    assert last.provider == "autogen_core.tools.FunctionTool"
    assert [model.provider for model in toolbox.dump_workbenches()] == ["autogen_core.tools.StaticWorkbench"]


@pytest.mark.parametrize(
    ("tool", "said"), [(documented, "'documented' is a live function"), (Undumpable(), "undumpable")]
)
def test_what_cannot_be_dumped_says_so_by_name(tool: Any, said: str) -> None:
    with pytest.raises(SettingError, match=f"{said}.*give its import path"):
        Toolbox([tool]).dump_tools()


def test_a_workbench_with_a_live_tool_cannot_be_dumped() -> None:
    with pytest.raises(SettingError, match="a StaticWorkbench cannot be dumped"):
        Toolbox([], [StaticWorkbench([Undumpable()])]).dump_workbenches()
