"""A node's metrics in Prometheus's text format."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from jetstream.node.metric_sources import Definition, Sample, Sources
from jetstream.node.metrics import METRICS

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

SAMPLES_AT_ONCE: Final = 100
"""Written between two turns of the event loop: about half a millisecond."""


class _Only(Collector):
    """What Prometheus's writer takes: here one family of samples."""

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
            slices.append(_written(definition, samples))
            while more := _written(definition, samples).split(b"\n", 2)[2]:  # behind the lines HELP and TYPE
                slices.append(more)
                await asyncio.sleep(0)
            await asyncio.sleep(0)
        return b"".join((*slices, generate_latest(process)))

    return write


def _written(definition: Definition, samples: Iterator[Sample]) -> bytes:
    """Write the metric with the next samples."""
    family = (CounterMetricFamily if definition.kind == "counter" else GaugeMetricFamily)(
        definition.name, definition.help, labels=definition.labels
    )
    for labels, value in islice(samples, SAMPLES_AT_ONCE):
        family.add_metric(labels, value)
    return generate_latest(_Only(family))
