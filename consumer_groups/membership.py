"""What a join does to a group: a new member, another subscription, a static member's place; or nothing."""

from dataclasses import dataclass, replace

from consumer_groups.coordinator_events import Join, Refusal
from consumer_groups.fencing import member_refusal
from consumer_groups.group_state import NO_GENERATION, Grant, GroupState, Member
from consumer_groups.join_limits import value_refusal
from consumer_groups.partitions import Claim, Generation, MemberId
from consumer_groups.succession import without
from envelope.errors import InvalidConfig, LimitReached
from envelope.group_errors import MemberFenced
from envelope.limits import GROUP_MEMBERS_MAX, GROUP_NAMES_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Admission:
    """The join is taken in."""

    draft: GroupState
    member_id: MemberId
    needs_target: bool
    """Partitions are to be shared out anew."""
    wishes: tuple[Claim, ...] = ()


@dataclass(frozen=True, slots=True)
class Repeat:
    """The join was taken in before, or a later one of its client was."""

    member_id: MemberId
    is_newest: bool


def admission(state: GroupState, join: Join) -> Admission | Repeat | Refusal:
    """Decide on a join."""
    present = state.of_client(join.client)
    if (
        present is not None
        and join.member_id in (None, present.member_id)
        and join.request <= present.request
    ):
        return Repeat(present.member_id, join.request == present.request)
    refusal = _stale(state, join, present) or value_refusal(join) or _unfit(state, join, present)
    if refusal is not None:
        return refusal
    found = _change(state, join, present) if present is not None else _enter(state, join)
    members = found.draft.members
    if len(members) > max(GROUP_MEMBERS_MAX, len(state.members)):
        return Refusal(LimitReached, f"group {state.name!r} has {GROUP_MEMBERS_MAX} members")
    if sum(member.names_bytes for member in members.values()) > GROUP_NAMES_BYTES_MAX:
        return Refusal(LimitReached, f"names in group {state.name!r} are above {GROUP_NAMES_BYTES_MAX} bytes")
    return found


def _stale(state: GroupState, join: Join, present: Member | None) -> Refusal | None:
    """Return why the client may not speak for whom it thinks it is."""
    if join.member_id is not None and (present is None or present.member_id != join.member_id):
        known = member_refusal(state, join.member_id, join.instance_id)
        return known or Refusal(MemberFenced, f"member {join.member_id!r} is not of client {join.client!r}")
    last = state.gone.get(join.client)
    if last is not None and join.request <= last:
        text = f"join {join.request} of client {join.client!r} is over: its member is gone"
        return Refusal(MemberFenced, text, (("request", last),))
    return None


def _unfit(state: GroupState, join: Join, present: Member | None) -> Refusal | None:
    """Return what of the join contradicts the group, or the client's own member."""
    if state.members and join.assignor is not state.assignor:
        return Refusal(InvalidConfig, f"group {state.name!r} is shared out by {state.assignor.value!r}")
    if present is not None and present.instance_id != join.instance_id:
        return Refusal(InvalidConfig, f"member {present.member_id!r} is instance {present.instance_id!r}")
    return None


def _member(join: Join, member_id: MemberId, assigned: Generation) -> Member:
    return Member(
        member_id=member_id,
        client=join.client,
        request=join.request,
        streams=join.streams,
        session_timeout_ns=join.session_timeout_ns,
        rebalance_timeout_ns=join.rebalance_timeout_ns,
        instance_id=join.instance_id,
        node=join.node,
        rack=join.rack,
        assigned=assigned,
    )


def _change(state: GroupState, join: Join, present: Member) -> Admission:
    member = _member(join, present.member_id, present.assigned)
    draft = replace(state, members={**state.members, present.member_id: member})
    return Admission(draft, present.member_id, needs_target=member.streams != present.streams)


def _enter(state: GroupState, join: Join) -> Admission:
    assert join.fresh_id not in state.members, f"member id {join.fresh_id!r} is not fresh"
    former = state.of_instance(join.instance_id)
    member = _member(join, join.fresh_id, NO_GENERATION)
    left = state if former is None else without(state, [former.member_id])
    gone = {client: request for client, request in left.gone.items() if client != join.client}
    members = {**left.members, member.member_id: member}
    draft = replace(left, members=members, gone=gone, assignor=join.assignor)
    if former is None:
        return Admission(draft, member.member_id, needs_target=True, wishes=join.owned)
    draft = _taken_over(draft, former.member_id, member.member_id)
    return Admission(draft, member.member_id, needs_target=member.streams != former.streams)


def _taken_over(draft: GroupState, former: MemberId, member_id: MemberId) -> GroupState:
    """Return the draft in which one member has what another was to have; the rest of that is free."""
    target = {one: member_id if owner == former else owner for one, owner in draft.target.items()}
    generation = Generation(draft.generation + 1)
    grants = {
        one: Grant(member_id, generation) if grant.member_id == former else grant
        for one, grant in draft.grants.items()
        if grant.member_id != former or target.get(one) == member_id
    }
    return replace(draft, target=target, grants=grants)
