"""The commands and their options. What they need is imported when they run, so that help is there at once."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from codeact_team.cli import batch_commands, run_commands
from codeact_team.cli.options import (
    RECORD_MIB,
    RUNS,
    Allow,
    AllowUnsafe,
    BaseUrl,
    Config,
    Data,
    Json,
    Model,
    Out,
    Output,
    Overrides,
    Quiet,
    RecordMib,
    RunDir,
    Sync,
    Timeout,
    changes_of,
    config_names,
    policy_of,
    reported,
    template_names,
    traced,
)
from codeact_team.cli.signals import silence

if TYPE_CHECKING:
    from codeact_team.config.overrides import ForEvery
    from codeact_team.core.providers import Policy
    from codeact_team.runs.run import TeamRun


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


def _runner(
    config: str,
    overrides: list[str | ForEvery],
    policy: Policy,
    out: Path | None = None,
    record: Path | None = None,
    record_mib: int = RECORD_MIB,
    sync: bool = False,
) -> TeamRun:
    from codeact_team.runs.run import TeamRun

    return TeamRun(
        config, overrides=overrides, policy=policy, out=out, record=record, record_mib=record_mib, sync=sync
    )


def main() -> None:
    """Run the command line."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # a terminal that cannot show a character shows another one in its place
            stream.reconfigure(errors="replace")
    try:
        app()
    except OSError as error:
        # commands report their own: this is help, or the version
        sys.stderr.write(f"error: standard output cannot be written: {error.strerror}\n")
        silence(sys.stdout)
        sys.exit(2)


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
        from codeact_team.cli.options import version

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
    config: Config,
    task: Annotated[
        str | None,
        typer.Argument(metavar="TASK", help="What to do; - reads it from standard input."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("-f", "--file", metavar="FILE", help="Read the task from a file.")
    ] = None,
    overrides: Overrides = None,
    model: Model = None,
    base_url: BaseUrl = None,
    data: Data = None,
    allow: Allow = None,
    allow_unsafe: AllowUnsafe = False,
    timeout: Timeout = None,
    output: Output = None,
    out: Out = None,
    run_dir: RunDir = RUNS,
    no_record: Annotated[bool, typer.Option("--no-record", help="Do not keep the run.")] = False,
    record_mib: RecordMib = RECORD_MIB,
    sync: Sync = False,
    quiet: Quiet = False,
    as_json: Json = False,
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
    with reported() as screen:
        if not (as_json or quiet) and task != "-":
            # what is imported now takes a second or two
            screen.work()
        from codeact_team.cli.run import read_task, run_command

        wanted = read_task(task, file)
        changes = changes_of(overrides, model, base_url, data)
        policy = policy_of(allow, allow_unsafe)
        with traced(screen):
            runner = _runner(config, changes, policy, out, None if no_record else run_dir, record_mib, sync)
            code = run_command(
                screen, runner, wanted, seconds=timeout, output=output, as_json=as_json, quiet=quiet
            )
        raise typer.Exit(code)


app.command()(batch_commands.batch)


app.command()(run_commands.resume)


app.command()(run_commands.replay)


app.command()(run_commands.answer)


@app.command()
def chat(
    config: Config,
    overrides: Overrides = None,
    model: Model = None,
    base_url: BaseUrl = None,
    data: Data = None,
    allow: Allow = None,
    allow_unsafe: AllowUnsafe = False,
    as_json: Json = False,
) -> None:
    """Talk to a team, or a single agent, that remembers what was before.

    Where standard input is no terminal, each of its lines is a message.

    Exit codes: 0 ended, 1 a message of standard input could not be worked on, 2 bad input or environment, 75 as 1, but
    the same may succeed later, 129 hung up, 130 interrupted, 143 terminated.
    """
    with reported() as screen:
        if not as_json:
            screen.work()
        from codeact_team.cli.chat import chat_command

        changes = changes_of(overrides, model, base_url, data)
        with traced(screen):
            runner = _runner(config, changes, policy_of(allow, allow_unsafe))
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
    overrides: Overrides = None,
    model: Model = None,
    base_url: BaseUrl = None,
    allow: Allow = None,
    allow_unsafe: AllowUnsafe = False,
    as_json: Json = False,
) -> None:
    """Check configs and list all their problems, and what they lack on this machine.

    Nothing is started, and nothing outside the allowed packages is imported.

    Exit codes: 0 all valid, 2 not. A key or an image that is missing here does not make a config invalid.
    """
    with reported() as screen:
        from codeact_team.cli.checks import validate_command

        policy = policy_of(allow, allow_unsafe)
        changes = changes_of(overrides, model, base_url)
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
    with reported() as screen:
        from codeact_team.cli.setup import write_schema

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
    with reported() as screen:
        from codeact_team.cli.setup import write_starter

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
    overrides: Overrides = None,
    model: Model = None,
    base_url: BaseUrl = None,
    allow: Allow = None,
    allow_unsafe: AllowUnsafe = False,
    clean: Annotated[
        bool,
        typer.Option(
            "--clean", help="Remove containers and temporary directories that killed runs have left."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what works on this machine, and what to do about the rest. No model is asked.

    Exit codes: 0 if the config, or without one at least the quickstart, can run here, 2 if not.
    """
    with reported() as screen:
        from codeact_team.cli.checks import doctor_command

        changes = changes_of(overrides, model, base_url)
        policy = policy_of(allow, allow_unsafe)
        raise typer.Exit(doctor_command(screen, config, changes, policy, clean=clean, as_json=as_json))


@app.command()
def packages(
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every file, and tell what was changed since it was made.")
    ] = False,
    prune: Annotated[bool, typer.Option("--prune", help="Remove those that no sandbox uses now.")] = False,
    as_json: Json = False,
) -> None:
    """List the Python packages that this machine keeps for sandboxes.

    Exit codes: 0, and 1 if something was changed.
    """
    with reported() as screen:
        from codeact_team.cli.checks import packages_command

        raise typer.Exit(packages_command(screen, verify=verify, prune=prune, as_json=as_json))


app.command()(run_commands.runs)


app.command()(run_commands.show)


app.command()(run_commands.export)
