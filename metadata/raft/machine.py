"""A voter of the metadata group: events in, actions out.

Theory of operation. A voter is a term, a log and a role. The parts that keep them are separate, and this
module is where an event finds its part:

    `metadata.raft.election`   which term it is, who leads it, votes and timeouts
    `metadata.raft.log`        entries, the snapshot before them, how far they are committed
    `metadata.raft.configuration`     who decides, by the last entry of the log that says so
    `metadata.raft.following`  what the leader sends
    `metadata.raft.leader.leading`    replication, heartbeats, reads, transfer, changes of members; there only
    while this voter leads
    `metadata.raft.recovery`   what a voter with an empty disk asks before it speaks
    `metadata.raft.output`     what one event makes the voter do, and what of its state is durable

The consequences of any event are handled in one place after it: a reign begins or ends, the commit index
moves, followers get what they lack, the state machine gets what is committed and durable.

Nothing in here waits. While the disk writes, further events come in and may replace what is being written:
promises leave with the write that makes them true (`Persist.then`), so an observer sees a voter that writes
before it speaks, in whatever order things were decided.

Sources: Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm"; Ongaro, "Consensus:
Bridging Theory and Practice"; the shape of the interface is that of etcd-io/raft with asynchronous storage.
"""

from typing import assert_never

from envelope.types import LogIndex, MonotonicNs, NodeId, Term
from metadata.raft.configuration import Configuration, QuorumState
from metadata.raft.election import Election, Role
from metadata.raft.events import (
    Action,
    Apply,
    ChangeMembers,
    CompactLog,
    Event,
    MessageReceived,
    MetadataLeaderChanged,
    PeerDisconnected,
    Persisted,
    Propose,
    Read,
    ReadRefused,
    Restore,
    Tick,
    TransferLeadership,
)
from metadata.raft.following import Following
from metadata.raft.leader.leading import Leadership
from metadata.raft.leader.requests import ask_leader
from metadata.raft.log import RaftLog
from metadata.raft.messages.observer_messages import CommittedEntries, CommittedState, Observe, ObserverAnswer
from metadata.raft.messages.voter_messages import (
    AppendRejection,
    AppendRequest,
    AppendResponse,
    Heartbeat,
    Message,
    RecoveryRequest,
    RecoveryResponse,
    SnapshotRequest,
    VoterHeartbeatResponse,
)
from metadata.raft.output import ActionBuffer
from metadata.raft.recovery import VoterRecovery
from metadata.raft.settings import RaftSettings
from metadata.raft.state import Snapshot, StoredState


class Raft:
    """A voter; see the module.

    Attributes:
        node_id: its name among the members.
        log: to be read; everything that changes it goes through `handle`.
        leadership: None while this voter does not lead; to be read.
        recovery: whether the voter has a vote, which it has not after the loss of its disk.

    Invariant:
        R12: what is applied is committed and durable; a snapshot is of what is applied, unless it was
            received and is not durable yet.
    """

    def __init__(
        self,
        node_id: NodeId,
        voters: frozenset[NodeId],
        settings: RaftSettings,
        stored: StoredState,
        now: MonotonicNs,
        recovery_token: int | None = None,
    ) -> None:
        """Go on with the stored state, as a follower.

        Args:
            node_id: this voter.
            voters: those with which the group began; none: this node joins a group, as a learner.
            settings: times and limits.
            stored: all of it durable. The state machine must be that of its snapshot.
            now: the time.
            recovery_token: a number that no other start of a voter has, if nothing was ever stored on this
                disk: the voter may have voted with another. None: its disk has all that it ever promised.
        """
        assert not voters or node_id in voters, f"{node_id} is none of the voters {sorted(voters)}"
        self.node_id = node_id
        self._settings = settings
        self.log = RaftLog(stored.snapshot, stored.entries, Configuration(tuple(sorted(voters))))
        self._output = ActionBuffer(stored.hard_state, self.log.last_index)
        self._election = Election(node_id, settings, self.log, self._output, now)
        self._following = Following(node_id, self.log, self._output)
        self.leadership: Leadership | None = None
        parts = (self.log, self._output, self._election)
        self.recovery = VoterRecovery(node_id, recovery_token, settings, parts, now)
        self._applied = stored.snapshot.index
        self._told = MetadataLeaderChanged(None, self.term)
        assert self.log.last_term <= self.term, f"R10: entries of {self.log.last_term} in term {self.term}"

    def __str__(self) -> str:
        return (
            f"{self.node_id} {self.role} t{self.term} leader={self.leader} applied={self.applied} "
            f"commit={self.commit} durable={self._output.durable_index} last={self.last_index}"
        )

    @property
    def role(self) -> Role:
        """Role in this term."""
        return self._election.role

    @property
    def term(self) -> Term:
        """The newest term it has seen; may not be durable yet."""
        return self._election.term

    @property
    def leader(self) -> NodeId | None:
        """The leader of this term, as far as this voter knows; itself only once it leads."""
        return self._election.leader

    @property
    def configuration(self) -> Configuration:
        """The one in force here: the last one in its log, committed or not."""
        return self.log.configuration

    @property
    def quorum(self) -> QuorumState | None:
        """The members of the group, and when they were heard; None while this voter does not lead."""
        return None if self.leadership is None else self.leadership.quorum

    @property
    def commit(self) -> LogIndex:
        """The last entry it knows to be committed; may be ahead of its own disk."""
        return self.log.commit

    @property
    def applied(self) -> LogIndex:
        """The last entry it has given to the state machine."""
        return self._applied

    @property
    def last_index(self) -> LogIndex:
        """The last entry it has, durable or not, committed or not."""
        return self.log.last_index

    @property
    def wake_at(self) -> MonotonicNs:
        """When it wants a `Tick`, if nothing happens before."""
        if self.recovery.unanswered:
            return self.recovery.ask_at
        return self._election.timer.at if self.leadership is None else self.leadership.wake_at

    def handle(self, event: Event, now: MonotonicNs) -> tuple[Action, ...]:
        """Handle one event; return the actions of the shell, in order.

        A message for another voter, or of a term that is over, is ignored.

        Raises:
            CorruptDataError: a voter was put back to an earlier state, this one or another; it must stop.
        """
        term, commit, applied = self.term, self.commit, self._applied
        match event:
            case Tick():
                self._tick(now)
            case MessageReceived(message):
                self._received(message, now)
            case Persisted(number):
                self._output.persisted(number)
                self._election.count_votes(now)
            case Propose() | ChangeMembers() | Read() | TransferLeadership():
                answer = ask_leader(event, self.leadership, self.leader, now)
                if answer is not None:
                    self._output.add(answer)
            case CompactLog(index, payload):
                self._compact(index, payload)
            case PeerDisconnected(peer, refused):
                self._disconnected(peer, now, refused=refused)
            case _:
                assert_never(event)
        self._settle(now)
        actions = (*self._output.flush(self._election.hard_state, self.log), *self._applicable())
        self._election.check()
        assert max(term, self.log.last_term) <= self.term, f"R10: from term {term}: {self}"
        assert max(commit, self.log.snapshot.index) <= self.commit <= self.last_index, f"R3: {self}"
        assert applied <= self._applied, f"R12: back from {applied}: {self}"
        assert self.recovery.has_vote or self.role is Role.FOLLOWER, f"R14: {self}"
        return actions

    def answer(self, question: Observe) -> ObserverAnswer | None:
        """Return entries or the state that were applied here and an observer lacks; None if there are none.

        That is committed, so that no later leader has another history, whether or not this voter leads.
        """
        after, snapshot = question.after, self.log.snapshot
        if after >= self._applied or self._applied < snapshot.index:
            return None  # a snapshot that was received is not applied before it is durable
        if after < snapshot.index:
            return CommittedState(self.node_id, question.source, snapshot)
        previous_term = self.log.term_at(after)
        assert previous_term is not None, f"R3: entry {after} is not in the log: {self}"
        entries = self.log.within_bytes(LogIndex(after + 1), self._settings.append_bytes_max)
        entries = entries[: self._applied - after]
        return CommittedEntries(self.node_id, question.source, after, previous_term, entries)

    # --- events -------------------------------------------------------------------------------------------

    def _tick(self, now: MonotonicNs) -> None:
        if self.recovery.unanswered:
            self.recovery.ask(now)
        elif self.leadership is None:
            if now >= self._election.timer.at:
                self._election.time_out(now)
        elif self.leadership.has_lost_majority(now):
            self._election.step_down(now)
        else:
            self.leadership.pass_time(now)

    def _received(self, message: Message, now: MonotonicNs) -> None:
        if message.target != self.node_id:
            return  # whoever sent it: who is a voter by the sender's log may be none by this one
        if isinstance(message, RecoveryRequest | RecoveryResponse):
            self.recovery.receive(message, now)
            return
        if self.recovery.unanswered:
            return  # it may have promised otherwise before
        if not self._election.admits(message, now):
            return
        match message:
            case AppendRequest() | SnapshotRequest() | Heartbeat():
                self._election.record_leader(message.source, now)
                self._following.receive(message)
            case AppendResponse() | AppendRejection() | VoterHeartbeatResponse():
                if self.leadership is not None and self.role is Role.LEADER:
                    self.leadership.receive(message, now)
            case _:
                self._election.receive(message, now)

    def _compact(self, index: LogIndex, payload: bytes) -> None:
        assert index <= self._applied, f"R12: a snapshot of {index}: {self}"
        if index <= self.log.snapshot.index:
            return  # a newer one was received in the meantime
        term = self.log.term_at(index)
        assert term is not None, f"R3: entry {index} is not in the log: {self}"
        snapshot = Snapshot(index, term, payload, self.log.configurations.at(index))
        self.log.compact(snapshot)
        self._output.compacted(snapshot)

    def _disconnected(self, peer: NodeId, now: MonotonicNs, *, refused: bool) -> None:
        if self.leadership is not None:
            self.leadership.disconnected(peer)
        elif refused and peer == self.leader:
            self._election.leader_died(now)

    # --- what follows from any event ----------------------------------------------------------------------

    def _settle(self, now: MonotonicNs) -> None:
        self.recovery.proceed()
        if self.role is not Role.LEADER:
            self._end_leadership()
        elif self.leadership is None:
            self.leadership = Leadership(
                self.node_id, self.term, self._settings, log=self.log, output=self._output, now=now
            )
        if self.leadership is not None:
            assert self.leadership.term == self.term, f"R2: a reign of {self.leadership.term}: {self}"
            self.leadership.proceed(now)
            if self.leadership.is_dismissed:
                self._election.step_down(now)
                self._end_leadership()
        # A leader is reported if it is news; a term without a known leader is none.
        now_known = MetadataLeaderChanged(self.leader, self.term)
        if now_known != self._told and (now_known.leader, self._told.leader) != (None, None):
            self._output.add(now_known)
        self._told = now_known

    def _end_leadership(self) -> None:
        if self.leadership is None:
            return
        tokens = self.leadership.reads.give_up()
        if tokens:
            self._output.add(ReadRefused(tokens, self.leader))
        self.leadership = None

    def _applicable(self) -> list[Action]:
        """Return the actions that apply what is committed, and durable here."""
        actions: list[Action] = []
        snapshot, durable = self.log.snapshot, self._output.durable_index
        if self._applied < snapshot.index <= durable:
            actions.append(Restore(snapshot))
            self._applied = snapshot.index
        end = min(self.commit, durable)
        if snapshot.index <= self._applied < end:
            actions.append(Apply(self.log.between(LogIndex(self._applied + 1), end)))
            self._applied = end
        assert self._applied <= end, f"R12: {self}"
        return actions


def correspondents(raft: Raft) -> frozenset[NodeId]:
    """Return the other members that a voter may have something to say to, or hear from."""
    if raft.leadership is not None:
        return raft.leadership.replication.followers
    members = (each.members for each in raft.log.possible_configurations)
    return frozenset().union(*members) - {raft.node_id}
