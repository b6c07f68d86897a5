"""How Sphinx builds these pages: ``sphinx-build -W docs build/docs``."""

import inspect
import re
import sys
from enum import Enum
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from sphinx.application import Sphinx
from sphinx.util.typing import stringify_annotation

from codeact_team.core.settings import field_docs

sys.path.insert(0, str(Path(__file__).parent))

import llms

project = "codeact_team"
version = release = version_of("codeact-team")
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "reference_pages",
]
exclude_patterns = ["**/README.md"]
html_theme = "furo"
html_title = "codeact_team"
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
# every heading can be linked to
myst_heading_anchors = 4
autodoc_default_options = {"exclude-members": "__new__, model_config"}
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_typehints_format = "short"
napoleon_use_ivar = True
python_maximum_signature_line_length = 100
python_use_unqualified_type_names = True
# as in the docstrings of settings, which are Markdown in a terminal
default_role = "code"
# of a console, what is typed and not what is printed
copybutton_prompt_text = "$ "

_LONG_TEXT = re.compile(r"""='((?:[^'\\]|\\.){40})(?:[^'\\]|\\.)+'|="((?:[^"\\]|\\.){40})(?:[^"\\]|\\.)+\"""")


def _short_signature(
    _app: Sphinx,
    what: str,
    name: str,
    part: Any,
    _options: object,
    signature: str | None,
    returns: str | None,
) -> tuple[str | None, str | None]:
    """Leave out the parameters of classes that are only read, and the ends of long texts."""
    if what == "class" and (issubclass(part, Enum) or name.endswith(("Config", "Record", "Result"))):
        return "", None
    return signature and _LONG_TEXT.sub(lambda text: f"='{text[1] or text[2]}…'", signature), returns


def _whole_first_line(
    _app: Sphinx, what: str, _name: str, _part: object, _options: object, lines: list[str]
) -> None:
    """Keep napoleon from taking what stands before a colon for the type of an attribute."""
    if what == "attribute":
        lines[:0] = ["..", ""]


def _said_once(_app: Sphinx, what: str, _name: str, part: Any, _options: object, lines: list[str]) -> None:
    """Leave out what a class is where its constructor repeats it, for editors."""
    of_class = inspect.cleandoc(part.__doc__ or "").splitlines()
    if what == "class" and lines[:1] == of_class[:1] and lines[2:3] != of_class[2:3]:
        del lines[0]


def _fields(_app: Sphinx, what: str, name: str, part: Any, _options: object, lines: list[str]) -> None:
    """List the fields of a Pydantic model, as of a dataclass. Those of a config are parameters of its component."""
    if what == "class" and issubclass(part, BaseModel) and not name.endswith("Config"):
        docs = field_docs(part)
        for field, info in part.model_fields.items():
            lines.append(f":ivar {field}: {docs.get(field) or info.description or ''}")
            lines.append(f":vartype {field}: {stringify_annotation(info.annotation, 'smart')}")


def _write_for_models(app: Sphinx, error: Exception | None) -> None:
    if error is None:
        (app.outdir / llms.FILE.name).write_text(llms.llms_txt(".html"))


def setup(app: Sphinx) -> None:
    """Mend what autodoc makes of docstrings, and write the list of pages for a model."""
    app.connect("build-finished", _write_for_models)
    app.connect("autodoc-process-signature", _short_signature)
    app.connect("autodoc-process-docstring", _whole_first_line, priority=1)
    app.connect("autodoc-process-docstring", _said_once, priority=1)
    app.connect("autodoc-process-docstring", _fields)
