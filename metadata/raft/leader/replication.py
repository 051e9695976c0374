"""Replication: a leader brings the followers' logs to its own, and counts what a majority holds.

A leader replicates while its own disk writes (Ongaro, "Consensus: Bridging Theory and Practice", section
10.2.1): appends leave at once, and its own log counts towards a majority like any follower's, up to what is
durable of it.

Source: Ongaro and Ousterhout, sections 5.3 and 7; the flow of messages is that of etcd-io/raft.
"""

from envelope.errors import CorruptDataError
from envelope.types import LogIndex, MonotonicNs, NodeId, Term
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
from metadata.raft.quorum import VoterGroup, reached_by_majority
from metadata.raft.settings import NEVER, RaftSettings

FollowerMessage = AppendResponse | AppendRejection | VoterHeartbeatResponse


class Replication:
    """The followers' progress during one reign; see the module."""

    def __init__(
        self,
        group: VoterGroup,
        term: Term,
        settings: RaftSettings,
        log: RaftLog,
        output: ActionBuffer,
        now: MonotonicNs,
    ) -> None:
        """Begin at the log's end; every follower gets an election timeout to be heard from."""
        self._node_id = group.node_id
        self._term = term
        self._settings = settings
        self._log = log
        self._output = output
        behind = LogIndex(log.last_index + 1)
        self._followers = {peer: PeerProgress(next=behind, heard_at=now) for peer in group.peers}

    @property
    def majority_lost_at(self) -> MonotonicNs:
        """When a majority, the leader included, will have been silent for too long if it stays silent."""
        heard_at = [progress.heard_at for progress in self._followers.values()]
        if not heard_at:
            return NEVER
        newest = max(heard_at)  # for the leader itself, which is never the one that is missing
        heard_of_majority_at = reached_by_majority([newest, *heard_at])
        return MonotonicNs(heard_of_majority_at + self._settings.election_timeout_ns)

    def held_by_majority(self) -> LogIndex:
        """Return up to where a majority, the leader included, holds the leader's log durably."""
        matches = [progress.match for progress in self._followers.values()]
        return reached_by_majority([self._output.durable_index, *matches])

    def acked_by_majority(self, current_round: int) -> int:
        """Return the last round of heartbeats that a majority, the leader included, has answered."""
        rounds = [progress.acked_round for progress in self._followers.values()]
        return reached_by_majority([current_round, *rounds])

    def holds_everything(self, peer: NodeId) -> bool:
        """Return whether a follower's log is known to be equal to the leader's."""
        return self._followers[peer].match == self._log.last_index

    def receive(self, message: FollowerMessage, now: MonotonicNs) -> None:
        """Handle a follower's answer.

        Raises:
            CorruptDataError: it has more than a leader can have sent.
        """
        progress = self._followers[message.source]
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
        self._followers[peer].probe()

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
