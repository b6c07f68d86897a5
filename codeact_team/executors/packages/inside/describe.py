"""Runs inside a sandbox: what its Python is, and which packages it has, as one line of JSON."""

import json
import platform
import sys
import sysconfig
from importlib.metadata import distributions


def _describe() -> None:
    described = {
        "implementation": sys.implementation.name,
        "version": platform.python_version(),
        "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        "machine": platform.machine(),
        "libc": list(platform.libc_ver()),
        "soabi": sysconfig.get_config_var("SOABI") or "",
        "cache_tag": sys.implementation.cache_tag or "",
        "packages": sorted({(one.metadata["Name"] or "", one.version or "") for one in distributions()}),
    }
    sys.stdout.write(json.dumps(described))


_describe()
