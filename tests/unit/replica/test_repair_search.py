"""What is asked of whom to repair a log, and when again."""

from envelope.types import MonotonicNs, NodeId, Offset
from jetstream.replica.repair_search import RETRY_NS, Attempt, RepairSearch

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
