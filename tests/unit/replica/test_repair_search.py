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


def test_the_best_peer_is_asked_for_the_lowest_part_first() -> None:
    assert RepairSearch().next([LOW, HIGH], [B, A], NOW) == Attempt(*LOW, B)


def test_without_damage_or_without_peers_nothing_is_asked() -> None:
    assert RepairSearch().next([], [A], NOW) is None
    assert RepairSearch().next([LOW], [], NOW) is None


def test_who_could_not_help_is_asked_again_after_a_while_and_others_meanwhile() -> None:
    search, asked = RepairSearch(), []
    while (attempt := search.next([LOW, HIGH], [A, B], NOW)) is not None:
        asked.append(attempt)
        assert search.failed(attempt, NOW), "it is news"
    assert asked == [Attempt(*LOW, A), Attempt(*LOW, B), Attempt(*HIGH, A), Attempt(*HIGH, B)]
    assert search.next([LOW, HIGH], [A, B], MonotonicNs(LATER - 1)) is None
    again = search.next([LOW, HIGH], [A, B], LATER)
    assert again == asked[0]
    assert not search.failed(again, LATER), "it is no news"
    assert search.next([LOW, HIGH], [A, B], LATER) == asked[1]


def test_what_was_repaired_and_is_damaged_anew_is_asked_for_at_once() -> None:
    search = RepairSearch()
    assert search.failed(Attempt(*LOW, A), NOW)
    assert search.next([HIGH], [A], NOW) == Attempt(*HIGH, A)
    assert search.next([LOW], [A], NOW) == Attempt(*LOW, A)


def test_who_is_in_sync_and_can_be_asked_is_asked_the_leader_first() -> None:
    a, b, c, d, e = (NodeId(name) for name in "abcde")
    isr = tuple(InSyncReplica(node, f"disk-{node}") for node in (a, b, c, d))
    row = replace(LONE_ROW, replicas=(a, b, c, d, e), isr=isr, leader=c)
    assert peers_of(row, b, lambda peer: True) == [c, a, d]
    assert peers_of(row, c, lambda peer: peer != a) == [b, d]
    assert peers_of(replace(row, leader=None), e, lambda peer: True) == [a, b, c, d]
