"""What is asked of whom to repair a log, and when again."""

from dataclasses import replace

from envelope.types import MonotonicNs, NodeId, Offset
from jetstream.replica.repair_search import RETRY_NS, Attempt, RepairSearch, peers_of
from metadata.catalog.tables import InSyncReplica
from tests.support.lone_streams import LONE_ROW

A, B = NodeId("a"), NodeId("b")
LOW, HIGH = (Offset(3), Offset(5)), (Offset(9), Offset(10))
NOW = MonotonicNs(7)
LATER = MonotonicNs(NOW + RETRY_NS)


def test_every_peer_may_be_asked_the_best_one_first() -> None:
    assert RepairSearch().due(*LOW, [B, A], NOW) == [Attempt(*LOW, B), Attempt(*LOW, A)]
    assert not RepairSearch().due(*LOW, [], NOW)


def test_who_could_not_help_is_asked_again_after_a_while_and_others_meanwhile() -> None:
    search = RepairSearch()
    of_a, of_b = search.due(*LOW, [A, B], NOW)
    assert search.failed(of_a, NOW), "it is news"
    assert search.due(*LOW, [A, B], NOW) == [of_b]
    assert search.failed(of_b, NOW)
    assert not search.due(*LOW, [A, B], MonotonicNs(LATER - 1))
    assert search.due(*LOW, [A, B], LATER) == [of_a, of_b]
    assert not search.failed(of_a, LATER), "it is no news"
    assert search.due(*LOW, [A, B], LATER) == [of_b]


def test_who_could_not_help_with_one_part_may_have_another() -> None:
    search = RepairSearch()
    assert search.failed(Attempt(*LOW, A), NOW)
    assert search.due(*HIGH, [A], NOW) == [Attempt(*HIGH, A)]


def test_who_is_in_sync_and_can_be_asked_is_asked_the_leader_first() -> None:
    a, b, c, d, e = (NodeId(name) for name in "abcde")
    isr = tuple(InSyncReplica(node, f"disk-{node}") for node in (a, b, c, d))
    row = replace(LONE_ROW, replicas=(a, b, c, d, e), isr=isr, leader=c)
    assert peers_of(row, b, lambda peer: True) == [c, a, d]
    assert peers_of(row, c, lambda peer: peer != a) == [b, d]
    assert peers_of(replace(row, leader=None), e, lambda peer: True) == [a, b, c, d]
