"""The commands about runs that are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from codeact_team.cli.options import RUNS, Json, Run, RunDir, reported, run_names


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
    every: Annotated[bool, typer.Option("--all", help="Give this answer to all open questions.")] = False,
    run_dir: RunDir = RUNS,
    as_json: Json = False,
) -> None:
    """Answer a question for which a run was parked, so that resume goes on with it. Without ANSWER, show the question.

    Calls that code makes side by side are asked about together. In a loop, the next call is asked about when the one before
    is made, as it may depend on that. There, resume on a terminal asks you in turn; the answer always allows the tool from
    then on.

    Exit codes: 0, and 2 if the run waits for no such answer.
    """
    with reported() as screen:
        from codeact_team.cli.recorded_runs import answer_command
        from codeact_team.journal.run_directory import find_run

        raise typer.Exit(
            answer_command(
                screen, find_run(run, run_dir), words or (), question, every=every, as_json=as_json
            )
        )


def runs(
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATE",
            help="List only runs that are running, accepted, answered, not-accepted, failed, stopped, parked, ready, crashed or damaged. Repeatable.",
        ),
    ] = None,
    task: Annotated[
        str | None, typer.Option(metavar="TEXT", help="List only runs with this text in their task.")
    ] = None,
    older_than: Annotated[
        float | None,
        typer.Option(metavar="DAYS", min=0, help="List only runs that have not gone on for so many days."),
    ] = None,
    beyond: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="List only the oldest runs, which do not fit into this size, such as 2GB, beside the newer ones.",
        ),
    ] = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove the listed runs, except running ones.")
    ] = False,
    path: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Print the directory of this run, such as last, and nothing else."),
    ] = None,
    run_dir: RunDir = RUNS,
    as_json: Json = False,
) -> None:
    """List the runs that are kept, the last one first.

    For each: its state, the number of times that code ran, tokens, cost if prices are known, time and task.
    """
    with reported() as screen:
        from codeact_team.cli.recorded_runs import Selection, path_command, runs_command

        selection = Selection(tuple(state or ()), task, older_than, beyond)
        if path is not None:
            raise typer.Exit(path_command(screen, path, run_dir, selection, others=prune or as_json))
        raise typer.Exit(runs_command(screen, run_dir, selection, prune=prune, as_json=as_json))


def show(
    run: Run,
    follow: Annotated[
        bool, typer.Option("--follow", help="Show further events until the run has ended.")
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

    With --json, print its events as run --json does, but not in pieces.

    Exit codes: 0, and 2 if there is no such run, or its record is damaged: all before the damage is shown.
    """
    with reported() as screen:
        from codeact_team.cli.show import show_command
        from codeact_team.journal.run_directory import find_run

        code = show_command(screen, find_run(run, run_dir), follow=follow, as_json=as_json, html=html)
        raise typer.Exit(code)


def export(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN... FILE",
            help="Ids of runs, or the beginnings of ids; last for the last run; or their directories. Then the file to write.",
            autocompletion=run_names,
        ),
    ],
    run_dir: RunDir = RUNS,
) -> None:
    """Write a run as a file for another program, such as `codeact-team export last report.ipynb`.

    The ending of FILE decides the format. A notebook (.ipynb) has code, outputs, figures and answers, and Jupyter can run it again.
    A page (.html) is the one that show writes. Markdown (.md) has its figures in a directory beside it. An archive (.zip) is
    the run itself, which show, replay and tests read. A log for Inspect (.eval or .json) needs the extra `inspect`. Archives
    and logs take several runs.

    Exit codes: 0 written, 2 not.
    """
    with reported(working=True) as screen:
        from codeact_team.cli.export import export_command

        export_command(screen, names, run_dir)
