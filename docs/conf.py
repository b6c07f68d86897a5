"""How Sphinx builds these pages: ``sphinx-build -W docs build/docs``."""

import sys
from importlib.metadata import version as version_of
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

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
autodoc_class_signature = "separated"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
# of a console, what is typed and not what is printed
copybutton_prompt_text = "$ "
