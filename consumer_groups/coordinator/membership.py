"""The effect of a join on a group: a new member, another subscription, a static member's place; or nothing.

`value_refusal` holds a join to its limits.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from consumer_groups.assignment.partitions import Claim, Generation, MemberId
from consumer_groups.coordinator.events import CoordinatorRefusal, Join
from consumer_groups.coordinator.fencing import member_refusal
from consumer_groups.coordinator.group_state import NO_GENERATION, Grant, GroupState, MemberState
from consumer_groups.coordinator.succession import without
from envelope.errors import InvalidConfig, InvalidName, LimitReached
from envelope.group_errors import MemberFenced
from envelope.limits import (
    GROUP_MEMBERS_MAX,
    GROUP_NAMES_BYTES_MAX,
    MEMBER_CLAIMS_MAX,
    MEMBER_STREAMS_MAX,
    MEMBER_WORD_BYTES_MAX,
    REBALANCE_TIMEOUT_MS_MAX,
    SESSION_TIMEOUT_MS_MAX,
    SESSION_TIMEOUT_MS_MIN,
)
from envelope.subjects import validated_stream_name

_MS = 1_000_000


def value_refusal(join: Join) -> CoordinatorRefusal | None:
    """Return what of the join is outside its limits, if anything is."""
    return next(_problems(join), None)


def _problems(join: Join) -> Iterator[CoordinatorRefusal]:
    words = (join.client, join.instance_id, join.node, join.rack)
    for word in words:
        if word is not None and not _is_word(word):
            yield CoordinatorRefusal(
                InvalidName, f"{word!r}: a name has 1 to {MEMBER_WORD_BYTES_MAX} bytes, all printable"
            )
    if not join.streams:
        yield CoordinatorRefusal(InvalidConfig, "a member subscribes to at least one stream")
    if len(join.streams) > MEMBER_STREAMS_MAX:
        text = f"{len(join.streams)} streams; a member subscribes to {MEMBER_STREAMS_MAX} at most"
        yield CoordinatorRefusal(LimitReached, text)
    if len(join.owned) > MEMBER_CLAIMS_MAX:
        yield CoordinatorRefusal(LimitReached, f"{len(join.owned)} claims, the limit is {MEMBER_CLAIMS_MAX}")
    yield from _problems_of_names(join)
    yield from _problems_of_times(join)


def _is_word(word: str) -> bool:
    return word.isprintable() and 0 < len(word.encode("utf-8", "surrogatepass")) <= MEMBER_WORD_BYTES_MAX


def _problems_of_names(join: Join) -> Iterator[CoordinatorRefusal]:
    for name in sorted(join.streams):
        try:
            validated_stream_name(name)
        except InvalidName as error:
            yield CoordinatorRefusal(InvalidName, error.description)


def _problems_of_times(join: Join) -> Iterator[CoordinatorRefusal]:
    session_ms, rebalance_ms = join.session_timeout_ns / _MS, join.rebalance_timeout_ns / _MS
    if not SESSION_TIMEOUT_MS_MIN <= session_ms <= SESSION_TIMEOUT_MS_MAX:
        limits = f"{SESSION_TIMEOUT_MS_MIN} to {SESSION_TIMEOUT_MS_MAX}"
        text = f"a session timeout of {session_ms:g} ms; {limits} can be"
        yield CoordinatorRefusal(InvalidConfig, text)
    if not 0 < rebalance_ms <= REBALANCE_TIMEOUT_MS_MAX:
        text = f"a rebalance timeout of {rebalance_ms:g} ms; up to {REBALANCE_TIMEOUT_MS_MAX} can be"
        yield CoordinatorRefusal(InvalidConfig, text)


@dataclass(frozen=True, slots=True)
class JoinAdmission:
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


def admission(state: GroupState, join: Join) -> JoinAdmission | Repeat | CoordinatorRefusal:
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
        return CoordinatorRefusal(LimitReached, f"group {state.name!r} has {GROUP_MEMBERS_MAX} members")
    if sum(member.names_bytes for member in members.values()) > GROUP_NAMES_BYTES_MAX:
        return CoordinatorRefusal(
            LimitReached, f"names in group {state.name!r} are above {GROUP_NAMES_BYTES_MAX} bytes"
        )
    return found


def _stale(state: GroupState, join: Join, present: MemberState | None) -> CoordinatorRefusal | None:
    """Return why the client may not speak for whom it thinks it is."""
    if join.member_id is not None and (present is None or present.member_id != join.member_id):
        known = member_refusal(state, join.member_id, join.instance_id)
        return known or CoordinatorRefusal(
            MemberFenced, f"member {join.member_id!r} is not of client {join.client!r}"
        )
    last = state.gone.get(join.client)
    if last is not None and join.request <= last:
        text = f"join {join.request} of client {join.client!r} is over: its member is gone"
        return CoordinatorRefusal(MemberFenced, text, (("request", last),))
    return None


def _unfit(state: GroupState, join: Join, present: MemberState | None) -> CoordinatorRefusal | None:
    """Return what of the join contradicts the group, or the client's own member."""
    if state.members and join.assignor is not state.assignor:
        return CoordinatorRefusal(
            InvalidConfig, f"group {state.name!r} is shared out by {state.assignor.value!r}"
        )
    if present is not None and present.instance_id != join.instance_id:
        return CoordinatorRefusal(
            InvalidConfig, f"member {present.member_id!r} is instance {present.instance_id!r}"
        )
    return None


def _member(join: Join, member_id: MemberId, assigned: Generation) -> MemberState:
    return MemberState(
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


def _change(state: GroupState, join: Join, present: MemberState) -> JoinAdmission:
    member = _member(join, present.member_id, present.assigned)
    draft = replace(state, members={**state.members, present.member_id: member})
    return JoinAdmission(draft, present.member_id, needs_target=member.streams != present.streams)


def _enter(state: GroupState, join: Join) -> JoinAdmission:
    assert join.fresh_id not in state.members, f"member id {join.fresh_id!r} is not fresh"
    former = state.of_instance(join.instance_id)
    member = _member(join, join.fresh_id, NO_GENERATION)
    left = state if former is None else without(state, [former.member_id])
    gone = {client: request for client, request in left.gone.items() if client != join.client}
    members = {**left.members, member.member_id: member}
    draft = replace(left, members=members, gone=gone, assignor=join.assignor)
    if former is None:
        return JoinAdmission(draft, member.member_id, needs_target=True, wishes=join.owned)
    draft = _taken_over(draft, former.member_id, member.member_id)
    return JoinAdmission(draft, member.member_id, needs_target=member.streams != former.streams)


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
