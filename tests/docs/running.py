"""Runs the commands and the code blocks of a page in their order, and compares what they print with what the page says.

- A `console` block has commands behind `$ `, run by bash in one directory, and below each what it prints. A command has to
  succeed, unless a comment behind it says `# exit code N`.
- A `console install` block installs this package, which is done only on an empty machine.
- Where a line below it shows what a person types behind a prompt, or `^C` or `^D`, it runs on a terminal.
- A block whose first line is a comment with the name of a file is that file.
- Other `python` blocks run one after the other in one program, where `await` stands at the top.
- A `text` block is what the code before it prints.
- A `yaml` block that is no file is a config, or a part of `codeact`'s.

In what is printed, `…` is anything. Times, and names of runs, are never compared.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Self, cast

from documents import Block, Command, blocks_of, commands_of
from ruamel.yaml import YAML
from support import fork_server
from support.command_line import environment
from support.openai_server import AnyReply, Asked, HttpError, Json, Slow, Text, Truncated
from support.terminal import CTRL_C, CTRL_D, ENTER, Terminal, on_a_terminal

REPLIES = Path(__file__).parent / "replies"
_YAML = cast("Any", YAML(typ="safe", pure=True))
_TYPED = re.compile(r"^(?P<prompt>>|Allow\? .*>) (?P<keys>.+)$")
_KEYS = {"^C": CTRL_C, "^D": CTRL_D}
_EXIT_CODE = re.compile(r" +# exit code (\d+)$")
_NEVER_THE_SAME = (
    (re.compile(r"\b\d{8}-\d{6}\.\d{3}-[0-9a-f]{4}\b"), "RUN"),
    (re.compile(r"\b\d+(?:\.\d+)? (?:ms|s)\b"), "TIME"),
    (re.compile(r"\b\d{4}-\d\d-\d\d \d\d:\d\d(?::\d\d)?\b"), "DATE"),
)


def replies_of(page: str) -> list[AnyReply]:
    """What the model of a page answers: a file of its name, with a text, `cut_off`, `json`, or `status` for each request.

    Where requests come in any order, `asked` says which words the request has that gets it.
    """
    file = REPLIES / f"{page.replace('/', '-')}.yaml"
    return [_reply(each) for each in _YAML.load(file.read_text())] if file.exists() else []


def _reply(data: Any) -> AnyReply:
    match data:
        case {"asked": words, **rest}:
            return Asked(words, _reply(rest))
        case {"after": seconds, **rest}:
            return Slow(seconds, _reply(rest))
        case {"json": value}:
            return Json(value)
        case {"cut_off": text}:
            return Truncated(text)
        case {"status": status}:
            return HttpError(status, data.get("message", "as scripted"))
        case {"text": text}:
            return Text(text)
        case _:
            return Text(data)


class PageRun:
    """Runs a page in a directory.

    Args:
        name: The page's name.
        directory: Where it runs.
        environment: All variables of its programs.
        path: Where they find others. Default: as here, behind programs of the tests' own.
    """

    def __init__(
        self, name: str, directory: Path, environment: Mapping[str, str], path: str | None = None
    ) -> None:
        self._name = name
        self._top = directory
        self._directory = directory
        self._environment = dict(environment) | {
            "PATH": path or f"{_programs(directory)}:{environment['PATH']}"
        }
        self._python: fork_server.Forked | None = None
        self._left = ExitStack()
        self._printed: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._left.close()
        if self._python is not None:
            cast("IO[bytes]", self._python.stdin).close()
            self._python.wait(30)
            cast("IO[bytes]", self._python.stdout).close()

    def run(self, page: Path) -> None:
        """Run all its blocks."""
        for block in blocks_of(page):
            with _told(page, block.line):
                self._run(block)

    def _run(self, block: Block) -> None:
        if block.file is not None:
            file = self._directory / block.file
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text)
            return
        match block.language:
            case "console install":
                self.install(block)
            case "console":
                for command in commands_of(block):
                    self._run_command(command)
            case "python":
                self._run_python(block)
            case "text":
                assert self._printed is not None, "nothing before it prints anything"
                assert_same(block.text.splitlines(), self._printed)
            case "yaml":
                self._validate(block.text)
            case language if language in ("json", "jsonl", "csv", "toml", "diff") or language.startswith("{"):
                pass
            case other:
                raise AssertionError(f"a block of the language {other!r} is run by nothing")

    def install(self, block: Block) -> None:
        """Run a block that installs this package: here it is installed."""

    def bash(
        self, script: str, directory: Path, environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Run a script to its end."""
        return subprocess.run(
            ["bash", "-c", script],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=110,
        )

    def terminal(
        self, command: Sequence[str], directory: Path, environment: Mapping[str, str]
    ) -> AbstractContextManager[Terminal]:
        """Run a command of ours on a terminal."""
        program, *arguments = command
        assert program == "codeact-team", f"{program} runs on no terminal here"
        variables = {
            name: text for name, text in environment.items() if name not in ("TERM", "COLUMNS", "LINES")
        }
        return on_a_terminal(*arguments, cwd=directory, **variables)

    def _run_command(self, command: Command) -> None:
        wanted = int(code[1]) if (code := _EXIT_CODE.search(command.text)) else 0
        if any(_TYPED.match(line) or line in _KEYS for line in command.printed):
            self._run_on_a_terminal(command, wanted)
            return
        # what a command exports, and where it goes, holds for the next one
        state = self._top / ".environment"
        script = f"{command.text}\ncode=$?; env -0 >{shlex.quote(str(state))}; exit $code"
        result = self.bash(script, self._directory, self._environment)
        assert result.returncode == wanted, (
            f"$ {command.text}\nexit code {result.returncode}:\n{result.stdout}"
        )
        self._environment = dict(each.split("=", 1) for each in state.read_text().split("\0") if each)
        self._directory = Path(self._environment["PWD"])
        self._printed = result.stdout
        if command.printed:
            assert_same(command.printed, result.stdout)

    def _run_on_a_terminal(self, command: Command, wanted: int) -> None:
        words = shlex.split(command.text, comments=True)
        terminal = self._left.enter_context(self.terminal(words, self._directory, self._environment))
        with (self._top / ".terminals").open("a") as pids:
            print(terminal.process.pid, file=pids)
        for line in command.printed:
            self._meet(terminal, line)
        if command.printed[-1] == "…":
            return  # it is left running
        assert terminal.end() == wanted

    def _meet(self, terminal: Terminal, line: str) -> None:
        if line in _KEYS:
            if line == "^D":
                terminal.wait_for("\n> ")
            terminal.type(_KEYS[line])
        elif typed := _TYPED.match(line):
            terminal.wait_for("\n> " if typed["prompt"] == ">" else typed["prompt"])
            keys = typed["keys"]
            terminal.type(_KEYS.get(keys, keys + ENTER))
        else:
            for piece in _pieces(line):
                terminal.wait_for(piece)

    def _run_python(self, block: Block) -> None:
        if self._python is None:
            self._python = fork_server.start(
                [str(Path(__file__).with_name("python_blocks.py"))],
                cwd=self._directory,
                environment=self._environment,
                stdin=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        request = {"text": block.text, "line": block.line, "page": self._name}
        stdin, stdout = cast("tuple[IO[bytes], IO[bytes]]", (self._python.stdin, self._python.stdout))
        stdin.write(json.dumps(request).encode() + b"\n")
        stdin.flush()
        reply = json.loads(stdout.readline())
        assert reply["error"] is None, reply["error"]
        self._printed = reply["printed"]

    def _validate(self, text: str) -> None:
        data = _YAML.load(text)
        arguments = [f"config.{key}={json.dumps(value)}" for key, value in data.items()]
        if "provider" in data:
            (self._top / "block.yaml").write_text(text)
            arguments = []
        config = "codeact" if arguments else str(self._top / "block.yaml")
        options = [part for argument in arguments for part in ("-s", argument)]
        self._run_command(Command(shlex.join(["codeact-team", "validate", config, *options]), (), 0))


def assert_same(expected: Sequence[str], printed: str) -> None:
    """What a page shows is what was printed, but for `…`."""
    text = _normal("\n".join(line.rstrip() for line in printed.splitlines()).strip())
    shown = _normal("\n".join(expected).strip())
    parts = [re.escape(part) for part in shown.split("…")]
    pattern = r"[\s\S]*?".join(parts)
    assert re.fullmatch(pattern, text), f"the page shows\n{shown}\n\nbut this was printed\n{text}"


def _pieces(line: str) -> Iterator[str]:
    """What has to come, in this order, to match a line with `…` and times in it."""
    for piece in re.split(r"…|" + "|".join(pattern.pattern for pattern, _ in _NEVER_THE_SAME), line):
        if piece.strip():
            yield piece.strip()


def _normal(text: str) -> str:
    for pattern, name in _NEVER_THE_SAME:
        text = pattern.sub(name, text)
    return text


@contextmanager
def _told(page: Path, line: int) -> Generator[None]:
    """Says in an error of which line of the page it is."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{page}:{line}: {error}") from None


def _programs(directory: Path) -> Path:
    """Programs in front of those of the machine: ours and pytest, without the seconds that imports take; and a pip that installs nothing."""
    folder = directory / ".programs"
    folder.mkdir()
    command = shlex.join(fork_server.forked_by_command("-m", "codeact_team"))
    # what was imported before has no assertions that matter
    options = ("-p", "no:cacheprovider", "-p", "no:asyncio", "-W", "ignore:Module already imported")
    tests = shlex.join(fork_server.forked_by_command("-m", "pytest", *options))
    for name, script in {
        # as a person does, the next step waits for the end of what was killed
        "pkill": f"for p in $(cat {shlex.quote(str(directory / '.terminals'))}); do kill -9 $p; "
        "while grep -qs '^State:.[^Z]' /proc/$p/status; do sleep 0.1; done; done",
        "codeact-team": f'exec {command} "$@"',
        "pip": f'exec {shlex.quote(sys.executable)} {shlex.quote(str(Path(__file__).with_name("extras.py")))} "$@"',
        "python": f'exec {shlex.quote(sys.executable)} "$@"',
        "pytest": f'exec {tests} "$@"',
    }.items():
        program = folder / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    return folder


def environment_of(directory: Path, base_url: str) -> dict[str, str]:
    """The variables of a page's programs: a home of their own, and the scripted model."""
    home = Path.home()
    return environment(
        HOME=str(directory),
        # packages are fetched once, from where this machine is told to
        XDG_CACHE_HOME=os.environ.get("XDG_CACHE_HOME", str(home / ".cache")),
        XDG_CONFIG_HOME=os.environ.get("XDG_CONFIG_HOME", str(home / ".config")),
        OPENAI_BASE_URL=base_url,
        OPENAI_API_KEY="sk-scripted",
        XDG_STATE_HOME=str(directory / ".state-home"),
        COLUMNS="100",
    )
