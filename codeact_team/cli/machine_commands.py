"""The commands that are about configs and this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from codeact_team.cli.options import (
    RUNS,
    Allow,
    AllowUnsafe,
    BaseUrl,
    Json,
    Kept,
    Model,
    Overrides,
    RunDir,
    changes_of,
    config_names,
    policy_of,
    reported,
    template_names,
    topic_names,
)
from codeact_team.core.shipped import shipped_guides


def help_(
    context: typer.Context,
    topic: Annotated[
        str | None,
        typer.Argument(metavar="TOPIC", help="A guide, or a command.", autocompletion=topic_names),
    ] = None,
) -> None:
    """Show a guide, such as `codeact-team help data`; without TOPIC, list them."""
    parent: Any = context.parent
    commands: Mapping[str, Any] = parent.command.commands
    if topic is not None and topic in commands and topic not in shipped_guides():
        parent.command.main([topic, "--help"], prog_name=parent.command_path)
    with reported() as screen:
        from codeact_team.cli.guides import list_guides, show_guide

        if topic is None:
            list_guides(screen)
        else:
            show_guide(screen, topic, commands)


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
        from codeact_team.cli.machine import validate_command

        policy = policy_of(allow, allow_unsafe)
        changes = changes_of(overrides, model, base_url)
        raise typer.Exit(validate_command(screen, configs, changes, policy, as_json=as_json))


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


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")] = Path("team.yaml"),
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
    """Show what works on this machine, and what to do about the rest. No model is asked; MCP servers of a config are started.

    Exit codes: 0 if the config, or without one at least the quickstart, can run here, 2 if not.
    """
    with reported() as screen:
        from codeact_team.cli.machine import doctor_command

        changes = changes_of(overrides, model, base_url)
        policy = policy_of(allow, allow_unsafe)
        raise typer.Exit(doctor_command(screen, config, changes, policy, clean=clean, as_json=as_json))


def packages(
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every file, and report changes since it was made.")
    ] = False,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="Remove the listed packages, except those that a sandbox uses now."),
    ] = False,
    older_than: Annotated[
        float | None,
        typer.Option(metavar="DAYS", min=0, help="List only packages that were not used for so many days."),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the Python packages that this machine keeps for sandboxes.

    Exit codes: 0, and 1 if something was changed.
    """
    with reported() as screen:
        from codeact_team.cli.machine import packages_command

        code = packages_command(screen, verify=verify, prune=prune, older_than=older_than, as_json=as_json)
        raise typer.Exit(code)


def clean(
    kinds: Annotated[
        list[Kept] | None,
        typer.Argument(metavar="KIND", help="What to remove. Default: all of these."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove it without asking.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    run_dir: RunDir = RUNS,
    as_json: Json = False,
) -> None:
    """Show what is kept on this machine and in this directory, and remove it if you want that. What is in use stays.

    That is: packages for sandboxes, the runs of this directory with their workspaces, the key that tells which runs are
    yours, and the completion of a shell. On a terminal you are asked. Elsewhere nothing is removed without --yes.
    """
    with reported() as screen:
        from codeact_team.cli.cleaning import clean_command

        code = clean_command(screen, run_dir, kinds or (), yes=yes, dry_run=dry_run, as_json=as_json)
        raise typer.Exit(code)
