"""The command line. What a command needs is imported when it runs, so that help is there at once.

A new command is a function in one of the ``*_commands`` modules, and a line in :data:`_COMMANDS`.
"""

from __future__ import annotations

import gc
import io
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup

from codeact_team.cli import kept_commands as kept
from codeact_team.cli import machine_commands as machine
from codeact_team.cli import run_commands as running
from codeact_team.cli.batch_commands import batch
from codeact_team.cli.signals import silence
from codeact_team.cli.version import version
from codeact_team.core.notices import LOG_FILE, LOG_LEVEL

_COMMANDS = {
    "Run": {
        running.run: "Run a team, or a single agent, on a task.",
        running.chat: "Talk to a team that remembers what was said.",
        batch: "Run a team on many tasks, each in a sandbox of its own.",
        running.resume: "Go on with a run that was interrupted, failed or parked.",
        kept.answer: "Answer a question for which a run was parked.",
        running.replay: "Run the code of a run again, with the recorded answers.",
    },
    "Look at runs": {
        kept.runs: "List the runs that are kept, the last one first.",
        kept.show: "Show a run as it looked when it ran, or as a page.",
        kept.export: "Write a run as a notebook, a page, Markdown, an archive or a log.",
    },
    "Configs, guides and this machine": {
        machine.init: "Write a commented config to start from.",
        machine.validate: "Check configs, and list all their problems.",
        machine.schema: "Print the JSON Schema of configs, for editors.",
        machine.doctor: "Show what works on this machine, and what to do about the rest.",
        machine.packages: "List the Python packages that are kept for sandboxes.",
        machine.clean: "Remove what is kept: packages, runs, the key, completion.",
        machine.help_: "Show a guide, such as `codeact-team help data`.",
    },
}
"""In the order of the help: for each group, its commands, with what each does in a line."""


def _name(command: Callable[..., None]) -> str:
    return command.__name__.rstrip("_")


_OF_NEW_RUNS = ("--model", "--base-url")
"""Options that people try with a run, too, which changes one setting at a time."""
_ABOUT_RUNS = (_name(running.resume), _name(running.replay))
_CHANGES_ONE = "-s changes one, such as -s config.model_client.config.model=NAME"


class _Commands(TyperGroup):
    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for group, commands in _COMMANDS.items():
            with formatter.section(group):
                formatter.write_dl([(_name(command), short) for command, short in commands.items()])

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)
        for param in params:
            # to read an option that is not given as None, Typer imports pydantic, which takes longer than all the rest
            if param.default is not None:
                continue
            if getattr(param, "is_flag", False):
                param.default = False
            elif "process_value" not in vars(param):
                param.process_value = partial(_process_given, param.process_value)
        return params


def _process_given(process: Callable[[Any, Any], Any], context: Any, value: Any) -> Any:
    return None if value is None else process(context, value)


class _Command(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # a UsageError: Typer has one of its own, or Click's
            usage: Any = error
            message = str(getattr(error, "message", ""))
            if "extra argument" in message:
                usage.message = (
                    f'{message}; quote an argument that has spaces or a *, such as "What is 6 * 7?"'
                )
            elif getattr(error, "option_name", "") in _OF_NEW_RUNS and self.name in _ABOUT_RUNS:
                usage.message = f"{message}; a run keeps its models. {_CHANGES_ONE}"
                # other names of options help as little
                usage.possibilities = None
            raise


app: typer.Typer = typer.Typer(
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

for _group in _COMMANDS.values():
    for _command, _short in _group.items():
        app.command(_name(_command), cls=_Command, short_help=_short)(_command)


def main() -> None:
    """Run the command line."""
    # what imports make stays, and Python would look through it for garbage again and again
    gc.set_threshold(20_000)
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
        typer.echo(version())
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"] | None,
        typer.Option(
            envvar=LOG_LEVEL,
            help="Log from this level on, to standard error or to --log-file. Default: info.",
        ),
    ] = None,
    log_file: Annotated[
        str | None, typer.Option(metavar="FILE", envvar=LOG_FILE, help="Append the log to a file.")
    ] = None,
) -> None:
    """See the help of the app."""
    # what the command starts reads them there, too
    for name, value in ((LOG_LEVEL, log_level), (LOG_FILE, log_file)):
        if value is not None:
            os.environ[name] = value
