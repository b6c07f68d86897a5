"""What happens in a run, as spans of OpenTelemetry, by its semantic conventions for generative AI.

Spans are made where the process has a global tracer provider: one that a program which embeds a team has set, or
``opentelemetry-instrument``, or :func:`codeact_team.telemetry.exporting.exporting` for the command. AutoGen's own spans
are around them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from weakref import WeakSet

from codeact_team.core.effects import Dispatcher, current_dispatcher

Clean = Callable[[str], str]
"""Takes credentials out of a text."""

_CONTENTS = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_WANTED = ("true", "span_only", "span_and_event")

_traced: WeakSet[Dispatcher] = WeakSet()


def trace(dispatcher: Dispatcher, clean: Clean, workflow: str = "") -> None:
    """Make spans of the effects of a dispatcher, if the process has a tracer provider now; else leave it as it is.

    Args:
        dispatcher: The dispatcher; to do so again changes nothing.
        clean: Used on whatever models, code and tools say, where spans are to hold that.
        workflow: The name of what runs.
    """
    if dispatcher in _traced or not _has_provider():
        return
    from codeact_team.telemetry.tracing import Tracing

    _traced.add(dispatcher)
    tracing = Tracing(workflow, clean if wants_contents() else None)
    dispatcher.listen(tracing)
    dispatcher.add_innermost(tracing.intercept)


@contextmanager
def traced(clean: Clean, workflow: str = "") -> Generator[None]:
    """Within it, effects become spans, by the current dispatcher or, where there is none, by one made for it.

    Its arguments are those of :func:`trace`.
    """
    if (dispatcher := current_dispatcher()) is not None:
        trace(dispatcher, clean, workflow)
        yield
    elif _has_provider():
        with Dispatcher() as dispatcher:
            trace(dispatcher, clean, workflow)
            yield
    else:
        yield


def wants_contents() -> bool:
    """Whether spans are to hold what models, code and tools say and are given, by the conventions' variable for it."""
    return os.environ.get(_CONTENTS, "").strip().lower() in _WANTED


def _has_provider() -> bool:
    # AutoGen has imported it
    from opentelemetry.trace import NoOpTracerProvider, ProxyTracerProvider, get_tracer_provider

    return not isinstance(get_tracer_provider(), ProxyTracerProvider | NoOpTracerProvider)
