"""The commands and their options. What they need is imported when they run, so that help is there at once."""

from __future__ import annotations

import io
import os
import sys
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from codeact_team.cli.completion import config_names, template_names

if TYPE_CHECKING:
    from codeact_team.cli.screen import Screen
    from codeact_team.config import ForEvery
    from codeact_team.providers import Policy
    from codeact_team.runs import TeamRunner


class _Commands(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        params = super().get_params(ctx)
        for param in params:
            # to read a flag that is not given as None, Typer imports pydantic, which takes longer than all the rest
            if param.default is None and getattr(param, "is_flag", False):
                param.default = False
        return params


app = typer.Typer(
    name="codeact-team",
    cls=_Commands,
    help="A team of agents that writes code, runs it in a real sandbox, repairs it and reflects on the result.",
    no_args_is_help=True,
    # Rich takes three times as long to print the help as everything else together
    rich_markup_mode=None,
    # bad input never shows a traceback, and locals may hold secrets
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_Config = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG",
        help="A YAML or JSON file, or a shipped config such as quickstart.",
        autocompletion=config_names,
    ),
]
_Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="Its id, the beginning of that, `last`, or the path of its directory."
    ),
]
_Overrides = Annotated[
    list[str] | None,
    typer.Option("-s", "--set", metavar="PATH=VALUE", help="Change one value of the config. Repeatable."),
]
_Model = Annotated[
    str | None, typer.Option(metavar="NAME", help="The model of every model client of the config.")
]
_BaseUrl = Annotated[
    str | None,
    typer.Option(metavar="URL", help="The server of every model client, such as http://localhost:11434/v1."),
]
_Data = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATH", help="Put a copy of a file or a directory into the workspace of the code. Repeatable."
    ),
]
_Allow = Annotated[
    list[str] | None,
    typer.Option(metavar="NAMESPACE", help="Allow components of another Python package. Repeatable."),
]
_AllowUnsafe = Annotated[
    bool,
    typer.Option("--allow-unsafe", help="Allow components that run code on this machine without a sandbox."),
]
RUNS = Path(".codeact-team", "runs")
"""Where runs are kept, below the working directory."""
_Timeout = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", min=0.001, help="Stop the team when it has worked so long."),
]
_Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE", help="Write the answer to a file, if it is accepted."),
]
_Out = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Copy the files that the code makes or changes to a directory; made if missing."
    ),
]
_RunDir = Annotated[
    Path,
    typer.Option(metavar="DIR", help="The directory of the runs, each in one of its own.", show_default=True),
]
_Sync = Annotated[
    bool,
    typer.Option("--sync", help="Write what is kept through to the disk, so that it survives a power cut."),
]
_Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print the answer only.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def _reported() -> AbstractContextManager[Screen]:
    from codeact_team.cli.error_reporting import reported

    return reported()


def _traced(screen: Screen) -> AbstractContextManager[None]:
    from codeact_team.config.credentials import without_secrets
    from codeact_team.telemetry.exporting import exporting

    return exporting(partial(screen.notice, "warning"), without_secrets)


def _policy(allow: list[str] | None, allow_unsafe: bool) -> Policy:
    from codeact_team.providers import Policy

    return Policy.from_environment(allow=allow or (), allow_unsafe=allow_unsafe)


def _overrides(
    single: list[str] | None, model: str | None, base_url: str | None, data: list[str] | None = None
) -> list[str | ForEvery]:
    from codeact_team.cli.overrides import overrides_of

    return overrides_of(single, model=model, base_url=base_url, data=data)


def _runner(
    config: str,
    overrides: list[str | ForEvery],
    policy: Policy,
    out: Path | None = None,
    record: Path | None = None,
    sync: bool = False,
) -> TeamRunner:
    from codeact_team.runs import TeamRunner

    return TeamRunner(config, overrides=overrides, policy=policy, out=out, record=record, sync=sync)


def main() -> None:
    """Run the command line."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # a terminal that cannot show a character shows another one in its place
            stream.reconfigure(errors="replace")
    app()


def _open_closed_streams() -> None:
    """Let a standard stream that is closed lead nowhere, else the next file or connection would get its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, number)
            if nowhere != number:
                os.close(nowhere)
            setattr(sys, name, open(number, "r" if name == "stdin" else "w", closefd=False))


def _print_version(wanted: bool) -> None:
    if wanted:
        from codeact_team.cli.version import version

        typer.echo(version())
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """See the help of the app."""


@app.command()
def run(
    config: _Config,
    task: Annotated[
        str | None,
        typer.Argument(metavar="TASK", help="What to do; - reads it from standard input."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("-f", "--file", metavar="FILE", help="Read the task from a file.")
    ] = None,
    overrides: _Overrides = None,
    model: _Model = None,
    base_url: _BaseUrl = None,
    data: _Data = None,
    allow: _Allow = None,
    allow_unsafe: _AllowUnsafe = False,
    timeout: _Timeout = None,
    output: _Output = None,
    out: _Out = None,
    run_dir: _RunDir = RUNS,
    no_record: Annotated[bool, typer.Option("--no-record", help="Do not keep the run.")] = False,
    sync: _Sync = False,
    quiet: _Quiet = False,
    as_json: _Json = False,
) -> None:
    """Run a team, or a single agent, on a task.

    Without TASK, a config that brings its own task along, such as quickstart, runs that.

    The work is accepted if its review says so. Where nobody reviews, the last code must have succeeded, or a CodeAct
    agent must have come to its answer. That a limit has ended the team proves nothing.

    The answer is printed last. Without acceptance that is the best answer so far, and says so.

    Exit codes: 0 accepted, 1 not accepted, 2 bad input or environment, 3 parked, until a person has answered, 75 the
    model's server is not there or overloaded, and the same command may succeed later, 129 hung up, 130 interrupted, 143
    terminated.
    """
    with _reported() as screen:
        if not (as_json or quiet) and task != "-":
            # what is imported now takes a second or two
            screen.work()
        from codeact_team.cli.run import read_task, run_command

        wanted = read_task(task, file)
        changes = _overrides(overrides, model, base_url, data)
        policy = _policy(allow, allow_unsafe)
        with _traced(screen):
            runner = _runner(config, changes, policy, out, None if no_record else run_dir, sync)
            code = run_command(
                screen, runner, wanted, seconds=timeout, output=output, as_json=as_json, quiet=quiet
            )
        raise typer.Exit(code)


@app.command()
def resume(
    run: _Run,
    overrides: _Overrides = None,
    allow: _Allow = None,
    allow_unsafe: _AllowUnsafe = False,
    timeout: _Timeout = None,
    output: _Output = None,
    out: _Out = None,
    run_dir: _RunDir = RUNS,
    sync: _Sync = False,
    quiet: _Quiet = False,
    as_json: _Json = False,
) -> None:
    """Go on with a run that was interrupted, has failed, was parked, or has used up a limit, which -s may raise.

    What models, tools and people have answered is known from its journal, and asked of nobody again. Code of a session
    runs again, to bring back its variables. What was under way when the run ended is not done again, but told as unknown,
    unless it can do no harm.

    Exit codes: as those of run.
    """
    with _reported() as screen:
        if not (as_json or quiet):
            screen.work()
        from codeact_team.cli.run import run_command
        from codeact_team.journal import find_run
        from codeact_team.runs import resumed

        with _traced(screen):
            changes = _overrides(overrides, None, None)
            policy = _policy(allow, allow_unsafe)
            runner, task = resumed(
                find_run(run, run_dir), overrides=changes, policy=policy, out=out, sync=sync
            )
            code = run_command(
                screen, runner, task, seconds=timeout, output=output, as_json=as_json, quiet=quiet
            )
        raise typer.Exit(code)


@app.command()
def replay(
    run: _Run,
    until: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Stop when code has run N times, and talk to the team from there on."
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(metavar="CONFIG", help="Run this config instead of the one that the run had."),
    ] = None,
    overrides: _Overrides = None,
    beyond_workspace: Annotated[
        bool,
        typer.Option("--beyond-workspace", help="Run code also where it can reach more than its workspace."),
    ] = False,
    allow: _Allow = None,
    allow_unsafe: _AllowUnsafe = False,
    run_dir: _RunDir = RUNS,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print what was found only.")] = False,
    as_json: _Json = False,
) -> None:
    """Run a run once more without its models and tools, and tell the first code that comes to something else.

    What models, tools and people have answered is answered from its journal. Code runs for real, in new directories with
    the files of then. So it tells what another image, a changed config, or an upgrade does to it. What the agents ask
    otherwise than then is told, and is no difference.

    With --until, variables and files are as they were then, and models and tools are real from there on: going back in
    time. What is made is gone at the end.

    Exit codes: 0 as recorded, 1 not, 2 bad input or environment, 129 hung up, 130 interrupted, 143 terminated.
    """
    with _reported() as screen:
        if not (as_json or quiet):
            screen.work()
        from codeact_team.cli.replay import replay_command, replay_until_command
        from codeact_team.journal import find_run
        from codeact_team.runs import replayed

        with (
            _traced(screen),
            replayed(
                find_run(run, run_dir),
                config=config,
                overrides=_overrides(overrides, None, None),
                policy=_policy(allow, allow_unsafe),
                until=until,
                beyond_workspace=beyond_workspace,
            ) as ready,
        ):
            if until is None:
                code = replay_command(screen, ready, as_json=as_json, quiet=quiet)
            else:
                code = replay_until_command(screen, ready, as_json=as_json)
        raise typer.Exit(code)


@app.command()
def answer(
    run: _Run,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ANSWER",
            help="yes, no, no with a reason, or always; any text where a text is asked for, - reads it from standard input.",
        ),
    ] = None,
    question: Annotated[
        int | None,
        typer.Option(
            "-n", "--question", metavar="N", help="The number of the question, if several are open."
        ),
    ] = None,
    run_dir: _RunDir = RUNS,
    as_json: _Json = False,
) -> None:
    """Answer a question for which a run was parked, so that resume goes on with it. Without ANSWER, show what is asked.

    Exit codes: 0, and 2 if the run waits for no such answer.
    """
    with _reported() as screen:
        from codeact_team.cli.answer import answer_command
        from codeact_team.journal import find_run

        raise typer.Exit(
            answer_command(screen, find_run(run, run_dir), words or (), question, as_json=as_json)
        )


@app.command()
def chat(
    config: _Config,
    overrides: _Overrides = None,
    model: _Model = None,
    base_url: _BaseUrl = None,
    data: _Data = None,
    allow: _Allow = None,
    allow_unsafe: _AllowUnsafe = False,
    as_json: _Json = False,
) -> None:
    """Talk to a team, or a single agent, that remembers what was before.

    Where standard input is no terminal, each of its lines is a message.

    Exit codes: 0 ended, 1 a message of standard input could not be worked on, 2 bad input or environment, 75 as 1, but
    the same may succeed later, 129 hung up, 130 interrupted, 143 terminated.
    """
    with _reported() as screen:
        if not as_json:
            screen.work()
        from codeact_team.cli.chat import chat_command

        changes = _overrides(overrides, model, base_url, data)
        with _traced(screen):
            runner = _runner(config, changes, _policy(allow, allow_unsafe))
            code = chat_command(screen, runner, as_json=as_json)
        raise typer.Exit(code)


@app.command()
def validate(
    configs: Annotated[
        list[str],
        typer.Argument(
            metavar="CONFIG...", help="Files, or names of shipped configs.", autocompletion=config_names
        ),
    ],
    overrides: _Overrides = None,
    model: _Model = None,
    base_url: _BaseUrl = None,
    allow: _Allow = None,
    allow_unsafe: _AllowUnsafe = False,
    as_json: _Json = False,
) -> None:
    """Check configs and list all their problems, and what they lack on this machine.

    Nothing is started, and nothing outside the allowed packages is imported.

    Exit codes: 0 all valid, 2 not. A key or an image that is missing here does not make a config invalid.
    """
    with _reported() as screen:
        from codeact_team.cli.validate import validate_command

        policy = _policy(allow, allow_unsafe)
        changes = _overrides(overrides, model, base_url)
        raise typer.Exit(validate_command(screen, configs, changes, policy, as_json=as_json))


@app.command()
def schema(
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Write to a file; FILE.md gets a page for people instead."
        ),
    ] = None,
) -> None:
    """Print the JSON Schema of configs, for editors."""
    with _reported() as screen:
        from codeact_team.cli.init_and_schema import write_schema

        write_schema(screen, output)


@app.command()
def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What to write.")] = Path("team.yaml"),
    template: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="The shipped config to start from.",
            show_default=True,
            autocompletion=template_names,
        ),
    ] = "team",
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
) -> None:
    """Write a commented config to start from."""
    with _reported() as screen:
        from codeact_team.cli.init_and_schema import write_starter

        write_starter(screen, file, template, force=force)


@app.command()
def doctor(
    config: Annotated[
        str | None,
        typer.Argument(
            metavar="CONFIG",
            help="Show what this config needs instead: its model, the key, the sandbox.",
            autocompletion=config_names,
        ),
    ] = None,
    overrides: _Overrides = None,
    model: _Model = None,
    base_url: _BaseUrl = None,
    allow: _Allow = None,
    allow_unsafe: _AllowUnsafe = False,
    clean: Annotated[
        bool,
        typer.Option(
            "--clean", help="Remove containers and temporary directories that killed runs have left."
        ),
    ] = False,
    as_json: _Json = False,
) -> None:
    """Show what works on this machine, and what to do about the rest. No model is asked.

    Exit codes: 0 if the config, or without one at least the quickstart, can run here, 2 if not.
    """
    with _reported() as screen:
        from codeact_team.cli.doctor import doctor_command

        changes = _overrides(overrides, model, base_url)
        policy = _policy(allow, allow_unsafe)
        raise typer.Exit(doctor_command(screen, config, changes, policy, clean=clean, as_json=as_json))


@app.command()
def packages(
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every file, and tell what was changed since it was made.")
    ] = False,
    prune: Annotated[bool, typer.Option("--prune", help="Remove those that no sandbox uses now.")] = False,
    as_json: _Json = False,
) -> None:
    """List the Python packages that this machine keeps for sandboxes.

    Exit codes: 0, and 1 if something was changed.
    """
    with _reported() as screen:
        from codeact_team.cli.packages import packages_command

        raise typer.Exit(packages_command(screen, verify=verify, prune=prune, as_json=as_json))


@app.command()
def runs(
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATE",
            help="Only those that are running, accepted, not-accepted, failed, stopped, parked, crashed or damaged. Repeatable.",
        ),
    ] = None,
    task: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only those with this text in their task.")
    ] = None,
    older_than: Annotated[
        float | None,
        typer.Option(metavar="DAYS", min=0, help="Only those that have not gone on for so many days."),
    ] = None,
    beyond: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Only those that do not fit into this size, such as 2GB, with all that began later.",
        ),
    ] = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove those that are listed, but none that is running.")
    ] = False,
    run_dir: _RunDir = RUNS,
    as_json: _Json = False,
) -> None:
    """List the runs that are kept, the last one first.

    Of each what has become of it, how often code ran, tokens, cost where prices are known, time and task.
    """
    with _reported() as screen:
        from codeact_team.cli.runs import Wanted, runs_command

        wanted = Wanted(tuple(state or ()), task, older_than, beyond)
        raise typer.Exit(runs_command(screen, run_dir, wanted, prune=prune, as_json=as_json))


@app.command()
def show(
    run: _Run,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with what happens, until the run has ended.")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a page for a browser instead, which needs no other file and no network.",
        ),
    ] = None,
    run_dir: _RunDir = RUNS,
    as_json: _Json = False,
) -> None:
    """Show a run as it looked when it ran.

    With --json its events, as run --json prints them, but not in pieces.

    Exit codes: 0, and 2 if there is no such run, or what is kept of it is damaged: what is before that is shown.
    """
    with _reported() as screen:
        from codeact_team.cli.show import show_command
        from codeact_team.journal import find_run

        code = show_command(screen, find_run(run, run_dir), follow=follow, as_json=as_json, html=html)
        raise typer.Exit(code)


@app.command()
def export(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="Ids of runs, or how these begin; last for the last one; or their directories.",
        ),
    ],
    to: Annotated[
        Literal["inspect"], typer.Option("--to", help="For what: inspect, a viewer of logs of agents.")
    ] = "inspect",
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="What to write, an .eval or a .json file; without it logs/ID.eval, ID being the first run's.",
        ),
    ] = None,
    run_dir: _RunDir = RUNS,
) -> None:
    """Write runs that were kept as a log for Inspect: `inspect view` then shows all that happened in them.

    Each run is a sample: its model calls, code and output, calls of tools, approvals and verdicts. It is scored by whether
    its work was accepted. Needs the extra `inspect`.

    Exit codes: 0 written, 2 not.
    """
    with _reported() as screen:
        # Inspect takes seconds to import
        screen.work()
        from codeact_team.cli.export import export_command

        export_command(screen, runs, run_dir, output)
