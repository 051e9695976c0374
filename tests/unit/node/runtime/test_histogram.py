"""Durations in buckets, as Prometheus reads them."""

from itertools import pairwise

import pytest

from jetstream.node.replicas.publish_latency import PublishLatency, PublishStage
from jetstream.node.runtime.histogram import BOUNDS, Histogram


def test_a_bucket_has_all_within_its_bound_and_the_last_one_everything() -> None:
    histogram = Histogram()
    for seconds in (0.0, 1e-4, 1.01e-4, 10.0, 11.0, 3600.0):
        histogram.observe(seconds)
    buckets = dict(histogram.buckets())
    assert [buckets[bound] for bound in ("0.0001", "0.00025", "5.0", "10.0", "+Inf")] == [2, 3, 3, 4, 6]
    assert histogram.seconds == pytest.approx(3621.000201)
    assert len(buckets) == len(BOUNDS) + 1
    assert all(below <= above for below, above in pairwise(buckets.values()))


def test_each_stage_of_a_group_begins_where_the_one_before_it_ends() -> None:
    latency = PublishLatency()
    latency.observe((100.0, 101.0, 103.0, 106.0, 110.0, 115.0))
    assert {stage: each.seconds for stage, each in latency.stages.items()} == {
        PublishStage.GATHERED: 1.0,
        PublishStage.WRITTEN: 2.0,
        PublishStage.STORED: 3.0,
        PublishStage.COMMITTED: 4.0,
        PublishStage.ACKED: 5.0,
    }
    assert latency.whole.seconds == 15.0
    assert {each.buckets()[-1] for each in latency.stages.values()} == {("+Inf", 1)}
