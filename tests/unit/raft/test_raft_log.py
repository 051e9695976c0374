"""The log of one voter as tables; sections and figures are those of the Raft paper."""

from typing import TypedDict

import pytest

from envelope.errors import CorruptDataError
from envelope.types import LogIndex, Term
from metadata.raft.configuration import Configuration, encode_configuration
from metadata.raft.log import ENTRY_OVERHEAD_BYTES, RaftLog
from metadata.raft.state import Entry, Snapshot
from tests.support.raft_cluster import A, B, C, entries_of
from tests.support.raft_messages import snapshot_of

NOTHING = snapshot_of(0, 0)


def log_of(*terms: int) -> RaftLog:
    return RaftLog(NOTHING, entries_of(*terms))


def behind_snapshot(*terms: int, index: int = 3, term: int = 2) -> RaftLog:
    return RaftLog(snapshot_of(index, term), entries_of(*terms, start=index + 1))


def terms_of(log: RaftLog) -> list[int]:
    first = LogIndex(log.snapshot.index + 1)
    return [entry.term for entry in log.between(first, log.last_index)]


def test_an_empty_log_ends_at_index_and_term_zero() -> None:
    log = log_of()
    assert (log.last_index, log.last_term, log.commit) == (0, 0, 0)
    assert log.term_at(LogIndex(0)) == 0
    assert log.term_at(LogIndex(1)) is None


def test_a_log_begins_with_what_its_snapshot_holds_committed() -> None:
    log = behind_snapshot(2, 4)
    assert (log.last_index, log.last_term, log.commit) == (5, 4, 3)


@pytest.mark.parametrize(("index", "term"), [(2, None), (3, 2), (4, 2), (5, 4), (6, None)])
def test_terms_are_known_from_the_snapshot_to_the_end(index: int, term: int | None) -> None:
    assert behind_snapshot(2, 4).term_at(LogIndex(index)) == term


# Section 5.4.1: the later last term wins, with equal last terms the longer log.
@pytest.mark.parametrize(
    ("last_index", "last_term", "expected"),
    [(3, 2, True), (4, 2, True), (2, 2, False), (1, 3, True), (9, 1, False), (0, 0, False)],
)
def test_the_log_with_the_later_last_term_is_newer_then_the_longer_one(
    last_index: int, last_term: int, expected: bool
) -> None:
    assert log_of(1, 1, 2).is_no_newer_than(LogIndex(last_index), Term(last_term)) is expected


class Merged(TypedDict):
    """One row: what a log of terms 1, 2 becomes when a leader's entries arrive."""

    start: int
    terms: tuple[int, ...]
    result: list[int]
    changed_from: int | None


# Section 5.3; the first rows are those of etcd's TestFollowerAppendEntries.
@pytest.mark.parametrize(
    "row",
    [
        Merged(start=3, terms=(3,), result=[1, 2, 3], changed_from=3),
        Merged(start=2, terms=(3, 4), result=[1, 3, 4], changed_from=2),
        Merged(start=1, terms=(1,), result=[1, 2], changed_from=None),
        Merged(start=1, terms=(3,), result=[3], changed_from=1),
        Merged(start=1, terms=(1, 2, 2), result=[1, 2, 2], changed_from=3),
        Merged(start=1, terms=(1, 3, 3), result=[1, 3, 3], changed_from=2),
        Merged(start=3, terms=(), result=[1, 2], changed_from=None),
        Merged(start=2, terms=(), result=[1, 2], changed_from=None),
    ],
)
def test_only_a_conflicting_entry_and_what_follows_it_is_replaced(row: Merged) -> None:
    log = log_of(1, 2)
    assert log.merge(entries_of(*row["terms"], start=row["start"])) == row["changed_from"]
    assert terms_of(log) == row["result"]


def test_what_is_committed_is_never_replaced() -> None:
    log = log_of(1, 1, 1)
    log.commit_to(LogIndex(2))
    with pytest.raises(AssertionError, match="R5"):
        log.merge(entries_of(2, start=2))
    log.merge(entries_of(2, start=3))
    assert terms_of(log) == [1, 1, 2]


def test_entries_follow_each_other_and_terms_never_decrease() -> None:
    log = log_of(1, 2)
    with pytest.raises(AssertionError, match="R4"):
        log.append(entries_of(2, start=4))
    with pytest.raises(AssertionError, match="R4"):
        log.append(entries_of(1, start=3))


def test_what_is_committed_never_shrinks_and_never_exceeds_the_log() -> None:
    log = log_of(1, 1, 1)
    log.commit_to(LogIndex(2))
    log.commit_to(LogIndex(1))
    assert log.commit == 2
    with pytest.raises(AssertionError, match="R3"):
        log.commit_to(LogIndex(4))


# Where two logs may agree: the largest index up to this one whose term is not above that one.
@pytest.mark.parametrize(
    ("index", "term", "expected"),
    [
        (5, 5, 5),
        (4, 5, 4),
        (9, 5, 5),
        (5, 4, 3),
        (5, 2, 3),
        (2, 2, 2),
        (5, 1, 1),
        (5, 0, 0),
        (0, 0, 0),
        (0, 7, 0),
    ],
)
def test_the_last_agreement_skips_whole_terms(index: int, term: int, expected: int) -> None:
    assert log_of(1, 2, 2, 5, 5).last_agreement(LogIndex(index), Term(term)) == expected


@pytest.mark.parametrize(
    ("index", "term", "expected"),
    [(5, 4, 5), (5, 3, 4), (5, 2, 4), (3, 2, 3), (5, 1, 2), (2, 1, 2), (1, 9, 1)],
)
def test_below_its_snapshot_a_log_may_agree_anywhere(index: int, term: int, expected: int) -> None:
    assert behind_snapshot(2, 4).last_agreement(LogIndex(index), Term(term)) == expected


@pytest.mark.parametrize(("room_for", "sent"), [(0, 1), (1, 1), (2, 2), (3, 3), (4, 3)])
def test_a_message_holds_what_fits_and_at_least_one_entry(room_for: int, sent: int) -> None:
    payload = b"x" * 100
    log = RaftLog(NOTHING, [Entry(LogIndex(index), Term(1), payload) for index in range(1, 5)])
    bytes_max = room_for * (len(payload) + ENTRY_OVERHEAD_BYTES) + 1
    entries = log.within_bytes(LogIndex(2), bytes_max)
    assert [entry.index for entry in entries] == list(range(2, 2 + sent))


def test_behind_the_end_there_is_nothing_to_send() -> None:
    assert log_of(1, 1).within_bytes(LogIndex(3), 1000) == ()


def test_compaction_keeps_the_entries_behind_the_snapshot() -> None:
    log = log_of(1, 2, 2, 3)
    log.commit_to(LogIndex(3))
    log.compact(snapshot_of(2, 2))
    assert (log.snapshot.index, log.commit, log.last_index, terms_of(log)) == (2, 3, 4, [2, 3])


def test_only_what_is_committed_and_its_own_history_is_compacted() -> None:
    log = log_of(1, 2, 2, 3)
    log.commit_to(LogIndex(3))
    with pytest.raises(AssertionError, match="R3"):
        log.compact(snapshot_of(4, 3))
    with pytest.raises(AssertionError, match="R5"):
        log.compact(snapshot_of(2, 1))


def test_a_received_snapshot_replaces_everything() -> None:
    log = log_of(1, 1, 2)
    log.restore(snapshot_of(7, 3))
    assert (log.last_index, log.last_term, log.commit, terms_of(log)) == (7, 3, 7, [])
    with pytest.raises(AssertionError, match="R5"):
        log.restore(snapshot_of(7, 3))


# --- configurations ---------------------------------------------------------------------------------------

FIRST, SECOND, THIRD = (Configuration((name,)) for name in (A, B, C))


def configuring(index: int, configuration: Configuration, term: int = 1) -> Entry:
    return Entry(LogIndex(index), Term(term), encode_configuration(configuration))


def test_the_configuration_of_the_last_entry_that_has_one_is_in_force() -> None:
    log = RaftLog(NOTHING, entries_of(1), FIRST)
    assert log.configuration == FIRST
    log.append([configuring(2, SECOND), *entries_of(1, start=3)])
    assert log.configuration == SECOND
    assert RaftLog(NOTHING, [*entries_of(1), configuring(2, SECOND)]).configuration == SECOND


def test_a_configuration_that_is_replaced_is_not_in_force() -> None:
    log = RaftLog(NOTHING, [*entries_of(1), configuring(2, SECOND), configuring(3, THIRD)], FIRST)
    log.merge([configuring(2, SECOND), *entries_of(2, start=3)])
    assert log.configuration == SECOND
    log.merge(entries_of(3, start=2))
    assert log.configuration == FIRST


def test_those_from_the_committed_one_on_are_possible() -> None:
    log = RaftLog(NOTHING, [*entries_of(1), configuring(2, SECOND), *entries_of(1, start=3)], FIRST)
    log.append([configuring(4, THIRD)])
    for commit, possible in (
        (1, (FIRST, SECOND, THIRD)),
        (2, (SECOND, THIRD)),
        (3, (SECOND, THIRD)),
        (4, (THIRD,)),
    ):
        log.commit_to(LogIndex(commit))
        assert log.possible_configurations == possible


def test_a_snapshot_takes_the_place_of_the_configurations_before_it() -> None:
    entries = [*entries_of(1), configuring(2, SECOND), *entries_of(1, start=3), configuring(4, THIRD)]
    log = RaftLog(NOTHING, entries, FIRST)
    log.commit_to(LogIndex(3))
    assert [log.configurations.at(LogIndex(index)) for index in range(5)] == [
        None,
        None,
        SECOND,
        SECOND,
        THIRD,
    ]
    log.compact(snapshot_of(1, 1))
    assert log.possible_configurations == (SECOND, THIRD)
    log.compact(Snapshot(LogIndex(3), Term(1), b"", SECOND))
    assert log.possible_configurations == (SECOND, THIRD)
    log.merge(entries_of(2, start=4))
    assert log.configuration == SECOND


def test_a_snapshot_from_elsewhere_says_which_configuration_is_in_force() -> None:
    log = RaftLog(NOTHING, [configuring(1, SECOND)], FIRST)
    log.restore(Snapshot(LogIndex(9), Term(2), b"", THIRD))
    assert log.possible_configurations == (THIRD,)


def test_a_configuration_that_no_leader_makes_is_damage() -> None:
    with pytest.raises(CorruptDataError):
        RaftLog(NOTHING, [Entry(LogIndex(1), Term(1), bytes(16))])
