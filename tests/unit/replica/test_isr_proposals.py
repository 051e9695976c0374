"""What became of a proposal may be hard to know: what a leader hears, and what the real catalogue did.

The cluster checks that what was committed is on every member of the ISR, whatever the leader believes.
"""

from jetstream.replica.leader_events import IsrRefused
from metadata.catalog.events import CommandRefused
from tests.support.replica_cluster import HEARTBEAT, RETRY, A, B, C, ReplicaCluster


def test_an_unknown_outcome_of_a_proposal_is_not_a_refusal() -> None:
    """The proposal is applied, the answer is lost, the repeat is refused because the first was applied."""
    cluster = ReplicaCluster("abc", isr=(A, B))
    cluster.pass_time(2 * HEARTBEAT)
    cluster.pass_time(RETRY)
    first, again = cluster[A].proposals[0], cluster[A].proposals[-1]
    assert (first, len(cluster[A].proposals) > 1) == (again, True)
    assert cluster.decide(A, tell=False)
    refused = cluster.apply(cluster.command(cluster[A], again))[0]
    assert isinstance(refused, CommandRefused)
    cluster[A].refuse(again, refused)
    cluster[A].publish("m1")
    cluster.flow(cut_off=[C])
    assert cluster[A].high_watermark == 0
    cluster.elect(C)
    assert (cluster[C].log.values(), cluster.committed) == ([], {})


def test_a_refusal_in_another_reign_does_not_mean_that_the_proposal_was_not_applied() -> None:
    """It was applied, and whom it named was elected, before its repeat was refused."""
    cluster = ReplicaCluster("abc", isr=(A, B))
    cluster.pass_time(2 * HEARTBEAT)
    cluster.pass_time(RETRY)
    again = cluster[A].proposals[-1]
    assert cluster.decide(A, tell=False)
    cluster.elect(C, tell=[C])
    refused = cluster.apply(cluster.command(cluster[A], again))[0]
    assert isinstance(refused, CommandRefused)
    cluster[A].refuse(again, refused)
    cluster[A].publish("m1")
    cluster.flow(cut_off=[C])
    assert cluster[A].high_watermark == 0


def test_a_refusal_that_is_late_is_not_about_the_proposal_that_is_out() -> None:
    cluster = ReplicaCluster("abc", isr=(A, B))
    cluster.flow()
    cluster[C].restart()
    first = cluster[A].proposals[0]
    assert not cluster.decide(A)
    cluster.pass_time(RETRY + HEARTBEAT)
    assert cluster[A].proposals[0].number != first.number
    assert cluster.decide(A, tell=False)
    cluster[A].lead(IsrRefused(first.number, version_moved=False))
    cluster[A].publish("m1")
    cluster.flow(cut_off=[C])
    assert cluster[A].high_watermark == 0
