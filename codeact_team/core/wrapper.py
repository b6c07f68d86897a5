"""The base of all wrappers of components."""

from __future__ import annotations

from typing import Any

from autogen_core import ComponentModel

from codeact_team.core.effects import current_dispatcher


class Wrapper:
    """Stands around a component, and passes for it: it has its class, its dump, and all else that it does not replace."""

    def __init__(self, wrapped: Any) -> None:
        self.wrapped = wrapped
        self._dispatcher = current_dispatcher()

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        # `isinstance` goes by this, too
        return self.wrapped.__class__

    def __repr__(self) -> str:
        return repr(self.wrapped)

    def dump_component(self) -> ComponentModel:
        return self.wrapped.dump_component()

    def __getattr__(self, name: str) -> Any:
        if name == "wrapped":
            raise AttributeError(name)
        return getattr(self.wrapped, name)

    async def __aenter__(self) -> Any:
        await self.wrapped.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self.wrapped.__aexit__(*error)
