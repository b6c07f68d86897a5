"""AutoGen components that AutoGen 0.7.5 loads wrongly, loaded right.

A loader puts the subclass in the place of AutoGen's class. It dumps as AutoGen's, whose public path it keeps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from autogen_core.model_context import BufferedChatCompletionContext
from autogen_core.model_context._buffered_chat_completion_context import BufferedChatCompletionContextConfig


class _BufferedContext(BufferedChatCompletionContext):
    # AutoGen's dump would describe and label the subclass
    __doc__ = BufferedChatCompletionContext.__doc__
    component_label = BufferedChatCompletionContext.__name__

    @classmethod
    def _from_config(cls, config: BufferedChatCompletionContextConfig) -> Self:
        # AutoGen passes on what model_dump() makes of the messages: plain dicts, which no model client takes
        return cls(config.buffer_size, config.initial_messages)


_MENDED: Mapping[type, str] = {BufferedChatCompletionContext: f"{__name__}.{_BufferedContext.__qualname__}"}


def mended_path(component: type) -> str | None:
    """The dotted path of what is to be loaded in the place of ``component``, if anything is."""
    return _MENDED.get(component)
