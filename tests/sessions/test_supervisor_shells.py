from __future__ import annotations

import os
import shutil
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from support.supervisor import SharedSupervisor, Supervised, supervised


@pytest.fixture(scope="module")
def shared_supervisor(tmp_path_factory: pytest.TempPathFactory) -> Generator[SharedSupervisor]:
    directory = tmp_path_factory.mktemp("supervisor")
    (private := directory / "private").mkdir()
    shared = SharedSupervisor(directory, environment={"TMPDIR": str(private)})
    yield shared
    shared.close()


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_tells_output_and_exit_code(supervisor: Supervised, shell: str) -> None:
    result = supervisor.run("echo out; echo err >&2; exit 5", shell)
    assert (result.text, result.exit_code, result.lost, result.report) == ("out\nerr\n", 5, None, None)


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("false", 1),
        ("true", 0),
        ("(exit 7)", 7),
        ("set -e; false; echo unreached", 1),
        ("kill -9 $$", 137),
        ("kill -TERM $$", 143),
        ("if then fi", 2),
        ("not-a-program", 127),
        ("", 0),
    ],
)
def test_the_blocks_own_exit_code_is_kept(supervisor: Supervised, code: str, exit_code: int) -> None:
    assert supervisor.sh(code).exit_code == exit_code


def test_messages_name_the_line_of_the_block(supervisor: Supervised) -> None:
    assert "line 2: foo: command not found" in supervisor.run("true\nfoo", "bash").text


def test_directory_and_environment_go_from_block_to_block(supervisor: Supervised) -> None:
    supervisor.sh("mkdir -p 'a b'; cd 'a b'; export WITH_NEWLINE='1\n2' GONE=1; unset HOME; own=1")
    result = supervisor.run(
        'pwd; echo "$WITH_NEWLINE"; echo "${HOME-no home}"; echo "${own-not exported}"', "bash"
    )
    assert result.text.splitlines()[0].endswith("/workspace/a b")
    assert result.text.splitlines()[1:] == ["1", "2", "no home", "not exported"]
    supervisor.run("unset GONE; cd -; f() { echo function; }; export -f f", "bash")
    assert (
        supervisor.run('echo "${GONE-gone}"; f; basename "$PWD"', "bash").text
        == "gone\nfunction\nworkspace\n"
    )


def test_a_failing_block_also_hands_on_its_state(supervisor: Supervised) -> None:
    supervisor.sh("export A=1; exit 3")
    assert supervisor.sh("echo $A").text == "1\n"


@pytest.mark.parametrize(
    "ending", ["exec true", "trap - EXIT", "kill -9 $$", "exec 9>&-", "PATH=/nowhere; exec /bin/true"]
)
def test_a_block_that_says_nothing_of_its_state_leaves_the_one_before(
    supervisor: Supervised, ending: str
) -> None:
    supervisor.sh("export A=1")
    supervisor.sh(f"export A=2; {ending}")
    assert supervisor.sh("echo $A").text == "1\n"


@pytest.mark.parametrize(
    "forged",
    [
        r"printf 'no end' >&9",
        r"printf '/tmp\0A=1' >&9",
        r"head -c 3000000 /dev/zero >&9",
        r"head -c 2000000 /dev/urandom | tr '\0' x >&9; printf '\0\0' >&9",
        r"yes = | head -c 900000 | tr '\n' '\0' >&9; printf '\0' >&9",
    ],
    ids=["unfinished", "cut", "zeros", "long", "many"],
)
def test_forged_state_is_not_believed(supervisor: Supervised, forged: str) -> None:
    supervisor.sh("export A=0")
    supervisor.sh(f"trap - EXIT\n{forged}")
    assert supervisor.sh("echo $A").text == "0\n"


def test_odd_state_does_no_harm(supervisor: Supervised) -> None:
    supervisor.sh(r"trap - EXIT; printf 'relative\0=x\0no sign\0B=1=2\0\0' >&9")
    assert supervisor.sh("echo $B").text.strip() in ("1=2", "")
    assert supervisor.run("print(1)").text == "1\n"


def test_a_directory_that_has_vanished_is_left_for_the_workspace(supervisor: Supervised) -> None:
    supervisor.sh("mkdir d; cd d; rmdir ../d")
    assert supervisor.sh('basename "$PWD"').text == "workspace\n"


def test_an_unusable_path_variable_can_be_mended(supervisor: Supervised) -> None:
    supervisor.sh("export PATH=/nowhere")
    assert supervisor.sh("ls").exit_code == 127
    supervisor.sh(f"export PATH={os.environ['PATH']}")
    assert supervisor.sh("ls").exit_code == 0


def test_a_background_process_does_not_keep_a_block_from_ending(supervisor: Supervised) -> None:
    pid = int(supervisor.sh("sleep 600 & echo $!").text)
    assert supervisor.sh(f"kill {pid} && echo killed").text == "killed\n"


def test_stdin_is_empty(supervisor: Supervised) -> None:
    assert supervisor.sh("cat; echo end").text == "end\n"


def test_shell_blocks_do_not_touch_the_interpreter(supervisor: Supervised) -> None:
    supervisor.run("x = 1")
    supervisor.start("echo go; sleep 600", "sh")
    supervisor.output_until(b"go")
    supervisor.kill()
    assert (supervisor.result().exit_code, supervisor.run("x").text) == (137, "1\n")


def test_a_killed_block_leaves_nothing_but_what_was_there_before(supervisor: Supervised) -> None:
    before = int(supervisor.sh("sleep 600 & echo $!").text)
    time.sleep(0.05)
    supervisor.start("(setsid sleep 600 & echo $!) ; sleep 600", "sh")
    started = int(supervisor.output_until(b"\n"))
    supervisor.kill()
    assert supervisor.result().lost is None
    assert (
        supervisor.sh(f"kill -0 {started} 2>/dev/null || echo gone; kill -0 {before} && echo there").text
        == "gone\nthere\n"
    )


def test_an_interrupted_block_leaves_nothing(supervisor: Supervised) -> None:
    # jobs of a shell ignore SIGINT
    supervisor.start("sleep 600 & echo $!; wait", "sh")
    job = int(supervisor.output_until(b"\n"))
    supervisor.interrupt()
    assert supervisor.result().exit_code == 130
    assert supervisor.sh(f"kill -0 {job} 2>/dev/null || echo gone").text == "gone\n"


def test_a_missing_shell_is_a_result(tmp_path: Path) -> None:
    only_sh = tmp_path / "bin"
    only_sh.mkdir()
    for name in ("sh", "env"):
        (only_sh / name).symlink_to(shutil.which(name) or "")
    with supervised(tmp_path, environment={"PATH": str(only_sh)}) as one:
        result = one.run("echo", "bash")
        assert (result.exit_code, result.ran, result.text) == (127, False, "bash: not found\n")
        assert one.sh("echo here").text == "here\n"


def test_a_block_too_large_for_an_argument_runs(supervisor: Supervised) -> None:
    assert supervisor.sh(f"echo {'x' * 500_000} | wc -c").text.strip() == "500001"


def test_a_place_for_files_that_is_gone_is_replaced(supervisor: Supervised) -> None:
    assert supervisor.run("import os, shutil; shutil.rmtree(os.environ['TMPDIR'])").lost is None
    assert supervisor.sh("echo again").text == "again\n"
    assert supervisor.files() == {}
    supervisor.sh('mkdir "$TMPDIR"')


def test_no_file_is_left_behind(supervisor: Supervised) -> None:
    assert supervisor.sh('ls "$TMPDIR"').text.startswith("codeact-")
    assert supervisor.run("import os; os.listdir(os.environ['TMPDIR'])").text == "[]\n"


def test_a_block_that_cannot_be_started_is_a_result(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with supervised(home, environment={"TMPDIR": str(tmp_path / "missing")}) as one:
        assert one.sh("echo here").text == "here\n"
        home.rmdir()
        result = one.sh("echo unreached")
        assert (result.exit_code, result.ran, result.lost) == (126, False, None)
        assert b"cannot be stored" in result.output
