"""What all wrappers of components have in common."""

from __future__ import annotations

from typing import Any

from autogen_core import ComponentModel


class Wrapper:
    """Stands around a component, and is invisible in a dump. Subclasses have the interface of what they wrap.

    Attributes:
        wrapped: The component.
    """

    wrapped: Any

    def dump_component(self) -> ComponentModel:
        return self.wrapped.dump_component()

    def __getattr__(self, name: str) -> Any:
        # what a class has beside the interface, for those who know that class
        if name == "wrapped":
            raise AttributeError(name)
        return getattr(self.wrapped, name)
