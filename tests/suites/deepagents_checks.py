"""What our backend for deepagents does beyond LangChain's tests of a sandbox.

It runs in the environment of that suite; see ``test_langchain.py``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from codeact_team import SandboxError, open_sandbox
from codeact_team.adapters.deepagents import CodeactSandbox
from codeact_team.standalone.synchronous import SyncSandbox

WHERE = "docker" if os.environ["WHERE"] == "docker" else "confined"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[SyncSandbox]:
    with open_sandbox(WHERE) as sandbox:
        yield sandbox


@pytest.fixture
def backend(sandbox: SyncSandbox) -> CodeactSandbox:
    return CodeactSandbox(sandbox)


def test_commands_start_in_the_workspace(backend: CodeactSandbox, sandbox: SyncSandbox) -> None:
    ran = backend.execute("cd /tmp; pwd; echo wrong >&2; false")
    assert (ran.output, ran.exit_code, ran.truncated) == ("/tmp\nwrong\n", 1, False)
    assert backend.execute("pwd").output == f"{sandbox.workspace_path}\n"
    backend.execute("echo 1 >a.txt")
    assert sandbox.get("a.txt") == b"1\n"


def test_a_command_that_takes_too_long_is_stopped_with_all_it_has_started(backend: CodeactSandbox) -> None:
    ran = backend.execute("echo before; (sleep 1000 & sleep 1001)", timeout=1)
    assert (ran.output, ran.exit_code) == ("before\n\nThe command was stopped after 1 s.\n", 124)
    left = backend.execute("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o 'sleep 100[01]'")
    assert left.output == ""
    quick = CodeactSandbox(backend._sandbox, timeout=1)  # pyright: ignore[reportPrivateUsage]
    assert quick.execute("sleep 1000").exit_code == 124
    assert quick.execute("sleep 2; echo done", timeout=0).output == "done\n"


def test_a_signal_is_an_exit_code_as_of_a_shell(backend: CodeactSandbox) -> None:
    assert backend.execute("kill -9 $$").exit_code == 137


def test_the_output_names_the_limit_that_ended_a_command(backend: CodeactSandbox) -> None:
    ran = backend.execute("echo before; exec python3 -c 'b = bytes(1) * (1 << 34)'")
    assert ran.exit_code == 137
    assert ran.output.startswith("before\n\nThis ran into a limit of the sandbox: memory (memory_mib: ")


def test_of_much_output_the_newest_is_kept(backend: CodeactSandbox) -> None:
    ran = backend.execute("head -c 3000000 /dev/zero | tr '\\0' x; echo end")
    assert ran.truncated
    assert ran.output.endswith("xend\n")
    assert 2**19 <= len(ran.output) <= 2**20 + 10


def test_a_command_that_cannot_be_run_says_so(backend: CodeactSandbox) -> None:
    for command in ("echo \0", f"echo {'x' * 200_000}"):
        ran = backend.execute(command)
        assert ran.output.startswith("The command could not be run: ")
        assert ran.exit_code == 126


def test_commands_run_side_by_side(backend: CodeactSandbox) -> None:
    async def meet() -> list[str]:
        # each waits for the other
        commands = [
            f"touch {own}; until [ -e {other} ]; do sleep 0.01; done; echo {own}"
            for own, other in ("ab", "ba")
        ]
        return [ran.output for ran in await asyncio.gather(*map(backend.aexecute, commands))]

    assert asyncio.run(meet()) == ["a\n", "b\n"]


def test_errors_of_files_have_codes(backend: CodeactSandbox) -> None:
    backend.execute("mkdir -p /tmp/directory; echo 1 >/tmp/file; echo 1 >/tmp/closed; chmod 0 /tmp/closed")
    read = backend.download_files(
        ["/tmp/nothing", "/tmp/directory", "/tmp/file/below", "relative", "/tmp/\0"]
    )
    assert [each.error for each in read] == [
        "file_not_found",
        "is_directory",
        "invalid_path",
        "invalid_path",
        "invalid_path",
    ]
    written = backend.upload_files(
        [("/tmp/directory", b""), ("/tmp/file/below", b""), ("/etc/new", b""), ("/tmp/c/d", b"2")]
    )
    assert [each.error for each in written[:2]] == ["is_directory", "invalid_path"]
    assert written[2].error is not None
    assert written[3].error is None
    assert backend.download_files(["/tmp/c/d"])[0].content == b"2"


def test_after_the_end_of_the_sandbox_nothing_works() -> None:
    with open_sandbox(WHERE) as sandbox:
        backend = CodeactSandbox(sandbox)
    with pytest.raises(SandboxError, match="closed"):
        backend.execute("true")
    assert "closed" in (backend.upload_files([("/tmp/a", b"")])[0].error or "")
