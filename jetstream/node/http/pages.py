"""The pages of the HTTP port: probes and metrics, from the first moment of a start to the last of a stop.

`exposition` writes a node's metrics in Prometheus's text format.

`Health` says whether the node takes and serves the records of its streams.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from itertools import islice
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from envelope.errors import JetstreamError
from envelope.types import StreamName
from jetstream.node.http.metric_sources import Definition, Sample, Sources
from jetstream.node.http.metrics import METRICS
from jetstream.node.http.page import Page
from jetstream.node.http.server import PageMaker, Pages
from jetstream.node.runtime.histogram import Histogram

PROBLEMS_TOLD_MAX: Final = 100

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

SAMPLES_AT_ONCE: Final = 100
"""Written between two turns of the event loop: about half a millisecond."""

_JSON: Final = "application/json"
_FAMILIES: Final = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}
_TEXT: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Health:
    """The answer to a probe.

    Attributes:
        problems: what is wrong, one sentence each; none if every stream serves.
    """

    problems: tuple[str, ...]

    @property
    def ready(self) -> bool:
        """Whether every stream of this node takes and serves records."""
        return not self.problems

    def document(self, problems_max: int = PROBLEMS_TOLD_MAX) -> dict[str, object]:
        """Return it as JSON with the first problems and the count of all."""
        return {
            "ready": self.ready,
            "problems": list(self.problems[:problems_max]),
            "problems_total": len(self.problems),
        }


def judge(
    lost_connections: Iterable[str],
    refused_services: Iterable[str],
    stream_problems: Iterable[tuple[StreamName, JetstreamError]],
    *,
    is_started: bool = True,
    metadata_problem: str | None = None,
) -> Health:
    """Judge by the NATS connections that are down and the streams that do not take or serve records.

    Other refusals of NATS than of its streams' subjects count too: of requests, and of their answers.

    A node that is out of touch with the metadata log is not ready, even if it leads nothing.

    A node that is still starting, or stopping already, is not ready either: nobody answers requests there.
    """
    starting = [] if is_started else ["the node is starting, or stopping"]
    connections = [f"the {role} connection to NATS is down" for role in lost_connections]
    metadata = [] if metadata_problem is None else [metadata_problem]
    streams = [f"stream {name}: {error.err_code}: {error.description}" for name, error in stream_problems]
    return Health((*starting, *connections, *refused_services, *metadata, *streams))


class _Only(Collector):
    """A collector of one family of samples, as Prometheus's writer takes it."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


def exposition(sources: Sources) -> Callable[[], Awaitable[bytes]]:
    """Return what writes all metrics in Prometheus's text format.

    On the loop's thread, in slices: messages and acks pass between them. So a scrape is no picture of one
    moment; each number is from when it was read.
    """
    process = CollectorRegistry()
    ProcessCollector(registry=process)

    async def write() -> bytes:
        slices: list[bytes] = []
        for definition in METRICS:
            samples = iter(definition.read(sources))
            slices.append(_written(definition, islice(samples, SAMPLES_AT_ONCE)))
            await asyncio.sleep(0)
            while more := tuple(islice(samples, SAMPLES_AT_ONCE)):
                slices.append(_written(definition, more).split(b"\n", 2)[2])  # behind the lines HELP and TYPE
                await asyncio.sleep(0)
        return b"".join((*slices, generate_latest(process)))

    return write


def _written(definition: Definition, samples: Iterable[Sample | None]) -> bytes:
    """Write the metric with these samples."""
    family = _FAMILIES[definition.kind](definition.name, definition.help, labels=definition.labels)
    for labels, value in filter(None, samples):
        if isinstance(family, HistogramMetricFamily):
            assert isinstance(value, Histogram), f"{definition.name} says that it is a histogram"
            family.add_metric(labels, value.buckets(), value.seconds)
        else:
            assert not isinstance(value, Histogram), f"{definition.name} says that it is none"
            family.add_metric(labels, value)
    return generate_latest(_Only(family))


_SEARCHING: Final = Health(("the node is starting: it has not found its cluster yet",))


async def _livez() -> Page:
    return Page(HTTPStatus.OK, _TEXT, b"alive\n")


def searching_pages() -> Pages:
    """Return the pages of a node that knows no voters yet: alive, not ready, with nothing to measure."""

    async def metrics() -> Page:
        return Page(HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, f"{_SEARCHING.problems[0]}\n".encode())

    return _pages(lambda: _SEARCHING, metrics)


def node_pages(
    sources: Sources, is_ready: Callable[[], bool], metadata_problem: Callable[[], str | None]
) -> Pages:
    """Return the pages of a node whose parts are there, started or not."""
    write_metrics = exposition(sources)

    def health() -> Health:
        lost = [link.watch.role for link in sources.links if not (link.connected and link.watch.is_heard)]
        refused = (route for link in sources.links for route in link.refused if route.is_service)
        return judge(
            lost,
            (route.problem.description for route in refused if route.problem is not None),
            sources.streams.problems(),
            is_started=is_ready(),
            metadata_problem=metadata_problem(),
        )

    async def metrics() -> Page:
        return Page(HTTPStatus.OK, CONTENT_TYPE, await write_metrics())

    return _pages(health, metrics)


def _pages(health: Callable[[], Health], metrics: PageMaker) -> Pages:
    """Return the pages, of which probes get two without a token: problems have names of streams in them."""

    async def healthz() -> Page:
        return _health_page(health())

    async def bare_healthz() -> Page:
        return _health_page(health(), problems_max=0)

    return Pages(
        every={"/healthz": healthz, "/livez": _livez, "/metrics": metrics},
        public={"/healthz": bare_healthz, "/livez": _livez},
    )


def _health_page(health: Health, problems_max: int = PROBLEMS_TOLD_MAX) -> Page:
    status = HTTPStatus.OK if health.ready else HTTPStatus.SERVICE_UNAVAILABLE
    return Page(status, _JSON, json.dumps(health.document(problems_max)).encode() + b"\n")
