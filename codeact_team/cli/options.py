"""Options that commands have in common."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from enum import StrEnum
from functools import partial
from glob import escape, glob
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from codeact_team.core.shipped import shipped_configs, shipped_guides

if TYPE_CHECKING:
    from codeact_team.cli.run import ResumeHint
    from codeact_team.cli.screen import Screen
    from codeact_team.config.overrides import ForEvery
    from codeact_team.core.providers import Policy


class Kept(StrEnum):
    """What is kept for later runs, and `clean` removes."""

    PACKAGES = "packages"
    RUNS = "runs"
    KEY = "key"
    COMPLETION = "completion"


def days_ago(days: float) -> float:
    """The time so many days ago, in seconds since the epoch."""
    return time.time() - days * 24 * 60 * 60


def template_names(incomplete: str) -> list[str]:
    """The shipped configs whose names begin so."""
    return [name for name in shipped_configs() if name.startswith(incomplete)]


def topic_names(incomplete: str) -> list[str]:
    """The guides whose names begin so."""
    return [name for name in shipped_guides() if name.startswith(incomplete)]


def config_names(incomplete: str) -> list[str]:
    """The shipped configs, and the folders and the files that may be configs, whose names begin so."""
    begun = escape(incomplete)
    files = [name for name in glob(f"{begun}*") if name.endswith((".yaml", ".yml", ".json"))]
    return [*template_names(incomplete), *sorted([*glob(f"{begun}*/"), *files])]


def run_names(context: typer.Context, incomplete: str) -> list[str]:
    """The ids of the runs that are kept, `last`, and the folders whose names begin so."""
    runs = Path(context.params.get("run_dir") or RUNS)
    names = [*sorted((file.parent.name for file in runs.glob("*/run.json")), reverse=True), "last"]
    folders = glob(f"{escape(incomplete)}*/") if "/" in incomplete else []
    return [*(name for name in names if name.startswith(incomplete)), *sorted(folders)]


Config = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG",
        help="A YAML or JSON file, or a shipped config such as quickstart.",
        autocompletion=config_names,
    ),
]
Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="Its id, the beginning of that, `last`, or the path of its directory.",
        autocompletion=run_names,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("-s", "--set", metavar="PATH=VALUE", help="Change one value of the config. Repeatable."),
]
Model = Annotated[
    str | None, typer.Option(metavar="NAME", help="The model of every model client of the config.")
]
BaseUrl = Annotated[
    str | None,
    typer.Option(metavar="URL", help="The server of every model client, such as http://localhost:11434/v1."),
]
Data = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATH", help="Put a copy of a file or a directory into the workspace of the code. Repeatable."
    ),
]
Package = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="Add a Python package, such as openpyxl, to the code's packages. Repeatable."
    ),
]
Egress = Annotated[
    list[str] | None,
    typer.Option(
        metavar="HOST",
        help="Let the code reach a host, such as pypi.org or '*.example.org', by a rule before those of the config. "
        "`report` lets it reach none, and lists what it asks for. Repeatable.",
    ),
]
Allow = Annotated[
    list[str] | None,
    typer.Option(metavar="NAMESPACE", help="Allow components of another Python package. Repeatable."),
]
AllowUnsafe = Annotated[
    bool,
    typer.Option("--allow-unsafe", help="Allow components that run code on this machine without a sandbox."),
]
REPORT = "report"
"""As ``codeact_team.network.rules`` has it, which takes long to import."""
RUNS = Path(".codeact-team", "runs")
"""Where runs are kept, below the working directory."""
RECORD_MIB = 1024
"""As ``codeact_team.journal.blobs`` has it, which takes long to import."""
ContinueIn = Annotated[
    str | None,
    typer.Option(
        "--continue-in",
        metavar="RUN",
        help="Begin with copies of the files that an earlier run has left in its workspace.",
        autocompletion=run_names,
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", min=0.001, help="Stop the team after this many seconds of work."),
]
Retries = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=0,
        help="Ask a model again at most N times in a row when its server is overloaded, fails or is not there. Default: "
        "`max_retries` of the model client, else 2, and 6 after too many requests.",
        show_default=False,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE", help="Write the answer to a file, if it is accepted."),
]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Copy the files that the code makes or changes to a directory; made, with its parents, if missing.",
    ),
]
RunDir = Annotated[
    Path,
    typer.Option(
        metavar="DIR",
        envvar="CODEACT_TEAM_RUN_DIR",
        # whose it is says the run directory itself
        readable=False,
        help="The directory of the runs, each in one of its own.",
        show_default=True,
    ),
]
NoRecord = Annotated[bool, typer.Option("--no-record", help="Do not keep the run.")]
RecordMib = Annotated[
    int,
    typer.Option(
        metavar="MIB",
        min=1,
        help="Keep at most this many MiB of the run. Beyond that it goes on, and the rest is not kept.",
        show_default=True,
    ),
]
Sync = Annotated[
    bool,
    typer.Option("--sync", help="Write what is kept through to the disk, so that it survives a power cut."),
]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print the answer only.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def reported(*, working: bool = False) -> AbstractContextManager[Screen]:
    """As :func:`codeact_team.cli.screen.reported`, which takes long to import."""
    from codeact_team.cli.screen import reported

    return reported(working=working)


def traced(screen: Screen) -> AbstractContextManager[None]:
    """Within it, spans are exported if the environment asks for them."""
    from codeact_team.telemetry.exporting import exporting
    from codeact_team.text.redaction import without_secrets

    return exporting(partial(screen.notice, "warning"), without_secrets)


def policy_of(allow: list[str] | None, allow_unsafe: bool) -> Policy:
    """Return the policy for the components that a config may load, by the options and the environment."""
    from codeact_team.core.providers import Policy

    return Policy.from_environment(allow=allow or (), allow_unsafe=allow_unsafe)


def egress_of(hosts: list[str]) -> list[str] | str:
    """The setting that hosts on the command line mean: rules, or `report`. Raises a ``SettingError`` for both together."""
    from codeact_team.errors import SettingError

    if REPORT not in hosts:
        return hosts
    if len(set(hosts)) > 1:
        raise SettingError(
            f"--egress {REPORT} lets the code reach no host: leave out the others, or this one"
        )
    return REPORT


def with_files_of(run: str | None, run_dir: Path, data: list[str] | None) -> list[str] | None:
    """The data for the code, and those that an earlier run has left."""
    if run is None:
        return data
    from codeact_team.journal.run_directory import find_run
    from codeact_team.runs.work_dirs import files_of

    return [*(data or ()), *files_of(find_run(run, run_dir))]


def hint_of(
    allow: list[str] | None,
    allow_unsafe: bool,
    output: Path | None,
    out: Path | None,
    record_mib: int,
    sync: bool,
) -> ResumeHint:
    """Return a hint that names the command to resume the run with the same options."""
    from codeact_team.cli.run import ResumeHint

    wanted = [] if output is None else ["-o", str(output)]
    wanted += [] if out is None else ["--out", str(out)]
    wanted += [] if record_mib == RECORD_MIB else ["--record-mib", str(record_mib)]
    wanted += ["--sync"] if sync else []
    return ResumeHint(policy_of(allow, allow_unsafe).options, wanted)


def changes_of(
    single: list[str] | None,
    model: str | None = None,
    base_url: str | None = None,
    data: list[str] | None = None,
    package: list[str] | None = None,
    egress: list[str] | None = None,
) -> list[str | ForEvery]:
    """The changes to a config, as :func:`codeact_team.load_config` takes them."""
    from autogen_core.code_executor import CodeExecutor
    from autogen_core.models import ChatCompletionClient

    from codeact_team.config.overrides import ForEvery

    changes: list[str | ForEvery] = [*(single or ())]
    if model is not None:
        changes.append(ForEvery(ChatCompletionClient, "model", model, "--model"))
    if base_url is not None:
        changes.append(ForEvery(ChatCompletionClient, "base_url", base_url, "--base-url"))
    if data:
        changes.append(ForEvery(CodeExecutor, "data", [*data], "--data"))
    if package:
        changes.append(ForEvery(CodeExecutor, "packages", [*package], "--package", adds=True))
    if egress:
        value = egress_of(egress)
        changes.append(
            ForEvery(CodeExecutor, "egress", value, "--egress", adds=value != REPORT, is_first=True)
        )
    return changes
