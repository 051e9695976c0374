"""The laws of a group, checked from outside: what becomes durable, and what is said."""

from consumer_groups.assignment.partitions import Claim, MemberId
from consumer_groups.coordinator.events import Assignment, ExpiryCause, Join, Release
from consumer_groups.coordinator.group_state import ClientId, GroupState, MemberState
from consumer_groups.shard.events import GroupRequest
from consumer_groups.shard.group_json import from_json
from envelope.errors import CorruptDataError
from tests.simulation.groups.messages import Heartbeat
from tests.simulation.timeline import Timeline
from tests.simulation.violation import Violation


class Checks:
    """Looks at what the coordinator is given, what it makes durable and what it says; never into it."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.durable: GroupState | None = None
        self._history: dict[int, list[GroupState]] = {}
        """The states of each generation: a group that was deleted begins with the first one again."""
        self._granted: dict[Claim, MemberId] = {}
        self._released: set[tuple[MemberId, Claim]] = set()
        self._heard: dict[MemberId, int] = {}
        self._asked: dict[tuple[MemberId, Claim], int] = {}
        self._begun_at = 0
        self._over: set[ClientId] = set()
        self._due: dict[MemberId, frozenset[ExpiryCause]] = {}
        """Why those might be put out of whom that was decided last."""

    # --- what the coordinator is given ------------------------------------------------------------------

    def loaded(self) -> None:
        """Another coordinator has begun: everybody is to have a full session."""
        self._begun_at = self._timeline.now
        self._heard.clear()
        self._asked = dict.fromkeys(self._asked, self._timeline.now)

    def given(self, asked: GroupRequest | Heartbeat) -> None:
        """Take in what the leader was asked that allows something to move, or says that somebody lives."""
        now = self._timeline.now
        match asked:
            case Heartbeat(beats):
                self._heard |= {beat.member_id: now for beat in beats}
            case Join() if self.durable is not None:
                member = self.durable.of_client(asked.client)
                if member is None or asked.member_id not in (None, member.member_id):
                    return  # it speaks of a membership that is over
                if asked.request >= member.request:
                    self._heard[member.member_id] = now
            case Release(_, member_id, claims):
                self._released |= {(member_id, claim) for claim in claims}
            case _:
                pass

    def client_is_over(self, client: ClientId) -> None:
        """A client has heard that it has left: it never asks for anything again."""
        if self.durable is not None and client in self.durable.gone:  # a group that is deleted forgets it
            self._over.add(client)

    # --- what becomes durable ---------------------------------------------------------------------------

    def decided(self, value: bytes) -> None:
        """The leader wants this to be durable: look at whom it leaves out while it is known why."""
        try:
            state = from_json(value)
        except CorruptDataError as error:
            raise Violation(error.description) from error
        if self.durable is not None:
            gone = self.durable.members.keys() - state.members.keys()
            self._due = {member_id: self._causes(self.durable.members[member_id]) for member_id in gone}

    def _causes(self, member: MemberState) -> frozenset[ExpiryCause]:
        now, causes = self._timeline.now, set[ExpiryCause]()
        heard = max(self._begun_at, self._heard.get(member.member_id, 0))
        if now >= heard + member.session_timeout_ns:
            causes.add(ExpiryCause.SILENT)
        asked = [at for (who, _), at in self._asked.items() if who == member.member_id]
        if asked and now >= min(asked) + member.rebalance_timeout_ns:
            causes.add(ExpiryCause.HELD_ON)
        return frozenset(causes)

    def deleted_group(self) -> None:
        """Nothing is left of it: its generations begin anew, and who was gone is forgotten."""
        self.durable = None
        self._granted.clear()
        self._asked.clear()
        self._over.clear()

    def made_durable(self, state: GroupState, decided_at: int) -> None:
        """Check a generation against the one before."""
        before = self.durable
        if before is not None and state.generation <= before.generation:
            raise Violation(f"generation {state.generation} after {before.generation}")
        self._check_members(before, state)
        for partition, grant in state.grants.items():
            if grant.member_id not in state.members:
                raise Violation(f"{partition} is owned by {grant.member_id}, which is no member")
            claim = Claim(partition, grant.generation)
            owner = self._granted.setdefault(claim, grant.member_id)
            if owner != grant.member_id:
                raise Violation(f"two owners of {claim}: {owner}, {grant.member_id}")
        if before is not None:
            self._check_moves(before, state)
        for member_id in state.members:
            if before is None or member_id not in before.members:
                self._heard[member_id] = decided_at
            for claim in _gives_up(state, member_id):
                self._asked.setdefault((member_id, claim), decided_at)
        self._history.setdefault(state.generation, []).append(state)
        self.durable = state

    def _check_members(self, before: GroupState | None, state: GroupState) -> None:
        clients = [member.client for member in state.members.values()]
        instances = [one.instance_id for one in state.members.values() if one.instance_id is not None]
        if len(set(clients)) < len(clients) or len(set(instances)) < len(instances):
            raise Violation(f"one client or instance is two members: {sorted(state.members)}")
        back = self._over & set(clients)
        if back:
            raise Violation(f"{back} came back after it had left")
        for member in state.members.values():
            same = None if before is None else before.members.get(member.member_id)
            if same is not None and member.request < same.request:
                raise Violation(f"join {member.request} of {member.member_id} counts after {same.request}")
            former = None if before is None else before.of_instance(member.instance_id)
            if before is None or former is None or former.member_id == member.member_id:
                continue
            if former.streams == member.streams:
                self._check_takeover(before, state, former, member)

    def _check_takeover(
        self, before: GroupState, state: GroupState, former: MemberState, member: MemberState
    ) -> None:
        """Whoever takes a static member's place has what that one kept, and nothing moves."""
        moved = set(before.members) - set(state.members) - {former.member_id}
        if moved:
            return
        for partition, grant in before.grants.items():
            if grant.member_id == former.member_id and before.target.get(partition) != former.member_id:
                continue
            owner = member.member_id if grant.member_id == former.member_id else grant.member_id
            if partition in state.grants and state.grants[partition].member_id != owner:
                raise Violation(f"{partition} moved when {member.member_id} took {former.member_id}'s place")

    def _check_moves(self, before: GroupState, state: GroupState) -> None:
        """An owner may lose a partition only if it said so, or is no member any more."""
        for partition, old in before.grants.items():
            new, claim = state.grants.get(partition), Claim(partition, old.generation)
            if new is None or new == old or (old.member_id, claim) in self._released:
                continue
            if old.member_id in state.members:
                raise Violation(f"{partition} taken from {old.member_id}, which did not give it up")

    def expired(self, member_id: MemberId, cause: ExpiryCause) -> None:
        """A member was put out; that must have been due when it was decided."""
        if cause is not ExpiryCause.FORCED and cause not in self._due.get(member_id, ()):
            raise Violation(f"{member_id} was put out, {cause}, before its time")

    # --- what is said -----------------------------------------------------------------------------------

    def said(self, assignment: Assignment) -> None:
        """Check what a member is told against what is durable."""
        states = self._history.get(assignment.generation, [])
        state = next((state for state in states if assignment.member_id in state.members), None)
        if state is None:
            raise Violation(f"told of generation {assignment.generation}, which is not durable")
        owned = {
            Claim(partition, grant.generation)
            for partition, grant in state.grants.items()
            if grant.member_id == assignment.member_id
        }
        if owned != {*assignment.keeps, *assignment.gives_up}:
            raise Violation(f"{assignment} where it owns {owned}")


def _gives_up(state: GroupState, member_id: MemberId) -> list[Claim]:
    return [
        Claim(partition, grant.generation)
        for partition, grant in state.grants.items()
        if grant.member_id == member_id and state.target.get(partition) != member_id
    ]
