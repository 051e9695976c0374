"""An observer of the metadata log: has all that was committed, and no vote.

Theory of operation. An observer speaks with every voter, and asks one of them for what follows the entry that
it applied last: the leader if it is heard, else the one it asked before, else any. Voters give only what is
committed and applied on their side, so nothing that an observer has is ever taken back: it may go on at any
other voter when one falls silent, and what comes twice is passed over. The state machine of an observer so is
that of the voters, at most a message behind.

Nothing here needs to be durable. An observer promises nothing, so that it starts with nothing and is
given the state; no quorum has counted what it has forgotten.

Every voter sends the leader that it knows at short intervals. The newest term counts that a voter that is not
silent has sent.

Source: Ongaro, "Consensus: Bridging Theory and Practice", section 4.2.1 (servers without a vote); the
observers of ZooKeeper. ADR 0007 says why these are none that the leader replicates to.
"""

from collections.abc import Collection
from dataclasses import dataclass

from envelope.errors import CorruptDataError, RemoteProtocolError
from envelope.types import LogIndex, MonotonicNs, NodeId, Term
from metadata.raft.events import Apply, MetadataLeaderChanged, Restore
from metadata.raft.messages.observer_messages import (
    CommittedEntries,
    CommittedState,
    Observe,
    ObserverAnswer,
    ObserverMessage,
    VoterStatus,
)
from metadata.raft.settings import NEVER, RaftSettings
from metadata.raft.state import BEGINNING, Position

_NO_TERM = Term(0)


@dataclass(frozen=True, slots=True)
class VoterConnected:
    """``voter`` is connected; messages that were sent to it before are lost."""

    voter: NodeId


@dataclass(frozen=True, slots=True)
class VoterDisconnected:
    """``voter`` is not connected any more."""

    voter: NodeId


@dataclass(frozen=True, slots=True)
class ReceivedFromVoter:
    """A message of a voter has arrived."""

    message: ObserverMessage


@dataclass(frozen=True, slots=True)
class TimePassed:
    """To be given when ``wake_at`` is reached."""


@dataclass(frozen=True, slots=True)
class SendToVoter:
    """Send this to its target; lost only with the connection."""

    question: Observe


ObserverEvent = VoterConnected | VoterDisconnected | ReceivedFromVoter | TimePassed
ObserverAction = SendToVoter | Apply | Restore | MetadataLeaderChanged


@dataclass(slots=True)
class _Voter:
    """A voter that is connected."""

    heard_at: MonotonicNs
    is_silent: bool = False
    term: Term = _NO_TERM
    leader: NodeId | None = None


class Observer:
    """An observer; see the module.

    Invariants:
        O1: entries are applied in the order of their indexes, without a gap, each once.
        O2: at most one voter owes an answer that is waited for.
    """

    def __init__(
        self,
        node_id: NodeId,
        voters: Collection[NodeId],
        settings: RaftSettings,
        position: Position = BEGINNING,
    ) -> None:
        """Begin with what is applied, in touch with nobody.

        Args:
            node_id: this observer.
            voters: the nodes of the group's voters, as far as is known; not this one.
            settings: of the voters; a voter without a message for an election timeout is silent.
            position: of the last entry that the state machine has applied.
        """
        self._node_id = node_id
        self.follow(voters)
        self._silence_ns = settings.election_timeout_ns
        self._links: dict[NodeId, _Voter] = {}
        self._asked: NodeId | None = None
        self._applied, self._applied_term = position.index, position.term
        self._told = MetadataLeaderChanged(None, _NO_TERM)

    def __str__(self) -> str:
        heard = ",".join(sorted(self._links)) or "nobody"
        return (
            f"{self._node_id} observes t{self.term} leader={self.leader} applied={self.applied} hears {heard}"
        )

    @property
    def applied(self) -> LogIndex:
        """The last entry it has given to the state machine."""
        return self._applied

    @property
    def leader(self) -> NodeId | None:
        """The leader, as far as the voters that are heard know."""
        return self._told.leader

    @property
    def term(self) -> Term:
        """The term of that leader; without one the newest that was received."""
        return self._told.term

    @property
    def hears_voters(self) -> bool:
        """Whether any voter is connected and not silent, as of the last event."""
        return any(not voter.is_silent for voter in self._links.values())

    @property
    def wake_at(self) -> MonotonicNs:
        """When it wants `TimePassed`, if nothing happens before."""
        heard_at = (voter.heard_at for voter in self._links.values() if not voter.is_silent)
        first = min(heard_at, default=None)
        return NEVER if first is None else MonotonicNs(first + self._silence_ns)

    def follow(self, voters: Collection[NodeId]) -> None:
        """Speak with these from now on; the caller cuts the connections to others, and says so."""
        assert self._node_id not in voters, f"{self._node_id} is a voter"
        self._voters = frozenset(voters)

    def handle(self, event: ObserverEvent, now: MonotonicNs) -> tuple[ObserverAction, ...]:
        """Handle one event; return the actions of the shell, in order.

        Raises:
            RemoteProtocolError: a voter's message answers nothing; nothing has changed.
            CorruptDataError: a voter has another history than what was applied here. The observer is of no
                more use: begun anew, it takes that history.
        """
        actions: list[ObserverAction] = []
        applied = self._applied
        match event:
            case VoterConnected(voter):
                assert voter in self._voters, f"{voter} is no voter"
                self._links[voter] = _Voter(now)
                self._expect_nothing_of(voter)
            case VoterDisconnected(voter):
                self._links.pop(voter, None)
            case ReceivedFromVoter(message):
                actions += self._heard(message, now)
            case TimePassed():
                pass
        self._find_silent(now)
        actions += self._leader_news()
        actions += self._questions()
        assert self._applied >= applied, f"O1: back from {applied}: {self}"
        assert self._asked is not None or not self.hears_voters, f"O2: nobody is asked: {self}"
        return tuple(actions)

    # --- what is heard ------------------------------------------------------------------------------------

    def _heard(self, message: ObserverMessage, now: MonotonicNs) -> list[ObserverAction]:
        voter = self._links.get(message.source)
        if voter is None:
            return []  # of a connection that is over
        applied: list[ObserverAction] = []
        match message:
            case VoterStatus(term=term, node=node):
                voter.term, voter.leader = term, node or None
            case CommittedEntries() | CommittedState():
                applied = self._apply_answer(message)
                self._expect_nothing_of(message.source)
            case _:
                raise RemoteProtocolError(f"a voter does not say {type(message).__name__}")
        voter.heard_at, voter.is_silent = now, False
        return applied

    def _apply_answer(self, answer: ObserverAnswer) -> list[ObserverAction]:
        if isinstance(answer, CommittedState):
            snapshot = answer.snapshot
            if snapshot.index <= self._applied:
                return []
            self._applied, self._applied_term = snapshot.index, snapshot.term
            return [Restore(snapshot)]
        previous = answer.previous_index
        if previous > self._applied:
            raise RemoteProtocolError(
                f"entries behind {previous} from {answer.source}, asked for what is behind {self._applied}"
            )
        known = answer.entries[: self._applied - previous]
        if previous + len(known) < self._applied:
            return []  # all of it was applied, and more
        term = known[-1].term if known else answer.previous_term
        if term != self._applied_term:
            raise CorruptDataError(
                f"metadata entry {self._applied} is of term {self._applied_term} here, and of term {term} on "
                f"{answer.source}: that is another log"
            )
        new = answer.entries[len(known) :]
        if not new:
            return []
        assert new[0].index == self._applied + 1, f"O1: entry {new[0].index} after {self._applied}"
        self._applied, self._applied_term = new[-1].index, new[-1].term
        return [Apply(new)]

    # --- what follows from any event ----------------------------------------------------------------------

    def _expect_nothing_of(self, voter: NodeId) -> None:
        """Record that this voter owes no answer: it has given it, or the question was lost."""
        if self._asked == voter:
            self._asked = None

    def _find_silent(self, now: MonotonicNs) -> None:
        for voter in self._links.values():
            voter.is_silent = voter.is_silent or now >= voter.heard_at + self._silence_ns

    def _leader_news(self) -> list[ObserverAction]:
        """Report the leader if it is news; as for a voter, a term without a known leader is none."""
        heard = [voter for voter in self._links.values() if not voter.is_silent]
        newest = max((voter for voter in heard if voter.leader), key=lambda voter: voter.term, default=None)
        if newest is None:
            known = MetadataLeaderChanged(None, max((voter.term for voter in heard), default=self._told.term))
        else:
            known = MetadataLeaderChanged(newest.leader, newest.term)
        is_news = known != self._told and (known.leader, self._told.leader) != (None, None)
        self._told = known
        return [known] if is_news else []

    def _questions(self) -> list[ObserverAction]:
        """Ask the best voter, unless it owes an answer already (O2)."""
        live = sorted(name for name, voter in self._links.items() if not voter.is_silent)
        best = next((name for name in (self.leader, self._asked) if name in live), live[0] if live else None)
        if best is None or best == self._asked:
            return []
        self._asked = best
        return [SendToVoter(Observe(self._node_id, best, self._applied))]
