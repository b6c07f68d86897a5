"""The lines of a Python block that are IPython's and not Python's: ``%magic``, ``%%magic``, ``!command`` and ``name?``.

Shipped into sandboxes, which run them, and used on the host, which tells people what they give to a shell. So it knows the
standard library only, and reads a block in the same way whatever Python it runs on.
"""

from __future__ import annotations

import re
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

SHELL_CELLS = ("bash", "sh")
"""Magics whose body a shell of that name runs."""
SHELL_ALIASES = ("cat", "cp", "ls", "mkdir", "mv", "rm", "rmdir")
"""Line magics that run the command of that name."""
TIMING = ("time", "timeit")
"""Magics whose line and body are code again, which may have any magics but these."""
BYTE_ORDER_MARK = "\ufeff"

_AROUND = ("capture", "time")
"""Magics that begin a block and do something before and after the rest of it."""


class Magic(NamedTuple):
    """A magic in a block.

    Attributes:
        name: Its name, such as ``time``; ``system`` for ``!command``, ``getoutput`` where its output is a value, ``pinfo``
            and ``pinfo2`` for ``name?`` and ``name??``.
        text: What follows the name, or the command.
        line: The line on which it begins, counted from 1.
        lines: The number of its lines.
        body: The rest of the block, if it begins with two signs; else ``None``.
        is_whole: Whether it is the whole statement.
    """

    name: str
    text: str
    line: int
    lines: int = 1
    body: str | None = None
    is_whole: bool = True

    @property
    def call(self) -> str:
        """The Python expression for it, on one line."""
        if self.name in ("system", "getoutput"):
            return f"get_ipython().{self.name}({self.text!r})"
        if self.body is None:
            return f"get_ipython().run_line_magic({self.name!r}, {self.text!r})"
        return f"get_ipython().run_cell_magic({self.name!r}, {self.text!r}, {self.body!r})"


class Block(NamedTuple):
    """A block that is not Python as it is written.

    Attributes:
        source: What was written, without a byte-order mark and without the indentation of the whole.
        code: The same as Python. It has the same lines.
        magics: Its magics, in order.
        endings: Expressions to evaluate when it has run.
        has_code: Whether there is anything in it but magics and comments.
    """

    source: str
    code: str
    magics: tuple[Magic, ...]
    endings: tuple[str, ...] = ()
    has_code: bool = False


class ShellCommands(NamedTuple):
    """The commands that a block gives to a shell, as they are written, and whether it does nothing else."""

    commands: tuple[str, ...] = ()
    is_all: bool = False


_INDENTATION = re.compile(r"(?:[ \t]*(?:#[^\n]*)?\n)*([ \t]+)(?![ \t\n#]|\Z)")
_CELL = re.compile(r"\s*%%(?P<name>[^\W\d]\w*)[ \t]*(?P<text>[^\n]*)(?:\n|\Z)")
_TO_THE_END = r"[^\n\\]*(?:\\.[^\n\\]*)*\\?"
_HELP = re.compile(r"(?P<indent>[ \t]*)(?P<name>%{0,2}(?:[^\W\d]|\*)[\w.*]*)(?P<sign>\?{1,2})[ \t]*(?=\n|\Z)")
_STATEMENT = re.compile(
    rf"(?P<indent>[ \t]*)(?P<sign>!!?|%%?(?=[^\W\d])|\?\??)(?P<text>{_TO_THE_END})", re.DOTALL
)
_VALUE = re.compile(rf"(?P<sign>!|%)(?P<text>{_TO_THE_END})", re.DOTALL)
_NAME = re.compile(r"(%?\w+)\s*(.*)", re.DOTALL)
_COMMENT = re.compile(r"#[^\n]*")
_TIMEIT = re.compile(r"(?P<options>(?:-[nr][ \t]*\d+(?:[ \t]+|\Z))*)(?P<code>.*)", re.DOTALL)
_SIGNS = re.compile(r"(?:^|[\n\r])[ \t\ufeff]*[!%]|=[ \t]*[!%]")


def read(code: str) -> Block | None:
    """Read a block; ``None`` if it has nothing that is not Python's, which holds for all code that Python can parse."""
    text = code.replace("\r\n", "\n").replace("\r", "\n")
    source = _without_indentation(text.removeprefix(BYTE_ORDER_MARK))
    heads, endings, body = _around(source)
    if (cell := _CELL.match(body)) is not None:
        line = source.count("\n", 0, len(source) - len(body) + cell.start("name")) + 1
        magic = Magic(cell["name"], cell["text"].rstrip(), line, body.count("\n") + 1, body[cell.end() :])
        blank = "\n" * (line - 1 - heads.count("\n"))
        return Block(source, f"{heads}{blank}{magic.call}\n", (magic,), endings)
    pieces, magics, has_code = [heads], list[Magic](), False
    for piece in _pieces(body, heads.count("\n") + 1):
        if isinstance(piece, Magic):
            magics.append(piece)
            pieces.append(piece.call + "\n" * (piece.lines - 1))
            has_code = has_code or not piece.is_whole
        else:
            pieces.append(piece)
            has_code = has_code or bool(_COMMENT.sub("", piece).strip())
    if not (heads or magics or source != text):
        return None
    return Block(source, "".join(pieces), tuple(magics), endings, has_code)


def shell_in(code: str) -> ShellCommands:
    """The commands that a block of Python gives to a shell by magics, before variables are put into them."""
    if _SIGNS.search(code) is None or (block := read(code)) is None:
        return ShellCommands()
    commands: list[str] = []
    is_all = not block.has_code and not block.endings
    for magic in block.magics:
        command = _command_of(magic)
        if command is not None:
            commands.append(command.strip())
            # what stands between braces is Python
            is_all = is_all and (magic.body is not None or "{" not in command)
            continue
        is_all = False
        if magic.name in TIMING:
            timed = (magic.text if magic.name == "time" else split_timeit(magic.text)[1], magic.body or "")
            inner = [one for part in timed if (found := read(part)) is not None for one in found.magics]
            commands += [command.strip() for one in inner if (command := _command_of(one)) is not None]
    return ShellCommands(tuple(commands), is_all)


def split_timeit(text: str) -> tuple[str, str]:
    """The options and the code behind ``%timeit``."""
    parts = _TIMEIT.fullmatch(text)
    assert parts is not None, "it fits any text"
    return parts["options"], parts["code"]


def _command_of(magic: Magic) -> str | None:
    if magic.name in ("system", "getoutput"):
        return magic.text
    if magic.body is not None:
        return magic.body if magic.name in SHELL_CELLS else None
    return f"{magic.name} {magic.text}" if magic.name in SHELL_ALIASES else None


def _without_indentation(text: str) -> str:
    indented = _INDENTATION.match(text)
    if indented is None:
        return text
    return re.sub(f"^{indented[1]}", "", text, flags=re.MULTILINE)


def _around(text: str) -> tuple[str, tuple[str, ...], str]:
    """Python lines for the magics around a block, the expressions for their ends, and the rest of the block."""
    heads, endings, at = "", list[str](), 0
    while (cell := _CELL.match(text, at)) is not None and cell["name"] in _AROUND:
        if cell["name"] == "time" and cell["text"].strip():
            break
        begin = f"get_ipython().begin_{cell['name']}({cell['text'].strip()!r})"
        heads += "\n" * text.count("\n", at, cell.start("name")) + f"{begin}\n"
        endings.insert(0, f"get_ipython().end_{cell['name']}()")
        at = cell.end()
    return heads, tuple(endings), text[at:]


def _pieces(text: str, line: int) -> Iterator[str | Magic]:
    """The magics of a text, whose first line has this number, and the Python code between them."""
    at = begun = counted = 0
    while at < len(text):
        found = _HELP.match(text, at) or _STATEMENT.match(text, at)
        is_whole = found is not None
        if found is None:
            at, is_value = _end_of_code(text, at)
            if not is_value:
                continue
            found = _VALUE.match(text, at)
            assert found is not None, "one begins there"
        start = found.start() + (len(found["indent"]) if is_whole else 0)
        line += text.count("\n", counted, start)
        counted = start
        yield text[begun:start]
        yield _magic(found, line, is_whole=is_whole)
        begun = found.end()
        # with the end of its line
        at = begun + 1
    yield text[begun:]


def _magic(found: re.Match[str], line: int, *, is_whole: bool) -> Magic:
    lines, sign = found[0].count("\n") + 1, found["sign"]
    text = found["name"] if found.re is _HELP else found["text"]
    if sign[0] == "!":
        name = "system" if is_whole and sign == "!" else "getoutput"
        return Magic(name, text.strip(), line, lines, is_whole=is_whole)
    text = text.replace("\\\n", " ").strip()
    if sign[0] == "?":
        return Magic("pinfo" if sign == "?" else "pinfo2", text, line, lines)
    parts = _NAME.fullmatch(sign[1:] + text)
    assert parts is not None, "a name begins there"
    return Magic(parts[1], parts[2], line, lines, is_whole=is_whole)


_TOKEN = re.compile(
    r"""
    (?:(?<!\w)(?P<prefix>[fFtT][rR]?|[rR][fFtT]|[bB][rR]?|[rR][bB]?|[uU]))?(?P<quote>'''|\"""|'|")
    | \#[^\n]* | \\\n
    | (?P<sign>[](){}\[:\n])
    | (?P<value>(?<![-+*/%@&|^~<>=!:])=[ \t]*(?=!(?!=)|%[^\W\d]))
    """,
    re.VERBOSE,
)
_STRINGS = {
    "'": re.compile(r"[^'\\\n]*(?:\\.[^'\\\n]*)*'?", re.DOTALL),
    '"': re.compile(r'[^"\\\n]*(?:\\.[^"\\\n]*)*"?', re.DOTALL),
    "'''": re.compile(r"[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*(?:''')?", re.DOTALL),
    '"""': re.compile(r'[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*(?:""")?', re.DOTALL),
}
"""The rest of a string by its quotes; of one that does not end, the rest of the line or of the text."""


def _end(quote: str) -> str:
    return quote if len(quote) > 1 else rf"{quote}|\n"


# formatted strings stand on the stack as these, and before them a sign for what is inside: "{" in a field, ":" behind its colon
_FORMATTED = {
    f"{kind}{quote}": re.compile(rf"{names}\\[^{{}}]|\{{\{{|\}}\}}|(?P<sign>[{{}}]|{_end(quote)})")
    for kind, names in (("f", r"\\N\{[^}\n]*\}|"), ("r", ""))
    for quote in _STRINGS
}
_SPECIFIED = {f":{mark}": re.compile(rf"(?P<sign>[{{}}]|{_end(mark[1:])})") for mark in _FORMATTED}


def _end_of_code(text: str, at: int) -> tuple[int, bool]:
    """Where the statement at ``at`` ends, or where in it a magic begins that is its value; whether it is the latter.

    What is in brackets that are not closed, or in a string of three quotes, goes on to the end of the text.
    """
    inside: list[str] = []
    while True:
        innermost = inside[-1] if inside else ""
        pattern = _FORMATTED.get(innermost) or _SPECIFIED.get(innermost) or _TOKEN
        if (token := pattern.search(text, at)) is None:
            return len(text), False
        at, sign = token.end(), token["sign"]
        if pattern is not _TOKEN:
            if sign == "\n":
                at = token.start()
            _go_on_in_string(inside, sign)
        elif token["quote"]:
            prefix = (token["prefix"] or "").lower()
            if "f" in prefix or "t" in prefix:
                inside.append(("r" if "r" in prefix else "f") + token["quote"])
            elif (string := _STRINGS[token["quote"]].match(text, at)) is not None:
                at = string.end()
        elif not inside and (token["value"] or sign == "\n"):
            return at, sign is None
        else:
            _go_on_in_brackets(inside, sign)


def _go_on_in_brackets(inside: list[str], sign: str | None) -> None:
    if sign in ("(", "[", "{"):
        inside.append(sign)
    elif not inside:
        return
    elif sign in (")", "]", "}"):
        inside.pop()
    elif sign == ":" and len(field := inside[-1]) > 1:
        inside.append(f":{field[1:]}")


def _go_on_in_string(inside: list[str], sign: str | None) -> None:
    """Go on behind a sign in a formatted string, or behind the colon of one of its fields."""
    if sign == "{":
        inside.append("{" + inside[-1].lstrip(":"))
    elif sign == "}":
        if inside[-1][0] == ":":
            # with its field
            del inside[-2:]
    elif sign:
        while inside.pop()[0] in "{:":
            pass
