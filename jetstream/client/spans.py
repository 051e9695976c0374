"""The spans of a client; the one module that imports OpenTelemetry.

A message carries the context of the span that publishes it in the headers ``traceparent`` and ``tracestate``,
which are stored as any others are. The spans of readers link to it.

Sources: W3C Trace Context; the semantic conventions of OpenTelemetry for messaging.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Protocol, Self, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from opentelemetry.trace import (
    Link,
    Span,
    SpanKind,
    StatusCode,
    Tracer,
    TracerProvider,
    get_current_span,
    get_tracer,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from envelope.errors import JetstreamError

LINKS_MAX: Final = 128
"""Of one span: OpenTelemetry's SDK keeps no more, unless it is told to."""

_TRACE_CONTEXT: Final = TraceContextTextMapPropagator()
_TRACEPARENT: Final = "traceparent"


class Acked(Protocol):
    """An ack, as a span tells it."""

    @property
    def stream(self) -> str:
        """Where the record is stored."""

    @property
    def offset(self) -> int | None:
        """Its offset there; None: that is forgotten."""


class Traceable(Protocol):
    """A record, as its trace is found."""

    @property
    def stream(self) -> str:
        """Where it is stored."""

    @property
    def offset(self) -> int:
        """Its offset there."""

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """Its headers."""


AckT = TypeVar("AckT", bound=Acked)


class PublishSpan:
    """A span from the sending of messages to their acks, for a ``with`` block.

    It ends with the block, or with the future that `ends_with` names.
    """

    def __init__(self, span: Span) -> None:
        self._span = span
        self._ends_with_block = True
        self._context: dict[str, str] = {}
        _TRACE_CONTEXT.inject(self._context, set_span_in_context(span))

    def headers(self, given: Mapping[str, str] | None) -> dict[str, str]:
        """Return the headers of a message with the context of this span, in place of any other."""
        return {**(given or {}), **self._context}

    def acked(self, ack: Acked | Sequence[Acked]) -> None:
        """Note where the message is stored, or how many acks there are."""
        if isinstance(ack, Sequence):
            self._span.set_attribute("messaging.batch.message_count", len(ack))
            return
        self._span.set_attribute("jetstream.stream", ack.stream)
        if ack.offset is not None:
            self._span.set_attribute("jetstream.offset", ack.offset)

    def ends_with(self, future: "asyncio.Future[AckT]") -> None:
        """Keep the span open until there is an ack or none comes; a failure counts as unseen all the same."""
        self._ends_with_block = False
        future.add_done_callback(self._done)

    def _done(self, future: "asyncio.Future[AckT]") -> None:
        if not future.cancelled():
            error = asyncio.Future.exception(future)  # the base class's method: to look here is not to claim
            if error is None:
                self.acked(asyncio.Future.result(future))
            else:
                self._failed(error)
        self._span.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._failed(error)
        if self._ends_with_block:
            self._span.end()

    def _failed(self, error: BaseException) -> None:
        self._span.record_exception(error)
        self._span.set_status(StatusCode.ERROR, str(error))
        name = error.err_code if isinstance(error, JetstreamError) else type(error).__qualname__
        self._span.set_attribute("error.type", name)


class ClientTracer:
    """Begins the spans of all clients of a process."""

    def __init__(self, provider: TracerProvider | None) -> None:
        self._tracer: Tracer = get_tracer("jetstream", tracer_provider=provider)

    def publishing(self, subject: str | None) -> PublishSpan:
        """Begin the span of a message to ``subject``; None: of messages to any subjects."""
        name, attributes = _described("send", subject)
        return PublishSpan(self._tracer.start_span(name, kind=SpanKind.PRODUCER, attributes=attributes))

    def received(self, stream: str, records: pa.RecordBatch, since_ns: int) -> None:
        """Record a span that began at ``since_ns`` of the Unix epoch, and ends now with these records."""
        name, attributes = _described("receive", stream)
        attributes["messaging.batch.message_count"] = records.num_rows
        attributes["jetstream.offset"] = records.column(0)[0].as_py()
        self._tracer.start_span(
            name,
            kind=SpanKind.CLIENT,
            attributes=attributes,
            links=_links(_traceparents(records)),
            start_time=since_ns,
        ).end()

    @contextmanager
    def processing(self, record: Traceable) -> Iterator[Span]:
        """Begin the span of the processing of a record; see `process_span`."""
        context = {name: value.decode("latin-1") for name, value in record.headers if value is not None}
        name, attributes = _described("process", record.stream)
        attributes["jetstream.offset"] = record.offset
        with self._tracer.start_as_current_span(
            name, kind=SpanKind.CONSUMER, attributes=attributes, links=_links((context,))
        ) as span:
            yield span


def _described(operation: str, destination: str | None) -> tuple[str, dict[str, str | int]]:
    """Return the name and the attributes of a span."""
    attributes: dict[str, str | int] = {
        "messaging.system": "jetstream",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }
    if destination is None:
        return operation, attributes
    return f"{operation} {destination}", {**attributes, "messaging.destination.name": destination}


def _traceparents(records: pa.RecordBatch) -> Iterator[dict[str, str]]:
    """Yield the contexts of the first records that have one."""
    headers = records.column(4)
    if headers.null_count == len(headers):
        return
    assert isinstance(headers, pa.ListArray), "decoded batches have the log's schema"
    pairs = headers.flatten()
    is_context = pc.equal(pc.struct_field(pairs, "key"), pa.scalar(_TRACEPARENT))
    values = pc.struct_field(pairs.filter(is_context).slice(0, LINKS_MAX), "value")
    for value in values.drop_null().to_pylist():
        yield {_TRACEPARENT: value.decode("latin-1")}


def _links(contexts: Iterable[Mapping[str, str]]) -> list[Link]:
    """Return a link to the span of each context that is valid."""
    spans = (get_current_span(_TRACE_CONTEXT.extract(context)).get_span_context() for context in contexts)
    return [Link(span) for span in spans if span.is_valid]
