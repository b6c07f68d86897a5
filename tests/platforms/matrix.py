"""Tries the executors on engines, kernels and Pythons, and writes the table of the guide of platforms.

``tests/platforms/run [--brief] [NAME...]``: all rows, or those that are named, maybe with some tests of each group only; ``run --table``:
only the table, from the results of before; ``run --check NAME...`` writes nothing. For root on Debian with the packages that ``.ci/run`` installs, and QEMU; in the
environment of the tests. Native rows take some minutes each. gVisor's, and those in emulated machines, run the conformance suites and
the sessions' tests only, which takes an hour or more in a machine, and ``--brief`` a quarter of an hour. What was seen is kept in
``results.json``.
"""

from __future__ import annotations

import datetime
import fnmatch
import json
import os
import pwd
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent.parent
RESULTS = HERE / "results.json"
EXCEPTIONS = HERE / "exceptions.toml"
GUIDE = CHECKOUT / "docs/guides/platforms.md"
BEGIN, END = "<!-- written by tests/platforms/run -->\n", "<!-- end of what it has written -->\n"
IMAGE = Path("/var/tmp/codeact-image.tar")
USER = "codeact-tests"
CHOICES = {"all": "", "suites": " of the conformance suites and the sessions", "brief": " of a choice"}
NOT_TRIED = {
    "macOS, Docker Desktop": "The quickstart there runs without confinement, and says so.",
    "Windows, WSL 2": "",
}


@dataclass(frozen=True)
class Row:
    """A row of the table: the name of its results, what the table calls it, what runs code, and where.

    ``where`` is the release of an emulated machine, or who runs the tests on this one. ``without`` is what is taken away first,
    as an option of ``row.py``.
    """

    name: str
    title: str
    kind: str
    where: str
    without: str = ""

    @property
    def is_emulated(self) -> bool:
        return self.where not in ("root", "user")


_ALONE, _WITHOUT = "confined-by-listener", "confined without namespaces"

ROWS = [
    Row("docker", "Docker", "docker", "root"),
    Row("docker-rootless", "Docker, rootless", "docker-rootless", "user"),
    Row("podman", "Podman as root", "podman", "root"),
    Row("podman-rootless", "Podman, rootless", "podman-rootless", "user"),
    Row("gvisor", "gVisor in Docker", "gvisor", "root"),
    Row("confined-root", "confined, as root", "confined", "root"),
    Row("confined", "confined", "confined", "user"),
    Row(f"{_ALONE}-root", f"{_WITHOUT}, as root", "confined", "root", "namespaces"),
    Row(_ALONE, _WITHOUT, "confined", "user", "namespaces"),
    Row("trixie-docker", "Docker", "docker", "trixie"),
    Row("trixie-docker-rootless", "Docker, rootless", "docker-rootless", "trixie"),
    Row("trixie-podman-rootless", "Podman, rootless", "podman-rootless", "trixie"),
    Row("trixie-confined", "confined", "confined", "trixie"),
    Row(f"trixie-{_ALONE}", _WITHOUT, "confined", "trixie", "namespaces"),
    Row("bookworm-docker", "Docker", "docker", "bookworm"),
    Row("bookworm-podman-rootless", "Podman, rootless", "podman-rootless", "bookworm"),
    Row("bookworm-confined", "confined", "confined", "bookworm"),
]


def main(*arguments: str) -> None:
    rows = {row.name: row for row in ROWS}
    checked = dict[str, Any]()
    if arguments != ("--table",):
        options = {each for each in arguments if each.startswith("--")}
        for name in [each for each in arguments if each not in options] or rows:
            result = tried(rows[name], brief="--brief" in options)
            if "--check" in options:
                checked[name] = result
                continue
            # others may have come meanwhile
            results = read_results()
            results[name] = result
            RESULTS.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n")
    if not checked:
        GUIDE.write_text(with_table(GUIDE.read_text(), read_results()))
    failures = [
        f"{name}: {test} {how}"
        for name, result in (checked or read_results()).items()
        for test, how in sorted_out(name, result["others"])[0].items()
    ]
    sys.exit("\n".join(failures) or None)


def tried(row: Row, *, brief: bool) -> dict[str, Any]:
    """What is seen of a row when its tests run."""
    image, options = "/opt/image.tar", list[str]()
    if row.is_emulated or row.kind == "gvisor":
        options.append("--suites")
    if not row.is_emulated and row.kind != "confined":
        make_image()
        image = str(IMAGE)
        options.append("--measure")
    if brief:
        options.append("--brief")
    if row.without:
        options.append(f"--without-{row.without}")
    options += [f"--left-out={part}" for each in exceptions(row.name) for part in each["tests"]]
    script = shlex.join(["tests/platforms/row.py", row.kind, image, *options])
    if row.where == "root":
        command = [sys.executable, *shlex.split(script)]
    elif row.where == "user":
        command = in_copy(script)
    else:
        # a control group of its own, as the guide says
        scope = "systemd-run --user --scope -q -p Delegate=yes" if row.kind == "confined" else ""
        command = [str(HERE / "machine"), row.where, f"{scope} python {script}"]
    output = subprocess.run(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, check=True).stdout
    seen = json.loads(output.splitlines()[-1])
    return seen | {"date": datetime.date.today().isoformat()}


def make_image() -> None:
    """Have :data:`IMAGE`, which is that of this machine's own engine."""
    if IMAGE.exists():
        return
    new = f"{IMAGE}.{os.getpid()}"
    make = f"container=$(docker create python:3-slim true); docker export $container >{new}; docker rm $container >/dev/null"
    subprocess.run(["sh", "-ec", make], check=True)
    os.chmod(new, 0o644)
    os.rename(new, IMAGE)


def becoming_user() -> list[str]:
    """What runs the command behind it as a normal user of this machine, who may start rootless engines."""
    try:
        user = pwd.getpwnam(USER)
    except KeyError:
        subprocess.run(["useradd", "-m", "-s", "/bin/bash", USER], check=True)
        user = pwd.getpwnam(USER)
    runtime = Path(f"/run/user/{user.pw_uid}")
    runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.chown(runtime, user.pw_uid, user.pw_gid)
    settings = [f"HOME={user.pw_dir}", f"XDG_RUNTIME_DIR={runtime}", f"USER={USER}"]
    become = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    return [*become, "env", "-i", "-C", user.pw_dir, *settings, "PATH=/usr/bin:/bin:/usr/sbin:/sbin"]


def in_copy(script: str) -> list[str]:
    """The command by which that user runs ``script`` in a copy of the checkout, with a Python of this machine's."""
    become = becoming_user()
    home = f"~{USER}"
    # the user may not enter what is root's
    uv = f"{shlex.quote(sys.executable)} -m uv"
    prepare = f"""
        rm -rf {home}/checkout && mkdir {home}/checkout
        git ls-files -z --cached --others --exclude-standard | tar -c --null -T - --ignore-failed-read | tar -x -C {home}/checkout
        [ -e {home}/venv ] || {uv} venv -q --seed --python /usr/bin/python3 {home}/venv
        cd {home} && {uv} pip install -q --python venv/bin/python -e "$PWD/checkout[dev]"
        chown -R {USER}: {home}
    """
    subprocess.run(["bash", "-ec", prepare], cwd=CHECKOUT, check=True)
    return [*become, "sh", "-c", f"cd checkout && ../venv/bin/python {script}"]


def exceptions(name: str) -> list[dict[str, Any]]:
    """The exceptions of a row."""
    listed = tomllib.loads(EXCEPTIONS.read_text())["exception"]
    return [each for each in listed if any(fnmatch.fnmatch(name, row) for row in each["rows"])]


def sorted_out(name: str, others: dict[str, str]) -> tuple[dict[str, str], dict[str, int]]:
    """Of the tests of a row that did not pass, those that should have, and how many were left out, by the reason."""
    failures, excepted = dict[str, str](), dict[str, int]()
    here = exceptions(name)
    for test, how in others.items():
        reasons = [each["reason"] for each in here if any(pattern in test for pattern in each["tests"])]
        if reasons:
            excepted[reasons[0]] = excepted.get(reasons[0], 0) + 1
        else:
            failures[test] = how
    return failures, excepted


def read_results() -> dict[str, Any]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def with_table(guide: str, results: dict[str, Any]) -> str:
    """The guide with the table of what was seen."""
    before, _, rest = guide.partition(BEGIN)
    return before + BEGIN + table(results) + END + rest.partition(END)[2]


def table(results: dict[str, Any]) -> str:
    """The table of the guide, and what is not as elsewhere."""
    lines = ["| platform | tried with | state | except |", "|---|---|---|---|"]
    for row in ROWS:
        if (result := results.get(row.name)) is None:
            lines.append(f"| Linux, {row.title} ({row.where}) | | not tried | |")
            continue
        seen = result["versions"]
        details = [
            seen["system"],
            seen.get("engine"),
            f"kernel {seen['kernel']}",
            f"control groups v{seen['control groups']}",
        ]
        tried_with = ", ".join(filter(None, [*details, f"Python {seen['python']}"]))
        emulated = "; emulated" if row.is_emulated else ""
        failures, excepted = sorted_out(row.name, result["others"])
        number = result["passed"] + len(failures) + sum(excepted.values())
        state = (
            f"fails: {len(failures)} of {number} tests" if failures else f"works: {result['passed']} tests"
        )
        state += CHOICES[result["choice"]]
        if refused := result.get("refused"):
            state = f"refused: “{refused}”. Where that is accepted, it {state}"
        reasons = " ".join(f"{reason} ({number})" for reason, number in sorted(excepted.items()))
        lines.append(f"| Linux, {row.title} | {tried_with}{emulated} | {state} | {reasons} |")
    lines += [f"| {name} | | not tried | {words} |" for name, words in NOT_TRIED.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main(*sys.argv[1:])
