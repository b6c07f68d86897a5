from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

_PLUGINS = ["-p", "support.forked_workers", "-p", "support.processor_time", "-p", "no:cacheprovider"]


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A directory for tests, in which pytest takes no settings of ours."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pytest", *_PLUGINS, *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def outcome(suite: Path, test: str, *arguments: str) -> tuple[int, str]:
    """The exit code and output of pytest for a file with this content."""
    (suite / "test_it.py").write_text(test)
    done = subprocess.run(command(*arguments), cwd=suite, env=environment(), capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_each_test_runs_once_and_failures_come_with_their_output(suite: Path) -> None:
    code, output = outcome(
        suite,
        "import os, pytest\n"
        "@pytest.mark.parametrize('n', range(40))\n"
        "def test_each(n):\n    os.mkdir(f'{n}')\n    print('printed', n)\n    assert n != 17",
        "--workers=3",
    )
    assert code == 1
    assert "1 failed, 39 passed" in output
    assert output.count("printed 17") == 1


def test_workers_share_what_was_made_before_them_and_no_fixtures(suite: Path) -> None:
    code, output = outcome(
        suite,
        "import os, pytest\nparent = os.getpid()\n"
        "@pytest.fixture(scope='session')\n"
        "def own():\n    open(f'began-{os.getpid()}', 'x')\n    yield\n    open(f'ended-{os.getpid()}', 'x')\n"
        "@pytest.mark.parametrize('n', range(20))\n"
        "def test_each(n, own):\n    assert os.getppid() == parent",
        "--workers=2",
    )
    assert code == 0, output
    began = sorted(path.name.removeprefix("began-") for path in suite.glob("began-*"))
    assert len(began) == 2
    assert sorted(path.name.removeprefix("ended-") for path in suite.glob("ended-*")) == began


def test_a_test_that_kills_its_worker_fails_and_the_others_run(suite: Path) -> None:
    code, output = outcome(
        suite,
        "import os, pytest\n"
        "@pytest.mark.parametrize('n', range(30))\n"
        "def test_each(n):\n    if n == 4: os.kill(os.getpid(), 9)",
        "--workers=2",
    )
    assert code == 1
    assert "the process that ran this test has ended, with -9" in output
    assert "test_each[4]" in output
    assert "1 failed, 29 passed" in output


def test_a_mistake_of_a_plugin_is_shown(suite: Path) -> None:
    (suite / "conftest.py").write_text(
        "import pytest\n@pytest.hookimpl(tryfirst=True)\n"
        "def pytest_runtest_protocol(): raise RuntimeError('of the plugin')\n"
    )
    code, output = outcome(suite, "def test_it(): pass", "--workers=2")
    assert code != 0
    assert "RuntimeError: of the plugin" in output


def test_the_first_failure_may_end_it(suite: Path) -> None:
    test = "import pytest\n@pytest.mark.parametrize('n', range(500))\ndef test_each(n): assert n"
    code, output = outcome(suite, test, "--workers=2", "-x")
    assert code == 1
    assert "stopping after 1 failures" in output
    assert "500 passed" not in output


def test_warnings_are_reported_by_the_parent(suite: Path) -> None:
    code, output = outcome(suite, "import warnings\ndef test_it(): warnings.warn('beware')", "--workers=2")
    assert code == 0
    assert "UserWarning: beware" in output
    assert "1 passed, 1 warning" in output


def test_an_interrupt_ends_the_workers_and_their_fixtures(suite: Path) -> None:
    (suite / "test_it.py").write_text(
        "import os, pytest, time\n"
        "@pytest.fixture(scope='session', autouse=True)\n"
        "def own():\n    yield\n    open(f'ended-{os.getpid()}', 'x')\n"
        "@pytest.mark.parametrize('n', range(20))\n"
        "def test_each(n):\n    os.write(int(os.environ['READY']), b'.')\n    time.sleep(1000)\n"
    )
    reading, writing = os.pipe()
    process = subprocess.Popen(
        command("--workers=2"),
        cwd=suite,
        env={**environment(), "READY": str(writing)},
        pass_fds=[writing],
        stdout=subprocess.PIPE,
        text=True,
    )
    os.close(writing)
    with process, open(reading, "rb", buffering=0) as ready:
        for _ in range(2):
            assert ready.read(1) == b"."
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate()
    assert process.returncode == 2
    assert "KeyboardInterrupt" in output
    assert len(list(suite.glob("ended-*"))) == 2


def test_what_takes_most_of_a_processor_is_named(suite: Path) -> None:
    code, output = outcome(
        suite,
        "import subprocess, sys, time\n"
        "SPIN = 'import time\\nwhile time.process_time() < 0.3: pass'\n"
        "def test_own():\n    exec(SPIN.replace('0.3', 'time.process_time() * 0 + began + 0.3'), {'began': time.process_time()})\n"
        "def test_child():\n    subprocess.run([sys.executable, '-c', SPIN], check=True)\n"
        "def test_cheap(): pass\n",
        "--workers=2",
        "--processor-time=2",
    )
    assert code == 0, output
    named = [line.rpartition("::")[2] for line in output.splitlines() if "test_it.py::" in line]
    assert sorted(named) == ["test_child", "test_own"]
    assert "in all" in output
