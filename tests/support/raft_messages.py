"""What voters say to each other, written briefly: ``previous`` and ``last`` are pairs of index and term."""

from envelope.types import LogIndex, NodeId, Term
from metadata.raft.messages.voter_messages import (
    AppendRejection,
    AppendRequest,
    AppendResponse,
    ElectNow,
    Heartbeat,
    PreVoteRequest,
    PreVoteResponse,
    SnapshotRequest,
    VoteRequest,
    VoteResponse,
    VoterHeartbeatResponse,
)
from metadata.raft.state import Entry, Snapshot

IndexAndTerm = tuple[int, int]


def pre_vote_request(
    source: NodeId, target: NodeId, term: int, last: IndexAndTerm = (0, 0)
) -> PreVoteRequest:
    return PreVoteRequest(source, target, Term(term), LogIndex(last[0]), Term(last[1]))


def pre_vote(
    source: NodeId, target: NodeId, term: int, candidate_term: int, *, granted: bool = True
) -> PreVoteResponse:
    return PreVoteResponse(source, target, Term(term), Term(candidate_term), granted)


def vote_request(
    source: NodeId, target: NodeId, term: int, last: IndexAndTerm = (0, 0), *, transferred: bool = False
) -> VoteRequest:
    return VoteRequest(
        source=source,
        target=target,
        term=Term(term),
        last_index=LogIndex(last[0]),
        last_term=Term(last[1]),
        transferred=transferred,
    )


def vote(source: NodeId, target: NodeId, term: int, *, granted: bool = True) -> VoteResponse:
    return VoteResponse(source, target, Term(term), granted)


def append(
    source: NodeId,
    target: NodeId,
    term: int,
    previous: IndexAndTerm = (0, 0),
    entries: tuple[Entry, ...] = (),
    commit: int = 0,
) -> AppendRequest:
    index, previous_term = previous
    return AppendRequest(
        source=source,
        target=target,
        term=Term(term),
        previous_index=LogIndex(index),
        previous_term=Term(previous_term),
        entries=entries,
        commit=LogIndex(commit),
    )


def appended(source: NodeId, target: NodeId, term: int, match: int) -> AppendResponse:
    return AppendResponse(source, target, Term(term), LogIndex(match))


def rejected(source: NodeId, target: NodeId, term: int, previous: int, hint: IndexAndTerm) -> AppendRejection:
    return AppendRejection(
        source=source,
        target=target,
        term=Term(term),
        previous_index=LogIndex(previous),
        hint_index=LogIndex(hint[0]),
        hint_term=Term(hint[1]),
    )


def snapshot_of(index: int, term: int) -> Snapshot:
    return Snapshot(LogIndex(index), Term(term), f"state after {index}".encode())


def install(source: NodeId, target: NodeId, term: int, snapshot: Snapshot) -> SnapshotRequest:
    return SnapshotRequest(source, target, Term(term), snapshot)


def heartbeat(source: NodeId, target: NodeId, term: int, commit: int = 0, number: int = 1) -> Heartbeat:
    return Heartbeat(source, target, Term(term), LogIndex(commit), number)


def alive(source: NodeId, target: NodeId, term: int, number: int = 1) -> VoterHeartbeatResponse:
    return VoterHeartbeatResponse(source, target, Term(term), number)


def elect_now(source: NodeId, target: NodeId, term: int) -> ElectNow:
    return ElectNow(source, target, Term(term))
