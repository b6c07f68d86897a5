"""The options of the command that change a config."""

from __future__ import annotations

from collections.abc import Sequence

from autogen_core.code_executor import CodeExecutor
from autogen_core.models import ChatCompletionClient

from codeact_team.config.overrides import ForEvery


def overrides_of(
    single: Sequence[str] | None,
    *,
    model: str | None = None,
    base_url: str | None = None,
    data: Sequence[str] | None = None,
) -> list[str | ForEvery]:
    """What the options say, as :func:`codeact_team.load_config` takes it; ``None`` where one is not given."""
    for_every = {"model": ("--model", model), "base_url": ("--base-url", base_url)}
    return [
        *(single or ()),
        *(
            ForEvery(ChatCompletionClient, setting, value, option)
            for setting, (option, value) in for_every.items()
            if value is not None
        ),
        *([ForEvery(CodeExecutor, "data", [*data], "--data")] if data else ()),
    ]
