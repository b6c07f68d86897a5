"""The commands about runs that are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from codeact_team.cli.options import RUNS, Json, Run, RunDir, reported


def answer(
    run: Run,
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
    run_dir: RunDir = RUNS,
    as_json: Json = False,
) -> None:
    """Answer a question for which a run was parked, so that resume goes on with it. Without ANSWER, show what is asked.

    Exit codes: 0, and 2 if the run waits for no such answer.
    """
    with reported() as screen:
        from codeact_team.cli.recorded_runs import answer_command
        from codeact_team.runs.journal.run_directory import find_run

        raise typer.Exit(
            answer_command(screen, find_run(run, run_dir), words or (), question, as_json=as_json)
        )


def runs(
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATE",
            help="Only those that are running, accepted, answered, not-accepted, failed, stopped, parked, ready, crashed or damaged. Repeatable.",
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
    run_dir: RunDir = RUNS,
    as_json: Json = False,
) -> None:
    """List the runs that are kept, the last one first.

    Of each what has become of it, how often code ran, tokens, cost where prices are known, time and task.
    """
    with reported() as screen:
        from codeact_team.cli.recorded_runs import Selection, runs_command

        selection = Selection(tuple(state or ()), task, older_than, beyond)
        raise typer.Exit(runs_command(screen, run_dir, selection, prune=prune, as_json=as_json))


def show(
    run: Run,
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
    run_dir: RunDir = RUNS,
    as_json: Json = False,
) -> None:
    """Show a run as it looked when it ran.

    With --json its events, as run --json prints them, but not in pieces.

    Exit codes: 0, and 2 if there is no such run, or what is kept of it is damaged: what is before that is shown.
    """
    with reported() as screen:
        from codeact_team.cli.show import show_command
        from codeact_team.runs.journal.run_directory import find_run

        code = show_command(screen, find_run(run, run_dir), follow=follow, as_json=as_json, html=html)
        raise typer.Exit(code)


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
    run_dir: RunDir = RUNS,
) -> None:
    """Write runs that were kept as a log for Inspect: `inspect view` then shows all that happened in them.

    Each run is a sample: its model calls, code and output, calls of tools, approvals and verdicts. It is scored by whether
    its work was accepted. Needs the extra `inspect`.

    Exit codes: 0 written, 2 not.
    """
    with reported(working=True) as screen:
        from codeact_team.cli.show import export_command

        export_command(screen, runs, run_dir, output)
