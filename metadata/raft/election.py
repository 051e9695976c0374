"""Term, leader and vote of a voter, and its part in elections.

    FOLLOWER       knows a leader, or waits for one
        -> PRE_CANDIDATE  the election timeout passed in silence
        -> CANDIDATE      the leader hands over, or leaves
    PRE_CANDIDATE  asks whether an election could be won
        -> CANDIDATE      a majority says so
        -> FOLLOWER       a leader, a candidate with this voter's vote, or a higher term shows up
    CANDIDATE      asks for votes
        -> LEADER         a majority votes for it
        -> PRE_CANDIDATE  the election timeout passed without a decision
        -> FOLLOWER       a leader or a higher term shows up
    LEADER         leads
        -> FOLLOWER       a higher term shows up, no majority was heard of for an election timeout, or it is
                          certain that it is no voter any more

A voter whose disk was lost has no part in this until it has recovered (`metadata.raft.recovery`).

Two rules keep a voter that was cut off, or is started again, from deposing a leader that others hear well: it
asks before it raises its term (pre-vote), and a voter that has lately heard of a leader helps no candidate
(lease).

Sources: Ongaro and Ousterhout, section 5.2 and figure 2; Ongaro, "Consensus: Bridging Theory and Practice",
sections 4.2.3 (disruptive servers), 3.10 (transfer) and 9.6 (pre-vote).
"""

from enum import StrEnum
from typing import Final

from envelope.errors import CorruptDataError
from envelope.types import MonotonicNs, NodeId, Term
from metadata.raft.election_timer import ElectionTimer
from metadata.raft.log import RaftLog
from metadata.raft.messages.voter_messages import (
    AppendRequest,
    ElectNow,
    Heartbeat,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    SnapshotRequest,
    VoteRequest,
    VoteResponse,
    VoterHeartbeatResponse,
)
from metadata.raft.output import ActionBuffer
from metadata.raft.settings import RaftSettings
from metadata.raft.state import HardState

ElectionMessage = PreVoteRequest | PreVoteResponse | VoteRequest | VoteResponse | ElectNow

NO_ROUND: Final = 0
"""The round in an answer from a later term, which confirms no heartbeats."""


class Role(StrEnum):
    """See the module."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre_candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class Election:
    """See the module.

    Invariants:
        R1: a voter votes for at most one candidate in a term, over restarts too.
        R2: a term has at most one leader.
        R10: the term never goes back, and no entry is of a later one.
    """

    def __init__(
        self,
        node_id: NodeId,
        settings: RaftSettings,
        log: RaftLog,
        output: ActionBuffer,
        now: MonotonicNs,
    ) -> None:
        """Begin as a follower with the term and the vote that are durable."""
        self._node_id = node_id
        self._settings = settings
        self._log = log
        self._output = output
        self.term = output.durable_hard_state.term
        self.role = Role.FOLLOWER
        self.leader: NodeId | None = None
        self._vote = output.durable_hard_state.vote
        self.recovery_term = output.durable_hard_state.recovery_term
        """As of `HardState`."""
        self._granted: set[NodeId] = set()
        self._leader_heard_at: MonotonicNs | None = None
        self.timer = ElectionTimer(node_id, settings, now)
        if log.configuration.electorate != (node_id,):  # alone there is no leader to wait for
            self.timer.restart(self.term, now)

    @property
    def hard_state(self) -> HardState:
        """The hard state that must be durable before anything is promised."""
        return HardState(self.term, self._vote, self.recovery_term)

    # --- terms ------------------------------------------------------------------------------------------

    def admits(self, message: Message, now: MonotonicNs) -> bool:
        """Follow a higher term, answer a lower one; return whether the message is of the present term.

        Pre-votes are about a term that nobody is in yet, and so are admitted always.
        """
        match message:
            case PreVoteRequest() | PreVoteResponse(granted=True):
                return True
            case VoteRequest(transferred=False) if message.term > self.term and self._has_lease(now):
                return False
        if message.term > self.term:
            self._enter(message.term, now)
        elif message.term < self.term:
            self._answer_earlier_term(message)
        return message.term == self.term or isinstance(message, PreVoteResponse)

    def _enter(self, term: Term, now: MonotonicNs) -> None:
        """Go to a higher term, as a follower of nobody yet.

        The timer runs on: it is started again by a leader or by a vote, not by any candidate.
        """
        assert term > self.term, f"R10: from term {self.term} to {term}"
        if self.role is Role.LEADER:
            self.timer.restart(term, now)
        self.term, self._vote = term, None
        self.role, self.leader = Role.FOLLOWER, None
        self._leader_heard_at = None

    def _answer_earlier_term(self, message: Message) -> None:
        """Answer a deposed leader or a late candidate with this term; ignore late answers."""
        match message:
            case VoteRequest():
                self._output.promise(VoteResponse(self._node_id, message.source, self.term, granted=False))
            case AppendRequest() | SnapshotRequest() | Heartbeat() | ElectNow():
                self._output.send(VoterHeartbeatResponse(self._node_id, message.source, self.term, NO_ROUND))
            case _:
                pass

    def receive(self, message: ElectionMessage, now: MonotonicNs) -> None:
        """Handle a message that was admitted."""
        match message:
            case PreVoteRequest():
                self._pre_vote_asked(message, now)
            case PreVoteResponse():
                self._pre_vote_answered(message, now)
            case VoteRequest():
                self._vote_asked(message, now)
            case VoteResponse():
                if self.role is Role.CANDIDATE and message.granted:
                    self._granted.add(message.source)
                    self.count_votes(now)
            case ElectNow():
                waits = self.role in (Role.FOLLOWER, Role.PRE_CANDIDATE)
                if waits and not self.recovery_term and _may_be_voter(self._node_id, self._log):
                    self._campaign(now, transferred=True)

    # --- recovery -----------------------------------------------------------------------------------------

    def recover(self, highest: Term, now: MonotonicNs, *, is_new_group: bool) -> None:
        """Go behind the highest term that any voter is in; without a vote, unless the group is new (R14).

        A new group has no leader to wait for, and all its voters are there: it elects one soon.
        """
        if highest > 0 or not is_new_group:
            self._enter(Term(highest + 1), now)
        self.recovery_term = Term(0) if is_new_group else self.term
        if is_new_group:
            self.timer.nobody_leads(self.term, now)
        else:
            self.timer.restart(self.term, now)

    # --- the leader ---------------------------------------------------------------------------------------

    def record_leader(self, leader: NodeId, now: MonotonicNs) -> None:
        """Follow the leader of this term, which has just been heard of.

        Raises:
            CorruptDataError: another leads it, too.
        """
        if self.leader not in (None, leader):
            raise CorruptDataError(
                f"{self.leader} and {leader} lead metadata term {self.term}: a voter has voted twice, as one "
                "does that was put back to an earlier state; runbook=RB-07"
            )
        self.role, self.leader = Role.FOLLOWER, leader
        self._leader_heard_at = now
        self.timer.leader_heard(self.term, now)

    def leader_died(self, now: MonotonicNs) -> None:
        """Forget the leader, for nothing listens where it was, and ask for an election soon."""
        self.leader = self._leader_heard_at = None
        self.timer.nobody_leads(self.term, now)

    def step_down(self, now: MonotonicNs) -> None:
        """Stop leading without another leader in sight."""
        assert self.role is Role.LEADER, f"{self.role} cannot step down"
        self.role, self.leader = Role.FOLLOWER, None
        self.timer.restart(self.term, now)

    # --- asking -------------------------------------------------------------------------------------------

    def time_out(self, now: MonotonicNs) -> None:
        """Ask whether an election could be won: the time set for a leader to show up has passed."""
        assert self.role is not Role.LEADER, "a leader waits for no leader"
        self.timer.timed_out(self.term, now)
        if self.role is Role.CANDIDATE and not self._own_vote_is_durable:
            return  # its requests have not left yet, and another term would wait for the same disk
        self.role, self.leader = Role.PRE_CANDIDATE, None
        self._leader_heard_at = None
        if self.recovery_term or not _may_be_voter(self._node_id, self._log):
            self.role = Role.FOLLOWER
            return
        self._granted = {self._node_id}
        last_index, last_term = self._log.last_index, self._log.last_term
        for peer in self._log.configuration.others(self._node_id):
            self._output.send(PreVoteRequest(self._node_id, peer, self.term, last_index, last_term))
        self.count_votes(now)

    def _campaign(self, now: MonotonicNs, *, transferred: bool) -> None:
        """Stand for election in the next term; the requests leave when the own vote is durable."""
        self._enter(Term(self.term + 1), now)
        self.role = Role.CANDIDATE
        self._granted = set()
        self._vote_for(self._node_id)
        self.timer.restart(self.term, now)
        last_index, last_term = self._log.last_index, self._log.last_term
        for peer in self._log.configuration.others(self._node_id):
            self._output.promise(
                VoteRequest(
                    self._node_id,
                    peer,
                    self.term,
                    last_index=last_index,
                    last_term=last_term,
                    transferred=transferred,
                )
            )

    def count_votes(self, now: MonotonicNs) -> None:
        """Go on if a majority agrees; the own vote counts once it is durable."""
        configuration = self._log.configuration
        if self.role is Role.PRE_CANDIDATE and configuration.is_decided_by(self._granted):
            self._campaign(now, transferred=False)
        elif self.role is Role.CANDIDATE:
            own = {self._node_id} if self._own_vote_is_durable else set()
            if configuration.is_decided_by(self._granted | own):
                self.role, self.leader = Role.LEADER, self._node_id

    def _pre_vote_answered(self, message: PreVoteResponse, now: MonotonicNs) -> None:
        """Count the answer to a question that still stands."""
        if self.role is not Role.PRE_CANDIDATE or message.candidate_term != self.term:
            return
        if message.granted:
            self._granted.add(message.source)
            self.count_votes(now)
        else:  # most likely because it has heard of a leader; if that one is dead, it will see so soon
            self.timer.refused(now)

    # --- being asked --------------------------------------------------------------------------------------

    def _pre_vote_asked(self, message: PreVoteRequest, now: MonotonicNs) -> None:
        """Answer whether this voter would vote for that candidate in the term after the candidate's."""
        granted = (
            not self.recovery_term
            and message.term + 1 > self.term
            and not self._has_lease(now)
            and self._log.is_no_newer_than(message.last_index, message.last_term)
        )
        self._output.send(
            PreVoteResponse(self._node_id, message.source, self.term, message.term, granted=granted)
        )

    def _vote_asked(self, message: VoteRequest, now: MonotonicNs) -> None:
        """Vote, if the vote of this term is free and the candidate's log holds all that may be committed."""
        is_free = not self.recovery_term and self._vote in (None, message.source)
        granted = is_free and self._log.is_no_newer_than(message.last_index, message.last_term)
        if granted:
            self._vote_for(message.source)
            self.role = Role.FOLLOWER
            self.timer.restart(self.term, now)
        self._output.promise(VoteResponse(self._node_id, message.source, self.term, granted=granted))

    def check(self) -> None:
        """Assert what holds after every event."""
        leads = self.role is Role.LEADER
        assert leads == (self.leader == self._node_id), f"R2: {self.role} and {self.leader} leads {self.term}"
        stands = leads or self.role is Role.CANDIDATE
        assert not stands or self._vote == self._node_id, f"R1: {self.role} with a vote for {self._vote}"

    def _vote_for(self, candidate: NodeId) -> None:
        assert not self.recovery_term, f"R14: a vote for {candidate} before term {self.recovery_term} is held"
        assert self._vote in (None, candidate), f"R1: {self._vote}, then {candidate} in term {self.term}"
        self._vote = candidate

    @property
    def _own_vote_is_durable(self) -> bool:
        return self._output.durable_hard_state == HardState(self.term, self._node_id)

    def _has_lease(self, now: MonotonicNs) -> bool:
        """Return whether there is a leader that must not be deposed; a leader itself knows of one."""
        if self.role is Role.LEADER:
            return True
        heard_at = self._leader_heard_at
        return heard_at is not None and now - heard_at < self._settings.election_timeout_ns


def _may_be_voter(node_id: NodeId, log: RaftLog) -> bool:
    """Return whether a node is a voter, or does not know for certain that it is none.

    As long as it does not know, others may need its vote, and it cannot give it if their logs are shorter: it
    stands itself then (section 4.2.2).
    """
    return any(node_id in each.electorate for each in log.possible_configurations)
