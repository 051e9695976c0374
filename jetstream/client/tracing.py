"""The switch for spans of OpenTelemetry, of what a client publishes and reads; off until it is asked for.

OpenTelemetry is imported by `enable_tracing` alone. Without it each place that could begin a span looks at
`TRACING`, and goes on.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Final

from envelope.errors import UnavailableError

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

    from jetstream.client.spans import ClientTracer, Traceable


class Tracing:
    """Makes spans while ``tracer`` is set."""

    __slots__ = ("tracer",)

    def __init__(self) -> None:
        self.tracer: ClientTracer | None = None


TRACING: Final = Tracing()
"""Of this process."""


def enable_tracing(provider: "TracerProvider | None" = None) -> None:
    """Make spans from now on, of publishers and readers that are opened from now on.

    Args:
        provider: exports them; by default the one that is set for the process.

    Raises:
        UnavailableError: OpenTelemetry is not installed; the extra ``otel`` brings it.
    """
    try:
        from jetstream.client.spans import ClientTracer  # noqa: PLC0415 - with it comes OpenTelemetry
    except ModuleNotFoundError as error:
        if error.name != "opentelemetry":
            raise
        raise UnavailableError("OpenTelemetry is not installed: pip install 'jetstream-log[otel]'") from error
    TRACING.tracer = ClientTracer(provider)


def disable_tracing() -> None:
    """Make no more spans; those that have begun end with what they are of."""
    TRACING.tracer = None


def process_span(record: "Traceable") -> AbstractContextManager["Span | None"]:
    """Return a span around the processing of a record, for a ``with`` block; nothing while tracing is off.

    It is the current span in the block, and has a link to the span that published the record.
    """
    return nullcontext() if TRACING.tracer is None else TRACING.tracer.processing(record)
