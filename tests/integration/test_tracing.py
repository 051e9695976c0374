"""Spans of the client library, by OpenTelemetry's own SDK, with a real node between publisher and reader."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, SpanKind, StatusCode

import jetstream
from envelope.envelopes import encode_message
from envelope.errors import NoResponders, RecordTooLarge
from tests.support.nodes import nats_and_node, run


class Spans:
    """The spans that have ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def ended(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.ended if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        [span] = self.named(name)
        return span


@pytest.fixture
def spans() -> Iterator[Spans]:
    made = Spans()
    jetstream.enable_tracing(made.provider)
    yield made
    jetstream.disable_tracing()


def traceparent(span: ReadableSpan) -> bytes:
    """The header of W3C Trace Context, version 00."""
    context = own(span)
    return b"00-%032x-%016x-%02x" % (context.trace_id, context.span_id, context.trace_flags)


def own(span: ReadableSpan) -> SpanContext:
    context: SpanContext | None = span.context
    assert context is not None
    return context


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def told(span: ReadableSpan, *names: str) -> list[object]:
    assert span.attributes is not None
    return [span.attributes[name] for name in names]


def test_a_trace_goes_from_the_publisher_through_the_node_to_the_reader(tmp_path: Path, spans: Spans) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            with spans.provider.get_tracer("application").start_as_current_span("order"):
                await js.publish("orders.new", b"v", headers={"Own": "kept", "traceparent": "00-stale"})
            async for record in js.read("orders"):
                with jetstream.process_span(record) as current:
                    assert current is not None
                    assert current.is_recording()
        order, sent = spans.one("order"), spans.one("send orders.new")
        received, processed = spans.one("receive orders"), spans.one("process orders")
        kinds = [SpanKind.PRODUCER, SpanKind.CLIENT, SpanKind.CONSUMER]
        assert [span.kind for span in (sent, received, processed)] == kinds
        assert sent.parent is not None
        assert sent.parent.span_id == own(order).span_id
        assert dict(record.headers) == {"Own": b"kept", "traceparent": traceparent(sent)}
        assert linked(received) == linked(processed) == [own(sent).span_id]
        assert told(received, "messaging.destination.name", "jetstream.offset") == ["orders", 0]
        assert told(sent, "messaging.destination.name", "jetstream.stream") == ["orders.new", "orders"]

    run(scenario())


def test_each_way_to_publish_carries_its_span_until_the_ack_and_an_envelope_stays_as_it_is(
    tmp_path: Path, spans: Spans
) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            async with js.publisher() as publisher:
                future = await publisher.publish("orders.one", b"v")
                assert spans.ended == (), "it has no ack yet"
                await future
            await js.publish_all([("orders.a", b"v"), ("orders.b", b"v", {"key": "k"})])
            async with js.session() as session:
                await (await session.publish("orders.once", b"v"))
            await js.publish_batch("orders.batch", pa.table({"value": [b"v"]}))
            await js.publish("orders.envelope", encode_message(b"v"))
            async with js.session() as session:
                await (await session.publish("orders.copy", encode_message(b"v")))
            names = ("one", "once", "batch", "envelope", "copy")
            one, once, *enveloped = (spans.one(f"send orders.{name}") for name in names)
            together = spans.one("send")
            assert told(together, "messaging.batch.message_count") == [2]
            offsets = [told(span, "jetstream.offset") for span in (one, once, *enveloped)]
            assert offsets == [[0], [3], [4], [5], [6]]
            contexts = [dict(record.headers).get("traceparent") async for record in js.read("orders")]
            sent = [one, together, together, once]
            assert contexts == [*map(traceparent, sent), None, None, None]
            received = [link for span in spans.named("receive orders") for link in linked(span)]
            assert received == [own(span).span_id for span in sent]

    run(scenario())


def test_a_span_tells_why_there_is_no_ack(tmp_path: Path, spans: Spans) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            with pytest.raises(NoResponders):
                await js.publish("nobody", b"v")
            with pytest.raises(NoResponders):
                async with js.publisher() as publisher:
                    _ = await publisher.publish("nobody.either", b"v")
            async with js.publisher() as publisher:
                with pytest.raises(RecordTooLarge):
                    _ = await publisher.publish("large", bytes(publisher.payload_max))
                with pytest.raises(NoResponders):
                    await publisher.publish_all([("nobody", b"v")])
            told_of = [spans.one(f"send {name}") for name in ("nobody", "nobody.either", "large")]
            assert [told(span, "error.type") for span in [*told_of, spans.one("send")]] == [
                ["no_responders"],
                ["no_responders"],
                ["record_too_large"],
                ["no_responders"],
            ]
            assert {span.status.status_code for span in told_of} == {StatusCode.ERROR}

    run(scenario())


def test_a_member_of_a_group_links_to_what_it_is_given(tmp_path: Path, spans: Spans) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            await js.publish("orders.new", b"v")
            async with js.consume("orders", group="billing") as member:
                await anext(member)
            assert linked(spans.one("receive orders")) == [own(spans.one("send orders.new")).span_id]

    run(scenario())


def test_nothing_is_traced_unless_it_is_asked_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            await js.publish("orders.new", b"v")
            async with js.publisher() as publisher:
                _ = await publisher.publish("orders.new", b"v")
            async for record in js.read("orders"):
                assert record.headers == ()
                with jetstream.process_span(record) as span:
                    assert span is None

    run(scenario())


def test_a_client_imports_opentelemetry_only_if_it_is_asked_to() -> None:
    program = """
import sys, jetstream
from envelope.errors import UnavailableError
jetstream.connect, jetstream.Consumer, jetstream.process_span
assert not any(name.startswith("opentelemetry") for name in sys.modules)
class Absent:
    def find_spec(name, path, target=None):
        if name == "opentelemetry":
            raise ModuleNotFoundError(name=name)
sys.meta_path.insert(0, Absent)
try:
    jetstream.enable_tracing()
except UnavailableError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "OpenTelemetry is not installed: pip install 'jetstream-log[otel]'\n"


def test_a_client_without_asyncio_is_traced_below_the_span_of_its_thread(
    tmp_path: Path, spans: Spans
) -> None:
    def publish(url: str) -> None:
        with jetstream.connect_blocking(url) as js:
            js.streams.create("orders", "orders.>")
            with spans.provider.get_tracer("application").start_as_current_span("order"):
                js.publish("orders.new", b"v")
                js.cursors.commit("shop", "orders", 1)

    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _):
            await asyncio.to_thread(publish, url)

    run(scenario())
    sent = [span for span in spans.ended if span.name.startswith("send ")]
    assert len(sent) >= 2
    assert {span.parent.span_id for span in sent if span.parent} == {own(spans.one("order")).span_id}
