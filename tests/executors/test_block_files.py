from __future__ import annotations

import re

import pytest
from autogen_core.code_executor import CodeBlock
from hypothesis import given
from hypothesis import strategies as st

from codeact_team.errors import SettingError
from codeact_team.executors.command_line import DEFAULT_LANGUAGES, file_of, parse_command
from codeact_team.executors.running import BlockError


def python(code: str) -> CodeBlock:
    return CodeBlock(code=code, language="Python")


def test_block_without_a_name_is_named_by_its_content() -> None:
    assert re.fullmatch(r"tmp_code_[0-9a-f]{64}\.python", file_of(python("print(1)")))
    assert file_of(python("print(1)")) == file_of(python("print(1)")) != file_of(python("print(2)"))
    # what no encoding knows is no reason to fail
    file_of(python("'\ud800'"))


@pytest.mark.parametrize(
    ("code", "file"),
    [
        ("# filename: a.py\nx", "a.py"),
        ("// filename: a.js", "a.js"),
        ("#filename:a.py", "a.py"),
        ("# filename: a/b//c.py\r\nx", "a/b/c.py"),
        ("# filename: ./a.py", "a.py"),
        ("# filename: json/other.py", "json/other.py"),
        ("# filename: package/json.py", "package/json.py"),
        ("# filename: json.txt", "json.txt"),
        ("# filename: \ud800.py", "?.py"),
    ],
)
def test_name_from_the_first_line(code: str, file: str) -> None:
    assert file_of(python(code)) == file


@pytest.mark.parametrize(
    "code", [" # filename: a.py", "\n# filename: a.py", "x = 1 # filename: a.py", "# file: a.py"]
)
def test_no_name_from_elsewhere(code: str) -> None:
    assert file_of(python(code)).startswith("tmp_code_")


@given(st.text())
def test_any_name_is_a_path_in_the_workspace_or_an_error(name: str) -> None:
    try:
        file = file_of(python(f"# filename: {name}"))
    except BlockError:
        return
    assert not file.startswith("/")
    assert ".." not in file.split("/")
    assert "\0" not in file
    assert "\n" not in file
    assert 0 < len(file.encode()) <= 1024


def test_commands() -> None:
    for label, command in DEFAULT_LANGUAGES.items():
        assert parse_command(label, command) == command.split()
    assert parse_command("c++", "sh -c 'g++ -x c++ \"$0\" && ./a.out'") == [
        "sh",
        "-c",
        'g++ -x c++ "$0" && ./a.out',
    ]


@pytest.mark.parametrize(
    ("label", "command"), [("x", ""), ("x", "  "), ("x", "sh -c 'x"), ("", "sh"), ("a b", "sh"), ("a/b", "sh"), ("../x", "sh")]
)  # fmt: skip
def test_commands_that_cannot_work(label: str, command: str) -> None:
    with pytest.raises(SettingError, match="languages"):
        parse_command(label, command)
