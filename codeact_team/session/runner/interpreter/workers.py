"""What blocks have defined, for worker processes of ``multiprocessing`` that are not forks of the session.

Such a worker begins with an empty ``__main__``. What is pickled for it carries the definitions that it needs. The session and
its workers load this module, each into ``sys.modules``, where pickles find its functions.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import linecache
import marshal
import os
import pickle
import sys
from contextlib import suppress
from functools import lru_cache, wraps
from io import BytesIO
from multiprocessing import reduction, spawn, util
from types import CellType, CodeType, FunctionType, ModuleType
from typing import NamedTuple
from weakref import WeakKeyDictionary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

# what is private there is unknown to type checkers
context: Any = sys.modules["multiprocessing.context"]
process: Any = sys.modules["multiprocessing.process"]

_MAIN = "__main__"
_BLOCK = "<block "
_MAX_SOURCE = 20_000
"""Characters of the longest definition whose lines a traceback in a worker shows."""

_MAX_MAGICS = 50
"""Lines of a block that are no Python, after which no definition is looked for in it."""

_NOT_SENT = (
    "it cannot be sent to a process that was started by spawn or forkserver ({}). Make it in that process, for "
    "example in the initializer of a pool, or use multiprocessing.get_context('fork')"
)
_NO_TOOLS = "tools can be called in the session's own process only: call it there, and pass what it returns"
_NOT_COME = (
    "its definition was not sent to this process: multiprocessing pickled it before it started a process by spawn "
    "or forkserver, or something else pickled it. Call multiprocessing.set_start_method first, or use "
    "multiprocessing.get_context('fork')"
)

_Entry = tuple[str, int, "bytes | _File | str"]
"""A name of ``__main__``, a number for its content, and its pickle, a file with that, or why there is none."""

_LARGE = 1 << 20
"""Bytes of a pickle that is not sent with each task, but once, as a file."""


def _namespace() -> dict[str, Any]:
    return sys.modules[_MAIN].__dict__


# In the process that sends


class _Preparation:
    """Loads this module in the worker that unpickles it, before anything else."""

    def __reduce__(self) -> tuple[Any, ...]:
        given = {"name": __name__, "code": _installed.code, "has_tools": _has_tools(sys.modules.get("tools"))}
        return exec, (_BOOT, given)


_BOOT = """
import marshal, sys
module = sys.modules[name] = type(sys)(name)
exec(marshal.loads(code), module.__dict__)
module.begin_worker(code, has_tools)
"""


class _Installed:
    code = b""
    """This module, by :func:`marshal.dumps`."""
    in_session = True
    """Whether this is the session's process, or a fork of it: its names are never defined anew."""


_installed = _Installed()


def install(code: bytes) -> None:
    """Let processes that are started from here find the definitions. ``code`` is this module, by :func:`marshal.dumps`."""
    _installed.code = code
    prepare = spawn.get_preparation_data

    @wraps(prepare)
    def with_definitions(name: str) -> dict[str, Any]:
        # a new worker gets what is there now
        _large.clear()
        if (pool := sys.modules.get("joblib.pool")) is not None:
            # joblib's backend "multiprocessing" has a pickler of its own
            pool.CustomizablePickler.reducer_override = _reduced
        return {**prepare(name), "definitions": _Preparation()}

    spawn.get_preparation_data = with_definitions
    reduction.ForkingPickler.reducer_override = _reduced


def _reduced(pickler: Any, value: Any) -> Any:
    """Reduce what pickle would only name, or refuse; the ``reducer_override`` of multiprocessing's pickler."""
    kind = _type_of(value)
    is_named = kind is FunctionType or kind is _CACHED or issubclass(kind, type)
    if is_named or (kind.__module__ == "typing" and kind.__name__ in _OF_TYPING):
        if getattr(value, "__module__", None) != _MAIN or not _crosses():
            return NotImplemented
        return _defined(pickler, value)
    if kind.__module__ == _TOOLS or _has_tools(value):
        raise pickle.PicklingError(_NO_TOOLS)
    if kind is ModuleType:
        name = value.__name__
        known = sys.modules.get(name) is value and name != _MAIN
        return (importlib.import_module, (name,)) if known else NotImplemented
    if kind is CellType:
        # the function that has it fills it
        return make_cell, ()
    return NotImplemented


_type_of: Callable[[object], type[Any]] = type
_CACHED = type(lru_cache(int))
_TOOLS = "codeact_team.session.runner.interpreter.tools_module"


_OF_TYPING = ("NewType", "ParamSpec", "TypeVar", "TypeVarTuple")


def _has_tools(value: Any) -> bool:
    """Whether it is the module ``tools`` of the session, or one below it, and none of a file."""
    return (
        type(value) is ModuleType and value.__name__.partition(".")[0] == "tools" and value.__spec__ is None
    )


def _crosses() -> bool:
    """Whether a process that is no fork may read what is pickled."""
    if context.get_spawning_popen() is not None:
        return True
    if any(getattr(child._popen, "method", "fork") != "fork" for child in [*process._children]):
        return True
    default = context._default_context
    method = default.get_start_method(allow_none=True) or default.get_all_start_methods()[0]
    return _installed.in_session and method != "fork"


class _EntryPickler(reduction.ForkingPickler):
    """Pickles the value of one name, with references to other names."""

    def __init__(self, file: BytesIO, root: object) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.root = root
        self.needed: set[str] = set()


def _defined(pickler: Any, value: Any) -> Any:
    path = _path_of(value)
    inner = pickler if isinstance(pickler, _EntryPickler) else None
    if path is not None and (inner is None or value is not inner.root):
        top = path.partition(".")[0]
        if inner is None:
            return named, (path, _bundle([top]))
        inner.needed.add(top)
        return reference, (path,)
    if type(value) is not FunctionType:
        return NotImplemented if path is None else _statement(value, inner)
    if value.__globals__ is not _namespace():
        return NotImplemented
    names = _names_in(value.__code__)
    if inner is None:
        return _function(value, _bundle(names))
    inner.needed.update(names)
    return _function(value, ())


def _path_of(value: Any) -> str | None:
    """The qualified name of a value by which it is found in ``__main__``, or ``None``."""
    path = _name_of(value)
    first, *others = path.split(".")
    found = _namespace().get(first)
    for name in others:
        found = getattr(found, name, None)
    return path if found is value else None


def _name_of(value: Any) -> str:
    return getattr(value, "__qualname__", None) or value.__name__


def _bundle(names: Iterable[str]) -> tuple[_Entry, ...]:
    """Entries for names, and for all names that these need, in the order in which they were bound first."""
    namespace, entries, waiting = _namespace(), dict[str, _Entry](), [*names]
    while waiting:
        name = waiting.pop()
        # otherwise it is a builtin, or missing here as well
        if name not in entries and name in namespace:
            entries[name], needed = _entry(name, namespace[name])
            waiting += needed
    if len(entries) < 2:
        return (*entries.values(),)
    return tuple(entries[name] for name in [*namespace] if name in entries)


class _File(NamedTuple):
    path: str


_large: dict[str, tuple[object, _Entry, Iterable[str]]] = {}
"""The last value of a name whose pickle is large, its entry, and what that needs."""


def _entry(name: str, value: object) -> tuple[_Entry, Iterable[str]]:
    last = _large.pop(name, None)
    if last is not None and last[0] is value:
        _large[name] = last
        return last[1:]
    data, needed = _pickled(value)
    entry = (name, hash(data), data)
    # what is pickled for the start of a process may be for that alone
    if isinstance(data, str) or len(data) < _LARGE or context.get_spawning_popen() is not None:
        return entry, needed
    file = _File(os.path.join(util.get_temp_dir(), f"{name}{hash(data)}"))
    try:
        with open(file.path, "wb") as target:
            target.write(data)
    except OSError:
        # there is no space
        return entry, needed
    entry = (name, hash(data), file)
    _large[name] = value, entry, needed
    return entry, needed


def _pickled(value: object) -> tuple[bytes | str, Iterable[str]]:
    file = BytesIO()
    pickler = _EntryPickler(file, value)
    try:
        pickler.dump(value)
    except Exception as error:
        said = str(error)
        return said if said == _NO_TOOLS else _NOT_SENT.format(f"{type(error).__name__}: {said}"), ()
    return file.getvalue(), pickler.needed


def _function(function: FunctionType, entries: tuple[_Entry, ...]) -> tuple[Any, ...]:
    code = function.__code__
    cells = function.__closure__ or ()
    source = _source(code.co_filename, code.co_firstlineno, _last_line(code))
    made = (
        _marshalled(code, code.co_filename),
        function.__name__,
        function.__qualname__,
        cells,
        source,
        entries,
    )
    state = {
        "__defaults__": function.__defaults__,
        "__kwdefaults__": function.__kwdefaults__,
        "__doc__": function.__doc__,
        "__dict__": function.__dict__,
    }
    return make_function, made, (state, [*map(_content, cells)]), None, None, fill_function


def _content(cell: CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


@lru_cache(1000)
def _marshalled(code: CodeType, file: str) -> bytes:
    """The bytes of code of a file: the same each time, which marshal does not promise."""
    # equal code may be of another file
    return marshal.dumps(code)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


@lru_cache(1000)
def _last_line(code: CodeType) -> int:
    return max(line or 0 for each in _codes(code) for _, _, line in each.co_lines())


@lru_cache(1000)
def _names_in(code: CodeType) -> frozenset[str]:
    """The names that code and what it defines look up among the globals."""
    from dis import get_instructions

    return frozenset(
        instruction.argval
        for each in _codes(code)
        for instruction in get_instructions(each)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
    )


_statements: WeakKeyDictionary[Any, tuple[CodeType, tuple[str, int, str]]] = WeakKeyDictionary()
"""The statement that defines a class, and the last part of the arguments of :func:`run_statement`."""


def _statement(value: Any, inner: _EntryPickler | None) -> tuple[Any, ...]:
    name = _name_of(value)
    if (statement := _statements.get(value) or _found(name)) is None:
        if hasattr(value, "_fields") and issubclass(value, tuple):
            return _named_tuple(value)
        raise pickle.PicklingError(
            f"no block that defines {name} by a statement is known: write it into a module of the workspace"
        )
    _statements[value] = code, source = statement
    assert inner is not None, "only the value of a name is sent as its statement"
    inner.needed.update(_names_in(code))
    return run_statement, (name, _marshalled(code, code.co_filename), source)


def _named_tuple(value: Any) -> tuple[Any, ...]:
    from collections import namedtuple
    from functools import partial

    defaults = [*value._field_defaults.values()]
    return partial(namedtuple, defaults=defaults, module=_MAIN), (value.__name__, value._fields)


def _found(name: str) -> tuple[CodeType, tuple[str, int, str]] | None:
    """The newest statement of a block that defines a name, and its source."""
    for block in [*reversed([*linecache.cache])]:
        if not block.startswith(_BLOCK) or name not in (text := "".join(linecache.getlines(block))):
            continue
        tree = _parsed(text)
        nodes = [node for node in _at_top(tree) if _defines(node, name)]
        # a definition before an assignment, which may only decorate it
        nodes.sort(key=lambda node: not isinstance(node, ast.Assign))
        if nodes:
            node: Any = nodes[-1]
            first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
            futures = [
                each for each in tree.body if isinstance(each, ast.ImportFrom) and each.module == "__future__"
            ]
            code = compile(ast.Module([*futures, node], []), block, "exec", dont_inherit=True)
            return code, _source(block, first, node.end_lineno)
    return None


def _parsed(text: str) -> ast.Module:
    lines = text.split("\n")
    for _ in range(_MAX_MAGICS):
        try:
            return ast.parse("\n".join(lines))
        except SyntaxError as error:
            # a magic is a statement that defines nothing
            line = lines[number := (error.lineno or 1) - 1]
            lines[number] = line[: len(line) - len(line.lstrip())] + "pass"
    return ast.Module([], [])


def _at_top(node: ast.AST) -> Iterator[ast.AST]:
    """The statements of a module that run when it runs."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.expr):
            yield from _at_top(child)


def _defines(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name == name
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
        return False
    return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)


def _source(file: str, first: int, last: int) -> tuple[str, int, str]:
    text = "".join(linecache.getlines(file)[first - 1 : last])
    return file, first, text if len(text) <= _MAX_SOURCE else ""


# In the process that receives


_tokens: dict[str, int] = {}
"""For each name that was received, the number of what it was last bound to."""

_pending: dict[str, bytes | _File | str] = {}
"""What was received and not yet bound."""


def begin_worker(code: bytes, has_tools: bool) -> None:
    """Give this worker process a ``__main__`` for the definitions. ``has_tools`` tells whether the session has tools."""
    _installed.in_session = False
    if has_tools:
        sys.modules["tools"] = _absent("tools", _NO_TOOLS)
    main = ModuleType(_MAIN)
    main.__dict__.update(__builtins__=builtins, __getattr__=_missing)
    # as multiprocessing does: functions of the old one may still run
    spawn.old_main_modules.append(sys.modules[_MAIN])
    sys.modules[_MAIN] = sys.modules["__mp_main__"] = main
    install(code)


def _missing(name: str) -> Any:
    """A stand-in for a name of ``__main__`` that a pickle mentions: to raise an error would end a pool's worker unheard."""
    if name.startswith("__"):
        raise AttributeError(name)
    return _absent(name, _NOT_COME)


def named(path: str, entries: tuple[_Entry, ...]) -> Any:
    """The value of a qualified name of ``__main__``, after the entries that it needs were received."""
    _receive(entries)
    return reference(path)


def reference(path: str) -> Any:
    """The value of a qualified name of ``__main__``."""
    first, *others = path.split(".")
    if first in _pending:
        _bind(first)
    value = _namespace().get(first, None)
    for name in others:
        value = getattr(value, name)
    return value


def _receive(entries: Iterable[_Entry]) -> None:
    namespace = _namespace()
    for name, token, data in entries:
        is_new = name not in namespace
        if _installed.in_session:
            if is_new:
                _pending[name] = data
        elif name in _tokens or is_new:
            if _tokens.get(name) != token:
                _pending[name] = data
        # otherwise it was bound here, for example by the initializer of a pool
        _tokens[name] = token
    for name, _, _ in entries:
        if name in _pending:
            _bind(name)


def _bind(name: str) -> None:
    data, namespace = _pending.pop(name), _namespace()
    if not isinstance(data, str):
        try:
            namespace[name] = pickle.loads(_content_of(data))
        except Exception as error:
            data = _NOT_SENT.format(f"{type(error).__name__}: {error}")
            namespace[name] = _absent(name, data)
    elif name not in namespace:
        namespace[name] = _absent(name, data)


def _content_of(data: bytes | _File) -> bytes:
    if isinstance(data, bytes):
        return data
    with open(data.path, "rb") as file:
        return file.read()


def make_cell() -> CellType:
    """An empty cell; :func:`fill_function` fills it."""
    return CellType()


def make_function(
    code: bytes,
    name: str,
    path: str,
    cells: tuple[CellType, ...],
    source: tuple[str, int, str],
    entries: tuple[_Entry, ...],
) -> FunctionType:
    """A function of ``__main__``; :func:`fill_function` completes it."""
    _receive(entries)
    _keep(*source)
    function = FunctionType(marshal.loads(code), _namespace(), name, None, cells)
    function.__qualname__ = path
    return function


def fill_function(function: FunctionType, state: tuple[dict[str, Any], list[tuple[Any, ...]]]) -> None:
    """Give a function its attributes, and the variables of the functions around it."""
    attributes, contents = state
    for name, value in attributes.items():
        setattr(function, name, value)
    for cell, content in zip(function.__closure__ or (), contents, strict=True):
        if content:
            (cell.cell_contents,) = content


def run_statement(name: str, code: bytes, source: tuple[str, int, str]) -> Any:
    """Run a statement of a block that defines a name, and return the value of that."""
    _keep(*source)
    statement, namespace = marshal.loads(code), _namespace()
    while True:
        try:
            exec(statement, namespace)
        except NameError as error:
            # a class whose base was bound anew comes before it
            if error.name not in _pending:
                raise
            _bind(error.name)
        else:
            break
    value = namespace[name]
    with suppress(TypeError):
        # whatever the statement has made of it
        _statements[value] = statement, source
    return value


def _keep(file: str, first: int, text: str) -> None:
    """Let tracebacks show lines of a block."""
    kept: Any = linecache.cache.get(file) or (0, None, [], file)
    lines: list[str] = kept[2]
    new = text.splitlines(keepends=True)
    lines += ["\n"] * (first - 1 + len(new) - len(lines))
    lines[first - 1 : first - 1 + len(new)] = new
    linecache.cache[file] = kept


class _AbsentType(type):
    """Of a class that stands for a value or a class that is not in this process. To use it in any way raises an error."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls.refuse()

    def refuse(cls, *arguments: Any, **named: Any) -> Any:
        raise RuntimeError(f"{cls.__name__}: {cls.__doc__}")


_USES = "add aenter aexit await bool call contains enter exit getitem iter len lt mul setitem".split()
for _use in _USES:
    setattr(_AbsentType, f"__{_use}__", _AbsentType.refuse)


def _absent(name: str, reason: str) -> Any:
    def of_instance(_: object, attribute: str) -> Any:
        return getattr(absent, attribute)

    absent = _AbsentType(name, (), {"__module__": _MAIN, "__doc__": reason, "__getattr__": of_instance})
    return absent
