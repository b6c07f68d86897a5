"""Which lines of a block are magics, and which are Python."""

from __future__ import annotations

import ast
import sysconfig
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeact_team.text.magics import read, shell_in


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("!ls -l", [("system", "ls -l", 1)]),
        ("!!ls", [("getoutput", "ls", 1)]),
        ("x = 1\nfiles = !ls | head", [("getoutput", "ls | head", 2)]),
        ("a.b[0] = !ls", [("getoutput", "ls", 1)]),
        ("t: str = %pwd", [("pwd", "", 1)]),
        ("%time f(1)", [("time", "f(1)", 1)]),
        ("if x:\n    !ls\n    while y:\n        %cd /a b", [("system", "ls", 2), ("cd", "/a b", 4)]),
        ("%time f(1, \\\n  2)\n!ls", [("time", "f(1,    2)", 1), ("system", "ls", 3)]),
        ("!echo a \\\n b\n!c", [("system", "echo a \\\n b", 1), ("system", "c", 3)]),
        ("!echo \"it's\nx = 'a'\n!ls", [("system", "echo \"it's", 1), ("system", "ls", 3)]),
        ("x?", [("pinfo", "x", 1)]),
        ("x = 1\nx.y??", [("pinfo2", "x.y", 2)]),
        ("?x", [("pinfo", "x", 1)]),
        ("@f\n!ls", [("system", "ls", 2)]),
        ("x # '\n!ls", [("system", "ls", 2)]),
        ("# a \\\n!ls", [("system", "ls", 2)]),
        ("x = (1,\n  2)\n!ls", [("system", "ls", 3)]),
        ("x = '\\'' # \"\"\"\n!ls", [("system", "ls", 2)]),
        ("x = 'no end\n!ls", [("system", "ls", 2)]),
        ("f'{a!r:{b}}' + f'''\n{c[\"}\"]}'''\n!ls", [("system", "ls", 3)]),
        ("x\r!ls\r\n!pwd", [("system", "ls", 2), ("system", "pwd", 3)]),
        ("\ufeff!ls", [("system", "ls", 1)]),
        ("  x = 1\n  !ls", [("system", "ls", 2)]),
        ("\n%%bash -e\nls\n!x\n", [("bash", "-e", 2)]),
        ("%%time\nx\n!ls", [("system", "ls", 3)]),
        ("%%capture out\n%%time\n!ls", [("system", "ls", 3)]),
        ("x.is*?", [("pinfo", "x.is*", 1)]),
        ("x\n%%bash\n", [("%bash", "", 2)]),
    ],
)
def test_a_magic_is_found_with_its_line(block: str, expected: list[tuple[str, str, int]]) -> None:
    found = read(block)
    assert found is not None
    assert [(magic.name, magic.text, magic.line) for magic in found.magics] == expected
    assert found.code.removesuffix("\n").count("\n") <= found.source.count("\n")
    ast.parse(found.code.replace("'no end", "0").replace("@f\n", "\n"))


@pytest.mark.parametrize(
    "block",
    [
        "x = 5 \\\n % y",
        "x = 5 \\\n!= y",
        "f(5\n%y)",
        "x = [\n!ls\n]",
        "x = '''\n!ls\n%cd\nx?\n'''",
        'x = """\'\'\'\n!ls\n"""',
        "f'''\n!ls {x}\n%y\n'''",
        'f"""{f"""\n!ls\n"""}"""',
        'f"{x:{y["\\"]}"]}" % 3',
        "x %= 3",
        "x == y != z",
        "f(x=5 % 3, y=-1)",
        "lambda: x",
        "rf'\\{x}'\n'a' if'{'else 2",
        "x # !ls\n# %cd\n",
        "# a\n  # b\nif x:\n    y",
        "",
    ],
)
def test_what_is_in_a_statement_is_code(block: str) -> None:
    assert read(block) is None
    assert shell_in(block) == ((), False)


_TEXTS = st.text("!%?=\\'\"#{}():x \n\t", max_size=12)
_NO_SIGNS = str.maketrans("", "", "{}\\'\"")
_STATEMENTS = st.one_of(
    _TEXTS.map(repr),
    _TEXTS.map(lambda text: f"x = (  # {' '.join(text.split())}\n{text!r}\n% y)"),
    _TEXTS.map(lambda text: f'"""{text.translate(_NO_SIGNS)}"""'),
    _TEXTS.map(lambda text: f"f'''{text.translate(_NO_SIGNS)}{{x!r:{{y}}%}}\n!ls'''"),
    st.sampled_from(
        [
            "x = 5 \\\n % y",
            "if x:\n\n  y",
            "x !=\\\n y",
            "rf'\\{x}\\'' ; y",
            "def f():\n    return b'''\n%z\n'''",
        ]
    ),
)


def _is_python(code: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ast.parse(code)
        except (SyntaxError, ValueError):
            return False
    return True


@given(st.lists(_STATEMENTS, max_size=6).map("\n".join))
def test_no_python_is_taken_for_a_magic(block: str) -> None:
    assert _is_python(block)
    assert read(block) is None


@given(_TEXTS | st.text(), _TEXTS)
def test_any_text_is_read_and_changes_only_if_it_is_not_python(block: str, more: str) -> None:
    for one in (block, f"{block}\n{more}", f"f'{block}'\n{more}"):
        found = read(one)
        shell_in(one)
        assert found is None or not _is_python(one)


@pytest.mark.long
def test_no_module_of_the_standard_library_is_taken_for_one_with_magics() -> None:
    for file in Path(sysconfig.get_path("stdlib")).glob("*/*.py"):
        if _is_python(source := file.read_bytes().decode(errors="replace")):
            assert read(source) is None, file


_LINES = st.lists(
    st.sampled_from(
        [
            "!ls",
            "x = !ls \\\n -l",
            "y = '''\n!\n'''",
            "z = (1,\n2)",
            "%time f(\\\n)",
            "# c",
            "",
            "if x:\n    !a\n    b",
            "w?",
        ]
    ),
    max_size=8,
)


@given(
    _LINES,
    st.sampled_from(["", "  ", "\t"]),
    st.sampled_from(["", "\ufeff"]),
    st.sampled_from(["", "%%time\n"]),
)
def test_a_statement_stays_on_its_line(lines: list[str], indent: str, mark: str, head: str) -> None:
    block = "\n".join([*lines, "last"])
    if "'''" not in block:
        block = indent + block.replace("\n", f"\n{indent}")
    found = read(mark + (head if block[:1] not in (" ", "\t") else "") + block)
    if found is not None:
        assert found.code.split("\n")[-1] == "last"
        assert found.code.count("\n") == found.source.count("\n")
        ast.parse(found.code)


@pytest.mark.parametrize(
    ("block", "commands", "is_all"),
    [
        ("!ls\n\n# then\n! rm -r a ", ("ls", "rm -r a"), True),
        ("!ls\nx = 1", ("ls",), False),
        ("x = !ls", ("ls",), False),
        ("!echo {x}", ("echo {x}",), False),
        ("%%bash\nls\necho ${HOME}\n", ("ls\necho ${HOME}",), True),
        ("%%sh\nls", ("ls",), True),
        ("%ls -l", ("ls -l",), True),
        ("%rm -rf a", ("rm -rf a",), True),
        ("%time !ls", ("ls",), False),
        ("%timeit -n 3 -r 2 x = !ls", ("ls",), False),
        ("%%time\n!ls", ("ls",), False),
        ("%%time\n%%bash\nls", ("ls",), False),
        ("%%capture\n!ls", ("ls",), False),
        ("%%timeit !a\n!b", ("a", "b"), False),
        ("%%writefile a.sh\n!ls\n", (), False),
        ("x\r!ls", ("ls",), False),
    ],
)
def test_what_a_block_gives_to_a_shell_is_known(
    block: str, commands: tuple[str, ...], *, is_all: bool
) -> None:
    assert shell_in(block) == (commands, is_all)
