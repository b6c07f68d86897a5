"""Worker processes that are not forks of the interpreter find what its blocks have defined."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.interpreter import RunningInterpreter
from support.variations import mostly_long

METHODS = mostly_long(["spawn", "forkserver"])

DEFINED = """
import collections, dataclasses, enum, functools, multiprocessing, typing
from concurrent.futures import ProcessPoolExecutor
context = multiprocessing.get_context({method!r})
factor = 3

class Colour(enum.Enum):
    RED = 1

@dataclasses.dataclass
class Point:
    x: int
    def scaled(self):
        return type(self)(self.x * factor)

class Marked(Point):
    def scaled(self):
        return super().scaled()

Pair = collections.namedtuple("Pair", "a b")
T = typing.TypeVar("T")

class Box(typing.Generic[T]):
    def __init__(self, content: T):
        self.content = content

@functools.cache
def cached(n):
    return n * factor

def noted(function):
    @functools.wraps(function)
    def noting(*arguments):
        return "noted", function(*arguments)
    return noting

@noted
def scaled(n):
    return cached(n)

def factorial(n):
    return 1 if n < 2 else n * factorial(n - 1)

def adder(n):
    def add(x):
        return x + n
    return add

def all_of(box):
    return box.content.scaled(), Colour.RED, Pair(1, 2), scaled(2), factorial(4)
"""


def defined(interpreter: RunningInterpreter, method: str) -> RunningInterpreter:
    """The interpreter, after a block that has defined all sorts of things."""
    assert interpreter.run(DEFINED.format(method=method)).output == ""
    return interpreter


@pytest.mark.parametrize("method", METHODS)
def test_functions_and_classes_of_blocks_go_to_workers_and_back(
    interpreter: RunningInterpreter, method: str
) -> None:
    session = defined(interpreter, method)
    ran = session.run("""
with context.Pool(1) as pool:
    (point, red, pair, *numbers), = pool.map(all_of, [Box(Marked(2))])
    print(point, type(point) is Marked, red is Colour.RED, type(pair) is Pair, numbers)
    print(pool.map(cached, [1]), pool.map(adder(5), [1]), pool.map(lambda n: n + factor, [1]), pool.map(Point.scaled, [Point(1)]))
""")
    assert ran.output == ("Marked(x=6) True True True [('noted', 6), 24]\n[3] [6] [4] [Point(x=3)]\n"), (
        ran.output
    )


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_that_lives_gets_what_is_bound_later(interpreter: RunningInterpreter, method: str) -> None:
    session = defined(interpreter, method)
    session.run("executor = ProcessPoolExecutor(1, mp_context=context)\nexecutor.submit(cached, 1).result()")
    session.run("factor = 10\ndef late(n):\n    return Marked(n).scaled(), factorial(3)")
    ran = session.run("print(executor.submit(late, 1).result()); executor.shutdown()")
    assert ran.output == "(Marked(x=10), 6)\n"


@pytest.mark.parametrize("method", METHODS)
def test_what_an_initializer_binds_stays(interpreter: RunningInterpreter, method: str) -> None:
    session = defined(interpreter, method)
    ran = session.run("""
import threading
connection = lock = None
def initialize(value):
    global connection, lock
    connection, lock = value, threading.Lock()
def use(n):
    with lock:
        return connection, n
lock = threading.Lock()
with context.Pool(1, initialize, ["of the worker"]) as pool:
    print(pool.map(use, [1, 2]))
""")
    assert ran.output == "[('of the worker', 1), ('of the worker', 2)]\n"


@pytest.mark.parametrize("method", METHODS)
def test_a_process_has_its_target_locks_queues_and_shared_values(
    interpreter: RunningInterpreter, method: str
) -> None:
    session = defined(interpreter, method)
    ran = session.run("""
lock, queue, value = context.Lock(), context.Queue(), context.Value("i", 0)
class Worker(context.Process):
    def run(self):
        with lock:
            value.value += factor
        queue.put(Point(value.value))
def work():
    Worker.run(None)
for process in (Worker(), context.Process(target=work)):
    process.start()
    print(queue.get())
    process.join()
    print(process.exitcode)
""")
    assert ran.output == "Point(x=3)\n0\nPoint(x=6)\n0\n"


@pytest.mark.long
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_managers_know_the_classes_of_blocks(interpreter: RunningInterpreter, method: str) -> None:
    session = defined(interpreter, method)
    ran = session.run("""
from multiprocessing.managers import BaseManager
class Counter:
    def __init__(self): self.n = 0
    def add(self, n): self.n += n; return self.n
class Manager(BaseManager): pass
Manager.register("Counter", Counter)
with Manager(ctx=context) as manager:
    counter = manager.Counter()
    print(counter.add(factor), counter.add(1))
with context.Manager() as manager:
    shared = manager.dict()
    shared["point"] = Point(1)
    print(dict(shared))
""")
    assert ran.output == "3 4\n{'point': Point(x=1)}\n"


@pytest.mark.long
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_worker_starts_workers(interpreter: RunningInterpreter, method: str) -> None:
    session = defined(interpreter, method)
    ran = session.run(f"""
def nested(box):
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context({method!r})) as inner:
        return inner.submit(all_of, box).result()[0]
with ProcessPoolExecutor(1, mp_context=context) as outer:
    print(outer.submit(nested, Box(Marked(2))).result())
""")
    assert ran.output == "Marked(x=6)\n"


def test_the_method_of_the_python_at_hand_works_without_naming_it(interpreter: RunningInterpreter) -> None:
    ran = interpreter.run(
        "import multiprocessing\ndef square(n):\n    return n * n\n"
        "with multiprocessing.Pool(1) as pool:\n    print(pool.map(square, range(4)))"
    )
    assert ran.output.endswith("[0, 1, 4, 9]\n")


def test_an_error_in_a_worker_shows_the_lines_of_the_block(interpreter: RunningInterpreter) -> None:
    session = defined(interpreter, "spawn")
    ran = session.run(
        "def fails(n):\n    divided = 1\n    return divided / n\nwith context.Pool(1) as pool: pool.map(fails, [0])"
    )
    assert ran.exit_code == 1
    assert 'File "<block 2>", line 3, in fails\n    return divided / n\n' in ran.output
    assert ran.output.endswith("ZeroDivisionError: division by zero\n")


@pytest.mark.parametrize(
    ("code", "said"),
    mostly_long(
        [
            (
                "lock = __import__('threading').Lock()\ndef use(n):\n    with lock: return n",
                "cannot pickle '_thread.lock'",
            ),
            (
                "made = type('Made', (), {})\nMade = made\ndef use(n):\n    return Made()",
                "write it into a module",
            ),
            ("def use(n):\n    return tools.double(x=n)", "call it there, and pass what it returns"),
            ("def use(n):\n    from tools import double\n    return double(x=n)", "call it there"),
            ("use = lambda n: n\nuse = tools.double", "call it there"),
        ],
        usual=2,
    ),
    ids=["value", "class", "tools", "import", "tool"],
)
def test_what_cannot_be_sent_is_an_error_that_says_why(
    interpreter: RunningInterpreter, code: str, said: str
) -> None:
    x = {"name": "x", "key": "x", "annotation": "int", "required": True, "keyword_only": False}
    interpreter.declare(
        {"name": "double", "doc": "", "parameters": [x], "returns": "int", "takes_others": False}
    )
    interpreter.run("import tools, multiprocessing\n" + code)
    ran = interpreter.run("with multiprocessing.get_context('spawn').Pool(1) as pool: pool.map(use, [1])")
    assert ran.exit_code == 1
    # the traceback of the worker comes before; notes may follow
    assert said in ran.output.rpartition("Traceback")[2], ran.output


def test_what_was_pickled_too_early_is_an_error_and_no_hang(interpreter: RunningInterpreter) -> None:
    ran = interpreter.run("""
import multiprocessing, pickle
class Task:
    def run(self): return 1
def use(data):
    return pickle.loads(data).run()
with multiprocessing.get_context("spawn").Pool(1) as pool: pool.map(use, [pickle.dumps(Task())])
""")
    assert "Task: its definition was not sent to this process" in ran.output.splitlines()[-1]


def test_large_data_is_sent_once(interpreter: RunningInterpreter) -> None:
    session = defined(interpreter, "spawn")
    ran = session.run("""
from multiprocessing.reduction import ForkingPickler
data = bytes(1 << 21)
def size(n): return len(data)
with context.Pool(1) as pool:
    sent = [len(ForkingPickler.dumps(size)) for _ in range(2)]
    print(max(sent) < 10_000, pool.map(size, [1]))
    data += b"more"
    print(pool.map(size, [1]))
""")
    assert ran.output == "True [2097152]\n[2097156]\n"


def test_a_class_may_stand_among_magics(interpreter: RunningInterpreter) -> None:
    interpreter.run("%%time\n!true\nclass Point:\n    x = 1\nfiles = !ls\nimport multiprocessing")
    ran = interpreter.run(
        "with multiprocessing.get_context('spawn').Pool(1) as pool: print(pool.map(lambda _: Point().x, [1]))"
    )
    assert ran.output == "[1]\n"


def test_modules_of_the_workspace_are_there(fresh_interpreter: RunningInterpreter, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("def helped(n):\n    return n + 100\n")
    ran = fresh_interpreter.run(
        "import beside, multiprocessing\ndef use(n):\n    return beside.helped(n)\n"
        "with multiprocessing.get_context('spawn').Pool(1) as pool: print(pool.map(use, [1]))"
    )
    assert ran.output == "[101]\n"


def test_forks_have_the_values_of_the_moment_of_the_fork(interpreter: RunningInterpreter) -> None:
    session = defined(interpreter, "fork")
    ran = session.run("""
import threading
lock = threading.Lock()
def use(n):
    with lock: return n * factor
with context.Pool(1) as pool:
    factor = 10
    print(pool.map(use, [1]))
""")
    assert ran.output == "[3]\n"


def test_a_session_that_does_not_use_it_loads_nothing_for_it(fresh_interpreter: RunningInterpreter) -> None:
    ran = fresh_interpreter.run(
        "import sys; print('multiprocessing' in sys.modules, '<workers>' in sys.modules)"
    )
    assert ran.output == "False False\n"
    assert (
        fresh_interpreter.run("import multiprocessing; print('<workers>' in sys.modules)").output == "False\n"
    )
