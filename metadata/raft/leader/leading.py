"""The state of one leadership: replication, heartbeats, waiting reads, a transfer.

Sources: Ongaro and Ousterhout, section 5.4.2; Ongaro, "Consensus: Bridging Theory and Practice", sections
3.10 (transfer), 4 (changes of members), 6.2 (stepping down without a majority) and 6.4 (reads).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from envelope.types import LogIndex, MonotonicNs, NodeId, Term
from metadata.raft.configuration import QuorumState, configuration_in, encode_configuration
from metadata.raft.events import ReadReady, RefusalReason
from metadata.raft.leader.reads import Reads
from metadata.raft.leader.replication import FollowerMessage, Replication
from metadata.raft.log import RaftLog
from metadata.raft.messages.voter_messages import ElectNow, VoterHeartbeatResponse
from metadata.raft.output import ActionBuffer
from metadata.raft.settings import NEVER, RaftSettings
from metadata.raft.state import Entry


@dataclass(slots=True)
class _Transfer:
    """Leadership is being handed to ``target``, until ``give_up_at``."""

    target: NodeId
    give_up_at: MonotonicNs
    is_asked: bool = False
    """The target holds every entry and was asked to stand for election; the message may be lost."""


class Leadership:
    """The leadership of one term; see the module.

    Invariants:
        R7: a leader only appends to its own log, and no follower holds more.
        R8: by counting who holds it, only an entry of the leader's own term is committed.
        R16: no change of members begins before the last one is committed, and an entry of this term.
            Held by test_changes_come_one_after_the_other,
            test_a_new_leader_changes_nothing_before_it_has_committed_in_its_term.
    """

    def __init__(
        self,
        node_id: NodeId,
        term: Term,
        settings: RaftSettings,
        log: RaftLog,
        output: ActionBuffer,
        now: MonotonicNs,
    ) -> None:
        """Begin with an empty entry: only with one of its own term can earlier ones be committed (R8)."""
        self.term = term
        self.reads = Reads()
        self.is_dismissed = False
        """It is certain that this leader is no voter any more."""
        self._node_id = node_id
        self._settings = settings
        self._log = log
        self._output = output
        self._appended, self._committed = log.last_index, log.commit
        self._append((b"",))
        self.replication = Replication(node_id, term, settings, log=log, output=output, now=now)
        self._round = 0
        self._heartbeat_at = _after(now, settings.heartbeat_interval_ns)
        self._transfer: _Transfer | None = None

    @property
    def wake_at(self) -> MonotonicNs:
        """When something is due even if nothing happens."""
        give_up_at = NEVER if self._transfer is None else self._transfer.give_up_at
        heartbeat_at = self._heartbeat_at if self.replication.followers else NEVER
        return min(heartbeat_at, self.replication.majority_lost_at, give_up_at)

    @property
    def quorum(self) -> QuorumState:
        """The members, and when they were heard."""
        return QuorumState(
            leader=self._node_id,
            configuration=self._log.configuration,
            is_changing=not (self._is_certain and self._may_read),
            is_first=self._log.configurations.at(self._log.last_index) is None,
            heard_at=self.replication.heard_at(),
        )

    def has_lost_majority(self, now: MonotonicNs) -> bool:
        """Return whether no majority was heard from within an election timeout."""
        return now >= self.replication.majority_lost_at

    def pass_time(self, now: MonotonicNs) -> None:
        """Do what is due: a heartbeat, the end of a transfer."""
        if self._transfer is not None and now >= self._transfer.give_up_at:
            self._transfer = None
        if now >= self._heartbeat_at:
            self._begin_round(now)

    def propose(self, payloads: Sequence[bytes]) -> LogIndex | RefusalReason:
        """Append entries of this term; return the first one's index, or why nothing was appended."""
        assert all(payloads), "an empty payload is how a leader begins its term"
        assert not any(map(configuration_in, payloads)), "members are changed otherwise"
        if self._transfer is not None or self._node_id not in self._log.configuration.electorate:
            return RefusalReason.HANDING_OVER  # with nothing behind the final configuration there is an heir
        if self._log.last_index - self._log.commit + len(payloads) > self._settings.entries_in_flight_max:
            return RefusalReason.OVERLOADED
        return self._append(payloads)

    def change(
        self, voters: Collection[NodeId], learners: Collection[NodeId], now: MonotonicNs
    ) -> LogIndex | RefusalReason:
        """Begin a change of members; return the index of its first entry, or why it did not begin."""
        assert voters, "nobody could decide"
        assert not set(voters).intersection(learners), f"{voters} and {learners} overlap"
        configuration = self._log.configuration
        if self._transfer is not None:
            return RefusalReason.HANDING_OVER
        if self.quorum.is_changing:
            return RefusalReason.CHANGING
        first = configuration.followed_by(voters, learners)
        up = {voter for voter in voters if voter == self._node_id or self.replication.keeps_up(voter, now)}
        if not up.issuperset(set(voters).difference(configuration.voters)):
            return RefusalReason.BEHIND
        if not first.final.is_decided_by(up):
            return RefusalReason.BEHIND
        return self._append((encode_configuration(first),))

    def receive(self, message: FollowerMessage, now: MonotonicNs) -> None:
        """Handle a follower's answer of this term."""
        self.replication.receive(message, now)
        transfer = self._transfer
        if isinstance(message, VoterHeartbeatResponse) and transfer and message.source == transfer.target:
            transfer.is_asked = False  # alive and still a follower: it may not have heard

    def disconnected(self, peer: NodeId) -> None:
        """Record that messages under way to ``peer`` may be lost."""
        self.replication.disconnected(peer)

    def transfer(self, target: NodeId, now: MonotonicNs) -> None:
        """Hand over to ``target`` once it holds every entry; asking again for the same changes nothing."""
        if target not in self._log.configuration.others(self._node_id):
            return
        if self._transfer is None or self._transfer.target != target:
            self._transfer = _Transfer(target, _after(now, self._settings.election_timeout_ns))

    def proceed(self, now: MonotonicNs) -> None:
        """Do all that has become possible; called after every event."""
        assert self._log.last_index >= self._appended, f"R7: {self._appended} was there: {self._log}"
        self._appended = self._log.last_index
        self.replication.follow_configuration(now)
        self._advance_commit()
        self._go_on_with_change()
        self.replication.send_appends(now)
        self._serve_reads(now)
        self._hand_over()

    def _advance_commit(self) -> None:
        """Commit what a majority holds, if it is of this term (section 5.4.2 and figure 8)."""
        held = self.replication.held_by_majority()
        if held > self._log.commit and self._log.term_at(held) == self.term:
            self._log.commit_to(held)
        assert self._log.commit == self._committed or self._may_read, f"R8: in term {self.term}: {self._log}"
        self._committed = self._log.commit

    @property
    def _is_certain(self) -> bool:
        """Whether the configuration in force is committed, so that there is no other."""
        return self._log.possible_configurations == (self._log.configuration,)

    def _go_on_with_change(self) -> None:
        """Leave a joint configuration once it is committed, whoever has begun it; leave with the final one.

        A leader that leaves has one that holds everything stand at once, so that nobody waits for a timeout.
        """
        configuration = self._log.configuration
        if not self._is_certain:
            return
        if configuration.is_joint:
            self._append((encode_configuration(configuration.final),))
        elif self._node_id not in configuration.voters:
            self.is_dismissed = True
            heir = next(filter(self.replication.holds_everything, configuration.voters), None)
            if heir is not None:
                self._output.send(ElectNow(self._node_id, heir, self.term))

    def _append(self, payloads: Sequence[bytes]) -> LogIndex:
        first = LogIndex(self._log.last_index + 1)
        self._log.append(
            [Entry(LogIndex(index), self.term, payload) for index, payload in enumerate(payloads, first)]
        )
        self._output.changed_from(first)
        return first

    def _begin_round(self, now: MonotonicNs) -> None:
        """Send heartbeats; they also confirm that this leader led when the reads came that wait for it."""
        self._round += 1
        self._heartbeat_at = _after(now, self._settings.heartbeat_interval_ns)
        self.replication.send_heartbeats(self._round)
        if self._may_read:
            self.reads.join(self._round, self._log.commit)

    def _serve_reads(self, now: MonotonicNs) -> None:
        self._report_ready_reads()
        if self.reads.want_a_round and self._may_read:
            self._begin_round(now)
            self._report_ready_reads()  # a leader without followers is a majority at once

    def _report_ready_reads(self) -> None:
        for done in self.reads.confirmed(self.replication.acked_by_majority(self._round)):
            self._output.add(ReadReady(done.tokens, done.index))

    @property
    def _may_read(self) -> bool:
        """Before it has committed in its own term, a leader may not know of all that is committed."""
        return self._log.term_at(self._log.commit) == self.term

    def _hand_over(self) -> None:
        transfer = self._transfer
        if transfer is None or transfer.is_asked:
            return
        if self.replication.holds_everything(transfer.target):
            self._output.send(ElectNow(self._node_id, transfer.target, self.term))
            transfer.is_asked = True


def _after(now: MonotonicNs, duration_ns: int) -> MonotonicNs:
    return MonotonicNs(now + duration_ns)
