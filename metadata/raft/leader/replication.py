"""Replication: a leader brings the followers' logs to its own, and counts what a majority holds.

A leader replicates while its own disk writes (Ongaro, "Consensus: Bridging Theory and Practice", section
10.2.1): appends leave at once, and its own log counts towards a majority like any follower's, up to what is
durable of it.

Source: Ongaro and Ousterhout, sections 5.3 and 7; the flow of messages is that of etcd-io/raft.
"""

from collections.abc import Callable

from envelope.errors import CorruptDataError
from envelope.types import LogIndex, MonotonicNs, NodeId, Term
from metadata.raft.configuration import OrderedT
from metadata.raft.leader.progress import PeerProgress, ProgressState
from metadata.raft.log import RaftLog
from metadata.raft.messages.voter_messages import (
    AppendRejection,
    AppendRequest,
    AppendResponse,
    Heartbeat,
    SnapshotRequest,
    VoterHeartbeatResponse,
)
from metadata.raft.output import ActionBuffer
from metadata.raft.settings import NEVER, RaftSettings

FollowerMessage = AppendResponse | AppendRejection | VoterHeartbeatResponse


class Replication:
    """The followers' progress during one reign; see the module."""

    def __init__(
        self,
        node_id: NodeId,
        term: Term,
        settings: RaftSettings,
        log: RaftLog,
        output: ActionBuffer,
        now: MonotonicNs,
    ) -> None:
        """Begin at the log's end; every follower gets an election timeout to be heard from."""
        self._node_id = node_id
        self._term = term
        self._settings = settings
        self._log = log
        self._output = output
        self._followers: dict[NodeId, PeerProgress] = {}
        self.follow_configuration(now)

    @property
    def followers(self) -> frozenset[NodeId]:
        """All others who are sent the log."""
        return frozenset(self._followers)

    @property
    def majority_lost_at(self) -> MonotonicNs:
        """When a majority, the leader included, will have been silent for too long if it stays silent."""
        others = self._log.configuration.others(self._node_id)
        if not others:
            return NEVER
        newest = max(self._followers[peer].heard_at for peer in others)
        # The leader itself is never the one that is missing.
        heard_of_majority_at = self._reached_by_majority(newest, lambda progress: progress.heard_at)
        return MonotonicNs(heard_of_majority_at + self._settings.election_timeout_ns)

    def held_by_majority(self) -> LogIndex:
        """Return up to where a majority, the leader included, holds the leader's log durably."""
        return self._reached_by_majority(self._output.durable_index, lambda progress: progress.match)

    def acked_by_majority(self, current_round: int) -> int:
        """Return the last round of heartbeats that a majority, the leader included, has answered."""
        return self._reached_by_majority(current_round, lambda progress: progress.acked_round)

    def holds_everything(self, peer: NodeId) -> bool:
        """Return whether a follower's log is known to be equal to the leader's."""
        return peer in self._followers and self._followers[peer].match == self._log.last_index

    def heard_at(self) -> dict[NodeId, MonotonicNs]:
        """Return when each follower last answered; if it never did, when it became one."""
        return {peer: progress.heard_at for peer, progress in self._followers.items()}

    def keeps_up(self, peer: NodeId, now: MonotonicNs) -> bool:
        """Return whether a follower has all that is committed, and was heard within an election timeout."""
        progress = self._followers.get(peer)
        return (
            progress is not None
            and progress.match >= self._log.commit
            and now - progress.heard_at < self._settings.election_timeout_ns
        )

    def follow_configuration(self, now: MonotonicNs) -> None:
        """Replicate to all who are to have the log, to new ones from its end back.

        A follower that has left is told that this is committed, unless it is silent: else it would go on
        asking for elections, and could win one.
        """
        wanted = set().union(*(each.members for each in self._log.possible_configurations))
        wanted.discard(self._node_id)
        for peer, progress in self._followers.items():
            if peer in wanted:
                progress.left_at = None
            elif self._has_to_learn_that_it_left(progress, now):
                wanted.add(peer)
        if wanted != self._followers.keys():
            last = self._log.last_index
            self._followers = {
                peer: self._followers.get(peer) or PeerProgress(next=last, heard_at=now)
                for peer in sorted(wanted)
            }

    def receive(self, message: FollowerMessage, now: MonotonicNs) -> None:
        """Handle a follower's answer.

        Raises:
            CorruptDataError: it has more than a leader can have sent.
        """
        progress = self._followers.get(message.source)
        if progress is None:
            return  # it is no member any more
        progress.heard_at = now
        match message:
            case AppendResponse(match=match):
                if match > self._log.last_index:
                    raise CorruptDataError(
                        f"{message.source} holds {match} metadata entries of this leader, whose log ends at "
                        f"{self._log.last_index}: one of the two was put back to an earlier state; "
                        "runbook=RB-07"
                    )
                progress.acknowledged(match)
            case AppendRejection():
                agreement = self._log.last_agreement(message.hint_index, message.hint_term)
                progress.rejected(message.previous_index, agreement)
            case VoterHeartbeatResponse():
                progress.acked_round = max(progress.acked_round, message.round)
                if progress.match < self._log.last_index:
                    self._find_loss(message.source, progress, now)

    def disconnected(self, peer: NodeId) -> None:
        """Begin again with what ``peer`` has acknowledged."""
        progress = self._followers.get(peer)
        if progress is not None:
            progress.probe()

    def send_heartbeats(self, current_round: int) -> None:
        """Send every follower a heartbeat with the commit index, as far as its log is known to reach."""
        for peer, progress in self._followers.items():
            commit = min(progress.match, self._log.commit)
            self._output.send(Heartbeat(self._node_id, peer, self._term, commit, current_round))

    def send_appends(self, now: MonotonicNs) -> None:
        """Send every follower what may be sent to it now."""
        for peer, progress in self._followers.items():
            while progress.next <= self._log.last_index and progress.may_send(
                self._settings.appends_in_flight_max
            ):
                self._send_entries(peer, progress, now, self._settings.append_bytes_max)
            if progress.is_idle and progress.commit_sent < min(self._log.commit, progress.match):
                self._send_entries(peer, progress, now, bytes_max=0)

    def _has_to_learn_that_it_left(self, progress: PeerProgress, now: MonotonicNs) -> bool:
        if progress.left_at is None:
            progress.left_at = self._log.commit
        is_heard = now - progress.heard_at < self._settings.election_timeout_ns
        return is_heard and progress.commit_sent < progress.left_at

    def _reached_by_majority(self, own: OrderedT, value_of: Callable[[PeerProgress], OrderedT]) -> OrderedT:
        """Return the highest value that a majority has; the leader, if it is a voter, has ``own``."""
        return self._log.configuration.reached(
            lambda voter: own if voter == self._node_id else value_of(self._followers[voter])
        )

    def _find_loss(self, peer: NodeId, progress: PeerProgress, now: MonotonicNs) -> None:
        """Ask about what a follower that is alive has not acknowledged."""
        match progress.state:
            case ProgressState.PROBE:
                progress.probe_again()
            case ProgressState.REPLICATE:
                # All that may be sent is under way, and if any of it was lost, this will be rejected.
                self._send_entries(peer, progress, now, bytes_max=0)
            case ProgressState.SNAPSHOT:
                if now - progress.snapshot_sent_at >= self._settings.election_timeout_ns:
                    progress.probe()

    def _send_entries(self, peer: NodeId, progress: PeerProgress, now: MonotonicNs, bytes_max: int) -> None:
        """Send the next entries, none if ``bytes_max`` is 0; a snapshot if the log no longer has them."""
        previous = LogIndex(progress.next - 1)
        previous_term = self._log.term_at(previous)
        if previous_term is None:
            snapshot = self._log.snapshot
            self._output.send(SnapshotRequest(self._node_id, peer, self._term, snapshot))
            progress.sent_snapshot(snapshot.index, now)
            return
        entries = self._log.within_bytes(progress.next, bytes_max) if bytes_max else ()
        commit = self._log.commit
        self._output.send(
            AppendRequest(
                self._node_id,
                peer,
                self._term,
                previous_index=previous,
                previous_term=previous_term,
                entries=entries,
                commit=commit,
            )
        )
        progress.sent(LogIndex(previous + len(entries)), commit)
