"""What code passes to tools is read into their types in time that is linear in its bytes, whatever the types."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from autogen_core import CancellationToken
from autogen_core.tools import FunctionTool, StaticWorkbench, ToolOverride
from pydantic import BaseModel, Field, JsonValue
from support.variations import mostly_long

from codeact_team.agents.codeact.reply import Misfit, OutputSchema
from codeact_team.tools.model_reader import ModelReader
from codeact_team.tools.sources import ToolFailed
from codeact_team.tools.toolbox import Toolbox

# whose hashes are all 0
ALIKE = [(2**61 - 1) * number for number in range(20_000)]


class Add(BaseModel):
    left: Add | Mul | None = None
    value: int = 0


class Mul(BaseModel):
    left: Add | Mul | None = None
    value: int = 0


class Plus(BaseModel):
    kind: Literal["+"] = "+"
    inner: Annotated[Plus | Minus, Field(discriminator="kind")] | None = None


class Minus(BaseModel):
    kind: Literal["-"] = "-"
    inner: Annotated[Plus | Minus, Field(discriminator="kind")] | None = None


@dataclass
class Point:
    x: int
    y: int


class Everything(BaseModel):
    numbers: set[int] = set()
    frozen: frozenset[Decimal] = frozenset()
    identifiers: set[UUID] = set()
    pairs: set[tuple[int, int]] = set()
    by_number: dict[int, str] = {}
    by_name: dict[str, int] = {}
    words: set[str] = set()
    rows: list[Point | None] = []
    tree: Add | Mul | None = None
    chosen: Plus | None = None
    more: Everything | list[Everything] | None = None


def nested(levels: int, key: str, value: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(value)
    for _ in range(levels):
        found = {key: found, **value}
    return found


HOSTILE = {
    "numbers of one hash": {"numbers": ALIKE},
    "the same as texts": {"numbers": [*map(str, ALIKE)]},
    "decimals of one hash": {"frozen": [*map(str, ALIKE)]},
    "identifiers of one hash": {"identifiers": [str(UUID(int=number)) for number in ALIKE]},
    "pairs": {"pairs": [[number, number] for number in range(5_000)]},
    "keys of one hash": {"by_number": {str(number): "" for number in ALIKE}},
    "several sets": {"more": [{"numbers": ALIKE[:2000]} for _ in range(10)]},
    "a union that holds itself": {"tree": nested(26, "left", {"value": 1})},
    "which does not fit": {"tree": nested(26, "left", {"value": "x"})},
}
HONEST: dict[str, dict[str, Any]] = {
    "many small numbers": {"numbers": [*range(100_000)], "by_number": {str(n): "" for n in range(50_000)}},
    "many texts": {
        "words": [f"{n:032x}" for n in range(50_000)],
        "by_name": {f"{n:032x}": n for n in range(50_000)},
    },
    "many rows": {"rows": [{"x": n, "y": 2**62 + n} for n in range(5_000)]},
    "some identifiers": {"identifiers": [str(UUID(int=n)) for n in range(2_000)]},
    "a tree": {"tree": nested(15, "left", {"value": 1})},
    "a deep choice": {"chosen": nested(50, "inner", {"kind": "-"}) | {"kind": "+"}},
}


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
def test_what_would_take_for_ever_is_refused_at_once(value: JsonValue) -> None:
    with pytest.raises(ValueError, match=r"the arguments may fit in so many ways, .* could take forever"):
        ModelReader(Everything).read(value)


@pytest.mark.parametrize("value", mostly_long(HONEST.values(), usual=2), ids=HONEST)
def test_large_values_that_cost_little_are_read(value: JsonValue) -> None:
    assert ModelReader(Everything).read(value) == Everything.model_validate(value)


def take(numbers: set[int]) -> int:
    """Count them."""
    return len(numbers)


@pytest.mark.parametrize("way", ["function", "workbench", "renamed"])
async def test_every_way_to_offer_a_function_is_bounded(way: str) -> None:
    tool, name = FunctionTool(take, "Count them."), "count" if way == "renamed" else "take"
    workbench = StaticWorkbench([tool], {"take": ToolOverride(name=name)})
    toolbox = Toolbox([take]) if way == "function" else Toolbox(workbenches=[workbench])
    offered = (await toolbox.offer()).find(name)
    assert offered is not None
    [piece] = await offered.call(offered.read({"numbers": [1, 2, 3]}), CancellationToken())
    assert piece in (3, "3")
    with pytest.raises(ToolFailed, match="could take forever"):
        offered.read({"numbers": [*ALIKE]})
    await toolbox.stop()


def test_an_answer_is_bounded_too() -> None:
    schema = OutputSchema(Everything)
    assert '"x": 1' in schema.of_words('{"rows": [{"x": 1, "y": 2}]}')
    with pytest.raises(Misfit, match="the answer may fit in so many ways"):
        schema.of_words(json.dumps({"numbers": ALIKE[:5000]}))
