"""The command about many tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from codeact_team.cli.options import (
    Allow,
    AllowUnsafe,
    BaseUrl,
    Config,
    Data,
    Egress,
    Json,
    Model,
    Package,
    changes_of,
    policy_of,
    reported,
    traced,
)

RESULTS = Path("batch-results")


def batch(
    config: Config,
    tasks: Annotated[
        str,
        typer.Argument(
            metavar="TASKS",
            help="A file with a JSON object on each line, .csv or .parquet; - reads JSON, or the text of a task, on each line of "
            "standard input. With --each, what to do with each file.",
        ),
    ],
    each: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERN",
            help="Make a task for each file, such as 'sales/*.csv', in quotation marks; the file is the data of the task.",
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="The directory of the results. If it has results, the batch goes on.",
            show_default=True,
        ),
    ] = RESULTS,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "-s",
            "--set",
            metavar="PATH=VALUE",
            help="Change one value of the config; {field} in it is replaced by the field of the task. Repeatable.",
        ),
    ] = None,
    model: Model = None,
    base_url: BaseUrl = None,
    data: Data = None,
    package: Package = None,
    egress: Egress = None,
    allow: Allow = None,
    allow_unsafe: AllowUnsafe = False,
    allow_outside_files: Annotated[
        bool,
        typer.Option(
            "--allow-outside-files",
            help="Let tasks have files outside the directory of the tasks file, or of the pattern of --each.",
        ),
    ] = False,
    checker: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A file of Python that judges the answers of tasks without a judgement of their own.",
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(metavar="N", min=1, help="Run each task N times.")] = 1,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Run only the first N tasks, or the first N of --only."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Run only the task with this id. Repeatable.")
    ] = None,
    failed: Annotated[
        bool,
        typer.Option(
            "--failed",
            help="Run only tasks that failed, or whose checker failed. Answers that are wrong or not accepted stay.",
        ),
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0.001, help="Stop a task after this many seconds of work."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Processes that run tasks; one for each processor, or node, if not given.",
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Tasks at the same time; eight for each process if not given."),
    ] = None,
    retries: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Try a task again at most N times when the engine, a connection or the model's server fails.",
            show_default=True,
        ),
    ] = 4,
    max_tokens: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Tokens that all tasks together may use.")
    ] = None,
    max_cost: Annotated[
        float | None,
        typer.Option(
            metavar="AMOUNT",
            min=0.0,
            help="Money that all tasks together may cost, by the prices of the config.",
        ),
    ] = None,
    max_requests: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Calls of models at the same time.")
    ] = None,
    requests_per_minute: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Calls of models in any minute.")
    ] = None,
    tokens_per_minute: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Tokens in any minute.")
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="The place of the workers: local, or ray for the nodes of a Ray cluster.",
            show_default=True,
        ),
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="The Ray cluster, such as 10.0.0.1:6379; local starts one of this machine alone. Default: "
            "RAY_ADDRESS, or the cluster that this machine is a node of.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a team, or a single agent, on many tasks, each in a sandbox of its own.

    A task has a `text`, and may have an `id`, `files` to work with, the `expected` answer, or a `checker`. A checker is
    Python that runs in a sandbox and raises an AssertionError if `answer` is wrong. A line that is broken is reported, and the others run.

    DIR gets results.jsonl, with a line for each task, runs/, where show, resume and replay find each run, and files/, with
    what each has made or changed. The same command goes on where it was interrupted: what is done is skipped, what was half
    done is resumed, and what has failed is tried again.

    Exit codes: 0 all accepted and no answer wrong, 1 not all, 3 some are parked until a person has answered, 129 hung up, 130
    interrupted, 143 terminated. Code 2 says that the input or the environment is bad, or that a task or a checker failed.
    Code 75 says that tasks failed that may succeed later.
    """
    with reported(working=not as_json) as screen:
        from codeact_team.batch.settings import BatchSettings
        from codeact_team.batch.tasks import EachFile
        from codeact_team.batch.throttle import BatchLimits
        from codeact_team.cli.batch import batch_command
        from codeact_team.cli.prompts import read_file

        with traced(screen):
            settings = BatchSettings(
                overrides=changes_of(overrides, model, base_url, data, package, egress),
                policy=policy_of(allow, allow_unsafe),
                allow_outside_files=allow_outside_files,
                checker=None if checker is None else read_file(checker, "the checker"),
                checker_name="the checker" if checker is None else str(checker),
                epochs=epochs,
                limit=limit,
                only=only or (),
                failed=failed,
                seconds=timeout,
                workers=workers,
                concurrency=concurrency,
                retries=retries,
                limits=BatchLimits(
                    max_tokens, max_cost, max_requests, requests_per_minute, tokens_per_minute
                ),
                engine=engine,
                address=address,
            )
            code = batch_command(
                screen,
                config,
                tasks if each is None else EachFile(each, tasks),
                out,
                settings,
                as_json=as_json,
            )
        raise typer.Exit(code)
