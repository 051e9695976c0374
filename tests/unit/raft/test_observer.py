"""An observer keeps up with what is committed, whichever voter it hears, and never takes anything back."""

import pytest

from envelope.errors import CorruptDataError, RemoteProtocolError
from envelope.types import LogIndex, MonotonicNs, NodeId, Term
from metadata.raft.events import Apply, MetadataLeaderChanged, Restore
from metadata.raft.messages.observer_messages import (
    CommittedEntries,
    CommittedState,
    Observe,
    ObserverMessage,
    VoterStatus,
)
from metadata.raft.observer import (
    Observer,
    ObserverAction,
    ReceivedFromVoter,
    SendToVoter,
    TimePassed,
    VoterConnected,
    VoterDisconnected,
)
from metadata.raft.settings import NEVER, RaftSettings
from metadata.raft.state import Entry, Snapshot
from tests.support.raft_cluster import A, B, C, RaftCluster, Voter, entries_of
from tests.support.raft_messages import append, install, snapshot_of

ME, SETTINGS = NodeId("o"), RaftSettings()
SILENCE = SETTINGS.election_timeout_ns


class Watched:
    """An observer of A, B and C, and the time."""

    def __init__(self, *connected: NodeId) -> None:
        self.observer = Observer(ME, (A, B, C), SETTINGS)
        self.now = MonotonicNs(1_000)
        self.first = [action for voter in connected for action in self.give(VoterConnected(voter))]

    def give(self, event: VoterConnected | VoterDisconnected | TimePassed) -> list[ObserverAction]:
        return list(self.observer.handle(event, self.now))

    def hear(self, message: ObserverMessage) -> list[ObserverAction]:
        return list(self.observer.handle(ReceivedFromVoter(message), self.now))

    def pass_time(self, duration_ns: int) -> list[ObserverAction]:
        self.now = MonotonicNs(self.now + duration_ns)
        return self.give(TimePassed())


def asks(voter: NodeId, after: int) -> SendToVoter:
    return SendToVoter(Observe(ME, voter, LogIndex(after)))


def status(voter: NodeId, term: int, leader: str = "") -> VoterStatus:
    return VoterStatus(voter, ME, Term(term), NodeId(leader))


def committed(voter: NodeId, previous: tuple[int, int], *terms: int) -> CommittedEntries:
    index, term = previous
    return CommittedEntries(voter, ME, LogIndex(index), Term(term), entries_of(*terms, start=index + 1))


def state(voter: NodeId, index: int, term: int) -> CommittedState:
    return CommittedState(voter, ME, Snapshot(LogIndex(index), Term(term), b"state"))


def test_the_first_voter_that_is_there_is_asked_for_everything() -> None:
    watched = Watched()
    assert not watched.observer.hears_voters
    assert watched.observer.wake_at == NEVER
    assert watched.give(VoterConnected(B)) == [asks(B, 0)]
    assert watched.give(VoterConnected(A)) == [], "one question is enough"
    assert watched.observer.hears_voters


def test_what_is_answered_is_applied_and_what_follows_is_asked_for() -> None:
    watched = Watched(A)
    entries = entries_of(1, 1, 2)
    assert watched.hear(committed(A, (0, 0), 1, 1, 2)) == [Apply(entries), asks(A, 3)]
    assert watched.hear(state(A, 9, 2)) == [
        Restore(Snapshot(LogIndex(9), Term(2), b"state")),
        asks(A, 9),
    ]
    assert watched.hear(committed(A, (9, 2), 3))[0] == Apply(entries_of(3, start=10))
    assert watched.observer.applied == 10


def test_the_leader_is_asked_once_it_is_known_and_heard() -> None:
    watched = Watched(A, B)
    assert watched.hear(status(A, 3, "b")) == [MetadataLeaderChanged(B, Term(3)), asks(B, 0)]
    assert (watched.observer.leader, watched.observer.term) == (B, 3)
    assert watched.hear(status(B, 3, "b")) == [], "no news"
    assert watched.hear(status(A, 4, "c")) == [MetadataLeaderChanged(C, Term(4))], "which is not connected"
    assert watched.give(VoterConnected(C)) == [asks(C, 0)]
    assert watched.hear(status(B, 3, "b")) == [], "an older term"


def test_entries_that_come_twice_are_passed_over() -> None:
    watched = Watched(A, B)
    watched.hear(committed(A, (0, 0), 1, 1, 1))
    watched.hear(status(A, 1, "b"))
    assert watched.hear(committed(A, (0, 0), 1, 1)) == []
    assert watched.hear(committed(B, (1, 1), 1, 1, 2)) == [Apply(entries_of(2, start=4)), asks(B, 4)]
    assert watched.hear(state(A, 4, 2)) == []
    assert watched.hear(state(A, 3, 1)) == []
    assert watched.observer.applied == 4


def test_a_broken_connection_and_a_silence_have_another_voter_asked_at_the_same_place() -> None:
    watched = Watched(A, B, C)
    watched.hear(committed(A, (0, 0), 1, 1))
    assert watched.give(VoterDisconnected(A)) == [asks(B, 2)]
    watched.now = MonotonicNs(watched.now + SILENCE - 1)
    watched.hear(status(C, 1))
    assert watched.pass_time(1) == [asks(C, 2)], "B has said nothing"
    assert watched.observer.wake_at == watched.now - 1 + SILENCE
    assert watched.pass_time(SILENCE) == []
    assert not watched.observer.hears_voters
    assert watched.observer.wake_at == NEVER
    assert watched.hear(status(B, 1)) == [asks(B, 2)], "it speaks again"


def test_nobody_leads_when_those_who_said_so_are_not_heard_any_more() -> None:
    watched = Watched(A, B)
    watched.hear(status(A, 3, "c"))
    watched.hear(status(B, 2, "b"))
    assert watched.give(VoterDisconnected(A))[0] == MetadataLeaderChanged(B, Term(2)), "all that is heard"
    assert watched.hear(status(B, 4)) == [MetadataLeaderChanged(None, Term(4))]
    assert watched.hear(status(B, 5)) == [], "a term without a known leader is no news"
    assert watched.observer.term == 5


def test_another_history_is_told_and_nothing_of_it_applied() -> None:
    watched = Watched(A)
    watched.hear(committed(A, (0, 0), 1, 1))
    for foreign in (committed(A, (2, 9), 9), committed(A, (1, 1), 9, 9), committed(A, (0, 0), 1, 9, 9)):
        with pytest.raises(CorruptDataError, match="that is another log"):
            watched.hear(foreign)
    assert watched.observer.applied == 2


def test_what_answers_no_question_is_refused() -> None:
    watched = Watched(A)
    with pytest.raises(RemoteProtocolError, match="entries behind 5 from a, asked for what is behind 0"):
        watched.hear(committed(A, (5, 1), 1))
    with pytest.raises(RemoteProtocolError, match="does not say Observe"):
        watched.hear(Observe(A, ME, LogIndex(0)))
    assert watched.hear(committed(B, (0, 0), 1)) == [], "of a connection that is over"
    assert watched.observer.applied == 0


# --- the voter's side ---------------------------------------------------------------------------------


def question(after: int) -> Observe:
    return Observe(ME, A, LogIndex(after))


def test_a_voter_gives_what_it_has_applied_and_not_what_is_merely_in_its_log() -> None:
    cluster = RaftCluster.led_by_a(A, B, C)
    raft = cluster[A].raft
    assert raft.answer(question(0)) == CommittedEntries(
        A, ME, LogIndex(0), Term(0), (Entry(LogIndex(1), Term(1), b""),)
    )
    assert raft.answer(question(1)) is None
    assert raft.answer(question(7)) is None, "an observer may be ahead of this voter"
    cluster.propose(A, b"x", b"y")
    assert raft.last_index == 3
    assert raft.answer(question(1)) is None, "nobody else has it"
    answer = raft.answer(question(0))
    assert isinstance(answer, CommittedEntries)
    assert [entry.index for entry in answer.entries] == [1]
    cluster.run()
    answer = raft.answer(question(2))
    assert answer == CommittedEntries(A, ME, LogIndex(2), Term(1), (Entry(LogIndex(3), Term(1), b"y"),))


def test_a_voter_whose_disk_is_slow_gives_nothing_that_only_others_have_stored() -> None:
    cluster = RaftCluster.led_by_a(A, B, C)
    cluster[A].holds_writes = True
    cluster.propose(A, b"x")
    cluster.run()
    assert cluster[A].raft.commit == 2
    assert cluster[A].raft.answer(question(1)) is None
    cluster.write(A)
    assert cluster[A].raft.answer(question(1)) is not None


def test_a_voter_gives_a_state_that_it_was_sent_only_once_that_is_durable_here() -> None:
    voter = Voter(B, (A, B, C))
    voter.receive(append(A, B, 1, entries=entries_of(1), commit=1))
    voter.holds_writes = True
    voter.receive(install(A, B, 1, snapshot_of(9, 1)))
    asked = Observe(ME, B, LogIndex(0))
    assert voter.raft.answer(asked) is None
    voter.write()
    assert voter.raft.answer(asked) == CommittedState(B, ME, snapshot_of(9, 1))
