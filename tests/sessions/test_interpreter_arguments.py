from __future__ import annotations

import datetime
import enum
import json
import math
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from codeact_team.session.protocol import MAX_CALL_BYTES
from codeact_team.session.runner.interpreter.arguments import MAX_DEPTH, BadArgument, encoded, plain

_TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(_TEXTS, inner),
    max_leaves=10,
)


def exactly(value: object) -> str:
    """Tells 1 from 1.0 and True, and 0.0 from -0.0."""
    return repr(value)


@given(st.dictionaries(_TEXTS, _VALUES, max_size=5))
@example({"largest": [10**4299, -(10**4299)]})
def test_json_values_arrive_exactly(arguments: dict[str, Any]) -> None:
    assert exactly(json.loads(encoded(plain(arguments)))) == exactly(arguments)


class Colour(enum.Enum):
    RED = "red"


class Number(enum.IntEnum):
    ONE = 1


class Word(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "something else"


@dataclass
class Line:
    price: float
    tags: tuple[str, ...] = field(default=())
    kind: ClassVar[str] = "line"


class Point(NamedTuple):
    x: int
    y: int


class Scalar:
    """As those of numpy, and what is like it."""

    dtype = "a type"
    shape = ()

    def __init__(self, value: object) -> None:
        self._value = value

    def item(self) -> object:
        return self._value

    def tolist(self) -> object:
        return self._value


class Endless(Scalar):
    """As numpy's ``longdouble``, which no type of Python holds."""

    def item(self) -> object:
        return self


class Array(Scalar):
    shape = (3,)


_CONVERTED: list[tuple[Any, Any]] = [
    ((1, 2), [1, 2]),
    (Point(1, 2), [1, 2]),
    ({3}, [3]),
    (frozenset(("a",)), ["a"]),
    (OrderedDict([("a", 1)]), {"a": 1}),
    (Colour.RED, "red"),
    (Number.ONE, 1),
    (Word("word"), "word"),
    (Line(1.5, ("a", "b")), {"price": 1.5, "tags": ["a", "b"]}),
    (datetime.date(2026, 11, 20), "2026-11-20"),
    (datetime.datetime(2026, 11, 20, 1, 2, 3, tzinfo=datetime.UTC), "2026-11-20T01:02:03+00:00"),
    (Path("a/b"), "a/b"),
    (Scalar(7), 7),
    (Scalar(datetime.date(2026, 11, 20)), "2026-11-20"),
]


@pytest.mark.parametrize(("value", "sent"), _CONVERTED)
def test_values_of_other_types_are_turned_into_those_of_json(value: object, sent: object) -> None:
    assert exactly(json.loads(encoded(plain({"x": [value]})))) == exactly({"x": [sent]})


@pytest.mark.long
def test_values_of_numpy_are_turned_into_those_of_json() -> None:
    np = pytest.importorskip("numpy")
    values = [np.int64(7), np.float32(0.5), np.float64(0.1), np.bool_(True), np.str_("text")]
    values += [np.datetime64("2026-11-20"), np.array(3)]
    assert exactly(json.loads(encoded(plain({"x": values})))) == exactly(
        {"x": [7, 0.5, 0.1, True, "text", "2026-11-20", 3]}
    )


def test_a_copy_is_made_of_plain_types_only() -> None:
    copy = plain({Word("key"): Word("value")})
    ((key, value),) = copy.items()
    assert (type(key), type(value)) == (str, str)


def test_keys_are_written_as_json_does() -> None:
    on = datetime.date(2024, 2, 29)
    given: Any = {1: {-2: 0}, on: 1, Word("key"): 2}
    assert plain(given) == {"1": {"-2": 0}, "2024-02-29": 1, "key": 2}


def _cyclic() -> list[Any]:
    cycle: list[Any] = []
    cycle.append({"again": cycle})
    return cycle


def _nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    ids=lambda value: None if isinstance(value, str | type) else type(value).__name__,
    argvalues=[
        (math.nan, ValueError, "x is nan, which JSON does not have"),
        (-math.inf, ValueError, "x is -inf, which JSON does not have"),
        (Scalar(math.nan), ValueError, "x is nan, which JSON does not have"),
        ("a\ud800", ValueError, "x has half a character (a surrogate) at index 1"),
        ({"\ud800": 1}, ValueError, "x has half a character (a surrogate) at index 0"),
        (10**4300, ValueError, "x is an integer of more than 4,300 digits"),
        ({None: 2}, TypeError, "x must have keys that are texts or whole numbers, not None"),
        ({1: 2, "1": 3}, ValueError, "x has two keys that JSON writes as '1'"),
        ([0, {"a b": [b"data"]}], TypeError, "x[1]['a b'][0] cannot be sent to a tool: it is of type bytes"),
        ({"lines": [1, object()]}, TypeError, "x.lines[1] cannot be sent to a tool: it is of type object"),
        (Array([]), TypeError, f"it is of type {__name__}.Array; its method tolist() makes a list"),
        (Endless(1), TypeError, f"x cannot be sent to a tool: it is of type {__name__}.Endless"),
        (Line, TypeError, "x cannot be sent to a tool: it is of type type"),
        (range(3), TypeError, "x cannot be sent to a tool: it is of type range"),
        (_cyclic(), ValueError, "x[0].again contains itself"),
        (_nested(MAX_DEPTH), ValueError, f"is nested too deeply: more than {MAX_DEPTH} levels"),
    ],
)
def test_what_cannot_be_sent_is_told_with_its_place(value: object, kind: type[Exception], words: str) -> None:
    with pytest.raises(BadArgument) as caught:
        plain({"x": value})
    error = caught.value.error("search", {})
    assert type(error) is kind
    assert str(error).startswith("search(): ")
    assert words in str(error)


@pytest.mark.long
def test_what_numpy_has_that_cannot_be_sent_is_told() -> None:
    np = pytest.importorskip("numpy")
    for value, kind, words in (
        (np.float64("nan"), ValueError, "x is nan, which JSON does not have"),
        (
            np.zeros(3),
            TypeError,
            "x cannot be sent to a tool: it is of type numpy.ndarray; its method tolist() makes a list",
        ),
        (np.longdouble(1), TypeError, "x cannot be sent to a tool: it is of type numpy.longdouble"),
    ):
        with pytest.raises(BadArgument) as caught:
            plain({"x": value})
        error = caught.value.error("search", {})
        assert type(error) is kind
        assert f"search(): {words}" in str(error)


def test_arguments_may_be_nested_a_hundred_deep() -> None:
    arguments = {"x": _nested(MAX_DEPTH - 1)}
    assert json.loads(encoded(plain(arguments))) == arguments


def test_the_same_value_may_be_there_several_times() -> None:
    shared = [1]
    assert plain({"x": [shared, shared], "y": shared}) == {"x": [[1], [1]], "y": [1]}


def _doubling() -> list[Any]:
    value: list[Any] = []
    for _ in range(60):
        value = [value, value]
    return value


@pytest.mark.parametrize(
    "make",
    [
        lambda: "x" * MAX_CALL_BYTES,
        lambda: "ä" * (MAX_CALL_BYTES // 2),
        lambda: list(range(200_000)),
        pytest.param(_doubling, marks=pytest.mark.long),
    ],
)
def test_too_much_is_refused_with_both_sizes(make: Callable[[], object]) -> None:
    with pytest.raises(BadArgument) as caught:
        encoded(plain({"x": make()}))
    error = caught.value.error("search", {})
    assert type(error) is ValueError
    found = re.search(
        r"have (at least )?([\d,]+) bytes, of at most ([\d,]+): put the data into a file", str(error)
    )
    assert found, error
    size, limit = (int(text.replace(",", "")) for text in found.groups()[1:])
    assert size > limit > MAX_CALL_BYTES - 2048


def test_nearly_a_megabyte_can_be_sent() -> None:
    assert len(encoded(plain({"x": "x" * (MAX_CALL_BYTES - 2048)}))) > MAX_CALL_BYTES - 2048


def test_errors_of_a_values_own_methods_are_its_own() -> None:
    class Broken(list[int]):
        def __iter__(self) -> Any:
            raise LookupError("broken")

    with pytest.raises(LookupError, match="broken"):
        plain({"x": Broken()})


def test_parameters_are_named_as_the_code_names_them() -> None:
    with pytest.raises(BadArgument) as caught:
        plain({"user-id": [b""]})
    assert str(caught.value.error("search", {"user-id": "user_id"})).startswith("search(): user_id[0] cannot")
