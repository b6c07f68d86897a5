from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from codeact_team.config import document
from codeact_team.config.document import Document, Problem, read_document
from codeact_team.core import shipped as shipped_module
from codeact_team.core.shipped import shipped_configs
from codeact_team.errors import ConfigError, NotAllowedError

Write = Callable[..., Path]


def test_yaml_and_json_are_read(write: Write) -> None:
    yaml = read_document(write("provider: x\nconfig: {a: 1}\n"))
    json = read_document(write('\ufeff{"provider": "x",\n\t"config": {"a": 1}}', "team.json"))
    assert yaml.data == json.data == {"provider": "x", "config": {"a": 1}}
    assert json.lines["config",] == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "it is empty"),
        ("# nothing\n", "it is empty"),
        ("- a", "this is a list"),
        ("hello", "this is text"),
        ("3", "this is a number"),
        ("a: 1\nb: [\n", ":3: this is not YAML"),
        ("a: 1\na: 2\n", ":2: the mapping has the key 'a' twice"),
        (b"a: 1\nb: \xff\xfe", ":2: this is not UTF-8 text"),
        (b"\x00\x01\x02", ":1: the character '\\x00' is not allowed"),
        ("a: " + "x" * document.MAX_FILE_BYTES, "larger than a config may be"),
    ],
)
def test_what_is_no_config_is_a_clear_error(write: Write, content: str | bytes, message: str) -> None:
    file = write(content)
    with pytest.raises(ConfigError) as caught:
        read_document(file)
    assert str(caught.value).startswith(str(file))
    assert message in str(caught.value)


def test_a_file_that_cannot_be_read_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        read_document(tmp_path / "absent.yaml")
    with pytest.raises(ConfigError, match="this is a folder"):
        read_document(tmp_path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_document("nul\0.yaml")


def test_a_pipe_is_read_to_its_end() -> None:
    script = "import sys, time; time.sleep(0.2); print('provider: x')"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert read_document(f"/dev/fd/{process.stdout.fileno()}").data == {"provider": "x"}


def test_a_bare_name_is_a_shipped_config_unless_there_is_such_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = tmp_path / "package" / "_configs"
    shipped.mkdir(parents=True)
    (shipped / "quickstart.yaml").write_text("shipped: 1")
    monkeypatch.setattr(shipped_module, "__file__", str(tmp_path / "package" / "core" / "shipped.py"))
    monkeypatch.chdir(tmp_path)
    assert read_document("quickstart").data == {"shipped": 1}
    with pytest.raises(ConfigError, match="no shipped config 'quikstart'; did you mean 'quickstart'"):
        read_document("quikstart")
    with pytest.raises(ConfigError, match="shipped configs: quickstart"):
        read_document("zzz")
    with pytest.raises(ConfigError, match="no such file"):
        read_document("../_configs/quickstart")
    Path("quickstart").mkdir()
    assert read_document("quickstart").data == {"shipped": 1}
    Path("quickstart").rmdir()
    Path("quickstart").write_text("own: 1")
    assert read_document("quickstart").data == {"own": 1}


def test_a_checkout_has_its_configs_beside_the_package() -> None:
    root = Path(shipped_module.__file__).parents[2]
    assert list(shipped_configs().values()) == sorted((root / "configs").glob("*.yaml"))


def test_an_error_has_the_place_of_the_nearest_thing_that_has_one() -> None:
    source = Document("t.yaml", {}, lines={(): 1, ("config",): 2}, overrides={("config", "x"): "-s config.x"})
    assert str(source.error([Problem(("config", "a", "b"), "bad")])) == "t.yaml:2: config.a.b: bad"
    assert str(source.error([Problem(("config", "x", 0), "bad")])) == "-s config.x: 0: bad"
    error = source.error([Problem((), "bad")])
    assert (error.file, error.line, error.path, error.message) == ("t.yaml", 1, None, "bad")


def test_several_problems_are_told_together_in_the_order_of_the_file() -> None:
    source = Document("t.yaml", {}, lines={("a",): 9, ("b",): 3})
    error = source.error([Problem(("a",), "one"), Problem(("b",), "two", not_allowed=True)])
    assert str(error) == "2 problems in t.yaml:\n  t.yaml:3: b: two\n  t.yaml:9: a: one"
    assert isinstance(error, NotAllowedError)


def test_kinds_of_values_have_plain_names() -> None:
    values: list[object] = [None, True, 1, 1.5, "x", {}, [], b"x"]
    assert [document.in_words(value) for value in values] == [
        "nothing",
        "true or false",
        "a number",
        "a number",
        "text",
        "a mapping",
        "a list",
        "a Python bytes",
    ]
