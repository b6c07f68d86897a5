"""Spans of OpenTelemetry for the effects of a run, by the semantic conventions for generative AI.

Spans are made where the process has a global tracer provider: one that a program which embeds a team has set, or
``opentelemetry-instrument``, or :func:`codeact_team.telemetry.exporting.exporting` for the command. AutoGen's own spans
are around them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from weakref import WeakSet

from codeact_team.core.effects import Dispatcher, current_dispatcher

Clean = Callable[[str], str]
"""Takes credentials out of a text."""

_CONTENTS = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""The conventions' variable for spans that hold texts of models, code and tools."""
_WANTED = ("true", "span_only", "span_and_event")

_traced: WeakSet[Dispatcher] = WeakSet()


def trace(dispatcher: Dispatcher, clean: Clean, workflow: str = "") -> None:
    """Make spans of the effects of a dispatcher, once, if the process has a tracer provider now.

    Args:
        dispatcher: The dispatcher.
        clean: Takes credentials out of the texts of models, code and tools, where spans are to hold these.
        workflow: The name of the team or the program.
    """
    if dispatcher in _traced or not _has_provider():
        return
    from codeact_team.telemetry.tracing import Tracing

    _traced.add(dispatcher)
    wants_contents = os.environ.get(_CONTENTS, "").strip().lower() in _WANTED
    tracing = Tracing(workflow, clean if wants_contents else None)
    dispatcher.listen(tracing)
    dispatcher.add_innermost(tracing.intercept)


@contextmanager
def traced(clean: Clean, workflow: str = "") -> Generator[None]:
    """Within it, effects become spans, by the current dispatcher or, where there is none, by one made for it.

    It has the arguments of :func:`trace`.
    """
    current = current_dispatcher()
    with nullcontext(current) if current is not None or not _has_provider() else Dispatcher() as dispatcher:
        if dispatcher is not None:
            trace(dispatcher, clean, workflow)
        yield


def _has_provider() -> bool:
    # AutoGen has imported it
    from opentelemetry.trace import NoOpTracerProvider, ProxyTracerProvider, get_tracer_provider

    return not isinstance(get_tracer_provider(), ProxyTracerProvider | NoOpTracerProvider)
