"""Read tools as they are given: AutoGen's, functions, and import paths of functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from autogen_core import ComponentModel
from autogen_core.tools import BaseTool, FunctionTool

from codeact_team.autogen_internals import function_of
from codeact_team.errors import SettingError
from codeact_team.providers import resolve_function

Tool = BaseTool[Any, Any] | Callable[..., Any] | str
"""A tool as it may be given."""

_VARIADIC = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


@dataclass(frozen=True)
class GivenTool:
    """A tool, and how it was given: by its import path, as a live function, or as it is."""

    tool: BaseTool[Any, Any]
    path: str | None = None
    is_live: bool = False

    def dump(self) -> ComponentModel | str:
        """Dump the tool for a config.

        A ``FunctionTool`` is dumped as AutoGen does it, with its source; loading that must be allowed. A ``SettingError``
        says that a tool has no form there.
        """
        if self.path is not None:
            return self.path
        advice = "put it into a module, and give its import path, `module:function`"
        if self.is_live:
            raise SettingError(f"tools: {self.tool.name!r} is a live function and cannot be dumped: {advice}")
        try:
            return self.tool.dump_component()
        except Exception as error:  # whatever a tool does about a form it does not have
            raise SettingError(
                f"tools: {self.tool.name!r} ({type(self.tool).__name__}) cannot be dumped "
                f"({type(error).__name__}: {error}): {advice}"
            ) from error


def read_tool(tool: Tool) -> GivenTool:
    """Make a tool of what is given; raise a ``SettingError`` if it is none, or a ``ConfigError`` about its import path."""
    if isinstance(tool, FunctionTool) and type(tool).run is FunctionTool.run:
        # it would fail at the first call
        _check_parameters(tool.name, function_of(tool))
    if isinstance(tool, BaseTool):
        return GivenTool(cast("BaseTool[Any, Any]", tool))
    if isinstance(tool, str):
        return GivenTool(_function_tool(resolve_function(tool)), path=tool)
    return GivenTool(_function_tool(tool), is_live=True)


def _function_tool(function: Callable[..., Any]) -> FunctionTool:
    definition = _definition_of(function)
    name = _check_kind(definition)
    _check_parameters(name, function)
    try:
        return FunctionTool(function, description=inspect.getdoc(definition) or "")
    except (ValueError, TypeError, NameError, RuntimeError) as error:
        raise SettingError(
            f"tools: {name} cannot be a tool: {error}; annotate parameters with types that JSON can have, and say what "
            "they are with Annotated[type, 'what it is']"
        ) from error


def _definition_of(function: Any) -> Callable[..., Any]:
    """Return the function behind a partial one, or the function itself."""
    return cast("partial[Any]", function).func if isinstance(function, partial) else function


def _check_kind(function: Callable[..., Any]) -> str:
    """Check that AutoGen can make a tool of ``function``; return its name."""
    if not inspect.isfunction(function) and not inspect.ismethod(function):
        raise SettingError(
            f"tools: {function!r} is no function; what can be given is a function written with 'def', a partial of one, "
            "or a BaseTool"
        )
    if function.__name__ == "<lambda>":
        raise SettingError("tools: a lambda has no name; write it with 'def'")
    return function.__qualname__.replace("<locals>.", "")


def _check_parameters(name: str, function: Callable[..., Any]) -> None:
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in _VARIADIC:
            shown = f"{_VARIADIC[parameter.kind]}{parameter.name}"
            raise SettingError(
                f"tools: {name} takes {shown}; write its parameters out, as each has to be described"
            )
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise SettingError(f"tools: {name} takes {parameter.name!r} by position only; remove the '/'")
        if parameter.annotation is inspect.Parameter.empty:
            raise SettingError(
                f"tools: parameter {parameter.name!r} of {name} has no annotation; write one, such as "
                f"'{parameter.name}: str'"
            )
