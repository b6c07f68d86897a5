"""Rules of approval, and the questions that a person is asked."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    ValidationInfo,
    field_validator,
    model_validator,
)

from codeact_team.core.rulings import NO_RULE, AtMost, Decision, Glob, RuleChain, Ruling, matches
from codeact_team.text.magics import ShellCommands, shell_in
from codeact_team.text.visibility import (
    EDGE,
    all_visible,
    edged,
    exact,
    excerpt,
    foreign_encoding,
    one_line,
    unseen_place,
)

_SHELLS = frozenset({"sh", "shell", "bash", "pwsh", "powershell", "ps1"})
_READ_DIFFERENTLY = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters, which interpreters take for an end, a line break, an indentation or nothing, each in its own way; and
halves of a pair, in whose place something else is stored."""
_SPOILED_CONTINUATION = re.compile(r"\\[ \t]+$", re.MULTILINE)


def _is_python(language: str) -> bool:
    """Whether a block with this label is certainly Python."""
    return language.lower() == "python"


def _misleading(code: str, language: str) -> str:
    """Return why code would not run as it is shown with everything unseen made visible, for the model; else empty."""
    if language.lower() not in _SHELLS and (encoding := foreign_encoding(code)) is not None:
        return f"a comment declares the encoding {encoding[:40]!r}, but the code is UTF-8: leave that comment out"
    if _is_python(language):
        code = code.replace("\r\n", "\n")
    found = _READ_DIFFERENTLY.search(code)
    return "" if found is None else _at(code, found.start())


def misleading_as_it_is(code: str, language: str) -> str:
    """Do the same as :func:`_misleading` for code that is shown with nothing made visible in it."""
    if reason := _misleading(code, language):
        return reason
    if (place := unseen_place(code)) is not None:
        return _at(code, place)
    if (found := _SPOILED_CONTINUATION.search(code)) is not None:
        line = code.count("\n", 0, found.start()) + 1
        return f"in line {line}, invisible blanks follow the backslash at the end: remove them"
    return ""


def _at(code: str, place: int) -> str:
    line = code.count("\n", 0, place) + 1
    name = unicodedata.name(code[place], "a control character")
    return f"line {line} holds U+{ord(code[place]):04X} ({name}), which makes the code look like something else: write it as an escape"


Kind = Literal["code", "tool", "host"]

MAX_NAME_CHARS = 100
_MAX_REASON_CHARS = 1_000
_MAX_SHOWN_CHARS = 100_000
"""Characters of code, or of all arguments, that a person is asked to read; more cannot be approved."""
_TOO_LONG = f"it is longer than the {_MAX_SHOWN_CHARS:,} characters that are shown to a person"
_WIDTH = 80


@dataclass(frozen=True)
class Question:
    """Code, the call of a tool, or a host that code wants to reach, which needs approval.

    The code and the arguments are hostile: show them by the properties that make them fit for a person's eyes.

    Attributes:
        source: The agent.
        kind: ``code``, ``tool`` or ``host``.
        name: The tool, as code calls it below ``tools``, the language of the code, or the host and its port.
        arguments: The arguments of the tool, whole.
        code: The block, whole.
        reason: Why a person is asked, if the rule says so.
    """

    source: str
    kind: Kind
    name: str
    arguments: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    code: str = ""
    reason: str = ""

    @property
    def headline(self) -> str:
        """The agent and its wish, in a few words."""
        return f"{one_line(self.source, MAX_NAME_CHARS)} wants to {self.deed}"

    @property
    def deed(self) -> str:
        """The agent's wish, in a few words."""
        name = one_line(self.name, MAX_NAME_CHARS)
        if self.kind == "tool":
            return f"call {name}"
        if self.kind == "host":
            return f"reach {name}"
        is_mixed = _is_python(self.name) and shell_in(self.code).commands
        return f"run {name} code that runs a shell" if is_mixed else f"run {name} code"

    @property
    def grant(self) -> str:
        """The code or the calls that the answer "always" would allow."""
        if self.kind == "code":
            return "all code"
        name = one_line(self.name, MAX_NAME_CHARS)
        return f"{name} with any arguments" if self.kind == "tool" else name

    @property
    def details(self) -> str:
        """The code, or the arguments line by line, with nothing unseen in it; whole unless there is an obstacle."""
        if self.kind == "tool":
            return "\n".join(line for line, _ in self._shown_arguments()) or "(no arguments)"
        if self.kind == "host":
            return "a connection to the network, and what is sent there"
        code = self.code.rstrip("\n")
        if _is_python(self.name):
            # such a line ends in the same way for Python
            code = code.replace("\r\n", "\n")
        return exact(excerpt(code, chars=_MAX_SHOWN_CHARS, lines=_MAX_SHOWN_CHARS))

    @property
    def obstacle(self) -> str:
        """The reason for which nobody can approve this, for the model; empty if it can be shown whole and as it would run."""
        if len(self.name) > MAX_NAME_CHARS:
            return f"its name is longer than the {MAX_NAME_CHARS} characters that are shown to a person"
        if self.kind == "code":
            if len(self.code) > _MAX_SHOWN_CHARS:
                return f"{_TOO_LONG}: write shorter code"
            return _misleading(self.code, self.name)
        if not all(is_whole for _, is_whole in self._shown_arguments()):
            return f"{_TOO_LONG}, or nested too deeply: pass less at a time"
        return ""

    @property
    def shown_reason(self) -> str:
        """The reason for which a person is asked, on one line; may be empty."""
        return one_line(self.reason, _MAX_REASON_CHARS)

    def to_text(self, *, width: int = _WIDTH) -> str:
        """Write the question on several lines for a screen of ``width`` cells, each foreign line behind an edge."""
        parts = [f"{self.headline}:", edged(self.details, width)]
        if self.reason:
            parts.append(f"You are asked because: {self.shown_reason}")
        return "\n".join(parts)

    def _shown_arguments(self) -> Iterator[tuple[str, bool]]:
        """Yield the lines of the arguments, and whether each is whole."""
        room = _MAX_SHOWN_CHARS
        for number, (name, value) in enumerate(self.arguments.items()):
            shown_name = name if name.isidentifier() and name.isascii() else json.dumps(name)
            if (room := room - len(shown_name)) < 0:
                yield f"[... {len(self.arguments) - number:,} more arguments are not shown ...]", False
                return
            shown = _shown_value(value, room)
            yield (
                f"{shown_name}:{shown or ' (nested too deeply, or too large, to be shown)'}",
                shown is not None,
            )
            room -= len(shown or "")


def as_json(value: JsonValue) -> str | None:
    """Write a value as canonical compact JSON; ``None`` if it is nested too deeply, or a number has too many digits."""
    try:
        plain = _with_leaves(
            value, lambda leaf: int(leaf) if isinstance(leaf, float) and leaf.is_integer() else leaf
        )
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    except (RecursionError, ValueError):
        return None


def _with_leaves(value: JsonValue, change: Callable[[JsonValue], JsonValue]) -> JsonValue:
    """Replace each text, number, truth value and ``None`` in a value; a ``RecursionError`` if it is too deep."""
    if isinstance(value, list):
        return [_with_leaves(item, change) for item in value]
    if isinstance(value, dict):
        return {key: _with_leaves(item, change) for key, item in value.items()}
    return change(value)


def _shown_value(value: JsonValue, room: int) -> str | None:
    """Write a value for a person; ``None`` if it takes more than ``room`` characters, or cannot be written."""
    if isinstance(value, str) and len(value) > room:
        return None
    if isinstance(value, str) and "\n" in value:
        return "".join(f"\n    {EDGE}{line}" for line in exact(value).split("\n"))
    pieces: list[str] = []
    try:
        # piece by piece: deep levels are indented, which can make much of little
        for piece in json.JSONEncoder(ensure_ascii=False, indent=2).iterencode(value):
            pieces.append(piece)
            if (room := room - len(piece)) < 0:
                return None
    except (RecursionError, ValueError):
        return None
    return " " + all_visible("".join(pieces)).replace("\n", "\n    ")


_SITE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")
_ENCODED_DOT = re.compile("%2e", re.IGNORECASE)


def _matches_value(glob: str, value: JsonValue, *, allowing: bool) -> bool | None:
    """Whether a value fits, however it is written; ``None`` if it is too long, or nested too deeply.

    A rule that restricts has to notice a value in any notation. One that allows must not be misled by a notation: a glob
    with a slash is matched with the path without detours only, any other has to fit the path with them and without.
    """
    if not glob.strip("*"):
        return True
    if isinstance(value, float) and value.is_integer():
        both = [matches(glob, as_json(value)), matches(glob, json.dumps(value))]
        allowing = False
    else:
        direct = matches(glob.removeprefix("./"), _text(_without_detours(value)))
        if allowing and "/" in glob:
            return direct
        both = [direct, matches(glob, _text(value))]
    # one of them decides: that both have to fit, or that one is enough
    decisive = not allowing
    return decisive if decisive in both else None if None in both else allowing


def _without_detours(value: JsonValue) -> JsonValue:
    """Resolve ``.``, ``..`` and doubled slashes in the paths and URLs of a value."""
    try:
        return _with_leaves(value, lambda leaf: _straight(leaf) if isinstance(leaf, str) else leaf)
    except RecursionError:
        # as JSON it is too deep as well
        return value


def _straight(text: str) -> str:
    site = _SITE.match(text)
    head, path, tail = "", text, ""
    if site is not None:
        head, rest = site[0], text[site.end() :]
        path = re.split("[?#]", rest, maxsplit=1)[0]
        tail = rest[len(path) :]
        path = _ENCODED_DOT.sub(".", path)
    if "/" not in path:
        return text
    root = "/" if path.startswith("/") else ""
    steps: list[str] = []
    for step in path.split("/"):
        if step == ".." and (steps and steps[-1] != ".."):
            steps.pop()
        elif step not in ("", ".") and not (step == ".." and root):
            steps.append(step)
    # a folder's path may end with a slash, and then still does
    end = "/" if steps and path.endswith(("/", "/.", "/..")) else ""
    return f"{head}{root}{'/'.join(steps) or ('' if root else '.')}{end}{tail}"


def _text(value: JsonValue) -> str | None:
    return value if isinstance(value, str) else as_json(value)


class ApprovalRule(BaseModel):
    """A decision on certain code, or on certain calls of tools. Of several rules, the first that fits decides.

    Where no rule fits, code runs and tools are called; a closing rule with `tool: "*"` and `decision: ask` makes a
    person decide on all other calls. In globs, `*` stands for any text, `?` for one character and `[abc]` for one of
    several, so write `[[]` for a bracket; capitals and small letters differ, and the whole text has to fit.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    tool: Glob | None = None
    """For calls of tools whose name fits this glob, such as `orders.*`: the name below `tools` by which code calls
    it."""
    code: Glob | None = None
    """For blocks of code that fit this glob as a whole, such as `*import socket*`. The same can be written in many
    ways, so this does not keep code from anything: the sandbox does."""
    shell: Glob | None = None
    """For shell commands in Python, as they are written: the command of each `!` line and the body of each `%%bash`. It is
    matched with a shell block as a whole, too. A rule that denies or asks applies if one of them fits. A rule that allows
    applies if all fit, and the block does nothing else. It does not see what Python starts in other ways."""
    arguments: dict[str, Glob] = Field(default_factory=dict)
    """Globs for arguments of the tool, by name; all have to fit. They see the value that the tool will get: text as it
    is, other values as compact JSON with sorted keys, whole numbers as `100` and `100.0`. In paths and URLs they see
    where these lead: `/data/*` does not allow `/data/../etc/passwd`, and `/etc/*` denies it. An argument that is not
    passed does not fit, so deny the rest rather than single values. What is longer than 100,000 characters is matched
    by `*` only; where another glob would have to be matched with it, it is denied."""
    decision: Decision
    """Whether to allow it, to deny it, or to ask a person."""
    reason: str = ""
    """The reason, for the model if this is denied, and for the person who is asked."""
    at_most: AtMost = None
    """The number of times that this rule may allow something before the agent is reset. Then it fits no more, and what
    no later rule decides is denied."""

    @model_validator(mode="after")
    def _is_for_one_kind(self) -> Self:
        if [self.tool, self.code, self.shell].count(None) != 2:
            raise ValueError("a rule has one of 'tool', 'code' and 'shell'")
        return self

    @field_validator("arguments")
    @classmethod
    def _is_for_a_tool(cls, arguments: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        if arguments and (info.data.get("code") or info.data.get("shell")):
            raise ValueError("can be used with 'tool' only, as code has no arguments")
        return arguments

    def fits(self, question: Question) -> bool | None:
        """Whether the rule applies to this; ``None`` if something is too long to be matched."""
        if self.code is not None:
            return question.kind == "code" and matches(self.code, question.code)
        if self.shell is not None:
            return question.kind == "code" and self._fits_shell(self.shell, question)
        if question.kind != "tool" or not self.arguments.keys() <= question.arguments.keys():
            return False
        if not matches(self.tool or "", question.name):
            return False
        can_tell = True
        for name, glob in self.arguments.items():
            matched = _matches_value(glob, question.arguments[name], allowing=self.decision == "allow")
            if matched is False:
                return False
            can_tell = can_tell and matched is not None
        return True if can_tell else None

    def _fits_shell(self, glob: str, question: Question) -> bool | None:
        if question.name.lower() in _SHELLS:
            shell = ShellCommands((question.code.strip(),), is_all=True)
        else:
            shell = shell_in(question.code) if _is_python(question.name) else ShellCommands()
        fits = [matches(glob, command) for command in shell.commands]
        if self.decision != "allow":
            return True if True in fits else None if None in fits else False
        if not (fits and shell.is_all) or False in fits:
            return False
        return None if None in fits else True


def approval_chain(rules: Sequence[ApprovalRule]) -> RuleChain[Question]:
    """Make the rules decide together, where what no rule fits is allowed."""
    return RuleChain(rules, otherwise=Ruling("allow", NO_RULE))
