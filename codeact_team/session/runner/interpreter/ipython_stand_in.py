"""Stands in for the module ``IPython.display`` where IPython is not installed: the functions and classes that most code imports.

A value has the forms that it has in IPython. What a page without scripts and sounds cannot show is remarked.
"""

from __future__ import annotations

import builtins
import json
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from codeact_team.session.runner.interpreter.user_code import get_ipython, interruptible_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

interruptible_module(__name__)

_VERSION = (9, 0, 0, "")
"""Libraries that find IPython loaded compare its version, and then ask for its shell, which is hidden from them."""
_URLS = ("http:", "https:", "file:", "data:")


def display(*values: object, **options: Any) -> Any:
    """Show values; see ``Showing.display``."""
    shows: Any = builtins.__dict__["display"]
    return shows(*values, **options)


def update_display(value: object, *, display_id: str, **options: Any) -> None:
    """Show a value after the one that it is to replace."""
    display(value, **options)


def publish_display_data(data: dict[str, Any], *_: Any, **__: Any) -> None:
    """Show a dict of forms by their types."""
    display(data, raw=True)


def clear_output(wait: bool = False) -> None:
    """Take back what the block has shown."""
    builtins.__dict__["display"].__self__.clear_output(wait=wait)


class DisplayObject:
    """Text or bytes with a type.

    Args:
        data: The content, or for a picture also a path or a URL.
        url: Where the content is.
        filename: The file that has the content.
    """

    _kind = ""

    def __init__(
        self, data: Any = None, url: str | None = None, filename: Any = None, metadata: Any = None, **_: Any
    ) -> None:
        self.metadata: dict[str, Any] = metadata or {}
        self.url = url
        self.filename: Any = filename
        self.data: Any = self._read() if data is None else data

    def _read(self) -> Any:
        if self.filename is not None:
            data = Path(self.filename).read_bytes()
        elif self.url is not None:
            from urllib.request import urlopen

            with urlopen(self.url) as response:
                data = response.read()
        else:
            return None
        return data if self._kind == "" else data.decode()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return {} if self.data is None else {self._kind: self.data}


class HTML(DisplayObject):
    """HTML."""

    _kind = "text/html"

    def __html__(self) -> Any:
        return self.data


class Markdown(DisplayObject):
    """Markdown."""

    _kind = "text/markdown"


class Latex(DisplayObject):
    """LaTeX, with its dollar signs."""

    _kind = "text/latex"


class Math(Latex):
    """LaTeX without dollar signs."""

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return {self._kind: f"$\\displaystyle {str(self.data).strip('$')}$"}


class SVG(DisplayObject):
    """A picture in SVG."""

    _kind = "image/svg+xml"


class Pretty(DisplayObject):
    """Text, as it is printed."""

    _kind = "text/plain"


class JSON(DisplayObject):
    """A value that JSON has, or its text."""

    _kind = "application/json"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return {self._kind: self.data if isinstance(self.data, str) else json.dumps(self.data, default=str)}


class _Code(DisplayObject):
    """Source code."""

    def __init__(
        self, data: Any = None, url: str | None = None, filename: Any = None, language: str | None = None
    ) -> None:
        super().__init__(data, url, filename)
        if isinstance(self.data, bytes):
            self.data = self.data.decode()
        self.language = language

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        fence = "```"
        while fence in str(self.data):
            fence += "`"
        return {
            "text/plain": self.data,
            "text/markdown": f"{fence}{self.language or ''}\n{self.data}\n{fence}",
        }


class Image(DisplayObject):
    """A picture, as bytes or in a file."""

    _KINDS = (
        (b"\x89PNG", "image/png"),
        (b"\xff\xd8", "image/jpeg"),
        (b"GIF8", "image/gif"),
        (b"RIFF", "image/webp"),
    )

    def __init__(
        self, data: Any = None, url: str | None = None, filename: Any = None, **options: Any
    ) -> None:
        if isinstance(data, str | Path):
            if str(data).startswith(_URLS):
                data, url = None, str(data)
            else:
                data, filename = None, data
        super().__init__(data, url, filename, **options)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        kind = next((kind for magic, kind in self._KINDS if bytes(self.data or b"").startswith(magic)), None)
        if kind is None:
            raise ValueError("this is not a picture in PNG, JPEG, GIF or WebP")
        return {kind: bytes(self.data)}


class _Refused:
    """Something that is not shown."""

    _why = ""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def _ipython_display_(self) -> None:
        sys.stderr.write(f"{type(self).__name__} was left out: {self._why}\n")


class Javascript(_Refused):
    """A script."""

    _why = "no script runs here"


class Audio(_Refused):
    """A sound."""

    _why = "no sound is played here; write it to a file"


class Video(_Refused):
    """A film."""

    _why = "no film is played here; write it to a file"


class IFrame(_Refused):
    """A page of the network."""

    _why = "no page is loaded here"


_CLASSES = (
    DisplayObject,
    HTML,
    Markdown,
    Latex,
    Math,
    SVG,
    Pretty,
    JSON,
    _Code,
    Image,
    Javascript,
    Audio,
    Video,
    IFrame,
)
for _class in _CLASSES:
    _class.__module__ = "IPython.core.display"
    _class.__name__ = _class.__qualname__ = _class.__name__.lstrip("_")


class _Loader:
    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == "IPython":
            module.__dict__.update(
                get_ipython=get_ipython,
                version_info=_VERSION,
                __version__="9.0.0",
                __path__=[],
                display=display,
            )
            return
        module.__dict__.update({each.__name__: each for each in (*_CLASSES, *_FUNCTIONS)})


_FUNCTIONS = (display, update_display, publish_display_data, clear_output)


def spec_of(name: str) -> ModuleSpec:
    """The spec of the module ``IPython`` or ``IPython.display``."""
    return ModuleSpec(name, _Loader(), is_package=name == "IPython")  # pyright: ignore[reportArgumentType]
