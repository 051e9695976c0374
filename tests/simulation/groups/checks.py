"""The laws of a group, checked from outside: what becomes durable, what is said, what may be committed."""

from collections.abc import Mapping

from consumer_groups.coordinator_events import (
    Assignment,
    CommitRequested,
    Event,
    Expire,
    ExpiryCause,
    Heartbeat,
    Join,
    Release,
)
from consumer_groups.group_state import ClientId, GroupState, Member
from consumer_groups.partitions import Claim, MemberId, Partition
from envelope.types import StreamName
from tests.simulation.timeline import Timeline
from tests.simulation.violation import Violation


class Checks:
    """Looks at what the coordinator is given, what it makes durable and what it says; never into it."""

    def __init__(self, timeline: Timeline, partitions: Mapping[StreamName, int]) -> None:
        """Begin; ``partitions`` are those that exist, and change."""
        self._timeline, self._partitions = timeline, partitions
        self.durable: GroupState | None = None
        self.deleted: set[Partition] = set()
        """Whatever was of a stream that has been deleted."""
        self._history: dict[int, GroupState] = {}
        self._granted: dict[Claim, MemberId] = {}
        self._released: set[tuple[MemberId, Claim]] = set()
        self._heard: dict[MemberId, int] = {}
        self._asked: dict[tuple[MemberId, Claim], int] = {}
        self._begun_at = 0
        self._over: set[ClientId] = set()
        self._committed: dict[Partition, int] = {}

    # --- what the coordinator is given ------------------------------------------------------------------

    def loaded(self) -> None:
        """Another coordinator has begun: everybody is to have a full session."""
        self._begun_at = self._timeline.now
        self._heard.clear()
        self._asked = dict.fromkeys(self._asked, self._timeline.now)

    def given(self, event: Event) -> None:
        """Take in what happened that allows something to move."""
        now = self._timeline.now
        match event:
            case Heartbeat(_, beats):
                self._heard |= {beat.member_id: now for beat in beats}
            case Join() if self.durable is not None:
                member = self.durable.of_client(event.client)
                if member is not None and event.request >= member.request:
                    self._heard[member.member_id] = now
            case Release(_, member_id, claims):
                self._released |= {(member_id, claim) for claim in claims}
            case _:
                pass

    def client_is_over(self, client: ClientId) -> None:
        """A client has heard that it has left: it never asks for anything again."""
        self._over.add(client)

    # --- what becomes durable ---------------------------------------------------------------------------

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
        self.durable = self._history[state.generation] = state

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

    def _check_takeover(self, before: GroupState, state: GroupState, former: Member, member: Member) -> None:
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

    def expired(self, expire: Expire, before: GroupState) -> None:
        """A member was put out of ``before``; that must have been due."""
        now, member = self._timeline.now, before.members[expire.member_id]
        if expire.cause is ExpiryCause.SILENT:
            heard = max(self._begun_at, self._heard.get(expire.member_id, 0))
            if now < heard + member.session_timeout_ns:
                raise Violation(f"{expire} {now - heard} ns after it was heard")
            return
        asked = [at for (who, _), at in self._asked.items() if who == expire.member_id]
        if not asked or now < min(asked) + member.rebalance_timeout_ns:
            raise Violation(f"{expire} before its time")

    # --- what is said -----------------------------------------------------------------------------------

    def said(self, assignment: Assignment) -> None:
        """Check what a member is told against what is durable."""
        state = self._history.get(assignment.generation)
        if state is None:
            raise Violation(f"told of generation {assignment.generation}, which is not durable")
        owned = {
            Claim(partition, grant.generation)
            for partition, grant in state.grants.items()
            if grant.member_id == assignment.member_id
        }
        if owned != {*assignment.keeps, *assignment.gives_up}:
            raise Violation(f"{assignment} where it owns {owned}")

    def allowed(self, commit: CommitRequested) -> None:
        """Check a commit that the coordinator allows."""
        state = self.durable
        grants = {} if state is None else state.grants
        for partition in commit.partitions:
            grant = grants.get(partition)
            if grant is None or grant.member_id != commit.member_id:
                raise Violation(f"{commit} allowed, {partition} is owned by {grant}")
            if commit.generation < grant.generation:
                raise Violation(f"{commit} allowed, {partition} is owned since {grant.generation}")
            last = self._committed.setdefault(partition, grant.generation)
            if last > grant.generation:
                raise Violation(f"{commit} of {partition} after one of generation {last}")
            self._committed[partition] = grant.generation


def _gives_up(state: GroupState, member_id: MemberId) -> list[Claim]:
    return [
        Claim(partition, grant.generation)
        for partition, grant in state.grants.items()
        if grant.member_id == member_id and state.target.get(partition) != member_id
    ]
