"""Messages between voters.

Every message, a reply too, carries the term its sender was in: a reply of an earlier term means nothing in
this one (a late reply that is counted has lost committed entries in other implementations).

Sources: Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm", figures 2 and 13;
Ongaro, "Consensus: Bridging Theory and Practice", sections 3.10 (leadership transfer), 6.4 (reads) and
9.6 (pre-vote); Liskov and Cowling, "Viewstamped Replication Revisited", section 4.3 (recovery).
"""

from dataclasses import dataclass

from envelope.types import LogIndex, NodeId, Term
from metadata.raft.state import Entry, Snapshot


@dataclass(frozen=True, slots=True)
class MessageHeader:
    """Sender, target and the sender's term."""

    source: NodeId
    target: NodeId
    term: Term


@dataclass(frozen=True, slots=True)
class PreVoteRequest(MessageHeader):
    """Would you vote for me in the term after mine? Asking changes nothing on either side."""

    last_index: LogIndex
    last_term: Term


@dataclass(frozen=True, slots=True)
class PreVoteResponse(MessageHeader):
    """The answer for ``candidate_term``, the term the candidate was in when it asked."""

    candidate_term: Term
    granted: bool


@dataclass(frozen=True, slots=True)
class VoteRequest(MessageHeader):
    """Vote for me in this term."""

    last_index: LogIndex
    last_term: Term
    transferred: bool
    """The leader itself asked for this election, so that having heard of it lately is no objection."""


@dataclass(frozen=True, slots=True)
class VoteResponse(MessageHeader):
    """The vote in this term; a granted one is durable before it is sent."""

    granted: bool


@dataclass(frozen=True, slots=True)
class AppendRequest(MessageHeader):
    """Entries that follow the one at ``previous_index``, of ``previous_term``; may be none."""

    previous_index: LogIndex
    previous_term: Term
    entries: tuple[Entry, ...]
    commit: LogIndex


@dataclass(frozen=True, slots=True)
class AppendResponse(MessageHeader):
    """The log up to ``match`` is the leader's, and durable."""

    match: LogIndex


@dataclass(frozen=True, slots=True)
class AppendRejection(MessageHeader):
    """The log has no entry of that term at ``previous_index``."""

    previous_index: LogIndex
    hint_index: LogIndex
    """The logs can agree up to here at most."""
    hint_term: Term
    """Term of the follower's entry there."""


@dataclass(frozen=True, slots=True)
class SnapshotRequest(MessageHeader):
    """The state, because the log no longer has what the follower lacks. Answered by AppendResponse."""

    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Heartbeat(MessageHeader):
    """The leader of this term is alive."""

    commit: LogIndex
    """Never above what the follower is known to hold."""
    round: int
    """Counts the leader's heartbeats; the reply names the one it answers."""


@dataclass(frozen=True, slots=True)
class VoterHeartbeatResponse(MessageHeader):
    """The sender was in this term when it received that round."""

    round: int


@dataclass(frozen=True, slots=True)
class ElectNow(MessageHeader):
    """The leader hands over: begin an election at once (TimeoutNow in the dissertation)."""


@dataclass(frozen=True, slots=True)
class RecoveryRequest(MessageHeader):
    """The sender starts with an empty disk: in which term are you? Its own term means nothing."""

    token: int
    """No other start of a voter has it; the answer repeats it."""


@dataclass(frozen=True, slots=True)
class RecoveryResponse(MessageHeader):
    """The sender was in this term when it received the request with that token."""

    token: int
    is_empty: bool
    """Its log has no entry."""


Request = (
    PreVoteRequest | VoteRequest | AppendRequest | SnapshotRequest | Heartbeat | ElectNow | RecoveryRequest
)
Response = (
    PreVoteResponse
    | VoteResponse
    | AppendResponse
    | AppendRejection
    | VoterHeartbeatResponse
    | RecoveryResponse
)
Message = Request | Response
