"""Ships the runner into a sandbox over the stream: as code for a Python of this one's version, and as source for others."""

from __future__ import annotations

import marshal
from contextlib import suppress
from functools import cache
from importlib import resources
from importlib.machinery import SourceFileLoader
from importlib.resources.abc import Traversable
from importlib.util import MAGIC_NUMBER, find_spec
from pathlib import Path
from types import CodeType

from codeact_team.sandbox.base import ZygoteProgram
from codeact_team.session.protocol import LAUNCHER, ONLY_PROCESSES, PLAIN

_PACKAGE = __name__.rpartition(".")[0]
_SYSTEM, _NETWORK = "codeact_team.sandbox.system", "codeact_team.network.inside"
_SHARED = ("codeact_team.files.trees", "codeact_team.text.magics")
"""Modules of the host that run inside, too."""
_RUNNER = f"{_PACKAGE}.runner"
_BOOTSTRAP = f"{_RUNNER}.bootstrap"
_SUPERVISOR, _INTERPRETER = f"{_RUNNER}.supervisor.supervisor", f"{_RUNNER}.interpreter.interpreter"

_PLAIN, _PLAIN_ARGUMENTS = f"{_SUPERVISOR},{_INTERPRETER}", (PLAIN,)
"""The modules to load, and the arguments, if the first interpreter can be a fork of the supervisor."""

_STANDARD = """
__future__ _weakrefset base64 collections collections.abc contextlib copyreg ctypes ctypes._endian enum
functools importlib json json.decoder json.encoder json.scanner keyword linecache operator re re._casefix re._compiler
re._constants re._parser reprlib signal struct textwrap threading token tokenize traceback types typing warnings
""".split()
"""Modules of the standard library that the runner loads at its start. They are shipped as well, because a confined Python
opens files slowly."""

_MARSHAL_VERSION = 2
"""A version that any Python reads."""

_Source = tuple[str, bool, str | bytes]


def payload(*, plain: bool = False, only_processes: bool = False) -> bytes:
    """The first input of a Python that becomes a supervisor: its program, for :data:`RECEIVER`, and what that reads.

    Args:
        plain: Whether its forks can become interpreters; see :attr:`Sandbox.python_is_plain`.
        only_processes: Whether it has no interpreter.
    """
    source, modules = _bootstrap().encode(), _modules_inside(plain=plain)
    arguments = (ONLY_PROCESSES,) if only_processes else ()
    names = (_PLAIN, *_PLAIN_ARGUMENTS) if plain else (_SUPERVISOR, *arguments)
    argv = ["-c", "0", str(len(source)), str(len(modules)), *names]
    program = f"import sys\nsys.argv[:] = {argv!r}\n{LAUNCHER}".encode()
    return b"%d\n" % len(program) + program + source + modules


@cache
def _modules_inside(*, plain: bool) -> bytes:
    """All modules that run inside, in the form that ``runner/bootstrap.py`` reads."""
    root = resources.files(_PACKAGE)
    files = {
        f"{_PACKAGE}.protocol": root / "protocol.py",
        **_modules(root / "runner", _RUNNER),
        **_modules(resources.files(_SYSTEM), _SYSTEM),
        **_modules(resources.files(_NETWORK), _NETWORK),
        **{name: _file(name) for name in _SHARED},
    }
    packages = {name.rpartition(".")[0] for name in files}
    # their content is for the host only
    empty: dict[str, _Source] = {
        name: (_origin(name), True, "")
        for name in (
            "codeact_team",
            _PACKAGE,
            *(name.rpartition(".")[0] for name in (_SYSTEM, _NETWORK, *_SHARED)),
        )
    }

    def shipped(*, as_code: bool) -> dict[str, _Source]:
        # the bootstrap is an argument of a program
        return empty | {
            name: (
                _origin(name),
                name in packages,
                marshal.dumps(_code(name, file)) if as_code and name != _BOOTSTRAP else file.read_text(),
            )
            for name, file in files.items()
        }

    compiled = shipped(as_code=True)
    others, standard = ({}, _standard()) if plain else (shipped(as_code=False), {})
    return marshal.dumps((MAGIC_NUMBER, compiled, others, standard), _MARSHAL_VERSION)


def _modules(directory: Traversable, package: str) -> dict[str, Traversable]:
    files: dict[str, Traversable] = {}
    for entry in directory.iterdir():
        if entry.is_dir():
            files |= _modules(entry, f"{package}.{entry.name}")
        elif entry.name == "__init__.py":
            files[package] = entry
        elif entry.name.endswith(".py"):
            files[f"{package}.{entry.name.removesuffix('.py')}"] = entry
    return files


def _file(name: str) -> Traversable:
    *packages, module = name.split(".")
    return resources.files(".".join(packages)) / f"{module}.py"


def _origin(name: str) -> str:
    return f"<{name}>"


def _code(name: str, file: Traversable) -> CodeType:
    """The code of a module, without its path on the host."""
    # Python may have cached it; compiling it takes longer than the rest of a start
    code = SourceFileLoader(name, str(file)).get_code(name) if isinstance(file, Path) else None
    return _moved(code or compile(file.read_text(), "", "exec", dont_inherit=True), _origin(name))


def _moved(code: CodeType, origin: str) -> CodeType:
    constants = (_moved(each, origin) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.replace(co_filename=origin, co_consts=(*constants,))


def _standard() -> dict[str, _Source]:
    found: dict[str, _Source] = {}
    for name in _STANDARD:
        # other versions have other modules
        with suppress(ImportError):
            spec = find_spec(name)
            if spec is not None and isinstance(spec.loader, SourceFileLoader) and spec.origin is not None:
                code = marshal.dumps(spec.loader.get_code(name))
                found[name] = (spec.origin, spec.submodule_search_locations is not None, code)
    return found


@cache
def zygote_program() -> ZygoteProgram:
    """The supervisor, for a sandbox whose Python is plain."""
    return ZygoteProgram(_bootstrap(), _modules_inside(plain=True), _PLAIN, _PLAIN_ARGUMENTS)


@cache
def _bootstrap() -> str:
    return (resources.files(_PACKAGE) / "runner" / "bootstrap.py").read_text()
