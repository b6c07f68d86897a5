"""The parameters of a tool: what a call binds to them, and how they are shown."""

from __future__ import annotations

from codeact_team.session.runner.interpreter.user_code import interruptible_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from inspect import Signature
    from typing import Any

interruptible_module(__name__)

_OMITTED = object()


class _Text:
    """Stands for itself where something is shown by its ``repr``."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


class Parameters:
    """What a tool can be called with.

    Args:
        function: Its name, for errors.
        declaration: See :attr:`codeact_team.core.execution.HostTools.declarations`.
    """

    def __init__(self, function: str, declaration: dict[str, Any]) -> None:
        self._function = function
        self._all: list[dict[str, Any]] = declaration["parameters"]
        self._returns: str | None = declaration["returns"]
        self.names: dict[str, str] = {each["key"]: each["name"] for each in self._all}
        """By the keys that the host knows them by."""
        self._name_of = {**self.names, **{name: name for name in self.names.values()}}
        self._others = "others" if declaration["takes_others"] else ""
        while self._others in self.names.values():
            self._others += "_"
        self._bind = self._binding_function()

    def __str__(self) -> str:
        """As in a signature, without annotations."""
        return self._list(lambda parameter: f"{_default(parameter)!r:.40}")

    def bind(self, positional: Sequence[Any], named: dict[str, Any]) -> dict[str, Any]:
        """The arguments by their keys. Raises a ``TypeError``, as Python does, if it cannot be called like that."""
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
        """As ``inspect`` has it. An optional parameter without a default is shown as having ``...``."""
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
        """A function with these parameters, so that Python itself says what is wrong with a call."""
        parameters = self._list(lambda _: "omitted")
        bound = [f"{key!r}: {name}" for key, name in self.names.items()]
        if self._others:
            bound.append(f"**{self._others}")
        source = f"def bind({parameters}): return {{{', '.join(bound)}}}"
        namespace: dict[str, Any] = {"omitted": _OMITTED}
        exec(compile(source, f"<{__name__}>", "exec"), namespace)
        namespace["bind"].__qualname__ = self._function
        return namespace["bind"]

    def _list(self, default: Callable[[dict[str, Any]], str]) -> str:
        listed: list[str] = []
        for each in self._all:
            if each["keyword_only"] and "*" not in listed:
                listed.append("*")
            listed.append(each["name"] if each["required"] else f"{each['name']}={default(each)}")
        if self._others:
            listed.append(f"**{self._others}")
        return ", ".join(listed)

    def _unexpected(self, name: str) -> TypeError:
        meant = nearest(name, self._name_of)
        hint = f". Did you mean {meant!r}?" if meant else ""
        return TypeError(f"{self._function}() got an unexpected keyword argument {name!r}{hint}")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The one of the ``known`` names that ``name`` may be meant to be."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, known, 1)), None)


def _default(parameter: dict[str, Any]) -> Any:
    return parameter["default"] if "default" in parameter else _Text("...")
