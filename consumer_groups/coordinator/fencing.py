"""Fencing: the refusals that keep former owners of a group's partitions from doing harm."""

from consumer_groups.assignment.partitions import Generation, InstanceId, MemberId
from consumer_groups.coordinator.events import CoordinatorRefusal, StoreCursors
from consumer_groups.coordinator.group_state import GroupState
from envelope.group_errors import IllegalGeneration, InstanceFenced, MemberFenced, PartitionNotOwned


def member_refusal(
    state: GroupState, member_id: MemberId, instance_id: InstanceId | None
) -> CoordinatorRefusal | None:
    """Return why this is no member, if it is none."""
    if member_id in state.members:
        return None
    other = state.of_instance(instance_id)
    if other is not None:
        text = f"instance {instance_id!r} is member {other.member_id!r} now, not {member_id!r}"
        return CoordinatorRefusal(InstanceFenced, text, (("group", state.name), ("member", member_id)))
    text = f"group {state.name!r} has no member {member_id!r}: join anew"
    return CoordinatorRefusal(MemberFenced, text, (("group", state.name), ("member", member_id)))


def generation_refusal(state: GroupState, generation: Generation) -> CoordinatorRefusal | None:
    """Return why nobody can have heard of this generation, if nobody can."""
    if generation <= state.generation:
        return None
    text = f"generation {generation} is above {state.generation}, the newest of group {state.name!r}"
    return CoordinatorRefusal(IllegalGeneration, text, (("generation", state.generation),))


def commit_refusal(state: GroupState, commit: StoreCursors) -> CoordinatorRefusal | None:
    """Return why the commit is not allowed, if it is not.

    Its member must own every partition, and have heard a generation in which it does so without interruption
    up to now. It need not have heard of newer ones: in them it has kept the partition.
    """
    refusal = member_refusal(state, commit.member_id, commit.instance_id)
    refusal = refusal or generation_refusal(state, commit.generation)
    if refusal is not None:
        return refusal
    for partition, _ in commit.cursors:
        grant = state.grants.get(partition)
        if grant is None or grant.member_id != commit.member_id:
            text = f"member {commit.member_id!r} does not own {partition}"
            return CoordinatorRefusal(
                PartitionNotOwned, text, (("member", commit.member_id), ("partition", str(partition)))
            )
        if commit.generation < grant.generation:
            text = f"{partition} is owned since generation {grant.generation}, not {commit.generation}"
            return CoordinatorRefusal(IllegalGeneration, text, (("generation", grant.generation),))
    return None
