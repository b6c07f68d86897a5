"""Whose run it is: one of this user's goes on, one of somebody else's only as far as a person confirms it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from codeact_team.config.components import is_component
from codeact_team.config.document import Document, dotted, is_text, last_key, read_document, walk
from codeact_team.config.models import SERVER_FIELDS, keys_for_a_server
from codeact_team.config.overrides import ForEvery, apply_overrides
from codeact_team.errors import JournalError
from codeact_team.files.opening import opened, opened_file
from codeact_team.files.trees import files_below
from codeact_team.journal.log import LogReader
from codeact_team.journal.recorded_run import RecordedRun
from codeact_team.journal.run_directory import About, RunDirectory
from codeact_team.text.redaction import Redactor, credentials_of_environment, names_in_placeholders
from codeact_team.text.visibility import cut, readable, visible


def config_of(run: RecordedRun, redactor: Redactor, shown: Collection[str] | None) -> Document:
    """The config of a run, with the changes that were made when it was resumed, unless somebody else made these. Blocks.

    Args:
        run: The run.
        redactor: Fills in its credentials.
        shown: As of :func:`shown_to`, which has checked the run.

    Raises:
        JournalError: If it cannot be read.
        ConfigError: If it is no config.
    """
    directory = run.directory
    document = read_document(str(redactor.restore(directory.config())), str(directory.config_file))
    # a person who confirms another user's run sees its config only
    return apply_overrides(document, run.changes() if shown is None else ())


def foreign_refused(run: Path, *wanted: str) -> JournalError:
    """The error for a run that this user has not recorded, and that its config asks for ``wanted``."""
    told = [_one(each) for each in wanted[:_MOST]]
    if len(wanted) > _MOST:
        told.append(f"{len(wanted) - _MOST} more")
    asked = f" Its config asks for {'; '.join(told)}." if told else ""
    return JournalError(
        f"the run in {readable(str(run))} was not recorded by you on this machine, or was changed since: it could use your tools, your "
        f"keys and your files for things that you never asked for.{asked} Go on with it on a terminal by `codeact-team resume` or `replay`, "
        "which ask you first; or begin a new run"
    )


_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-[^}]*)?\}")
_TELLING = frozenset(
    "approval args base_url bind_dir command confinement credentials cwd data egress env environment extra_ca extra_volumes image "
    "network packages read_only readable runtime tools_dir url work_dir writable".split()
)
"""Settings that use something of this machine, or of the network."""
_MOST = 12
"""Wishes of a config that one sentence lists."""
_LONGEST = 80
_MOST_NAMES = 40
"""Names that a person confirms one by one."""
_MOST_READ = 1 << 30
"""Bytes of a run that are searched for placeholders."""
_PIECE = 1 << 20
_OVERLAP = 1024
"""Bytes that no placeholder is longer than."""

_Parts = Sequence[tuple[tuple[str | int, ...], Any]]
"""The values in a config, each with its path."""


@dataclass(frozen=True)
class ForeignRun:
    """A run of unknown origin. All of it is hostile data.

    Attributes:
        directory: Of its record.
        about: Its description of itself.
        config: Its config, in YAML; ``None`` if that does not run.
        wanted: What the config asks for, in words.
        names: Credentials and variables of this machine that the run names, and gets only if a person confirms each.
    """

    directory: RunDirectory
    about: About
    config: str | None
    wanted: Sequence[str]
    names: Sequence[str]


Confirm = Callable[[ForeignRun], Collection[str] | None]
"""Asks a person whether a run may go on; returns the confirmed names, or ``None`` to refuse the run."""


def shown_to(
    directory: RunDirectory, confirm: Confirm | None, *, runs_config: bool = True
) -> Collection[str] | None:
    """The names of the credentials and variables that a run gets; ``None`` for all, as it is this user's. Blocks.

    Args:
        directory: Of its record.
        confirm: Asks a person; ``None`` if nobody can be asked.
        runs_config: Whether its own config is to run.

    Raises:
        JournalError: If the run cannot be read; or it is not this user's, and nobody confirms it.
        ConfigError: If its config cannot be read.
    """
    if _is_own(directory):
        return None
    config = directory.config() if runs_config else None
    if config is not None and not is_text(config):
        # it would be taken for the name of a file
        raise JournalError(f"{readable(str(directory.path))} has no config that can be run")
    parts = [] if config is None else list(walk(read_document(config).data))
    wanted = list(_wanted(config or "", parts))
    if confirm is None:
        raise foreign_refused(directory.path, *wanted)
    about = directory.about()
    named = _named_in(directory.path, names_in_placeholders(about.nonce))
    names = [name for name in credentials_of_environment(os.environ) if name in named]
    referred = dict.fromkeys(_REFERENCE.findall(config or ""))
    sent = _sent(parts)
    names += [name for name in {**referred, **sent} if name in os.environ and name not in names]
    if len(names) > _MOST_NAMES:
        raise JournalError(
            f"the run in {directory.path} was not recorded by you on this machine, and refers to {len(names):,} variables of "
            "your environment: too many to be confirmed one by one"
        )
    shown = confirm(ForeignRun(directory, about, config, wanted, names))
    if shown is None:
        raise JournalError(
            f"the run in {readable(str(directory.path))} was not confirmed, so nothing was done"
        )
    for name in sent.keys() & os.environ.keys():
        # the client does not ask us for it
        if name not in shown:
            raise JournalError(
                f"the config of the run in {readable(str(directory.path))} sends {name} to {_one(sent[name])}, which was not "
                "allowed; nothing was done"
            )
    return shown


def environment_for(
    shown: Collection[str] | None, overrides: Sequence[str | ForEvery] = ()
) -> Mapping[str, str]:
    """The variables to which the config of a run, and its overrides, may refer; ``shown`` is of :func:`shown_to`."""
    if shown is None:
        return os.environ
    own = {name for change in overrides if isinstance(change, str) for name in _REFERENCE.findall(change)}
    return {name: value for name, value in os.environ.items() if name in shown or name in own}


def options_of(run: RecordedRun) -> Sequence[str]:
    """The options that a run was given and cannot be resumed without; none of a run that somebody else may have written."""
    # of one that cannot be read, nothing is known
    with suppress(JournalError):
        if _is_own(run.directory) and (began := run.began()) is not None:
            return began.options
    return ()


def _is_own(directory: RunDirectory) -> bool:
    """Whether this user has recorded a run, which is unchanged since."""
    if (chain := directory.chain()) is None:
        return False
    with LogReader(directory.lines, chain) as log:
        return all(log.chain is not None for _ in log.new())


def _named_in(top: Path, placeholder: re.Pattern[bytes]) -> set[str]:
    """The names in placeholders in the files below a directory. Other placeholders are not filled."""
    found: set[str] = set()
    left = _MOST_READ
    with suppress(OSError), opened(top) as directory:
        for inner, name, _ in files_below(directory):
            before = b""
            with suppress(OSError), opened_file(inner.descriptor, name) as file:
                while left > 0 and (piece := os.read(file, _PIECE)):
                    left -= len(piece)
                    found |= {each.decode(errors="replace") for each in placeholder.findall(before + piece)}
                    before = piece[-_OVERLAP:]
    return found


def _wanted(config: str, parts: _Parts) -> Iterator[str]:
    """The wishes of a config, as far as they are known without importing anything."""
    providers: dict[str, None] = {}
    told: dict[str, None] = {}
    for path, value in parts:
        if is_component(value):
            providers[str(value["provider"])] = None
        elif last_key(path) in _TELLING and value not in (None, [], {}, ""):
            told[f"{dotted(path)}: {_text(value)}"] = None
    references = dict.fromkeys(_REFERENCE.findall(config))
    if references:
        yield f"variables of your environment: {', '.join(f'${{{name}}}' for name in references)}"
    yield from told
    if providers:
        yield f"components: {', '.join(providers)}"


def _sent(parts: _Parts) -> Mapping[str, str]:
    """The variables that model clients and executors read by themselves, each with the server that a config sends it to."""
    found: dict[str, str] = {}
    for _, value in parts:
        if is_component(value) and isinstance(settings := value.get("config"), dict):
            given = cast("Mapping[str, Any]", settings)
            server = next((_text(given[name]) for name in SERVER_FIELDS if given.get(name)), "")
            found |= dict.fromkeys(keys_for_a_server(str(value["provider"]), given), server)
            found |= _credentials(given.get("credentials"))
    return found


def _credentials(value: Any) -> Mapping[str, str]:
    """The variables in the credentials of an executor, each with the hosts that get it; nothing of what is none."""
    found: dict[str, str] = {}
    for each in cast("list[Any]", value) if isinstance(value, list) else ():
        match each:
            case {"name": str(name), "hosts": hosts}:
                found[name] = _text(hosts)
            case _:
                pass
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def _one(wanted: str) -> str:
    return visible(cut(wanted, _LONGEST))
