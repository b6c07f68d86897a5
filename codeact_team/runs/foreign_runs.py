"""Runs that this user has not recorded, or that were changed since: what they ask for, and who confirms that."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from codeact_team.config.components import is_component, walk
from codeact_team.config.document import dotted, is_text, last_key, read_document
from codeact_team.config.for_every import ForEvery
from codeact_team.config.model_access import SERVER_FIELDS, keys_for_a_server
from codeact_team.config.written import credentials_of_environment
from codeact_team.errors import JournalError
from codeact_team.files.saving import readable
from codeact_team.journal import About, RunDirectory
from codeact_team.journal.hidden_values import named_by
from codeact_team.journal.log import LogReader
from codeact_team.runs.recording import foreign_refused
from codeact_team.system.regular_files import open_regular
from codeact_team.visibility import cut, visible

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-[^}]*)?\}")
_TELLING = frozenset(
    "approval args base_url bind_dir command confinement cwd data env environment extra_volumes image network packages read_only "
    "readable runtime tools_dir url work_dir writable".split()
)
"""Settings that say what of this machine, and of the network, is used."""
_MOST = 12
"""What is told of a config in one sentence."""
_LONGEST = 80
_MOST_NAMES = 40
"""Names that a person can be asked for, one by one."""
_MOST_READ = 1 << 30
"""Bytes of a run that are searched for placeholders."""
_PIECE = 1 << 20
_OVERLAP = 1024
"""Bytes that no placeholder is longer than."""


@dataclass(frozen=True)
class ForeignRun:
    """A run that may be anybody's.

    Attributes:
        directory: Where it is kept.
        about: What it says of itself; hostile data, as is all else.
        config: Its config, in YAML; ``None`` where that does not run.
        wanted: What the config asks for, in words.
        names: Credentials and variables of this machine that the run names, each of which it gets only if a person says so.
    """

    directory: RunDirectory
    about: About
    config: str | None
    wanted: Sequence[str]
    names: Sequence[str]


Confirm = Callable[[ForeignRun], Collection[str] | None]
"""Asks a person whether a run may go on; returns those of the names that it gets, or ``None`` if it may not."""


def shown_to(
    directory: RunDirectory, confirm: Confirm | None, *, runs_config: bool = True
) -> Collection[str] | None:
    """The names of the credentials and variables that a run gets; ``None`` for all: it is this user's. Blocks.

    Args:
        directory: Where the run is kept.
        confirm: Asks a person; ``None`` where none is there.
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
        raise JournalError(f"{readable(str(directory.path))} has no config that could run")
    wanted = [] if config is None else list(_wanted(config))
    if confirm is None:
        raise foreign_refused(directory.path, *_short(wanted))
    about = directory.about()
    named = _named_in(directory.path, named_by(about.nonce))
    names = [name for name in credentials_of_environment(os.environ) if name in named]
    referred = dict.fromkeys(_REFERENCE.findall(config or ""))
    sent = _sent(config) if config is not None else dict[str, str]()
    names += [name for name in {**referred, **sent} if name in os.environ and name not in names]
    if len(names) > _MOST_NAMES:
        raise JournalError(
            f"the run in {directory.path} was not recorded by you on this machine, and names {len(names):,} variables of your "
            "environment: too many to be confirmed one by one"
        )
    shown = confirm(ForeignRun(directory, about, config, wanted, names))
    if shown is None:
        raise JournalError(
            f"the run in {readable(str(directory.path))} was not confirmed, and nothing of it was done"
        )
    for name in sent.keys() & os.environ.keys():
        # the client does not ask us for it
        if name not in shown:
            raise JournalError(
                f"the config of the run in {readable(str(directory.path))} sends {name} to {_one(sent[name])}, and it was not "
                "given that; nothing of it was done"
            )
    return shown


def environment_for(
    shown: Collection[str] | None, overrides: Sequence[str | ForEvery] = ()
) -> Mapping[str, str]:
    """The environment to which the config of a run may refer, and what a person has changed in it.

    Args:
        shown: As of :func:`shown_to`.
        overrides: The changes.
    """
    if shown is None:
        return os.environ
    own = {name for change in overrides if isinstance(change, str) for name in _REFERENCE.findall(change)}
    return {name: value for name, value in os.environ.items() if name in shown or name in own}


def _is_own(directory: RunDirectory) -> bool:
    if (chain := directory.chain()) is None:
        return False
    with LogReader(directory.lines, chain) as log:
        return all(log.chain is not None for _ in log.new())


def _named_in(top: Path, placeholder: re.Pattern[bytes]) -> set[str]:
    """The names in placeholders in the files below a directory. Those that are not found are not filled."""
    found: set[str] = set()
    left = _MOST_READ
    for folder, _, files in os.walk(top):
        for name in files:
            before = b""
            with suppress(OSError), open(open_regular(Path(folder, name)), "rb") as file:
                while left > 0 and (piece := file.read(_PIECE)):
                    left -= len(piece)
                    found |= {each.decode(errors="replace") for each in placeholder.findall(before + piece)}
                    before = piece[-_OVERLAP:]
    return found


def _wanted(config: str) -> Iterator[str]:
    """What a config asks for, as far as that can be told without importing anything."""
    providers: dict[str, None] = {}
    told: dict[str, None] = {}
    for path, value in walk(read_document(config).data):
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


def _sent(config: str) -> Mapping[str, str]:
    """The variables that model clients read a key from by themselves, each with the server that a config has it sent to."""
    found: dict[str, str] = {}
    for _, value in walk(read_document(config).data):
        if is_component(value) and isinstance(settings := value.get("config"), dict):
            given = cast("Mapping[str, Any]", settings)
            server = next((_text(given[name]) for name in SERVER_FIELDS if given.get(name)), "")
            found |= dict.fromkeys(keys_for_a_server(str(value["provider"]), given), server)
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def _one(wanted: str) -> str:
    return visible(cut(wanted, _LONGEST))


def _short(wanted: Sequence[str]) -> list[str]:
    told = [_one(each) for each in wanted[:_MOST]]
    return [*told, f"{len(wanted) - _MOST} more"] if wanted[_MOST:] else told
