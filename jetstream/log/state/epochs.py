"""The leader epochs of a log's offsets: the history that reconciliation and readers compare.

The ``epochs`` state file holds ``{"entries": [[epoch, start offset, begun at (microseconds)], …],
"followed": boolean}``. An epoch is recorded, durably, before its first batch, and stays recorded if it has
none: a follower that knows it must find it here. ``followed``, missing in older files: the last
batches may have been written as a follower: it is set before the first of them, and taken back with the
record of the next epoch that this node leads.

Source: KIP-101, KIP-279; Kafka's ``LeaderEpochFileCache``.
"""

from bisect import bisect_right
from itertools import pairwise
from typing import Final, NamedTuple

from envelope.errors import CorruptDataError
from envelope.types import LeaderEpoch, Offset, TimestampUs
from jetstream.log.disk.state_file import Json

EPOCHS_FILE: Final = "epochs"
NO_EPOCH: Final = LeaderEpoch(0)
"""The epoch before the first; nothing is ever written under it."""


class EpochStart(NamedTuple):
    """First offset that could be written under an epoch, and when the epoch began."""

    epoch: LeaderEpoch
    start: Offset
    begun_at: TimestampUs


class EpochHistory:
    """An immutable list of epoch starts.

    Attributes:
        starts: in order.
        last: the newest epoch, `NO_EPOCH` if there is none.

    Invariants:
        E1: epochs strictly increase.
        E2: their start offsets never decrease.
    """

    __slots__ = ("last", "starts")

    def __init__(self, starts: tuple[EpochStart, ...] = ()) -> None:
        for before, after in pairwise(starts):
            assert before.epoch < after.epoch, f"E1: {before} {after}"
            assert before.start <= after.start, f"E2: {before} {after}"
        self.starts = starts
        self.last = starts[-1].epoch if starts else NO_EPOCH

    def begun(self, epoch: LeaderEpoch, start: Offset, now: TimestampUs) -> "EpochHistory":
        """Return the history with a newer epoch that begins at ``start``."""
        return EpochHistory((*self.starts, EpochStart(epoch, start, now)))

    def at(self, offset: Offset) -> LeaderEpoch:
        """Return the epoch that wrote, or would write, ``offset``; `NO_EPOCH` before the first."""
        row = bisect_right(self.starts, offset, key=lambda entry: entry.start) - 1
        return self.starts[row].epoch if row >= 0 else NO_EPOCH

    def end_of(self, epoch: LeaderEpoch, log_end_offset: Offset) -> Offset | None:
        """Return the offset after the last that ``epoch`` may have written; None if it is unknown here."""
        row = bisect_right(self.starts, epoch, key=lambda entry: entry.epoch)
        if row == 0 or self.starts[row - 1].epoch != epoch:
            return None
        return self.starts[row].start if row < len(self.starts) else log_end_offset

    def cut(self, end: Offset) -> "EpochHistory":
        """Return the history of the log below ``end`` only."""
        return EpochHistory(tuple(entry for entry in self.starts if entry.start < end))

    def pruned(self, log_start_offset: Offset) -> "EpochHistory":
        """Return the history without epochs that ended before ``log_start_offset``.

        The epoch of the last removed record stays: it is the last one of a log that is cut to its start.
        """
        ended = (after.start < log_start_offset for after in self.starts[1:])
        return EpochHistory(
            tuple(entry for entry, gone in zip(self.starts, (*ended, False), strict=False) if not gone)
        )

    def merged(self, written: "tuple[EpochStart, ...]") -> "EpochHistory":
        """Return the history with the epochs that batches prove and it lacks."""
        known = {entry.epoch: entry for entry in self.starts}
        for entry in written:
            known.setdefault(entry.epoch, entry)
        starts: list[EpochStart] = []
        for entry in sorted(known.values()):
            floor = starts[-1].start if starts else Offset(0)
            starts.append(entry._replace(start=max(entry.start, floor)))
        return EpochHistory(tuple(starts))

    def encode(self, *, followed: bool) -> dict[str, Json]:
        """Return the content of the state file."""
        entries: list[Json] = [[entry.epoch, entry.start, entry.begun_at] for entry in self.starts]
        return {"entries": entries, "followed": followed}


def decode_epochs(state: dict[str, Json]) -> EpochHistory:
    """Return the history in a state file.

    Raises:
        CorruptDataError: not a list of increasing epochs.
    """
    entries = state.get("entries")
    if not isinstance(entries, list):
        raise CorruptDataError("an epochs file has no entries")
    starts: list[EpochStart] = []
    for entry in entries:
        match entry:
            case [int(epoch), int(start), int(begun_at)] if min(epoch, start, begun_at) >= 0:
                starts.append(EpochStart(LeaderEpoch(epoch), Offset(start), TimestampUs(begun_at)))
            case _:
                raise CorruptDataError(f"an epochs file has the entry {entry!r}")
    for before, after in pairwise(starts):
        if before.epoch >= after.epoch or before.start > after.start:
            raise CorruptDataError("the entries of an epochs file are out of order")
    return EpochHistory(tuple(starts))


def is_followed(state: dict[str, Json]) -> bool:
    """Return whether the last batches may have been written as a follower, by a state file."""
    return state.get("followed") is True
