"""Values that pass between code in a sandbox and the tools of smolagents arrive as they were, and hostile ones make nothing else."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from codeact_team.adapters.smolagents_bridge import dumps, loads

_HASHABLE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.decimals(allow_nan=False)
    | st.dates()
    | st.datetimes()
    | st.times()
    | st.complex_numbers(allow_nan=False),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
_VALUES = st.recursive(
    _HASHABLE | st.sets(_HASHABLE, max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_HASHABLE, inner, max_size=3),
    max_leaves=8,
)


@given(_VALUES)
def test_a_value_arrives_as_it_was(value: Any) -> None:
    arrived = loads(dumps(value))
    assert (arrived, type(arrived)) == (value, type(value))


class Colour(IntEnum):
    RED = 1


class Point(NamedTuple):
    x: int
    y: int


@dataclass
class Order:
    number: int
    paid: date


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Path("a/b.txt"), Path("a/b.txt")),
        (timedelta(days=3, microseconds=7), timedelta(days=3, microseconds=7)),
        (datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)),
        (time(1, 2, 3, 4), time(1, 2, 3, 4)),
        (Decimal("1.10"), Decimal("1.10")),
        (bytearray(b"ab"), b"ab"),
        (Colour.RED, 1),
        (Point(1, 2), (1, 2)),
        (Order(7, date(2026, 1, 2)), {"number": 7, "paid": date(2026, 1, 2)}),
        ({":type": "bytes", "value": "YQ=="}, {":type": "bytes", "value": "YQ=="}),
    ],
)
def test_values_of_other_types_arrive(value: Any, expected: Any) -> None:
    arrived = loads(dumps(value))
    assert (arrived, type(arrived)) == (expected, type(expected))


@pytest.mark.long
def test_numbers_of_an_array_arrive() -> None:
    numpy = pytest.importorskip("numpy")
    for value, expected in ((numpy.float32(0.5), 0.5), (numpy.int64(3), 3)):
        test_values_of_other_types_arrive(value, expected)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["uint8", "int64", "float32", "bool", "<U3", "complex128"])
def test_an_array_arrives_with_its_type(kind: str) -> None:
    numpy = pytest.importorskip("numpy")
    array = numpy.array([[0, 1], [2, 3]], dtype=kind)
    arrived = loads(dumps(array))
    assert arrived.dtype.kind == array.dtype.kind
    assert (arrived == array).all()


def test_a_picture_arrives_pixel_for_pixel() -> None:
    picture = Image.effect_mandelbrot((20, 10), (-3, -2.5, 2, 2.5), 50)
    arrived = loads(dumps([picture]))[0]
    assert isinstance(arrived, Image.Image)
    assert (arrived.size, arrived.tobytes()) == (picture.size, picture.tobytes())


@pytest.mark.parametrize("value", [object(), print, {"a": {object()}}, type])
def test_a_value_that_cannot_pass_is_named(value: Any) -> None:
    with pytest.raises(TypeError, match=r"a [\w.]+ cannot pass between the sandbox and a tool"):
        dumps(value)


@pytest.mark.long
def test_an_array_of_such_values_is_named_too() -> None:
    test_a_value_that_cannot_pass_is_named(pytest.importorskip("numpy").array([object()]))


@pytest.mark.parametrize(
    "content",
    [
        {":type": "os.system", "value": "true"},
        {":type": "pickle", "value": "gASVBAAAAAAAAABLAS4="},
        {":type": ["bytes"], "value": "YQ=="},
        {":type": "image", "value": "R0lGODlhAQABAAAAACwAAAAAAQABAAACAkQBADs="},
        pytest.param({":type": "ndarray", "value": ["int64", [[1], [1, 2]]]}, marks=pytest.mark.long),
        {":type": "set", "value": [[1]]},
        {":type": "bytes"},
    ],
)
def test_hostile_text_is_an_error(content: Any) -> None:
    with pytest.raises(Exception, match=r".") as error:
        loads(json.dumps(content))
    assert not isinstance(error.value, AssertionError)


ALIKE = [(2**61 - 1) * number for number in range(5_000)]


@pytest.mark.parametrize(
    "content",
    [
        {":type": "set", "value": ALIKE},
        {":type": "frozenset", "value": [{":type": "Decimal", "value": str(number)} for number in ALIKE]},
        {":type": "dict", "value": [[number, 1] for number in ALIKE]},
        [{":type": "set", "value": ALIKE[:2500]}] * 4,
    ],
    ids=["set", "decimals", "keys", "several"],
)
def test_hostile_text_with_values_of_one_hash_is_an_error(content: Any) -> None:
    with pytest.raises(ValueError, match="too many values other than texts and small numbers"):
        loads(json.dumps(content), is_hostile=True)


def test_large_sets_that_cost_little_pass() -> None:
    value = [
        {*range(50_000)},
        {f"{number:x}" for number in range(50_000)},
        {*ALIKE[:2000]},
        dict.fromkeys(range(50_000)),
    ]
    assert loads(dumps(value), is_hostile=True) == value


@pytest.mark.long
def test_the_type_of_an_array_cannot_be_made_up() -> None:
    pytest.importorskip("numpy")
    # of such a type, each item would have 2 GB
    arrived = loads(json.dumps({":type": "ndarray", "value": ["V2000000000", [1, 2]]}))
    assert arrived.nbytes < 100
