"""The commands and their options. What they need is imported when they run, so that help is there at once."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup


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
    str, typer.Argument(metavar="CONFIG", help="A YAML or JSON file, or a shipped config such as quickstart.")
]
_Overrides = Annotated[
    list[str] | None,
    typer.Option("-s", "--set", metavar="PATH=VALUE", help="Change one value of the config. Repeatable."),
]
_Allow = Annotated[
    list[str] | None,
    typer.Option(metavar="NAMESPACE", help="Allow components of another Python package. Repeatable."),
]
_AllowUnsafe = Annotated[
    bool,
    typer.Option("--allow-unsafe", help="Allow components that run code on this machine without a sandbox."),
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # a terminal that cannot show a character shows another one in its place
            stream.reconfigure(errors="replace")
    app()


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
    allow: _Allow = None,
    allow_unsafe: _AllowUnsafe = False,
    as_json: _Json = False,
) -> None:
    """Run a team, or a single agent, on a task.

    Without TASK, a config that brings its own task along, such as quickstart, runs that.

    Where nobody reviews the work, it is accepted if there is an answer, no limit has cut the work short, and the last
    code that ran did not fail.

    Exit codes: 0 accepted, 1 not accepted, 2 bad input or environment, 130 interrupted, 143 terminated.
    """
    from codeact_team.cli.reporting import reported

    with reported() as screen:
        from codeact_team.cli.approving import asking_the_person
        from codeact_team.cli.run import read_task, run_command

        wanted = read_task(task, file)
        with asking_the_person(screen, as_json=as_json):
            raise typer.Exit(
                run_command(
                    screen, config, wanted, overrides or (), allow or (), allow_unsafe, as_json=as_json
                )
            )


@app.command()
def chat(
    config: _Config,
    overrides: _Overrides = None,
    allow: _Allow = None,
    allow_unsafe: _AllowUnsafe = False,
    as_json: _Json = False,
) -> None:
    """Talk to a team, or a single agent, that remembers what was before.

    Where standard input is no terminal, each of its lines is a message.

    Exit codes: 0 ended, 1 a message of standard input could not be worked on, 2 bad input or environment, 130
    interrupted, 143 terminated.
    """
    from codeact_team.cli.reporting import reported

    with reported() as screen:
        from codeact_team.cli.approving import asking_the_person
        from codeact_team.cli.chat import chat_command

        with asking_the_person(screen, as_json=as_json):
            raise typer.Exit(
                chat_command(screen, config, overrides or (), allow or (), allow_unsafe, as_json=as_json)
            )


@app.command()
def validate(
    configs: Annotated[
        list[str], typer.Argument(metavar="CONFIG...", help="Files, or names of shipped configs.")
    ],
    overrides: _Overrides = None,
    allow: _Allow = None,
    allow_unsafe: _AllowUnsafe = False,
    as_json: _Json = False,
) -> None:
    """Check configs and list all their problems.

    Nothing is made of them, and nothing outside the allowed packages is imported.

    Exit codes: 0 all valid, 2 not.
    """
    from codeact_team.cli.reporting import reported

    with reported() as screen:
        from codeact_team.cli.validate import validate_command

        raise typer.Exit(
            validate_command(screen, configs, overrides or (), allow or (), allow_unsafe, as_json=as_json)
        )


@app.command()
def schema(
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write to a file.")
    ] = None,
) -> None:
    """Print the JSON Schema of configs, for editors."""
    from codeact_team.cli.reporting import reported

    with reported() as screen:
        from codeact_team.cli.files import write_schema

        write_schema(screen, output)


@app.command()
def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What to write.")] = Path("team.yaml"),
    template: Annotated[
        str, typer.Option(metavar="NAME", help="The shipped config to start from.", show_default=True)
    ] = "team",
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
) -> None:
    """Write a commented config to start from."""
    from codeact_team.cli.reporting import reported

    with reported() as screen:
        from codeact_team.cli.files import write_starter

        write_starter(screen, file, template, force=force)


@app.command()
def doctor(
    clean: Annotated[
        bool, typer.Option("--clean", help="Remove containers that a killed run has left.")
    ] = False,
    as_json: _Json = False,
) -> None:
    """Show what works on this machine, and what to do about the rest.

    Exit codes: 0 if at least the quickstart can run here, 2 if not.
    """
    from codeact_team.cli.reporting import reported

    with reported() as screen:
        from codeact_team.cli.doctor import doctor_command

        raise typer.Exit(doctor_command(screen, clean=clean, as_json=as_json))
