"""Which module a program lacks, by its last words, and what is said of it."""

from __future__ import annotations

import pytest

from codeact_team.core.execution import advice, missing_module, remark

TRACEBACK = 'Traceback (most recent call last):\n  File "<block 1>", line 1, in <module>\n'


@pytest.mark.parametrize(
    ("output", "module"),
    [
        (f"{TRACEBACK}ModuleNotFoundError: No module named 'pandas'\n", "pandas"),
        (f"{TRACEBACK}ModuleNotFoundError: No module named 'sklearn.svm'\n\n", "sklearn"),
        (
            f"{TRACEBACK}ImportError: Missing optional dependency 'openpyxl'.  Use pip or conda to install it.\n",
            "openpyxl",
        ),
        (
            (
                f"{TRACEBACK}ImportError: `Import openpyxl` failed.  Use pip, conda, or your preferred package management "
                "tool to install the openpyxl package.\n"
            ),
            "openpyxl",
        ),
        (
            f"{TRACEBACK}ImportError: Import openpyxl failed. Use pip or conda to install openpyxl.\n",
            "openpyxl",
        ),
        (f"{TRACEBACK}ImportError: lxml not found, please install or use the etree parser.\n", "lxml"),
        (
            f'{TRACEBACK}ImportError: matplotlib is required for plotting when the default backend "matplotlib" is selected.\n',
            "matplotlib",
        ),
        (
            f"{TRACEBACK}ImportError: Using a URI string requires 'sqlalchemy' version '2.0.42' or newer.\n",
            "sqlalchemy",
        ),
        (
            (
                f"{TRACEBACK}ModuleNotFoundError: Excel export requires 'xlsxwriter' not found.\nPlease install using the "
                "command `pip install xlsxwriter`.\n"
            ),
            "xlsxwriter",
        ),
        (
            (
                f"{TRACEBACK}ImportError: Unable to find a usable engine; tried using: 'pyarrow', 'fastparquet'.\nA suitable "
                "version of pyarrow or fastparquet is required for parquet support.\nTrying to import the above resulted in "
                "these errors:\n - `Import pyarrow` failed. pyarrow is required for parquet support.\n - `Import fastparquet` "
                "failed. fastparquet is required for parquet support.\n"
            ),
            "pyarrow",
        ),
        (f"{TRACEBACK}ImportError: cannot import name 'x' from 'pandas'\n", None),
        (f"{TRACEBACK}ValueError: Missing optional dependency 'openpyxl'.\n", None),
        (f"{TRACEBACK}ModuleNotFoundError: No module named 'os.nothing'; 'os' is not a package\n", None),
        ("ModuleNotFoundError: No module named 'pandas'\nand then something else\n", None),
        ("ModuleNotFoundError: No module named '\x1b[2J'\n", None),
        ("ModuleNotFoundError: No module named 'ev1l; rm -rf'\n", None),
        (f"ModuleNotFoundError: No module named '{'x' * 101}'\n", None),
        ("", None),
    ],
)
def test_the_last_error_tells(output: str, module: str | None):
    assert missing_module(output) == module


@pytest.mark.parametrize(
    ("module", "package"),
    [
        ("pandas", "pandas"),
        ("sklearn", "scikit-learn"),
        ("PIL", "pillow"),
        ("cv2", "opencv-python-headless"),
        ("yaml", "pyyaml"),
        ("bs4", "beautifulsoup4"),
    ],
)
def test_the_package_is_named_that_has_a_well_known_module(module: str, package: str):
    assert advice(module).startswith(
        f"`--package {package}` on the command line, `packages: [{package}]` in "
    )


def test_no_package_is_named_that_code_may_have_made_up():
    assert "beautifulsop4" not in advice("beautifulsop4")


def test_a_model_reads_what_it_can_do():
    assert "no network" in remark("pandas", has_network=False)
    assert "no network" not in remark("pandas", has_network=True)
