"""The module ``tools``, by which code calls functions of the host: its functions, their parameters and its contents."""

from __future__ import annotations

import sys
from types import ModuleType

from codeact_team.session.runner.interpreter.arguments import BadArgument, encoded, plain
from codeact_team.session.runner.interpreter.channel import encode
from codeact_team.session.runner.interpreter.pending_calls import Calls
from codeact_team.session.runner.interpreter.tool_answers import CLASSES, is_denial
from codeact_team.session.runner.interpreter.user_code import interruptible_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from inspect import Signature
    from typing import Any, ClassVar

    from codeact_team.session.runner.interpreter.blocks import Interrupts
    from codeact_team.session.runner.interpreter.channel import Channel

interruptible_module(__name__)

_OMITTED = object()


class _Text:
    """An object whose ``repr`` is a given text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


class _Parameters:
    """The parameters of a tool: binds the arguments of a call to them, and shows them.

    Attributes:
        names: The names by the keys that the host knows.
    """

    def __init__(self, function: str, declaration: dict[str, Any]) -> None:
        self._function = function
        self._all: list[dict[str, Any]] = declaration["parameters"]
        self._returns: str | None = declaration["returns"]
        self.names: dict[str, str] = {each["key"]: each["name"] for each in self._all}
        self._name_of = {**self.names, **{name: name for name in self.names.values()}}
        self._others = "others" if declaration["takes_others"] else ""
        while self._others in self.names.values():
            self._others += "_"
        self._bind = self._binding_function()

    def __str__(self) -> str:
        """The parameters as in a signature, without annotations."""
        return self._listed(lambda parameter: f"{_default(parameter)!r:.40}")

    def bind(self, positional: Sequence[Any], named: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments by their keys.

        Raises a ``TypeError`` as of Python itself, if the tool cannot be called like that.
        """
        renamed: dict[str, Any] = {}
        for given, value in named.items():
            name = self._name_of.get(given, given)
            if name not in self._name_of and not self._others:
                raise self._unexpected(name)
            if name in renamed:
                raise TypeError(f"{self._function}() got multiple values for argument {name!r}")
            renamed[name] = value
        bound = self._bind(*positional, **renamed)
        return {key: value for key, value in bound.items() if value is not _OMITTED}

    def signature(self) -> Signature:
        """Return the signature; an optional parameter without a known default has ``...`` as default."""
        from inspect import Parameter, Signature

        shown = [
            Parameter(
                each["name"],
                Parameter.KEYWORD_ONLY if each["keyword_only"] else Parameter.POSITIONAL_OR_KEYWORD,
                default=Parameter.empty if each["required"] else _default(each),
                annotation=_Text(each["annotation"]),
            )
            for each in self._all
        ]
        if self._others:
            shown.append(Parameter(self._others, Parameter.VAR_KEYWORD))
        returns = Signature.empty if self._returns is None else _Text(self._returns)
        return Signature(shown, return_annotation=returns)

    def _binding_function(self) -> Callable[..., dict[str, Any]]:
        """Make a function with these parameters, so that Python itself reports errors of a call."""
        parameters = self._listed(lambda _: "omitted")
        bound = [f"{key!r}: {name}" for key, name in self.names.items()]
        if self._others:
            bound.append(f"**{self._others}")
        source = f"def bind({parameters}): return {{{', '.join(bound)}}}"
        namespace: dict[str, Any] = {"omitted": _OMITTED}
        exec(compile(source, f"<{__name__}>", "exec"), namespace)
        namespace["bind"].__qualname__ = self._function
        return namespace["bind"]

    def _listed(self, default: Callable[[dict[str, Any]], str]) -> str:
        listed: list[str] = []
        for each in self._all:
            if each["keyword_only"] and "*" not in listed:
                listed.append("*")
            listed.append(each["name"] if each["required"] else f"{each['name']}={default(each)}")
        if self._others:
            listed.append(f"**{self._others}")
        return ", ".join(listed)

    def _unexpected(self, name: str) -> TypeError:
        meant = _nearest(name, self._name_of)
        hint = f". Did you mean {meant!r}?" if meant else ""
        return TypeError(f"{self._function}() got an unexpected keyword argument {name!r}{hint}")


def _nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like ``name``, if one is."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, known, 1)), None)


def _default(parameter: dict[str, Any]) -> Any:
    return parameter["default"] if "default" in parameter else _Text("...")


class Tool:
    """A function of the host. It waits for its result; ``await`` its ``aio(...)`` to do other things meanwhile."""

    def __init__(self, declaration: dict[str, Any], calls: Calls) -> None:
        self._path: str = declaration["name"]
        group, _, name = self._path.rpartition(".")
        self.__name__ = self.__qualname__ = name
        self.__module__ = f"tools.{group}" if group else "tools"
        self.__doc__ = declaration["doc"]
        self._parameters = _Parameters(self._path, declaration)
        self._head = f'"name":{encode(self._path)},"arguments":'.encode()
        self._calls = calls

    def __call__(self, /, *arguments: Any, **named: Any) -> Any:
        return self._calls.call(self._request(arguments, named))

    async def aio(self, /, *arguments: Any, **named: Any) -> Any:
        return await self._calls.call_async(self._request(arguments, named))

    def __get__(self, instance: object, owner: object = None) -> Tool:
        """Make ``inspect`` and ``help`` take it for a function; it is not bound to the instance."""
        return self

    def __repr__(self) -> str:
        return f"<tool {self.usage()}>"

    @property
    def __signature__(self) -> Signature:
        return self._parameters.signature()

    def usage(self) -> str:
        return f"tools.{self._path}({self._parameters})"

    def line(self) -> str:
        """Show in a line how it is called and what it does."""
        lines = (self.__doc__ or "").strip().splitlines()
        return f"{self.usage()} - {lines[0]}" if lines else self.usage()

    def _request(self, arguments: Sequence[Any], named: dict[str, Any]) -> bytes:
        try:
            try:
                copies = plain(self._parameters.bind(arguments, named))
                return b"%s%s}" % (self._head, encoded(copies))
            except BadArgument as problem:
                raise problem.error(self._path, self._parameters.names) from None
        except KeyboardInterrupt as interrupt:
            # without the context: it is none of the code's
            raise interrupt from None


_NAME = "tools"
_ABOUT = """\
Functions that run on the host.

{tools}

help({module}.name) tells more of each. A call waits for its result. "await {module}.name.aio(...)" does
not hold up other tasks: asyncio.gather() runs several at once. A call that fails raises tools.ToolError."""


class _Names(list[str]):
    """The names that ``from tools import *`` binds."""

    def __contains__(self, name: object) -> bool:
        # help() asks for the names to show after the docstring, which has a line for each already
        return False


class Tools:
    """The module ``tools`` and its submodules; ``namespace`` are the globals of the code."""

    is_denial: ClassVar[staticmethod[[BaseException], bool]] = staticmethod(is_denial)

    def __init__(self, channel: Channel, interrupts: Interrupts, namespace: dict[str, Any]) -> None:
        self.calls: Calls = Calls(channel, interrupts)
        self._namespace = namespace
        self._modules: dict[str, ModuleType] = {}
        self._contents: dict[str, dict[str, Any]] = {}
        self._paths: list[str] = []

    def declare(self, declarations: Sequence[dict[str, Any]]) -> None:
        """Offer these tools and no others from now on. References of the code to the modules stay valid."""
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
            listed = [tool.line() for tool in tools if name in (_NAME, tool.__module__)]
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
        meant = _nearest(attribute, known)
        hint = f"did you mean {known[meant]!r}?" if meant else f"help({_NAME}) lists those that there are"
        return f"there is no tool {path!r}; {hint}"
