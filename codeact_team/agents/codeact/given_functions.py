"""Python functions given to the code that an agent writes: their source for the interpreter, a stub for the model."""

from __future__ import annotations

import ast
import builtins
import dis
import inspect
import keyword
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from textwrap import dedent, indent
from types import CodeType, FunctionType
from typing import Annotated, Any, TypeAlias

from autogen_core.code_executor import FunctionWithRequirements, FunctionWithRequirementsStr
from pydantic import AfterValidator

from codeact_team.autogen_internals import import_to_str
from codeact_team.errors import ConfigError, SettingError
from codeact_team.providers import resolve_function

Function: TypeAlias = (
    FunctionWithRequirements[Any, ...] | FunctionWithRequirementsStr | Callable[..., Any] | str
)
"""A function whose source is shipped, or the import path ``module:function`` of one that the image has."""

# annotations may name what the interpreter does not know
_LAZY_ANNOTATIONS = "from __future__ import annotations\n"
_RESERVED = frozenset({"final_answer"})


@dataclass(frozen=True)
class GivenFunction:
    """A function as the code gets it."""

    name: str
    setup: str
    """The code that defines it in an interpreter."""
    stub: str
    """Its signature and docstring."""
    needs: frozenset[str] = frozenset()
    """Names of the module it comes from, on this machine, that the interpreter would lack."""
    path: str | None = None
    """Its import path, if that is how it was given."""


def check_import_path(path: str) -> str:
    """Check that the path of a function in the image is like ``package.module:function``; nothing is imported."""
    module, colon, name = path.partition(":")
    names = [*module.split("."), name]
    if not colon or not all(part.isidentifier() and not keyword.iskeyword(part) for part in names):
        raise SettingError(f"functions: {path!r} is not an import path such as 'package.module:function'")
    return path


ImportPath = Annotated[str, AfterValidator(check_import_path)]
"""A config field for a function that the image has."""


def read_functions(functions: Sequence[Function]) -> list[GivenFunction]:
    """Make what the interpreter and the model need of each function.

    Raises:
        SettingError: If one cannot be shipped, or two have the same name.
    """
    given = [_read(function) for function in functions]
    names = [function.name for function in given]
    for name in names:
        if name in _RESERVED or names.count(name) > 1:
            raise SettingError(f"functions: there would be two functions {name!r}; give one another name")
    for function in given:
        if missing := sorted(function.needs - set(names)):
            raise SettingError(
                f"functions: {function.name!r} uses {', '.join(missing)} of its module, which the interpreter does not "
                "have: import or define that inside the function, give it as a function as well, or name its import "
                "in with_requirements(global_imports=...)"
            )
    return given


def import_paths(functions: Sequence[GivenFunction]) -> list[str]:
    """The functions for a config.

    Raises:
        SettingError: If one has no form there.
    """
    for function in functions:
        if function.path is None:
            raise SettingError(
                f"functions: {function.name!r} is a live function and cannot be dumped: put it into a module that the "
                "image has, and give its import path, `module:function`"
            )
    return [function.path for function in functions if function.path is not None]


def describe_functions(functions: Sequence[GivenFunction]) -> str:
    """The functions as a prompt shows them."""
    stubs = "\n\n".join(function.stub for function in functions)
    return f"These functions are defined already; call them as they are:\n```python\n{stubs}\n```"


def _read(function: Function) -> GivenFunction:
    if isinstance(function, str):
        return _imported(check_import_path(function))
    if not isinstance(function, FunctionWithRequirements | FunctionWithRequirementsStr):
        return _shipped(_source(function), origin=function)
    imports = "".join(f"{import_to_str(item)}\n" for item in function.global_imports)
    if isinstance(function, FunctionWithRequirements):
        source, origin = _source(function.func), function.func
    else:
        source, origin = function.func, None
    given = _shipped(source, origin=origin, imports=imports)
    if function.python_packages:
        raise SettingError(
            f"functions: {given.name!r} asks for the packages {', '.join(function.python_packages)}, which are not "
            "installed from here: use an image that has them, and leave python_packages empty"
        )
    return given


def _imported(path: str) -> GivenFunction:
    module, _, name = path.partition(":")
    stub = f"def {name}(*args, **kwargs):\n    ...  # of {module}: help({name}) tells more"
    try:
        # this machine may not have what the image has, or may not be allowed to import it
        found = resolve_function(path)
        stub = _stub(f"def {name}{inspect.signature(found)}:", inspect.getdoc(found))
    except (ConfigError, ValueError):
        pass
    return GivenFunction(name, f"from {module} import {name}", stub, path=path)


def _shipped(source: str, *, origin: Callable[..., Any] | None, imports: str = "") -> GivenFunction:
    node, text = _definition(source, origin)
    setup = f"{_LAZY_ANNOTATIONS}{imports}{text}\n"
    needs: frozenset[str] = frozenset()
    if isinstance(origin, FunctionType):
        known = origin.__globals__.keys() - vars(builtins).keys()
        needs = frozenset(_free_names(compile(setup, f"<{node.name}>", "exec", dont_inherit=True)) & known)
    prefix = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    returns = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
    head = f"{prefix} {node.name}({ast.unparse(node.args)}){returns}:"
    return GivenFunction(node.name, setup, _stub(head, ast.get_docstring(node)), needs)


def _source(function: object) -> str:
    name = getattr(function, "__qualname__", None) or repr(function)
    if not isinstance(function, FunctionType):
        raise SettingError(
            f"functions: {name} is a {type(function).__name__}; what can be given is a function written with 'def', or "
            "the import path of one, `module:function`"
        )
    scope = function.__qualname__.rpartition(".")[0]
    if scope and not scope.endswith("<locals>"):
        raise SettingError(
            f"functions: {name} is a method; write a function that calls it in the interpreter"
        )
    if function.__name__ == "<lambda>":
        raise SettingError(f"functions: {name} is a lambda, which has no name; write it with 'def'")
    if variables := function.__code__.co_freevars:
        raise SettingError(
            f"functions: {name} uses {', '.join(variables)} of the function around it, which the interpreter does not "
            "have; pass that as an argument"
        )
    try:
        return dedent(inspect.getsource(function))
    except OSError as error:
        raise SettingError(f"functions: the source of {name} cannot be found: {error}") from error


def _definition(
    source: str, origin: Callable[..., Any] | None
) -> tuple[ast.FunctionDef | ast.AsyncFunctionDef, str]:
    """The function in ``source``, and its text; without decorators where it is a live function's."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise SettingError(f"functions: the source of a function cannot be read: {error}") from error
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = source.splitlines(keepends=True)[node.lineno - 1 : node.end_lineno]
            return node, source if origin is None else "".join(lines)
    raise SettingError(f"functions: there is no function at the top of {source[:80]!r}")


def _free_names(module: CodeType) -> set[str]:
    """The global names that the code of a module uses and does not bind itself."""
    used: set[str] = set()
    for code in _nested(module):
        # the body of a class binds names of its own
        used |= _names(code, "LOAD_NAME", "LOAD_GLOBAL") - _names(code, "STORE_NAME")
    return used - _names(module, "STORE_NAME")


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _names(code: CodeType, *operations: str) -> set[str]:
    return {step.argval for step in dis.get_instructions(code) if step.opname in operations}


def _stub(head: str, doc: str | None) -> str:
    if not doc:
        return f"{head}\n    ..."
    return f"{head}\n" + indent(f'"""{doc}"""', "    ")
