"""From one generation of a group to the next: who is to own what, and who owns it already.

Rebalancing is incremental, in two steps. As soon as the members or the partitions are others, it is decided
who is to own what (the target). A free partition is granted at once; one of another member stays with that
member until it has given it up, or its session is over: then it is granted, in a generation of its own. A
member that keeps its partitions is not notified and goes on reading.

Sources: KIP-429 (incremental cooperative rebalancing), KIP-848 (the coordinator assigns and reconciles).
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from consumer_groups.assignment.assignors import assign
from consumer_groups.assignment.partitions import (
    Claim,
    Generation,
    MemberId,
    Partition,
    StreamPartitions,
    SubscribedMember,
)
from consumer_groups.coordinator.group_state import NO_GENERATION, Grant, GroupState, MemberState
from envelope.limits import GROUP_GONE_MAX
from envelope.types import StreamName

Known = Mapping[StreamName, StreamPartitions]
"""The streams that exist."""
Wishes = Mapping[MemberId, tuple[Claim, ...]]
"""What members that are new say they had: they get that back before others, if it moves to them at all."""


def retargeted(draft: GroupState, known: Known, wishes: Wishes) -> GroupState:
    """Return ``draft`` with a target for its members and for the partitions that exist."""
    used = draft.subscribed() | {partition.stream for partition in draft.grants}
    streams = {name: known[name].count for name in sorted(used) if name in known}
    owned = _owned(draft, wishes)
    subscribers = [
        SubscribedMember(
            member_id=member.member_id,
            streams=member.streams,
            instance_id=member.instance_id,
            node=member.node,
            rack=member.rack,
            owned=tuple(owned.get(member.member_id, ())),
        )
        for member in draft.members.values()
    ]
    target = assign(draft.assignor, subscribers, [known[name] for name in streams])
    return replace(draft, streams=streams, target=dict(sorted(target.items())))


def succeeded(
    before: GroupState, draft: GroupState, let_go: AbstractSet[Partition] = frozenset()
) -> GroupState:
    """Return the generation after ``before``: ``draft``, with everything granted that is free.

    Invariants:
        G2: generations strictly increase, by one with every change, over failovers too; nothing of a group is
            newer than its generation.
        G4: a partition that moves is granted to another member only after its owner let it go, or is no
            member any more.

    Args:
        before: the present generation.
        draft: with other members, a new target, or fewer grants.
        let_go: what its owner has just given up.
    """
    generation = Generation(before.generation + 1)
    grants = {one: grant for one, grant in draft.grants.items() if _holds(draft, one, grant)}
    for partition, member_id in draft.target.items():
        grants.setdefault(partition, Grant(member_id, generation))
    after = replace(draft, generation=generation, grants=dict(sorted(grants.items())))
    after = _marked(before, after)
    _check(before, after, let_go)
    return after


def without(state: GroupState, member_ids: Iterable[MemberId]) -> GroupState:
    """Return the draft without these members; the newest requests of their clients stay known."""
    members, gone = dict(state.members), dict(state.gone)
    for member_id in member_ids:
        member = members.pop(member_id)
        gone[member.client] = member.request
    return replace(state, members=members, gone=dict(list(gone.items())[-GROUP_GONE_MAX:]))


def _owned(draft: GroupState, wishes: Wishes) -> dict[MemberId, list[Claim]]:
    """Return the claims of each member: targets, grants without a target, and wishes of no generation.

    The target comes first, so that a move that is under way is not turned back by the next one.
    """
    members = draft.members
    owners = {one: grant.member_id for one, grant in draft.grants.items() if grant.member_id in members}
    owners |= {one: member_id for one, member_id in draft.target.items() if member_id in members}
    owned: dict[MemberId, list[Claim]] = {}
    for partition, member_id in owners.items():
        owned.setdefault(member_id, []).append(Claim(partition, Generation(draft.generation + 1)))
    for member_id, claims in wishes.items():
        # Of no generation that counts: what it says of that is not known to be true.
        owned.setdefault(member_id, []).extend(Claim(claim.partition, NO_GENERATION) for claim in claims)
    return owned


def _holds(draft: GroupState, partition: Partition, grant: Grant) -> bool:
    return grant.member_id in draft.members and partition.number < draft.streams.get(partition.stream, 0)


def _marked(before: GroupState, after: GroupState) -> GroupState:
    """Note the generation with every member that has something new to hear."""
    had, has = before.shares(), after.shares()
    members: dict[MemberId, MemberState] = {}
    for member_id, member in after.members.items():
        same = had.get(member_id) == has[member_id]
        members[member_id] = member if same else replace(member, assigned=after.generation)
    return replace(after, members=members)


def _check(before: GroupState, after: GroupState, let_go: AbstractSet[Partition]) -> None:
    assert after.generation == before.generation + 1, f"G2: {before.generation}, {after.generation}"
    problems = after.problems()
    assert not problems, "; ".join(problems[:3])
    for partition, grant in after.grants.items():
        old = before.grants.get(partition)
        if old == grant:
            continue
        assert grant.generation == after.generation, f"G1: {partition} {grant} in {after.generation}"
        assert old is None or partition in let_go or old.member_id not in after.members, (
            f"G4: {partition} from {old} to {grant}"
        )
