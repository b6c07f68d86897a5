"""The module ``tools``, by which code calls functions of the host."""

from __future__ import annotations

import sys
from types import ModuleType

from codeact_team.session.runner.interpreter.parameters import nearest
from codeact_team.session.runner.interpreter.pending_calls import Calls
from codeact_team.session.runner.interpreter.tool_answers import CLASSES, is_denial
from codeact_team.session.runner.interpreter.tool_functions import Tool
from codeact_team.session.runner.interpreter.user_code import interruptible_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from codeact_team.session.runner.interpreter.blocks import Interrupts
    from codeact_team.session.runner.interpreter.channel import Channel

interruptible_module(__name__)

_NAME = "tools"
_ABOUT = """\
Functions that run on the host.

{tools}

help({module}.name) tells more of each. A call waits for its result. "await {module}.name.aio(...)" does
not hold up other tasks: asyncio.gather() runs several at once. A call that fails raises tools.ToolError."""


class _Names(list[str]):
    """What ``from tools import *`` binds."""

    def __contains__(self, name: object) -> bool:
        # help() asks what to show beside the docstring, which has it all in a line each
        return False


class Tools:
    """What code has of the host's tools; ``namespace`` are its globals."""

    is_denial = staticmethod(is_denial)

    def __init__(self, channel: Channel, interrupts: Interrupts, namespace: dict[str, Any]) -> None:
        self.calls = Calls(channel, interrupts)
        self._namespace = namespace
        self._modules: dict[str, ModuleType] = {}
        self._contents: dict[str, dict[str, Any]] = {}
        self._paths: list[str] = []

    def declare(self, declarations: Sequence[dict[str, Any]]) -> None:
        """Have these tools and no others from now on. What the code has kept of the modules is kept up to date."""
        tools = [Tool(declaration, self.calls) for declaration in declarations]
        self._paths = [declaration["name"] for declaration in declarations]
        contents: dict[str, dict[str, Any]] = {_NAME: {}}
        for tool in tools:
            contents.setdefault(tool.__module__, {})[tool.__name__] = tool
        self._withdraw()
        if tools:
            self._offer(contents)

    def _withdraw(self) -> None:
        for name, content in self._contents.items():
            module = self._modules[name]
            for attribute in content:
                module.__dict__.pop(attribute, None)
            if sys.modules.get(name) is module:
                del sys.modules[name]
            if self._namespace.get(name) is module:
                del self._namespace[name]
        self._contents = {}

    def _offer(self, contents: dict[str, dict[str, Any]]) -> None:
        tools = [tool for content in contents.values() for tool in content.values()]
        for name in contents:
            module = sys.modules[name] = self._modules.setdefault(name, ModuleType(name))
            listed = [_line(tool) for tool in tools if name in (_NAME, tool.__module__)]
            module.__doc__ = _ABOUT.format(tools="\n".join(listed), module=name)
        groups = {name.rpartition(".")[2]: self._modules[name] for name in contents if name != _NAME}
        contents[_NAME] |= {**groups, **{each.__name__: each for each in CLASSES}}
        for name, content in contents.items():
            self._modules[name].__dict__.update(content, **self._special(name, content))
        self._contents = contents
        self._namespace[_NAME] = self._modules[_NAME]

    def _special(self, module: str, content: dict[str, Any]) -> dict[str, Any]:
        def get(attribute: str) -> Any:
            # given the name, Python makes no suggestions of its own
            raise AttributeError(self._missing(module, attribute), name=attribute)

        return {"__all__": _Names(content), "__dir__": lambda: sorted(content), "__getattr__": get}

    def _missing(self, module: str, attribute: str) -> str:
        if attribute.startswith("_"):
            return f"module {module!r} has no attribute {attribute!r}"
        path = f"{module}.{attribute}".removeprefix(f"{_NAME}.")
        known = {path.rpartition(".")[2]: path for path in self._paths}
        known |= {group: group for path in self._paths if (group := path.rpartition(".")[0])}
        meant = nearest(attribute, known)
        hint = f"did you mean {known[meant]!r}?" if meant else f"help({_NAME}) lists those that there are"
        return f"there is no tool {path!r}; {hint}"


def _line(tool: Tool) -> str:
    summary = tool.summary()
    return f"{tool.usage()} - {summary}" if summary else tool.usage()
