"""The parameters of a tool: what a call binds to them, and how they are shown."""

from __future__ import annotations

from codeact_team.sessions.runner.interpreter.argument_problems import nearest
from codeact_team.sessions.runner.interpreter.stack_frames import interruptible_module, library_first

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from inspect import Signature
    from typing import Any

interruptible_module(__name__)


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
        declaration: See :attr:`codeact_team.execution.HostTools.declarations`.
    """

    def __init__(self, function: str, declaration: dict[str, Any]) -> None:
        self._function = function
        self._others: bool = declaration["takes_others"]
        self._all: list[dict[str, Any]] = declaration["parameters"]
        self._returns: str | None = declaration["returns"]
        self._positional = [each for each in self._all if not each["keyword_only"]]
        self._key_of = {each["key"]: each["key"] for each in self._all}
        self._key_of |= {each["name"]: each["key"] for each in self._all}
        self.names: dict[str, str] = {each["key"]: each["name"] for each in self._all}
        """By the keys that the host knows them by."""

    def __str__(self) -> str:
        """As in a signature, without annotations."""
        shown: list[str] = []
        starred = False
        for each in self._all:
            if each["keyword_only"] and not starred:
                shown.append("*")
                starred = True
            default = "" if each["required"] else f"={_default(each)!r:.40}"
            shown.append(each["name"] + default)
        if self._others:
            shown.append("**others")
        return ", ".join(shown)

    def bind(self, positional: Sequence[Any], named: dict[str, Any]) -> dict[str, Any]:
        """The arguments by their keys.

        Raises:
            TypeError: If it cannot be called like that, as Python says it.
        """
        if len(positional) > len(self._positional):
            raise self._too_many(len(positional))
        bound = {each["key"]: value for each, value in zip(self._positional, positional, strict=False)}
        for name, value in named.items():
            if name not in self._key_of and not self._others:
                raise self._unexpected(name)
            key = self._key_of.get(name, name)
            if key in bound:
                raise TypeError(f"{self._function}() got multiple values for argument {name!r}")
            bound[key] = value
        missing = [each for each in self._all if each["required"] and each["key"] not in bound]
        if missing:
            raise self._missing(missing)
        return bound

    def signature(self) -> Signature:
        """As ``inspect`` has it. An optional parameter without a default is shown as having ``...``."""
        with library_first():
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
            shown.append(Parameter("others", Parameter.VAR_KEYWORD))
        returns = Signature.empty if self._returns is None else _Text(self._returns)
        return Signature(shown, return_annotation=returns)

    def _too_many(self, given: int) -> TypeError:
        most = len(self._positional)
        least = sum(bool(each["required"]) for each in self._positional)
        takes = str(most) if least == most else f"from {least} to {most}"
        were = "was" if given == 1 else "were"
        return TypeError(
            f"{self._function}() takes {takes} positional argument{'s' if most != 1 else ''}"
            f" but {given} {were} given"
        )

    def _unexpected(self, name: str) -> TypeError:
        meant = nearest(name, self._key_of)
        return TypeError(
            f"{self._function}() got an unexpected keyword argument {name!r}"
            + (f". Did you mean {meant!r}?" if meant else "")
        )

    def _missing(self, missing: list[dict[str, Any]]) -> TypeError:
        # as Python does: those that can be positional first
        positional = [each for each in missing if not each["keyword_only"]]
        kind = "positional" if positional else "keyword-only"
        names = [repr(each["name"]) for each in positional or missing]
        if len(names) == 1:
            listed = names[0]
        else:
            comma = "," if len(names) > 2 else ""
            listed = f"{', '.join(names[:-1])}{comma} and {names[-1]}"
        plural = "s" if len(names) > 1 else ""
        return TypeError(
            f"{self._function}() missing {len(names)} required {kind} argument{plural}: {listed}"
        )


def _default(parameter: dict[str, Any]) -> Any:
    return parameter["default"] if "default" in parameter else _Text("...")
