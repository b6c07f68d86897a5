"""The commands that run a team."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from codeact_team.cli.options import (
    RECORD_MIB,
    RUNS,
    Allow,
    AllowUnsafe,
    BaseUrl,
    Config,
    ContinueIn,
    Data,
    Egress,
    Json,
    Model,
    NoRecord,
    Out,
    Output,
    Overrides,
    Package,
    Quiet,
    RecordMib,
    Retries,
    Run,
    RunDir,
    Sync,
    Timeout,
    changes_of,
    config_names,
    egress_of,
    hint_of,
    policy_of,
    reported,
    traced,
    with_files_of,
)


def run(
    config: Config,
    task: Annotated[
        str | None,
        typer.Argument(metavar="TASK", help="The task; - reads it from standard input."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("-f", "--file", metavar="FILE", help="Read the task from a file.")
    ] = None,
    overrides: Overrides = None,
    model: Model = None,
    base_url: BaseUrl = None,
    data: Data = None,
    package: Package = None,
    egress: Egress = None,
    allow: Allow = None,
    allow_unsafe: AllowUnsafe = False,
    timeout: Timeout = None,
    retries: Retries = None,
    output: Output = None,
    out: Out = None,
    run_dir: RunDir = RUNS,
    no_record: NoRecord = False,
    continue_in: ContinueIn = None,
    record_mib: RecordMib = RECORD_MIB,
    sync: Sync = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run a team, or a single agent, on a task.

    Piped input goes with the task: `cat log | codeact-team run codeact "What went wrong?"`.

    Without TASK, a config that brings its own task along, such as quickstart, runs that.

    The work is accepted if its review says so. Without a reviewer, the last code must have succeeded, or a CodeAct agent
    must have given its answer. Work that a limit has ended does not count.

    The answer is printed last. If none counts, it is the best so far, and is marked as such.

    Exit codes: 0 accepted or answered, 1 not accepted, 2 bad input or environment, 3 parked until a person has answered, 129 hung up,
    130 interrupted, 143 terminated. Code 75 says that the model's server is not there or overloaded: the same command may
    succeed later.
    """
    with reported(working=not (as_json or quiet) and task != "-") as screen:
        from codeact_team.batch.alone import PatientCalls
        from codeact_team.cli.run import read_task, run_command
        from codeact_team.runs.run import TeamRun

        wanted = read_task(screen, config, task, file)
        policy = policy_of(allow, allow_unsafe)
        hint = hint_of(allow, allow_unsafe, output, out, record_mib, sync)
        with traced(screen):
            changes = changes_of(
                overrides, model, base_url, with_files_of(continue_in, run_dir, data), package, egress
            )
            runner = TeamRun(
                config,
                overrides=changes,
                policy=policy,
                out=out,
                record=None if no_record else run_dir,
                record_mib=record_mib,
                sync=sync,
                keeps_workspace=True,
            )
            PatientCalls(retries).attach(runner)
            code = run_command(
                screen,
                runner,
                wanted,
                seconds=timeout,
                output=output,
                hint=hint,
                as_json=as_json,
                quiet=quiet,
            )
        raise typer.Exit(code)


def resume(
    run: Run,
    overrides: Overrides = None,
    allow: Allow = None,
    allow_unsafe: AllowUnsafe = False,
    timeout: Timeout = None,
    retries: Retries = None,
    output: Output = None,
    out: Out = None,
    run_dir: RunDir = RUNS,
    record_mib: RecordMib = RECORD_MIB,
    sync: Sync = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Resume a run that was interrupted, failed, was parked, or used up a limit. Raise the limit with -s.

    The journal has the answers of models, tools and people: nobody is asked again. Code of a session runs again, which
    brings back its variables. A step that was under way when the run ended is done again only if that can do no harm;
    else the agents read that its outcome is unknown. If the run has ended, missing results are delivered: the answer, and files for -o and --out.
    Without these options, your own run writes to the places of its first command.

    Exit codes: the same as of run.
    """
    with reported(working=not (as_json or quiet)) as screen:
        from codeact_team.batch.alone import PatientCalls
        from codeact_team.cli.chat import chat_command, reopened
        from codeact_team.cli.prompts import confirming
        from codeact_team.cli.run import run_command
        from codeact_team.errors import SettingError
        from codeact_team.journal.run_directory import find_run
        from codeact_team.runs.chat import TeamChat
        from codeact_team.runs.resuming import resumed, wanted_by_its_user

        directory = find_run(run, run_dir)
        before = wanted_by_its_user(directory)
        hint = hint_of(allow, allow_unsafe, output, out, record_mib, sync)
        with traced(screen):
            changes = changes_of(overrides)
            policy = policy_of(allow, allow_unsafe)
            again = partial(
                resumed,
                policy=policy,
                out=out or before.files_directory,
                record_mib=record_mib,
                sync=sync,
                keeps_workspace=True,
                again=output is not None or out is not None,
                confirm=confirming(screen, as_json=as_json),
            )
            runner, task = again(directory, overrides=changes)
            patient = PatientCalls(retries)
            patient.attach(runner)
            if isinstance(runner, TeamChat):
                if output is not None:
                    raise SettingError("a chat has an answer to each of its messages: -o is for other runs")
                code = chat_command(
                    screen,
                    runner,
                    seconds=timeout,
                    as_json=as_json,
                    quiet=quiet,
                    hint=hint,
                    reopen=partial(reopened, again, changes, patient),
                )
            else:
                code = run_command(
                    screen,
                    runner,
                    task,
                    seconds=timeout,
                    output=output or before.answer_file,
                    hint=hint,
                    as_json=as_json,
                    quiet=quiet,
                )
        raise typer.Exit(code)


def replay(
    run: Run,
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
    overrides: Overrides = None,
    beyond_workspace: Annotated[
        bool,
        typer.Option("--beyond-workspace", help="Run code also where it can reach more than its workspace."),
    ] = False,
    allow: Allow = None,
    allow_unsafe: AllowUnsafe = False,
    run_dir: RunDir = RUNS,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print the finding only.")] = False,
    as_json: Json = False,
) -> None:
    """Run the code of a run again, with the recorded answers of models and tools, and report the first difference.

    Code runs for real, in new directories with the files of the recorded run. So a replay shows the effect of another
    image, a changed config, or an upgrade. Changed prompts are reported and do not count as a difference.

    With --until, variables and files are as they were at that point, and models and tools are real from there on. Files
    made by a replay are gone at its end.

    Exit codes: 0 as recorded, 1 different, 2 bad input or environment, 129 hung up, 130 interrupted, 143 terminated.
    """
    with reported(working=not (as_json or quiet)) as screen:
        from codeact_team.cli.prompts import confirming
        from codeact_team.cli.recorded_runs import replay_command, replay_until_command
        from codeact_team.journal.run_directory import find_run
        from codeact_team.runs.replaying import replayed

        with (
            traced(screen),
            replayed(
                find_run(run, run_dir),
                config=config,
                overrides=changes_of(overrides),
                policy=policy_of(allow, allow_unsafe),
                until=until,
                beyond_workspace=beyond_workspace,
                confirm=confirming(screen, as_json=as_json),
            ) as ready,
        ):
            if until is None:
                code = replay_command(screen, ready, as_json=as_json, quiet=quiet)
            else:
                code = replay_until_command(screen, ready, as_json=as_json)
        raise typer.Exit(code)


def chat(
    config: Annotated[
        str | None,
        typer.Argument(
            metavar="[CONFIG]",
            help="A YAML or JSON file, or a shipped config such as codeact. --continue does not need it.",
            autocompletion=config_names,
            show_default=False,
        ),
    ] = None,
    go_on: Annotated[
        bool, typer.Option("-c", "--continue", help="Go on with the last chat in this directory.")
    ] = False,
    overrides: Overrides = None,
    model: Model = None,
    base_url: BaseUrl = None,
    data: Data = None,
    package: Package = None,
    egress: Egress = None,
    allow: Allow = None,
    allow_unsafe: AllowUnsafe = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", min=0.001, help="Stop the work on a message after this many seconds."
        ),
    ] = None,
    out: Out = None,
    run_dir: RunDir = RUNS,
    no_record: NoRecord = False,
    continue_in: ContinueIn = None,
    record_mib: RecordMib = RECORD_MIB,
    sync: Sync = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print the answers only.")] = False,
    retries: Retries = None,
    as_json: Json = False,
) -> None:
    """Talk to a team, or a single agent, that remembers the conversation.

    Where standard input is no terminal, each of its lines is a message.

    The chat is kept as a run is: `chat --continue`, or `resume`, resumes it with its variables, also after
    a kill. `runs`, `show`, `replay` and `export` know it.

    Exit codes: 0 ended, 2 bad input or environment, 3 parked until a person has answered, 129 hung up, 130 interrupted,
    143 terminated. Code 1 says that a message of standard input failed, and 75 that the same may succeed later.
    """
    with reported(working=not (as_json or quiet)) as screen:
        from codeact_team.batch.alone import PatientCalls
        from codeact_team.cli.chat import chat_command, reopened
        from codeact_team.config.open import with_items
        from codeact_team.errors import SettingError
        from codeact_team.runs.chat import TeamChat, data_input, model_input
        from codeact_team.runs.resuming import chat_of, last_chat, resumed

        policy = policy_of(allow, allow_unsafe)
        with traced(screen):
            wanted = with_files_of(continue_in, run_dir, data)
            # a chat that goes on gets them as inputs, so that it has them from then on
            named, given = (None, None) if go_on else (model, wanted)
            packages, hosts = (None, None) if go_on else (package, egress)
            changes = changes_of(overrides, named, base_url, given, packages, hosts)
            again = partial(
                resumed,
                policy=policy,
                out=out,
                record_mib=record_mib,
                sync=sync,
                keeps_workspace=True,
            )
            first: list[str] = []
            if go_on:
                if base_url or continue_in or no_record:
                    raise SettingError(
                        "--continue keeps the server of the chat: leave --base-url, --continue-in and --no-record out"
                    )
                directory = last_chat(run_dir, config)
                runner = chat_of(again(directory, overrides=changes))
                for setting, items in (("packages", package), ("egress", egress and egress_of(egress))):
                    if items:
                        changes += with_items(runner.read(), setting, items, is_first=setting == "egress")[1]
                        runner = chat_of(again(directory, overrides=changes))
                first += [data_input(data)] if data else []
                first += [model_input(model)] if model else []
            elif config is None:
                raise SettingError(
                    "name a config, as in `chat codeact`, or go on with the last chat by `chat --continue`"
                )
            else:
                runner = TeamChat(
                    config,
                    overrides=changes,
                    policy=policy,
                    out=out,
                    record=None if no_record else run_dir,
                    record_mib=record_mib,
                    sync=sync,
                    keeps_workspace=True,
                )
            patient = PatientCalls(retries)
            patient.attach(runner)
            code = chat_command(
                screen,
                runner,
                seconds=timeout,
                as_json=as_json,
                quiet=quiet,
                hint=hint_of(allow, allow_unsafe, None, out, record_mib, sync),
                reopen=partial(reopened, again, changes if go_on else (), patient),
                first=first,
            )
        raise typer.Exit(code)
