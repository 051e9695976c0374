"""An id is stored again only if its record was committed a window before, and its fate known all the time."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from envelope.types import LeaderEpoch, Offset, TimestampUs
from tests.simulation.replica.checkers.truths import Truths
from tests.simulation.replica.log_image import LogImage
from tests.simulation.violation import Violation

_LATE_PART: Final = 64
"""A commit that comes later than this part of the window is late: the window begins with it."""


@dataclass(frozen=True, slots=True)
class _Copy:
    """A record that a leader has made of a value."""

    epoch: LeaderEpoch
    offset: Offset
    at: TimestampUs


@dataclass(frozen=True, slots=True)
class _Commit:
    """When an offset was committed, and the data directories that were in sync then, and still have it."""

    at: TimestampUs
    knowing: set[str]


class Ids:
    """Of one stream with a dedupe window, microseconds."""

    def __init__(self, truths: Truths, window_us: int) -> None:
        self._truths, self._window_us = truths, window_us
        self._copies: dict[str, list[_Copy]] = {}
        self._commits: dict[Offset, _Commit] = {}
        self._committed_end = Offset(0)

    def announced(self, high_watermark: Offset, now: TimestampUs, in_sync: Collection[str]) -> None:
        """A leader says that everything below is committed; ``in_sync`` are data directories."""
        for offset in range(self._committed_end, high_watermark):
            self._commits[Offset(offset)] = _Commit(now, set(in_sync))
        self._committed_end = max(self._committed_end, high_watermark)

    def lost(self, directory: str, end: Offset) -> None:
        """A log ends there now: what it gets behind that is not new to others."""
        for offset, commit in self._commits.items():
            if offset >= end:
                commit.knowing.discard(directory)

    def stored(
        self, value: str, place: tuple[LeaderEpoch, Offset], now: TimestampUs, directory: str, image: LogImage
    ) -> bool:
        """A leader takes a value for new; tell whether its log has it already.

        Raises:
            Violation: it has, and must know.
        """
        copies = self._copies.setdefault(value, [])
        there = [copy for copy in copies if _is_in(image, copy, value)]
        if not self._truths.has_parted:
            for copy in there[-1:]:
                self._check_forgotten(copy, value, now, directory)
        copies.append(_Copy(*place, now))
        return bool(there)

    def _check_forgotten(self, copy: _Copy, value: str, now: TimestampUs, directory: str) -> None:
        text = f"{value} is at {copy.offset} in epoch {copy.epoch}, and {directory} stores it again"
        records, commit = self._truths.newest.records, self._commits.get(copy.offset)
        if commit is None or records[copy.offset] != (copy.epoch, value):
            raise Violation(f"{text} though it is not committed")
        is_late = commit.at - copy.at > self._window_us // _LATE_PART
        since = commit.at if is_late and directory in commit.knowing else copy.at
        if now - since < self._window_us:
            late = commit.at - copy.at
            raise Violation(f"{text} after {now - since} of {self._window_us} us; committed {late} us late")


def _is_in(image: LogImage, copy: _Copy, value: str) -> bool:
    end = Offset(copy.offset + 1)
    return image.origin <= copy.offset and image.records(copy.offset, end) == [(copy.epoch, value)]
