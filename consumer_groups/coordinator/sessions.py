"""Sessions of members, and the releases asked of them: known by one coordinator only, and not durable.

A coordinator that takes over begins with everybody heard, and everything asked for, at that moment: that a
coordinator has failed takes nobody's partitions.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from consumer_groups.assignment.partitions import Claim, MemberId
from consumer_groups.coordinator.events import Assigned, Assignment, ConnectionId, ExpiryCause
from consumer_groups.coordinator.group_state import GroupState, MemberState, Share
from envelope.types import MonotonicNs

NEVER: Final = MonotonicNs(2**63 - 1)


@dataclass(slots=True)
class MemberSession:
    """One member's."""

    heard_at: MonotonicNs
    connection: ConnectionId | None = None
    """The newest one on which it was heard."""
    share: Share = field(default_factory=Share)
    """What it owns now."""
    asked: dict[Claim, MonotonicNs] = field(default_factory=dict)
    """Since when it is to give up what it is to give up."""

    def silent_at(self, member: MemberState) -> MonotonicNs:
        """Return when it is put out if nothing is heard of it."""
        return MonotonicNs(self.heard_at + member.session_timeout_ns)

    def held_on_at(self, member: MemberState) -> MonotonicNs:
        """Return when it is put out if it does not give up what it is asked for."""
        if not self.asked:
            return NEVER
        return MonotonicNs(min(self.asked.values()) + member.rebalance_timeout_ns)


class MemberSessions:
    """Those of all members.

    Invariants:
        G7: exactly the members of the group have one.
    """

    def __init__(self) -> None:
        self._sessions: dict[MemberId, MemberSession] = {}

    def __getitem__(self, member_id: MemberId) -> MemberSession:
        return self._sessions[member_id]

    def record_alive(self, member_id: MemberId, connection: ConnectionId, now: MonotonicNs) -> None:
        """Take in that a member is alive."""
        session = self._sessions[member_id]
        session.heard_at, session.connection = now, connection

    def follow(self, state: GroupState, now: MonotonicNs) -> None:
        """Take in another generation: who is new was heard now, what is new was asked for now."""
        shares = state.shares()
        for member_id in self._sessions.keys() - shares.keys():
            del self._sessions[member_id]
        for member_id, share in shares.items():
            session = self._sessions.setdefault(member_id, MemberSession(now))
            session.share = share
            session.asked = {claim: session.asked.get(claim, now) for claim in share.gives_up}
        assert self._sessions.keys() == state.members.keys(), f"G7: {self._sessions.keys()}"

    def forgive(self, late_ns: int) -> None:
        """Count ``late_ns`` as nobody's silence: the coordinator itself stood still."""
        for session in self._sessions.values():
            session.heard_at = MonotonicNs(session.heard_at + late_ns)
            session.asked = {claim: MonotonicNs(at + late_ns) for claim, at in session.asked.items()}

    def next_due(self, members: Mapping[MemberId, MemberState]) -> MonotonicNs:
        """Return when somebody is to be put out, if nothing happens until then."""
        due = (
            min(session.silent_at(members[member_id]), session.held_on_at(members[member_id]))
            for member_id, session in self._sessions.items()
        )
        return min(due, default=NEVER)

    def overdue(
        self, members: Mapping[MemberId, MemberState], now: MonotonicNs
    ) -> Iterator[tuple[MemberId, ExpiryCause]]:
        """Yield who is to be put out."""
        for member_id, session in self._sessions.items():
            member = members[member_id]
            if now >= session.silent_at(member):
                yield member_id, ExpiryCause.SILENT
            elif now >= session.held_on_at(member):
                yield member_id, ExpiryCause.HELD_ON

    def assignment(self, state: GroupState, member_id: MemberId) -> Assignment:
        """Return what a member is to hear."""
        share = self._sessions[member_id].share
        return Assignment(member_id, state.generation, share.keeps, share.gives_up)

    def changed_assignments(self, state: GroupState) -> Iterator[Assigned]:
        """Yield what is to be told to members for whom this generation changes something, where it can be."""
        for member_id, member in state.members.items():
            connection = self._sessions[member_id].connection
            if member.assigned == state.generation and connection is not None:
                yield Assigned(connection, self.assignment(state, member_id))
