"""Names from elsewhere become names that Python code can use."""

from __future__ import annotations

import keyword

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeact_team.tools.declarations import RESERVED, assign, identifier


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("get_order", "get_order"),
        ("get-order", "get_order"),
        ("@scope/server", "scope_server"),
        ("class", "class_"),
        ("None", "None_"),
        ("3d", "tool_3d"),
        ("", "tool"),
        ("!!", "tool"),
        ("__class__", "class__"),
        ("id_", "id_"),
        ("größe", "größe"),
        # what Python would read as another name
        ("ﬁnd", "find"),
    ],
)
def test_a_name_becomes_an_identifier(text: str, name: str) -> None:
    assert identifier(text, "tool") == name


def test_a_name_that_can_stay_as_it_is_does_wherever_it_stands() -> None:
    assert assign(["get-order", "get_order", "get order"], "tool") == [
        "get_order_2",
        "get_order",
        "get_order_3",
    ]


def test_reserved_names_are_evaded() -> None:
    assert assign(["ToolError", "Media", "shop"], "tool", reserved=RESERVED | {"shop"}) == [
        "ToolError_",
        "Media_",
        "shop_",
    ]


@given(st.lists(st.text(max_size=6) | st.sampled_from(["a", "a_2", "a-2", "A", "class"]), max_size=20))
def test_names_are_different_public_identifiers(texts: list[str]) -> None:
    names = assign(texts, "tool", reserved=RESERVED)
    assert len(set(names)) == len(texts)
    for name in names:
        assert name.isidentifier()
        assert not keyword.iskeyword(name)
        assert not name.startswith("_")
        assert name not in RESERVED


def test_thousands_of_equal_names_are_no_problem() -> None:
    assert len(set(assign(["a"] * 5000, "tool"))) == 5000
