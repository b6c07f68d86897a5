from __future__ import annotations

import pytest
from support.interpreter import RunningInterpreter


@pytest.mark.parametrize(
    ("value", "kind", "size", "preview"),
    [
        ("None", "NoneType", None, "None"),
        ("True", "bool", None, "True"),
        ("42", "int", None, "42"),
        ("2 ** 100_000", "int", None, "<an integer of 100001 bits>"),
        ("-2.5", "float", None, "-2.5"),
        ("1j", "complex", None, "1j"),
        ("'a\\n'", "str", "2 characters", "'a\\n'"),
        ("'\\ud800'", "str", "1 character", "'\\ud800'"),
        ("b'\\xff'", "bytes", "1 byte", "b'\\xff'"),
        ("[]", "list", "0 items", "[]"),
        ("[1, 'a', None]", "list", "3 items", "[1, 'a', None]"),
        ("(1,)", "tuple", "1 item", "(1,)"),
        ("{'a': [1, 2]}", "dict", "1 item", "{'a': [1, 2]}"),
        ("{3}", "set", "1 item", "{3}"),
        ("set()", "set", "0 items", "set()"),
        ("frozenset({3})", "frozenset", "1 item", "frozenset({3})"),
        ("[[[1]], {}]", "list", "2 items", "[[[…]], {}]"),
        ("[object(), 1]", "list", "2 items", "[<object>, 1]"),
        ("list(range(100))", "list", "100 items", "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, …]"),
        ("bytearray(3)", "bytearray", None, None),
        ("object()", "object", None, None),
        ("int", "type", None, None),
        ("__import__('os.path').path", "module", None, "posixpath"),
        ("lambda a, *, b=1: 0", "function", None, "<lambda>(a, *, b=1)"),
    ],
)
def test_a_name_is_told_with_what_it_stands_for(
    interpreter: RunningInterpreter, value: str, kind: str, size: str | None, preview: str | None
) -> None:
    described = interpreter.run(f"x = {value}").report["names"]
    assert described == [{"name": "x", "type": kind, "size": size, "preview": preview}]


@pytest.mark.parametrize(
    "signature",
    [
        "f()",
        "f(a)",
        "f(a, b=2)",
        "f(a, /, b, *, c, d='x')",
        "f(*args, **kwargs)",
        "f(a, *args, b, c=None, **kwargs)",
    ],
)
def test_a_function_is_told_with_its_signature(interpreter: RunningInterpreter, signature: str) -> None:
    assert interpreter.run(f"def {signature}: pass").names["f"]["preview"] == signature


def test_a_preview_is_short(interpreter: RunningInterpreter) -> None:
    names = interpreter.run(
        "text = 'x' * 10**7\nitems = ['x' * 100] * 1000\nbig = {n: 'x' * n for n in range(99)}"
    ).names
    for described in names.values():
        preview = described["preview"]
        assert preview is not None
        assert len(preview) == 80
        assert preview.endswith("…")


def test_names_are_told_when_bound_and_when_bound_anew(interpreter: RunningInterpreter) -> None:
    assert list(interpreter.run("a = [1]\nb = 2\n_hidden = 3").names) == ["a", "b"]
    assert list(interpreter.run("a.append(2)\nprint(a, b)").names) == []
    assert list(interpreter.run("a = [3]").names) == ["a"]
    assert list(interpreter.run("b += 1").names) == ["b"]
    assert list(interpreter.run("del b\nif False:\n    a = 1").names) == []


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("import os, json as j", ["os", "j"]),
        ("from math import pi, tau as t", ["pi", "t"]),
        ("for i in range(2):\n    last = i", ["i", "last"]),
        ("with open('/dev/null') as f:\n    pass", ["f"]),
        ("[y for y in range(3)]", []),
        ("if (n := 3): pass", ["n"]),
        ("class A:\n    inner = 1", ["A"]),
        ("def f():\n    global g\n    g = 1\n    local = 2\nf()", ["f", "g"]),
        ("exec('made = 1')", ["made"]),
        ("globals()['made'] = 1\nglobals()['_made'] = 2\nglobals()[3] = 3", ["made"]),
        ("before = 1\n1 / 0\nafter = 2", ["before"]),
        ("import asyncio\nx = await asyncio.sleep(0, 5)", ["asyncio", "x"]),
        ("old = 2\ndel old\nexec('new = 1')", ["new"]),
        ("try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    pass", []),
    ],
)
def test_names_are_found_however_they_are_bound(
    interpreter: RunningInterpreter, code: str, names: list[str]
) -> None:
    interpreter.run("old = 1")
    assert list(interpreter.run(code).names) == names


def test_a_function_of_an_earlier_block_binds_names(interpreter: RunningInterpreter) -> None:
    interpreter.run("def f(name):\n    globals()[name] = 1\ndef drop():\n    global z\n    del z\nz = 1")
    assert list(interpreter.run("f('a')\nf('b')").names) == ["a", "b"]
    # what came last before the block is gone after it
    assert interpreter.run("for _name in ('a', 'b', 'z'):\n    globals().pop(_name)").exit_code == 0


def test_of_many_names_some_are_told(interpreter: RunningInterpreter) -> None:
    ran = interpreter.run("from os import *\nfor _n in range(50): globals()[f'name{_n}'] = _n")
    assert len(ran.names) == 20
    assert ran.report["omitted_names"] > 50


def test_no_code_of_the_values_runs(interpreter: RunningInterpreter) -> None:
    ran = interpreter.run(
        "class Meta(type):\n    __name__ = property(lambda self: 1 / 0)\n"
        "class Hostile(metaclass=Meta):\n    __module__ = 'numpy'\n"
        "    def __getattribute__(self, name): raise SystemExit(name)\n"
        "    __repr__ = __len__ = __iter__ = __eq__ = __hash__ = __bool__ = __class__ = lambda self: exit(9)\n"
        "class Text(str):\n    __len__ = __getitem__ = __repr__ = lambda *args: exit(9)\n"
        "class Items(list):\n    __len__ = __iter__ = __repr__ = lambda *args: exit(9)\n"
        "class Table(dict):\n    get = __iter__ = __contains__ = lambda *args: exit(9)\n"
        "x, text, items = Hostile(), Text('a'), Items([1])\nholder = [x, text, items, {1: x}]\n"
        "def f(a=1, *, b=2): pass\nf.__kwdefaults__ = Table(b=x)\nf.__name__ = Text('g')\nf.__doc__ = x"
    )
    assert ran.exit_code == 0
    assert ran.names["x"] == {"name": "x", "type": "Hostile", "size": None, "preview": None}
    assert ran.names["text"] == {"name": "text", "type": "Text", "size": None, "preview": None}
    assert ran.names["holder"]["preview"] == "[<Hostile>, <Text>, <Items>, {1: <Hostile>}]"
    assert ran.names["f"]["preview"] is None


def test_long_names_are_cut(interpreter: RunningInterpreter) -> None:
    (described,) = interpreter.run("globals()['x' * 5000] = type('T' * 5000, (), {})()").report["names"]
    assert (described["name"], described["type"]) == ("x" * 100, "T" * 100)


def test_a_replaced_value_is_not_kept_alive(interpreter: RunningInterpreter) -> None:
    interpreter.run("class A:\n    def __del__(self): print('gone')\na = A()")
    assert interpreter.run("a = None\nprint('after')").output == "gone\nafter\n"


def test_values_of_libraries_that_are_known_are_told_with_their_shape(
    interpreter: RunningInterpreter,
) -> None:
    code = (
        "import sys, types\nclass Array:\n    __module__ = 'numpy'\n    def __init__(self, *shape): self.shape = shape\n"
        "    def __repr__(self): exit(9)\n"
        "sys.modules['numpy'] = types.ModuleType('numpy')\n"
        "sys.modules['numpy'].Array = Array\n"
        "class Other:\n    __module__, shape = 'elsewhere', (1,)\n"
        "a, v, s, odd, other = Array(3, 4), Array(5), Array(), Array('x'), Other()\n"
        "odd_shape = Array()\nodd_shape.shape = 7\nbroken = Array()\ndel broken.shape"
    )
    names = interpreter.run(code).names
    told = {name: names[name]["size"] for name in ("a", "v", "s", "odd", "other", "odd_shape", "broken")}
    assert told == {
        **{"a": "(3, 4)", "v": "(5,)"},
        **dict.fromkeys(("s", "odd", "other", "odd_shape", "broken")),
    }
    # one that only claims to be from there
    interpreter.run("del sys.modules['numpy']")
    assert interpreter.run("b = Array(3, 4)").names["b"]["size"] is None


@pytest.mark.long
def test_arrays_and_tables_are_told_with_their_shape(interpreter: RunningInterpreter) -> None:
    pytest.importorskip("pandas")
    names = interpreter.run(
        "import numpy as np, pandas as pd\na = np.zeros((3, 4))\nv = np.zeros(5)\ns = np.float64(2)\n"
        "d = pd.DataFrame({'x': [1, 2], 'y': [3, 4]})\nc = d['x']"
    ).names
    told = {
        name: (described["type"], described["size"], described["preview"])
        for name, described in names.items()
    }
    assert told == {
        "np": ("module", None, "numpy"),
        "pd": ("module", None, "pandas"),
        "a": ("ndarray", "(3, 4)", None),
        "v": ("ndarray", "(5,)", None),
        "s": ("float64", None, None),
        "d": ("DataFrame", "(2, 2)", None),
        "c": ("Series", "(2,)", None),
    }


def test_a_thread_may_bind_names_meanwhile(interpreter: RunningInterpreter) -> None:
    interpreter.run(
        "import threading\nstop = False\ndef bind():\n    n = 0\n    while not stop:\n        n += 1\n"
        "        globals()[f'n{n % 50}'] = {k: k for k in range(n % 20)}\n        globals().pop(f'n{(n + 7) % 50}', None)\n"
        "thread = threading.Thread(target=bind)\nthread.start()"
    )
    for _ in range(100):
        assert interpreter.run("x = [1]").exit_code == 0
    assert interpreter.run("stop = True\nthread.join()\n'done'").output == "'done'\n"
