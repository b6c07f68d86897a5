"""From what a tool returns to what the code gets."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from autogen_core import Image
from autogen_core.tools import ImageResultContent, TextResultContent, ToolResult
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as Pictures
from pydantic import BaseModel

from codeact_team.core.execution import Artifact
from codeact_team.tools.sources import ToolFailed, mime_type, pieces_of, pieces_of_result

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


class Size(Enum):
    LARGE = "large"


class Line(BaseModel):
    sku: str
    size: Size = Size.LARGE
    day: date = date(2026, 11, 20)


@dataclass
class Point:
    x: float


@given(JSON)
def test_what_json_has_stays_what_it_is(value: Any) -> None:
    assert list(pieces_of(value)) == [value]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Line(sku="a"), {"sku": "a", "size": "large", "day": "2026-11-20"}),
        ([Line(sku="a")], [{"sku": "a", "size": "large", "day": "2026-11-20"}]),
        (Point(1.5), {"x": 1.5}),
        ({"p": Point(1.5)}, {"p": {"x": 1.5}}),
        (Size.LARGE, "large"),
        (Decimal("1.50"), "1.50"),
        (Path("/a"), "/a"),
        ((1, 2), [1, 2]),
        ({1: "a"}, {"1": "a"}),
        (math.inf, math.inf),
        ({"data": b"\xff"}, {"data": "_w=="}),
    ],
)
def test_other_values_become_what_they_are_in_json(value: Any, expected: Any) -> None:
    assert list(pieces_of(value)) == [expected]


def test_nan_stays_nan() -> None:
    (value,) = pieces_of(math.nan)
    assert isinstance(value, float)
    assert math.isnan(value)


def test_pictures_and_bytes_become_artifacts_alone_or_in_a_list() -> None:
    picture = Pictures.new("RGB", (2, 2))
    pieces = pieces_of(["a chart", picture, Image(picture), b"\x00", Artifact("text/html", b"<p>")])
    assert pieces[0] == "a chart"
    artifacts = [piece for piece in pieces if isinstance(piece, Artifact)]
    assert [one.mime_type for one in artifacts] == [
        "image/png",
        "image/png",
        "application/octet-stream",
        "text/html",
    ]
    assert Pictures.open(io.BytesIO(artifacts[0].data)).size == (2, 2)
    assert list(pieces_of(picture)) == [artifacts[0]]


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGBA", "CMYK", "F", "HSV"])
def test_a_picture_of_any_mode_becomes_png(mode: str) -> None:
    (piece,) = pieces_of(Pictures.new(mode, (2, 2)))
    assert isinstance(piece, Artifact)
    assert Pictures.open(io.BytesIO(piece.data)).format == "PNG"


def _circle() -> list[Any]:
    circle: list[Any] = []
    circle.append(circle)
    return circle


@pytest.mark.parametrize(
    "value", [object(), {"a": object()}, _circle(), {"chart": Pictures.new("1", (1, 1))}, [10**5000]]
)
def test_what_has_no_form_in_json_is_a_failure_that_says_so(value: Any) -> None:
    with pytest.raises(ToolFailed, match="has no form in JSON"):
        pieces_of(value)


def test_the_parts_of_a_workbenchs_answer_stay_apart() -> None:
    picture = ImageResultContent(content=Image(Pictures.new("RGB", (1, 1))))
    result = ToolResult(name="t", result=[TextResultContent(content="a"), picture])
    text, artifact = pieces_of_result(result)
    assert text == "a"
    assert isinstance(artifact, Artifact)
    assert artifact.mime_type == "image/png"


def test_the_error_of_a_workbench_is_a_failure_with_bounded_text() -> None:
    result = ToolResult(name="t", result=[TextResultContent(content="no\x1b " * 10_000)], is_error=True)
    with pytest.raises(ToolFailed) as raised:
        pieces_of_result(result)
    assert str(raised.value).startswith("no␛ no␛ no␛")
    assert len(str(raised.value)) <= 4000


@pytest.mark.parametrize("text", ["", None, "png", "image/png; a=b", "a/b\n", "../etc", "x" * 200 + "/y"])
def test_what_is_no_mime_type_means_bytes(text: str | None) -> None:
    assert mime_type(text) == "application/octet-stream"


def test_a_mime_type_is_kept() -> None:
    assert mime_type("image/SVG+xml") == "image/svg+xml"
