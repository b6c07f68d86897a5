"""Where in its config a component is: a name by which it is known again when the same config is loaded another time."""

from __future__ import annotations

import weakref

_places: dict[int, str] = {}
"""By the id of a component; it goes with the component."""


def put(component: object, place: str) -> None:
    """Note where a component is; it has to be one that can be referred to weakly."""
    if id(component) not in _places:
        weakref.finalize(component, _places.pop, id(component))
    _places[id(component)] = place


def place_of(component: object) -> str:
    """Where a component is, such as ``config.participants.0.config.model_client``; empty where no config has it."""
    return _places.get(id(component), "")
