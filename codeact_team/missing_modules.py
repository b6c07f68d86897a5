"""A Python module that code lacks: who it is, and what to do about it."""

from __future__ import annotations

import re
import sys

WELL_KNOWN = tuple(
    """
    numpy pandas polars pyarrow duckdb scipy statsmodels sympy scikit-learn xgboost lightgbm torch tensorflow
    transformers matplotlib seaborn plotly pillow networkx opencv-python-headless opencv-python openpyxl
    xlsxwriter python-docx pypdf tabulate beautifulsoup4 lxml pyyaml requests httpx sqlalchemy pydantic pytest
    """.split()
)
"""Packages that models use when they are there."""

_PACKAGES = {
    "PIL": "pillow",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "docx": "python-docx",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
_LAST_WORDS = re.compile(
    r"(?:ModuleNotFoundError: No module named|ImportError: Missing optional dependency) '([A-Za-z_][\w.]{0,99})'",
    re.ASCII,
)


def missing_module(output: str) -> str | None:
    """The module whose absence has ended a program; ``None`` where that is not what its last line says.

    Args:
        output: The end of what it wrote. Hostile data: it can make the answer wrong, nothing else.
    """
    last = output.rstrip().rpartition("\n")[2]
    found = _LAST_WORDS.match(last)
    if found is None:
        return None
    module = found[1].partition(".")[0]
    return None if module in sys.stdlib_module_names else module


def advice(module: str) -> str:
    """How a person gives the module to the code. Only a package that is well known is named: code can ask for any."""
    package = _PACKAGES.get(module, module.lower())
    if package in WELL_KNOWN:
        return f"`packages: [{package}]` in the settings of the executor, or an image that has it"
    return "`packages` in the settings of the executor, or an image that has it"


def remark(module: str, *, has_network: bool) -> str:
    """What a model reads below the output."""
    no_way = "" if has_network else ", and nothing can be installed from inside: there is no network"
    return (
        f"The sandbox has no module {module!r}{no_way}. Use what is there. If that is not enough, say so: the user can add "
        f"it by {advice(module)}."
    )
