"""What is read in requirements files and locks, and what is refused because it would have to be built here."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from support.wheels import make_wheel

from codeact_team.errors import SandboxError, SettingError
from codeact_team.executors.packages.provision import Provision
from codeact_team.executors.packages.requirements import Requested, read_requirements

Provide = Callable[..., Provision]


def written(directory: Path, text: str, name: str = "requirements.txt") -> Path:
    file = directory / name
    file.write_text(text)
    return file


def test_requirements_files_say_what_pip_reads_in_them(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    written(tmp_path / "more", "pandas\n--find-links wheels\n-r ../requirements.txt", "base.in")
    written(tmp_path, "numpy<3", "limits.txt")
    file = written(
        tmp_path,
        "# what the report needs\n"
        "matplotlib >= 3.8  # for charts\n"
        "six==1.17.0 \\\n  --hash=sha256:00ff \\\n  --hash=sha256:11ee\n"
        "tables @ https://example.org/tables-1.0-py3-none-any.whl#sha256=00\n"
        "./shapes-2.0-py3-none-any.whl\n"
        "-r more/base.in\n"
        "--constraint=limits.txt\n"
        "--extra-index-url https://example.org/simple\n",
    )
    read = read_requirements(file)
    assert [line.replace(" @", "@") for line in read.requirements] == [
        "matplotlib>=3.8",
        "six==1.17.0 --hash=sha256:00ff --hash=sha256:11ee",
        "tables@ https://example.org/tables-1.0-py3-none-any.whl#sha256=00",
        f"shapes@ {(tmp_path / 'shapes-2.0-py3-none-any.whl').as_uri()}",
        "pandas",
        f"--find-links {tmp_path / 'more' / 'wheels'}",
        "--extra-index-url https://example.org/simple",
    ]
    assert read.constraints == ["numpy<3"]


PROJECT = {
    "requirements.txt": "-e ./project\n",
    "nested.txt": "--requirement requirements.txt\n",
    "pylock.toml": 'lock-version = "1.0"\ncreated-by = "me"\n[[packages]]\nname = "evil"\n'
    'directory = {path = "project", editable = true}\n',
    "path.txt": "./project\n",
    "address.txt": "evil @ file://{project}\n",
    "continued.txt": "-\\\ne ./project\n",
    "setup.py": "from setuptools import setup\nsetup(name='evil', version='1.0')\n",
}


@pytest.mark.parametrize("name", PROJECT)
async def test_no_project_is_built_on_this_machine(provide: Provide, tmp_path: Path, name: str) -> None:
    project = tmp_path / "project"
    project.mkdir()
    witness = tmp_path / "witness"
    written(project, f"open({str(witness)!r}, 'w')\n{PROJECT['setup.py']}", "setup.py")
    for file, text in PROJECT.items():
        written(tmp_path, text.replace("{project}", str(project)), file)
    if name == "setup.py":
        tmp_path = project
    with pytest.raises(
        (SettingError, SandboxError), match=r"is not supported|is a directory|not a requirement|disabled"
    ):
        await provide(file=tmp_path / name).provide(lambda _: None)
    assert not witness.exists()


async def test_a_lock_is_kept_to(provide: Provide, index: Path, tmp_path: Path) -> None:
    wheel = make_wheel(index, "locked", "1.5")
    make_wheel(index, "locked", "2.0")
    lock = written(
        tmp_path,
        'lock-version = "1.0"\ncreated-by = "me"\n[[packages]]\nname = "locked"\nversion = "1.5"\n'
        f'wheels = [{{path = "{wheel}", hashes = {{sha256 = "{digest(wheel)}"}}}}]\n',
        "pylock.toml",
    )
    packages = provide(file=lock)
    await packages.provide(lambda _: None)
    assert packages.layer is not None
    assert packages.layer.packages == {"locked": "1.5"}
    await packages.release()


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


DEEP = 1100


def nested(directory: Path) -> Path:
    for number in range(DEEP):
        written(directory, f"-r {number + 1}.txt\npackage-{number}\n", f"{number}.txt")
    return written(directory, "last\n", f"{DEEP}.txt").with_name("0.txt")


def test_files_may_include_each_other_however_deep(tmp_path: Path) -> None:
    read = read_requirements(nested(tmp_path))
    assert read.requirements == ["last", *(f"package-{number}" for number in reversed(range(DEEP)))]


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("requirements.txt", f"a; {'(' * 9000}", "is not a requirement: "),
        ("requirements.txt", f"a=={'x' * 70_000}", "1: a line has more than 65,536 characters"),
        ("requirements.txt", f"a\na {'b' * 9000}", "is not a requirement: Expected"),
        ("requirements.txt", "a==1 --hash=sha256:zz", "'sha256:zz' is not a hash"),
        ("requirements.txt", "a==1 --hash= --hash=sha256:00", "'' is not a hash"),
        ("requirements.txt", f"-r {'x' * 300}", "cannot be read: File name too long"),
        (
            "requirements.txt",
            f"{'.'.join('p' * 5000)}-1-py3-none-any.whl",
            "a file name has at most 255",
        ),
        ("requirements.txt", "\udcff", "is not UTF-8 text"),
        ("requirements.txt", "-r .", "cannot be read: it is not a regular file"),
        ("requirements.txt", "-r linked.txt", "linked.txt is a link to secret, which code may have planted"),
        ("pylock.toml", f"a = {'[' * 9000}", "is not a lock: it is nested too deeply"),
        ("pylock.toml", f"a{'.a' * 50_000} = 1", "is not a lock: it has a key of more than 50 parts"),
        ("pylock.toml", "packages = 5", "is not a lock: its `packages` are not tables"),
        ("pylock.toml", "packages = [5]", "is not a lock: its `packages` are not tables"),
        ("pylock.toml", f"a = {'9' * 5000}", "Exceeds the limit"),
        ("pylock.toml", "\udcff", "is not UTF-8 text"),
    ],
)
def test_an_odd_file_is_refused_with_a_sentence(tmp_path: Path, name: str, text: str, told: str) -> None:
    file = tmp_path / name
    file.write_text(text, errors="surrogateescape")
    written(tmp_path, "sk-secret", "secret")
    (tmp_path / "linked.txt").symlink_to("secret")
    with pytest.raises(SettingError) as raised:
        Requested(file=file).lines()
    assert told in str(raised.value)
    assert len(str(raised.value)) < 1000
    assert "sk-secret" not in str(raised.value)


def test_no_more_is_read_than_a_file_may_have(tmp_path: Path) -> None:
    for name in ("requirements.txt", "pylock.toml"):
        os.truncate(written(tmp_path, "", name), 20 << 30)
        with pytest.raises(SettingError, match="it has more than 16,777,216 bytes"):
            Requested(file=tmp_path / name).lines()


@pytest.mark.parametrize(
    ("begins", "goes_on", "ends"), [("a==1", " --hash=sha256:00", " !"), ("a", " ", "!"), ("", "#", "")]
)
def test_a_line_is_read_in_linear_time(tmp_path: Path, begins: str, goes_on: str, ends: str) -> None:
    def cost(size: int) -> float:
        file = written(tmp_path, begins + goes_on * (size // len(goes_on)) + ends, f"{size}.txt")

        def once() -> float:
            began = time.process_time()
            with suppress(SettingError):
                read_requirements(file)
            return time.process_time() - began

        return min(once() for _ in range(5))

    assert cost(60_000) <= 2.5 * cost(30_000) + 0.005


@given(st.text())
@example("- '")
def test_whatever_a_file_holds_is_read_as_requirements_or_refused(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.txt"
    file.write_text(text, errors="surrogateescape", newline="")
    try:
        read = read_requirements(file)
    except SettingError:
        return
    for line in [*read.requirements, *read.constraints]:
        assert "\n" not in line
        if not line.startswith(
            ("-i ", "--index-url ", "--extra-index-url ", "-f ", "--find-links ", "--no-index")
        ):
            Requirement(line.partition(" --hash")[0])
