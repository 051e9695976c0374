"""The follower's part: messages of the leader of its term.

Every answer is a promise: it leaves when all that it acknowledges is durable.

A message that no voter that has forgotten nothing can receive is an error: its directory, or that of the
other side, was put back to an earlier state.

Source: Ongaro and Ousterhout, figures 2 (AppendEntries) and 13 (InstallSnapshot).
"""

from envelope.errors import CorruptDataError
from envelope.types import LogIndex, NodeId, Term
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

LeaderMessage = AppendRequest | SnapshotRequest | Heartbeat


class Following:
    """See the module; keeps nothing of its own."""

    def __init__(self, node_id: NodeId, log: RaftLog, output: ActionBuffer) -> None:
        self._node_id = node_id
        self._log = log
        self._output = output

    def receive(self, message: LeaderMessage) -> None:
        """Handle a message of the leader of this term.

        Raises:
            CorruptDataError: the two logs cannot both be what they were.
        """
        match message:
            case AppendRequest():
                self._append(message)
            case SnapshotRequest():
                self._install(message)
            case Heartbeat():
                self._heartbeat(message)

    def _append(self, message: AppendRequest) -> None:
        """Merge entries that continue the log; else answer how far back the two logs may agree."""
        log = self._log
        if message.previous_index < log.commit:  # late: what is committed is the leader's, whatever it says
            self._acknowledge(message, log.commit)
        elif log.term_at(message.previous_index) != message.previous_term:
            self._reject(message)
        else:
            changed_from = log.merge(message.entries)
            if changed_from is not None:
                self._output.changed_from(changed_from)
            match = LogIndex(message.previous_index + len(message.entries))
            log.commit_to(min(message.commit, match))  # what lies behind may be of another history
            self._acknowledge(message, match)

    def _install(self, message: SnapshotRequest) -> None:
        """Install a snapshot, but never in place of entries that it is a part of.

        Those may have been acknowledged: a late snapshot that wiped them would lose what is committed.
        """
        log, snapshot = self._log, message.snapshot
        if log.term_at(snapshot.index) == snapshot.term:
            log.commit_to(snapshot.index)
        elif snapshot.index > log.commit:
            if snapshot.term < log.snapshot.term:
                raise CorruptDataError(
                    f"{message.source} leads with metadata entry {snapshot.index} of term {snapshot.term}, "
                    f"behind one of term {log.snapshot.term} that is committed here: one of the two metadata "
                    "logs was put back to an earlier state; runbook=RB-07"
                )
            self._output.replaced(snapshot, log.commit)
            log.restore(snapshot)
        self._acknowledge(message, log.commit)

    def _heartbeat(self, message: Heartbeat) -> None:
        """Commit up to the leader's index. The answer rests on nothing durable, not even on this term.

        The leader of a later term has votes of a majority in it, durable before they were given, and none of
        those voters can be found in this term afterwards.
        """
        if message.commit > self._log.last_index:
            raise CorruptDataError(
                f"{message.source} leads and knows of {message.commit} metadata entries that were confirmed "
                f"here, and the log ends at {self._log.last_index}: it was put back to an earlier state; "
                "runbook=RB-07"
            )
        self._log.commit_to(message.commit)
        self._output.send(VoterHeartbeatResponse(self._node_id, message.source, message.term, message.round))

    def _acknowledge(self, message: AppendRequest | SnapshotRequest, match: LogIndex) -> None:
        self._output.promise(AppendResponse(self._node_id, message.source, message.term, match))

    def _reject(self, message: AppendRequest) -> None:
        hint_index = self._log.last_agreement(message.previous_index, message.previous_term)
        hint_term = self._log.term_at(hint_index) or Term(0)
        self._output.promise(
            AppendRejection(
                self._node_id,
                message.source,
                message.term,
                previous_index=message.previous_index,
                hint_index=hint_index,
                hint_term=hint_term,
            )
        )
