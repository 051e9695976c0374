"""Requests of a voter's own process that only a leader can do, and the answers of one that does not lead."""

from envelope.types import LogIndex, MonotonicNs, NodeId
from metadata.raft.events import (
    ChangeMembers,
    ProposalRefused,
    Propose,
    Proposed,
    Read,
    ReadRefused,
    RefusalReason,
    TransferLeadership,
)
from metadata.raft.leader.leading import Leadership

LeaderRequest = Propose | ChangeMembers | Read | TransferLeadership
LeaderAnswer = Proposed | ProposalRefused | ReadRefused


def ask_leader(
    request: LeaderRequest, leadership: Leadership | None, leader: NodeId | None, now: MonotonicNs
) -> LeaderAnswer | None:
    """Begin what is asked for; return the answer if there is one at once.

    Args:
        request: of the process.
        leadership: of this voter; None: it does not lead.
        leader: as far as this voter knows.
        now: the time.
    """
    if leadership is None:
        return _refused(request, leader)
    outcome: LogIndex | RefusalReason
    match request:
        case Read(token):
            leadership.reads.add(token)
            return None
        case TransferLeadership(target):
            leadership.transfer(target, now)
            return None
        case Propose(payloads):
            outcome = leadership.propose(payloads)
        case ChangeMembers(voters, learners):
            outcome = leadership.change(voters, learners, now)
    if isinstance(outcome, RefusalReason):
        return ProposalRefused(outcome, leader)
    return Proposed(outcome, leadership.term)


def _refused(request: LeaderRequest, leader: NodeId | None) -> LeaderAnswer | None:
    match request:
        case Read(token):
            return ReadRefused((token,), leader)
        case TransferLeadership():
            return None
        case Propose() | ChangeMembers():
            return ProposalRefused(RefusalReason.NOT_LEADER, leader)
