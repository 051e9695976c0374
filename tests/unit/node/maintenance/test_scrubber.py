"""When the scrub of a node's streams is off, and that replicas do not read the same at once."""

from datetime import timedelta
from typing import cast

from envelope.types import Incarnation, NodeId
from jetstream.node.maintenance.scrubber import Scrubber, phase
from jetstream.node.replicas.replica import StreamReplica
from jetstream.node.runtime.clock import SystemClock
from jetstream.node.runtime.paced_thread import PacedThread

WEEK_US = 7 * 86_400 * 1_000_000


def test_an_interval_of_zero_reads_nothing() -> None:
    scrubber = Scrubber(SystemClock(), cast("PacedThread", None), NodeId("a"), timedelta(0))
    assert not scrubber.is_due(cast("StreamReplica", None)), "it does not even look at the stream"


def test_replicas_and_streams_begin_their_passes_at_different_moments() -> None:
    places = [(NodeId(node), Incarnation(stream)) for node in "abc" for stream in ("one", "two")]
    phases = [phase(node, stream, WEEK_US) for node, stream in places]
    assert len(set(phases)) == len(places)
    assert all(0 <= each < WEEK_US for each in phases)
    assert phases == [phase(node, stream, WEEK_US) for node, stream in places], "and keep to it"
