"""Runs inside a sandbox: puts a layer's packages behind the standard library, and before the packages of the sandbox's own Python.

Python imports this module at its start because ``PYTHONPATH`` names the directory it is in. The packages themselves are
not named there: they would come before the standard library.
"""

import os
import site
import sys


def _put_packages_on_the_path() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    packages = os.path.join(os.path.dirname(here), "site-packages")
    sys.path[:] = [entry for entry in sys.path if entry != here]
    others = (place for place, entry in enumerate(sys.path) if entry.endswith("-packages"))
    sys.path.insert(next(others, len(sys.path)), packages)
    site.addsitedir(packages, {packages})


def _import_the_one_behind() -> None:
    """Import the ``sitecustomize`` that Python would have imported without this one."""
    this = sys.modules.pop(__name__)
    try:
        import sitecustomize  # pyright: ignore[reportUnusedImport]  # noqa: F401
    except ModuleNotFoundError:
        sys.modules[__name__] = this


_put_packages_on_the_path()
_import_the_one_behind()
