"""Which reference to the environment each text in a loaded component came from, so that a dump can write it again.

Components keep values, not where these came from. So each component of a loaded document is known, as long as it lives,
with the references of that document; nothing else is remembered.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping

from autogen_core import ComponentBase
from pydantic import BaseModel

from codeact_team.autogen_internals import components_in
from codeact_team.config.document import Path, Resolved, last_key

_LONG = 8

_References = Mapping[Path, Resolved]

_loaded: dict[int, _References] = {}
"""By the id of a component; it goes with the component."""


def remember(root: ComponentBase[BaseModel], references: _References) -> None:
    """Let ``root``, and each component in it, be dumped with these references."""
    if references:
        for part in components_in(root):
            # what all have in common, as AutoGen's defaults, is there again
            if id(part) not in _loaded:
                weakref.finalize(part, _loaded.pop, id(part))
            _loaded[id(part)] = references


class Origins:
    """The references that the text in a component, and in all that it holds, may have come from."""

    def __init__(self, root: ComponentBase[BaseModel]) -> None:
        self._by_place: dict[tuple[Path, str], str] = {}
        self._by_key: dict[tuple[str, str], str] = {}
        self._by_value: dict[str, str] = {}
        documents = {id(found): found for part in components_in(root) if (found := _loaded.get(id(part)))}
        for references in documents.values():
            for path, resolved in references.items():
                self._add(path, resolved)

    def _add(self, path: Path, resolved: Resolved) -> None:
        text, written = resolved.text, resolved.written or ""
        self._by_place.setdefault((path, text), written)
        self._by_key.setdefault((last_key(path), text), written)
        if resolved.values and len(text) >= _LONG:
            self._by_value.setdefault(text, written)

    def find(self, path: Path, text: str) -> str | None:
        """The text with ``${...}`` that ``text`` at ``path`` of a dump came from, if it did.

        A value under the key that it was loaded under is the loaded one for all purposes: writing the reference changes
        nothing. A long value of a variable counts under any other key, too, since it may be a secret that a component
        stores elsewhere. A short one, or a default, which the config itself shows, does not: unrelated text such as "1"
        would become a reference.
        """
        return (
            self._by_place.get((path, text))
            or self._by_key.get((last_key(path), text))
            or self._by_value.get(text)
        )
