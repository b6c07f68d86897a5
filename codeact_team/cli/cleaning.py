"""The command ``clean``: what this program has left on the machine, and its removal. What is in use stays."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import typer

from codeact_team.cli.json_lines import print_json
from codeact_team.cli.machine import remove_rest_of_packages
from codeact_team.cli.options import Kept
from codeact_team.cli.screen import Screen
from codeact_team.errors import JournalError
from codeact_team.executors.packages.layers import Layers
from codeact_team.files import trees
from codeact_team.files.opening import lock
from codeact_team.journal.run_directory import runs_in
from codeact_team.journal.seal import key_file
from codeact_team.runs.kept_runs import KeptRun, RunState
from codeact_team.text.amounts import counted, size_of

_COMPLETIONS = (
    ".bash_completions/codeact-team.sh",
    ".zfunc/_codeact-team",
    ".config/fish/completions/codeact-team.fish",
)
"""Below the home directory, as ``--install-completion`` has made them."""


@dataclass(frozen=True)
class Leftover:
    """Something that is kept for later runs.

    Attributes:
        kind: What to name it by.
        place: Where it is.
        told: What it is, for a person.
        remove: Removes it; returns what stays of it and why, for a person, or nothing. Blocks.
    """

    kind: Kept
    place: Path
    told: str
    remove: Callable[[], str]


def clean_command(
    screen: Screen, runs: Path, kinds: Collection[Kept], *, yes: bool, dry_run: bool, as_json: bool
) -> int:
    """Print what is kept, remove it if the person wants that, and return the exit code."""
    found = [
        leftover
        for find in (_packages, partial(_runs, runs), partial(_key, runs), _completion)
        for leftover in find()
        if not kinds or leftover.kind in kinds
    ]
    if not as_json:
        for leftover in found:
            screen.text(f"{leftover.kind:12}", "bold", end="")
            screen.text(f"{leftover.told} · {leftover.place}")
    if not found and not as_json:
        screen.notice("note", "there is nothing to remove")
    elif not (yes or dry_run or as_json) and sys.stdin.isatty():
        yes = typer.confirm("Remove all of this?")
    elif not (yes or dry_run or as_json):
        screen.notice("note", "to remove it: codeact-team clean --yes")
    for leftover in found:
        stays = leftover.remove() if yes and not dry_run else None
        if as_json:
            print_json(
                {
                    "kind": leftover.kind,
                    "place": str(leftover.place),
                    "what": leftover.told,
                    "removed": stays == "",
                }
            )
        elif stays is not None:
            screen.text(f"{leftover.kind:12}{f'kept: {stays}' if stays else 'removed'}", "dim")
    return 0


def _packages() -> Iterator[Leftover]:
    layers = Layers()
    if layers.root.is_dir():
        kept = layers.all()
        size = size_of(layers.size())
        yield Leftover(
            Kept.PACKAGES,
            layers.root,
            f"{counted(len(kept), 'set')}, {size}",
            partial(_remove_packages, layers),
        )


def _remove_packages(layers: Layers) -> str:
    used = [layer for layer in layers.all() if not layers.remove(layer)]
    remove_rest_of_packages(layers)
    if used or any(layers.root.glob("building-*")):
        return f"sandboxes use {len(used)} of them, or more are being made"
    trees.remove(str(layers.root))
    _remove_empty(layers.root.parent)
    return ""


def _runs(directory: Path) -> Iterator[Leftover]:
    if kept := [KeptRun.read(run) for run in runs_in(directory)]:
        size = size_of(sum(run.size for run in kept))
        told = f"{counted(len(kept), 'run')} with workspaces, {size}"
        yield Leftover(Kept.RUNS, directory, told, partial(_remove_runs, directory, kept))


def _remove_runs(directory: Path, kept: list[KeptRun]) -> str:
    if running := [run.id for run in kept if not run.remove()]:
        return f"still running: {', '.join(running)}"
    _remove_empty(directory / "workspaces")
    if [path.name for path in directory.iterdir()] == [".gitignore"]:
        (directory / ".gitignore").unlink()
    _remove_empty(directory, directory.parent)
    return ""


def _key(runs: Path) -> Iterator[Leftover]:
    # without a home directory there is none
    with suppress(JournalError):
        if key_file().parent.is_dir():
            told = "the key of your runs; without it, you are asked to confirm each run that you resume"
            yield Leftover(Kept.KEY, key_file().parent, told, partial(_remove_key, runs))


def _remove_key(runs: Path) -> str:
    if any(KeptRun.read(run).state is RunState.RUNNING for run in runs_in(runs)):
        return "a run is at work"
    for path in (key_file().parent / "work_dirs").glob("*"):
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if not lock(descriptor):
                return "a run is at work in a work_dir"
            path.unlink()
        finally:
            os.close(descriptor)
    key_file().unlink(missing_ok=True)
    _remove_empty(key_file().parent / "work_dirs", key_file().parent)
    return ""


def _completion() -> Iterator[Leftover]:
    with suppress(RuntimeError):
        home = Path.home()
        for path in map(home.joinpath, _COMPLETIONS):
            if path.is_file():
                yield Leftover(
                    Kept.COMPLETION, path, "completion of a shell", partial(_remove_completion, path)
                )


def _remove_completion(path: Path) -> str:
    path.unlink()
    start, line = Path.home() / ".bashrc", f"source '{path}'".encode()
    if start.is_file() and line in (lines := start.read_bytes().split(b"\n")):
        start.write_bytes(b"\n".join(each for each in lines if each != line))
    return ""


def _remove_empty(*directories: Path) -> None:
    """Remove directories, inner before outer, in which nothing is left."""
    for directory in directories:
        with suppress(OSError):
            directory.rmdir()
