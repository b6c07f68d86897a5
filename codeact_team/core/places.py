"""The path of a component in its config, by which it is found again when the config is loaded once more."""

from __future__ import annotations

import weakref

_places: dict[int, str] = {}
"""Paths by the id of a component. An entry ends with its component."""


def put(component: object, place: str) -> None:
    """Set the path of a component, which has to allow weak references."""
    if id(component) not in _places:
        weakref.finalize(component, _places.pop, id(component))
    _places[id(component)] = place


def place_of(component: object) -> str:
    """The path of a component, such as ``config.participants.0.config.model_client``; empty if no config has it."""
    return _places.get(id(component), "")
