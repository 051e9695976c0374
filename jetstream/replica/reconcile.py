"""Where the histories of two logs part, from their epochs alone.

A log is told by its last epoch and its end: one process appends under an epoch, so two logs that are equal in
both hold the same records. A follower sends the two with every fetch. The leader knows from its own history
whether such a log is the beginning of its own; if not, it answers the largest epoch it knows that is not
above the follower's last one, and where that ended. The follower cuts back to where both agree and asks
again: after a few rounds its log is the beginning of the leader's.

Sources: KIP-101 (epochs), KIP-279 (the epoch belongs in the answer), KIP-320 (every fetch is checked).
"""

from bisect import bisect_right
from dataclasses import dataclass

from envelope.types import NO_OFFSET, LeaderEpoch, Offset
from envelope.values import value
from jetstream.log.state.epochs import NO_EPOCH, EpochHistory


@dataclass(slots=True)
class LogState:
    """The state of a log for the replication machines, at one moment; a machine changes its own in place."""

    epochs: EpochHistory
    log_start_offset: Offset
    log_end_offset: Offset
    synced_end: Offset
    """What counts as durable ends here: at or below the log end."""
    purged_end: Offset = NO_OFFSET
    """Tombstones below may be missing: `jetstream.log.state.compaction_state`."""


@value(frozen=True, slots=True)
class EpochEnd:
    """An epoch, and the offset after the last that it may have written."""

    epoch: LeaderEpoch
    end: Offset


class Follows:
    """The follower's log is the beginning of the leader's."""


class StartsOver:
    """Nothing that the leader still has is known to be in both logs."""


def compare(leader: LogState, last_epoch: LeaderEpoch, log_end: Offset) -> Follows | StartsOver | EpochEnd:
    """Return how a follower's log with that last epoch and that end relates to the leader's.

    An `EpochEnd` is where the leader's history of the epochs up to ``last_epoch`` ends: the logs part there,
    or before.
    """
    if log_end < leader.log_start_offset:
        return StartsOver()
    if last_epoch == NO_EPOCH:
        # It has no records, so none that differ; but its end must be a place in this log.
        return Follows() if log_end <= leader.log_end_offset else StartsOver()
    known = largest_epoch(leader.epochs, last_epoch, leader.log_end_offset)
    if known is None:
        return StartsOver()
    if known.epoch == last_epoch and log_end <= known.end:
        return Follows()
    return known


def cut_point(follower: LogState, answer: EpochEnd) -> Offset | None:
    """Return where a follower must cut its log after that answer; None if it must start over.

    Never above what was answered and never inside an epoch that both know, so nothing that both have is cut.
    """
    own = largest_epoch(follower.epochs, answer.epoch, follower.log_end_offset)
    if own is None:
        return None
    end = min(own.end, answer.end)
    return end if end >= follower.log_start_offset else None


def largest_epoch(epochs: EpochHistory, epoch: LeaderEpoch, log_end: Offset) -> EpochEnd | None:
    """Return the largest epoch of a history that is not above ``epoch``, with its end; None without any."""
    row = bisect_right(epochs.starts, epoch, key=lambda start: start.epoch)
    if row == 0:
        return None
    end = epochs.starts[row].start if row < len(epochs.starts) else log_end
    return EpochEnd(epochs.starts[row - 1].epoch, end)
