"""The machine by which nodes agree on the voters of a new cluster, or find the cluster that is there.

Theory of operation. Every node sends at short intervals all that it knows (`Notice`): the nodes that it
hears, its promise, its cluster. From the notices that it receives it forms a *view*: the first N candidates
by id that are heard and have promised nothing. When all of a view have the same view, the first of them
promises it; the others follow a promise that they are part of. A promise is durable before it is sent, and
there is never a second one. A set is *formed* when all N of it have promised it: as every node promises one
set only, two formed sets have no node in common.

A node that hears of a formed cluster does not form another: it belongs to that one, without a vote if it is
not among the voters; with one if it is, though its directory was lost (`metadata.raft.recovery`). Only a node
that has promised a set that may yet be formed does not; it stops with an error, as two clusters may be about
to form under one name.

That all of a view must agree before any node promises keeps nodes that start and stop meanwhile from
promising sets that can never be completed. Where that happens all the same, it is an error with the names of
the nodes whose promise has to be removed by hand; nothing was ever decided by such a set.
"""

from dataclasses import dataclass, field
from typing import Final, NoReturn

from envelope.errors import InvalidConfig
from envelope.types import MonotonicNs, NodeId
from metadata.formation.notices import (
    Candidates,
    FormedVoter,
    FormedVoters,
    Notice,
    VoterCandidate,
    voters_of,
)

_MS: Final = 1_000_000
SAY_INTERVAL_NS: Final = 200 * _MS
"""How often a node sends its notice."""
HEARD_NS: Final = 2_000 * _MS
"""How long a silent candidate counts as present; many notices may be lost in it."""
_REMEDY: Final = (
    "that can never be; stop the nodes of both, remove their file `formation`, and start them again"
)


@dataclass(frozen=True, slots=True)
class FormationRecord:
    """Promise and cluster of a node; durable."""

    promised: Candidates = ()
    formed: FormedVoters = ()


@dataclass(frozen=True, slots=True)
class NoticeReceived:
    """A notice has arrived, perhaps of this node itself."""

    notice: Notice


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; to be given every `SAY_INTERVAL_NS`."""


@dataclass(frozen=True, slots=True)
class PublishNotice:
    """Send this to all nodes."""

    notice: Notice


@dataclass(frozen=True, slots=True)
class Persist:
    """Make this durable, then do ``then``; no event may be given before."""

    record: FormationRecord
    then: PublishNotice


FormationEvent = NoticeReceived | Tick
FormationAction = PublishNotice | Persist


@dataclass(slots=True)
class _Other:
    """The last notice of another node."""

    notice: Notice
    heard_at: MonotonicNs


@dataclass(slots=True)
class Formation:
    """The part of one node; see the module.

    Invariants:
        F1: a node promises at most one set, of which it is part, ever.
        F2: a set is formed only once each of its members has promised it.
    """

    own: VoterCandidate
    expected: int
    """Voters to wait for."""
    record: FormationRecord = field(default_factory=FormationRecord)
    """What was durable at the start, and is since."""
    _others: dict[NodeId, _Other] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a record of another candidate.

        Raises:
            InvalidConfig: what was promised names this node with another address.
        """
        promised = {one.node_id: one for one in self.record.promised}
        mine = promised.get(self.own.node_id)
        if self.record.promised and mine != self.own:
            self._refuse(f"has promised itself as {mine} and is {self.own} now")

    def __str__(self) -> str:
        heard = ", ".join(sorted((self.own.node_id, *self._others)))
        return f"{self.own.node_id} promised={_names(self.record.promised)} hears {heard} of {self.expected}"

    @property
    def formed(self) -> FormedVoters:
        """The voters of the cluster that this node belongs to; empty until there is one."""
        return self.record.formed

    @property
    def heard(self) -> tuple[NodeId, ...]:
        """The nodes whose notices arrive, and this one."""
        return tuple(sorted((self.own.node_id, *self._others)))

    def announcement(self) -> PublishNotice:
        """Return the notice to send now."""
        view = () if self.record.promised or self.formed else self._view()
        return PublishNotice(Notice(self.own, self.expected, view, self.record.promised, self.formed))

    def handle(self, event: FormationEvent, now: MonotonicNs) -> tuple[FormationAction, ...]:
        """Handle one event; return the actions of the shell, in order.

        A node that belongs to a cluster only answers those that do not.

        Raises:
            InvalidConfig: nodes contradict each other about who they are, how many they wait for or what is
                being formed: an operator has to look. Nothing has changed.
        """
        if self.formed:
            is_asked = isinstance(event, NoticeReceived) and not event.notice.formed
            return (self.announcement(),) if is_asked else ()
        if isinstance(event, NoticeReceived):
            if self._is_own(event.notice):
                return ()
            self._check(event.notice)
            self._others[event.notice.source.node_id] = _Other(event.notice, now)
        else:
            self._forget_silent(now)
        record = self._next_record()
        if record != self.record:
            assert record.promised == self.record.promised or not self.record.promised, f"F1: {self}"
            assert self.own in record.promised or not record.promised, f"F1: without this node: {self}"
            self.record = record
            return (Persist(record, self.announcement()),)
        return (self.announcement(),) if isinstance(event, Tick) else ()

    def _forget_silent(self, now: MonotonicNs) -> None:
        self._others = {
            node_id: other for node_id, other in self._others.items() if now < other.heard_at + HEARD_NS
        }

    # --- what contradicts ---------------------------------------------------------------------------------

    def _is_own(self, notice: Notice) -> bool:
        """Return whether this node sent it; NATS delivers a node's own messages to it.

        Raises:
            InvalidConfig: another node claims to be this one.
        """
        source, own = notice.source, self.own
        if source == own:
            return True
        if source.node_id == own.node_id and source.directory != own.directory:
            self._refuse(f"is another node too: directory {own.directory} here, {source.directory} there")
        if source.node_id == own.node_id:
            self._refuse(f"is at {_place(own)} here, and at {_place(source)} as it says elsewhere")
        if (source.host, source.port) == (own.host, own.port):
            self._refuse(f"is at {_place(own)}, where node {source.node_id} says that it is")
        return False

    def _check(self, notice: Notice) -> None:
        source, own = notice.source, self.own
        if notice.formed:
            self._check_formed(notice)
            return
        mine = self.record.promised
        if not mine and notice.expected != self.expected:
            self._refuse(f"waits for {self.expected} voters, and node {source.node_id} for {notice.expected}")
        lost = next((one for one in mine if one.node_id == source.node_id and one != source), None)
        if lost is not None:
            self._refuse(f"has promised to form {_names(mine)} with {lost}, which is {source} now: {_REMEDY}")
        if not notice.promised or notice.promised == mine:
            return
        named = next((one for one in notice.promised if one.node_id == own.node_id), own)
        if named != own:
            self._refuse(f"is {own}, and node {source.node_id} has promised it as {named}")
        if source in mine:
            self._refuse(
                f"has promised to form {_names(mine)}, and node {source.node_id} "
                f"{_names(notice.promised)}: {_REMEDY}"
            )

    def _check_formed(self, notice: Notice) -> None:
        formed, mine = notice.formed, self.record.promised
        voters = {voter.node_id for voter in formed}
        shown = ", ".join(sorted(voters))
        if self.own.node_id in voters:
            own = FormedVoter(self.own.node_id, self.own.host, self.own.port)
            # One that has promised nothing comes back without its directory, and recovers as a voter.
            if own not in formed or (mine and voters_of(mine) != formed):
                self._refuse(
                    f"is a voter of the cluster of {shown}, but not with this address or promise: bring back "
                    "those with which it was, begin with an empty directory, or choose another node_id"
                )
        elif mine and voters.isdisjoint(one.node_id for one in mine):
            self._refuse(
                f"has promised to form {_names(mine)}, and under the same api_prefix there is a cluster of "
                f"{shown}"
            )

    def _refuse(self, problem: str) -> NoReturn:
        raise InvalidConfig(f"node {self.own.node_id} {problem}", field="peers.bootstrap_expect")

    # --- what follows -------------------------------------------------------------------------------------

    def _next_record(self) -> FormationRecord:
        """Return the record that follows from the notices so far."""
        promised = self.record.promised
        for other in self._others.values():
            if other.notice.formed:
                return FormationRecord(promised, other.notice.formed)
        if not promised:
            promised = self._due_promise()
        elif all(self._has_promised(one, promised) for one in promised):
            assert self.own in promised, f"F2: formed without this node: {self}"
            return FormationRecord(promised, voters_of(promised))
        return FormationRecord(promised)

    def _has_promised(self, candidate: VoterCandidate, promised: Candidates) -> bool:
        if candidate == self.own:
            return True
        other = self._others.get(candidate.node_id)
        return other is not None and other.notice.source == candidate and other.notice.promised == promised

    def _due_promise(self) -> Candidates:
        """Return what to promise: what another has with this node, or a view that all of it share."""
        for _, other in sorted(self._others.items()):
            if self.own in other.notice.promised and len(other.notice.promised) == self.expected:
                return other.notice.promised
        view = self._view()
        is_mine_to_begin = len(view) == self.expected and view[0] == self.own
        if is_mine_to_begin and all(self._shares(one, view) for one in view):
            return view
        return ()

    def _shares(self, candidate: VoterCandidate, view: Candidates) -> bool:
        return candidate == self.own or self._others[candidate.node_id].notice.view == view

    def _view(self) -> Candidates:
        free = (other.notice.source for other in self._others.values() if not other.notice.promised)
        return tuple(sorted((self.own, *free))[: self.expected])


def _names(candidates: Candidates) -> str:
    return ", ".join(one.node_id for one in candidates) or "nothing"


def _place(candidate: VoterCandidate) -> str:
    return f"{candidate.host}:{candidate.port}"
