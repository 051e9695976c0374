"""What keeps a healthy leader in place and ends a cut-off one: pre-vote, lease and check-quorum.

No entry is lost without them, so no other checker would miss them.
"""

from collections.abc import Iterable

from envelope.types import NodeId, Term
from metadata.raft.events import (
    Action,
    Event,
    MessageReceived,
    MetadataLeaderChanged,
    PeerDisconnected,
    Persist,
    Send,
    Tick,
)
from metadata.raft.messages.voter_messages import (
    AppendRequest,
    Heartbeat,
    Message,
    PreVoteResponse,
    SnapshotRequest,
    VoteRequest,
    VoteResponse,
)
from tests.simulation.raft.checkers.members import Sides, are_majority
from tests.simulation.violation import Violation

_LEADERS_WORDS = (AppendRequest, Heartbeat, SnapshotRequest)


class Stability:
    """Follows one life of a voter by its own clock, in ns."""

    def __init__(self, name: NodeId, voters: Iterable[NodeId], election_timeout: int) -> None:
        self._name, self._others = name, [voter for voter in voters if voter != name]
        self._sides: Sides = ()
        self._election_timeout = election_timeout
        self._leader: NodeId | None = None
        self._term = Term(0)
        self._leader_heard_at: int | None = None
        self._heard_at: dict[NodeId, int] = {}
        self._granted: dict[Term, set[NodeId]] = {}

    def handled(self, event: Event, actions: tuple[Action, ...], now: int, sides: Sides) -> None:
        """The voter, by whose log ``sides`` decided, was given ``event`` and wants ``actions``."""
        self._sides = sides
        if isinstance(event, MessageReceived):
            self._received(event.message, now)
        elif isinstance(event, PeerDisconnected) and event.refused and event.peer == self._leader:
            self._leader_heard_at = None
        self._wants(event, actions, now)
        if isinstance(event, MessageReceived):
            self._heard_of_leader(event.message, now)
        elif isinstance(event, Tick) and self._leader == self._name:
            self._is_supported(now)

    def _wants(self, event: Event, actions: tuple[Action, ...], now: int) -> None:
        changed: MetadataLeaderChanged | None = None
        for action in actions:
            if isinstance(action, Send):
                self._said(action.message, event, now)
            elif isinstance(action, Persist):
                for send in action.then:
                    self._said(send.message, event, now)
            elif isinstance(action, MetadataLeaderChanged):
                changed = action
        if changed is not None:  # what was said is judged by what was known before
            self._follow(changed.leader, changed.term, now)

    def _received(self, message: Message, now: int) -> None:
        self._heard_at[message.source] = now
        if isinstance(message, PreVoteResponse) and message.granted:
            self._granted.setdefault(message.candidate_term, {self._name}).add(message.source)

    def _follow(self, leader: NodeId | None, term: Term, now: int) -> None:
        self._leader, self._term, self._leader_heard_at = leader, term, None
        if leader == self._name:
            self._heard_at = dict.fromkeys(self._others, now)

    def _heard_of_leader(self, message: Message, now: int) -> None:
        if (
            isinstance(message, _LEADERS_WORDS)
            and message.source == self._leader
            and message.term == self._term
        ):
            self._leader_heard_at = now

    def _said(self, message: Message, event: Event, now: int) -> None:
        if isinstance(message, VoteRequest):
            granted = self._granted.get(Term(message.term - 1), {self._name})
            if not message.transferred and not are_majority(granted, self._sides):
                raise Violation(f"{message} without a majority that would vote for it: {sorted(granted)}")
        elif isinstance(message, VoteResponse | PreVoteResponse) and message.granted:
            self._is_free_to_vote(message, event, now)

    def _is_free_to_vote(self, message: Message, event: Event, now: int) -> None:
        request = event.message if isinstance(event, MessageReceived) else None
        # In the term of the leader itself no vote can depose it any more.
        if isinstance(request, VoteRequest) and (request.transferred or request.term == self._term):
            return
        heard_at = now if self._leader == self._name else self._leader_heard_at
        if heard_at is not None and now - heard_at < self._election_timeout:
            raise Violation(
                f"{message} {(now - heard_at) / 1e6:.3f} ms after hearing of leader {self._leader}"
            )

    def _is_supported(self, now: int) -> None:
        silent = {name for name in self._others if now - self._heard_at.get(name, 0) > self._election_timeout}
        if not are_majority({self._name, *self._others} - silent, self._sides):
            raise Violation(f"{self._name} still leads after an election timeout of silence from {silent}")
