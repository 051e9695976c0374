"""How a voter that starts with an empty disk becomes a voter again, or one of a new group.

It may have voted and acknowledged entries with a disk that was lost, and those messages may still be under
way. So it sends nothing until each of the other voters has answered with its term, after this start. No
earlier message of it can count in a term above the highest of these, T:

    a vote counts for a candidate only, which is in the term of the vote itself
    an acknowledgement counts for a leader only, which is in its term, too
    an election that was won left its term on the disks of a majority

The voter goes to term T + 1 and has no vote until its log holds an entry of that term or a later one. The
leader of such a term was elected without it, by voters that keep what they acknowledged; so its log holds all
that was committed with the help of the lost disk, and the voter holds it then, too. Its acknowledgements to
that leader count at once: a leader begins its term with nothing acknowledged.

If no voter has any entry, nothing was ever committed: the group is new, and it votes from term T + 1 on.

All of this is about the voters with which the group began. Once others vote, a voter without its disk gets no
answer of one that knows; a group that began with one voter has nobody to answer. There a voter must not come
back under its name (ADR 0018).

Invariant:
    R14: a voter that lost its disk votes, and stands for election, only in terms in which it cannot have
        voted before, and only once it holds all that it may have acknowledged; if the voters are those with
        which the group began.

Source: the question to the others is that of Liskov and Cowling, "Viewstamped Replication Revisited", section
4.3; the argument in full is in docs/adr/0015-lost-disks-and-lost-logs.md.
"""

from envelope.types import MonotonicNs, NodeId, Term
from metadata.raft.election import Election
from metadata.raft.log import RaftLog
from metadata.raft.messages.voter_messages import RecoveryRequest, RecoveryResponse
from metadata.raft.output import ActionBuffer
from metadata.raft.settings import RaftSettings


class VoterRecovery:
    """The question of one start, and its answers; see the module.

    Attributes:
        unanswered: the voters that have yet to answer; none of a voter whose disk is not empty.
        ask_at: when to ask them.
    """

    def __init__(
        self,
        node_id: NodeId,
        token: int | None,
        settings: RaftSettings,
        parts: tuple[RaftLog, ActionBuffer, Election],
        now: MonotonicNs,
    ) -> None:
        """Begin to ask, if there is a token.

        Args:
            node_id: of the voter.
            token: names this start on an empty disk; None: nothing is to be asked.
            settings: times.
            parts: of the voter.
            now: the time.
        """
        self.unanswered: tuple[NodeId, ...] = () if token is None else parts[0].configuration.others(node_id)
        self.ask_at = now
        self._node_id = node_id
        self._token = token
        self._interval_ns = settings.heartbeat_interval_ns
        self._log, self._output, self._election = parts
        self._highest = Term(0)
        self._is_new_group = True

    @property
    def has_vote(self) -> bool:
        """Whether the voter votes and stands for election."""
        return not self.unanswered and not self._election.recovery_term

    @property
    def problem(self) -> str | None:
        """Why the voter has no vote, for people; None if it has one."""
        if self.unanswered:
            waits_for = ", ".join(self.unanswered)
            return f"the metadata log was empty: this voter has no vote until it has heard from {waits_for}"
        if self._election.recovery_term:
            return (
                "the metadata log was empty: this voter has no vote until a leader has brought it up to date"
            )
        return None

    def ask(self, now: MonotonicNs) -> None:
        """Ask the voters that have not answered, if it is time to."""
        if now >= self.ask_at:
            self.ask_at = MonotonicNs(now + self._interval_ns)
            assert self._token is not None, "there is nothing to ask"
            for peer in self.unanswered:
                self._output.send(RecoveryRequest(self._node_id, peer, Term(0), self._token))

    def receive(self, message: RecoveryRequest | RecoveryResponse, now: MonotonicNs) -> None:
        """Answer a question, or record an answer; an answer to another start is ignored.

        No voter answers that knows of other voters than those with which the group began: the sender asks
        only these, and would take their word for that of all.
        """
        if isinstance(message, RecoveryRequest):
            if self._log.configuration.electorate != self._log.beginning.electorate:
                return
            is_empty = self._log.last_index == 0
            self._output.send(
                RecoveryResponse(self._node_id, message.source, self._election.term, message.token, is_empty)
            )
        elif message.token == self._token and message.source in self.unanswered:
            self.unanswered = tuple(peer for peer in self.unanswered if peer != message.source)
            self._highest = max(self._highest, message.term)
            self._is_new_group = self._is_new_group and message.is_empty
            if not self.unanswered:
                self._election.recover(self._highest, now, is_new_group=self._is_new_group)

    def proceed(self) -> None:
        """Vote from now on, if all that the voter may have acknowledged is durable here."""
        if not self._election.recovery_term:
            return
        held = self._log.term_at(self._output.durable_index)
        if held is not None and held >= self._election.recovery_term:
            self._election.recovery_term = Term(0)
