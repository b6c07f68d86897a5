"""The artifacts of a block: kept in the order in which they are shown, and sent when it has ended."""

from __future__ import annotations

import json
import sys

from codeact_team.session.protocol import ARTIFACT_HEAD_BYTES, MAX_ARTIFACT_BYTES, MAX_ARTIFACTS, MIB, Kind
from codeact_team.session.runner.interpreter.channel import room
from codeact_team.session.runner.interpreter.forms import PLAIN, forms_of, forms_of_bundle
from codeact_team.session.runner.interpreter.repr_methods import DISPLAY_METHOD, own_method
from codeact_team.session.runner.interpreter.user_code import interruptible, one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from codeact_team.session.runner.interpreter.figures import Figures

_PACKAGE = __name__.rpartition(".")[0]
_FIGURES, _LIBRARIES = f"{_PACKAGE}.figures", f"{_PACKAGE}.libraries"
"""Loaded when they are needed."""

_MOST_BYTES = room(Kind.ARTIFACT) - ARTIFACT_HEAD_BYTES
_MOST_BYTES_OF_ALL = MAX_ARTIFACT_BYTES - MAX_ARTIFACTS * ARTIFACT_HEAD_BYTES
_MAX_PLAIN = 100_000
"""Characters of the text form, which is in the output as well."""


class Artifacts:
    """Collects what blocks show: each artifact is one value in one or more forms. What is left out is remarked.

    Args:
        load: Loads a module of the runner.
        warn: Writes a remark.
    """

    def __init__(self, load: Callable[[str], Any], warn: Callable[[str], None]) -> None:
        self._load = load
        self._warn = warn
        self._figures: Figures | None = None
        self.begin()

    def begin(self) -> None:
        """Forget the last block."""
        self._kept: list[dict[str, bytes]] = []
        self._bytes = 0
        self._surplus = 0
        self._is_cleared = False
        # a value may be shown more than once
        self._remarks: dict[str, None] = {}
        if self._figures is not None:
            self._figures.begin()

    @interruptible
    def watch(self, module: Any) -> None:
        """Have the functions of a library that show something show it here."""
        if not module.__name__.startswith("matplotlib."):
            self._load(_LIBRARIES).watch(module, self)
            return
        if self._figures is None:
            figures: type[Figures] = self._load(_FIGURES).Figures
            self._figures = figures(self)
        self._figures.watch(module)

    @interruptible
    def display(
        self, *values: Any, raw: bool = False, display_id: Any = None, **_: Any
    ) -> DisplayHandle | None:
        """Show values as text and as artifacts; see ``Showing.display``."""
        for value in values:
            self._show(value, raw=raw, prints=True)
        return None if display_id is None else DisplayHandle(self)

    @interruptible
    def show(self, value: Any, *, raw: bool = False) -> None:
        """Show a value as an artifact only, if it has a form beside its text.

        Args:
            value: The value.
            raw: Whether it is a dict of forms by their types.
        """
        self._show(value, raw=raw, prints=False)

    @interruptible
    def _show(self, value: Any, *, raw: bool, prints: bool) -> None:
        if not raw and self._shows_itself(value):
            return
        is_figure = self._figures is not None and self._figures.is_one(value)
        forms = (
            forms_of_bundle(value, self.remark) if raw else forms_of(value, self.remark, only_text=is_figure)
        )
        if prints and PLAIN in forms:
            sys.stdout.write(forms[PLAIN].decode(errors="replace") + "\n")
        if is_figure and self._figures is not None:
            self._figures.draw(value)
        else:
            self.add(forms)

    @interruptible
    def _shows_itself(self, value: Any) -> bool:
        try:
            method = own_method(value, DISPLAY_METHOD)
            if method is None:
                return False
            method()
        except NotImplementedError:
            return False
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self.remark(f"a value was not shown: {one_line(error)}")
        return True

    def clear(self, *, wait: bool) -> None:
        """Forget what the block has shown: now, or when it shows something else."""
        self._is_cleared = True
        if not wait:
            self._clear()

    def _clear(self) -> None:
        if self._is_cleared:
            self._is_cleared = False
            self._kept.clear()
            self._bytes = self._surplus = 0

    @property
    def is_full(self) -> bool:
        """Whether there are as many as possible."""
        return len(self._kept) == MAX_ARTIFACTS

    @interruptible
    def add(self, forms: dict[str, bytes]) -> None:
        """Keep the forms of a value by their types, the best one first, if there is one beside its text."""
        if not any(kind != PLAIN for kind in forms):
            return
        self._clear()
        plain = {PLAIN: forms[PLAIN][:_MAX_PLAIN]} if PLAIN in forms else {}
        size = sum(map(len, plain.values()))
        fit: dict[str, bytes] = {}
        for kind, data in forms.items():
            if kind == PLAIN:
                continue
            if size + len(data) > _MOST_BYTES:
                self.remark(f"an artifact ({kind}) was left out: it has {len(data) / MIB:.1f} MiB")
                continue
            fit[kind] = data
            size += len(data)
        if not fit:
            return
        if self.is_full or self._bytes + size > _MOST_BYTES_OF_ALL:
            self.leave_out()
            return
        self._bytes += size
        self._kept.append(fit | plain)

    def leave_out(self) -> None:
        """Count an artifact for which there is no room."""
        self._surplus += 1

    def remark(self, text: str) -> None:
        """Write a line to standard error when the block has ended, unless it is written already."""
        self._remarks[text] = None

    def collect(self, value: object, send: Callable[[bytes, bytes], None]) -> None:
        """Draw the open figures, and what the block's last value shows; send all that was kept, and write the remarks."""
        if self._figures is not None:
            self._figures.close()
        if value is not None:
            self.show(value)
        for forms in self._kept:
            send(*self._packed(forms))
        if self._surplus:
            self.remark(f"{self._surplus} more artifacts were left out: there are {len(self._kept)} already")
        if self._remarks:
            self._warn("".join(f"{remark}\n" for remark in self._remarks))

    def _packed(self, forms: dict[str, bytes]) -> tuple[bytes, bytes]:
        first, *others = forms
        about: dict[str, Any] = {"mime_type": first}
        if others:
            about["others"] = [(kind, len(forms[kind])) for kind in others]
        if self._figures is not None and (file := self._figures.file_of(forms[first])) is not None:
            about["file"] = file
        return json.dumps(about).encode() + b"\n", b"".join(forms.values())


class DisplayHandle:
    """Returned by ``display`` with a ``display_id``: what a notebook would put in the place of the value is shown after it."""

    def __init__(self, artifacts: Artifacts) -> None:
        self._artifacts = artifacts

    @interruptible
    def display(self, value: object, **options: Any) -> None:
        """Show a value."""
        self._artifacts.display(value, **options)

    update = display
