"""An offset that was once below a high watermark has one record for ever, and a record has one offset."""

from itertools import takewhile
from typing import Final

from envelope.types import LeaderEpoch, Offset
from jetstream.log.state.epochs import NO_EPOCH
from tests.simulation.replica.log_image import LogImage
from tests.simulation.violation import Violation

Record = tuple[LeaderEpoch, str]
_NO_EPOCH: Final = LeaderEpoch(0)
_NO_OFFSET: Final = Offset(0)


class Committed:
    """All that any leader of one stream ever announced as committed, in one history of it.

    Attributes:
        first_epoch: the first reign of this history.
        shared: below, it is one with the history before.
    """

    def __init__(self, first_epoch: LeaderEpoch = _NO_EPOCH, shared: Offset = _NO_OFFSET) -> None:
        self.first_epoch, self.shared = first_epoch, shared
        self.records: list[Record] = []
        self.offset_of: dict[str, Offset] = {}
        self.forgotten: set[str] = set()
        """Values that retention removed somewhere: there a retry is not recognised any more."""

    def succeeded(self, first_epoch: LeaderEpoch, shared: Offset, end: Offset) -> "Committed":
        """Return another history that is this one below ``end``."""
        after = Committed(first_epoch, shared)
        after.records = self.records[:end]
        after.offset_of = {value: offset for value, offset in self.offset_of.items() if offset < end}
        after.forgotten = self.forgotten
        return after

    @property
    def end(self) -> Offset:
        """The highest high watermark that was ever announced."""
        return Offset(len(self.records))

    def by_leader(self, name: str, image: LogImage, high_watermark: Offset) -> None:
        """A leader whose log is ``image`` announces; what is new is committed from now on."""
        if not image.is_boundary(high_watermark) or high_watermark > image.log_end:
            raise Violation(f"{name}: high watermark {high_watermark} is no end of a batch of its log")
        self._agrees(name, image, min(high_watermark, self.end))
        new = image.records(self.end, high_watermark)
        if len(new) != max(0, high_watermark - self.end):
            raise Violation(f"{name}: high watermark {high_watermark}, but {self.end} is not in its log")
        for record in new:
            offset = Offset(len(self.records))
            known = self.offset_of.setdefault(record[1], offset)
            if known != offset and record[1] not in self.forgotten:
                raise Violation(f"{record[1]} is at offset {known} and at {offset}")
            self.records.append(record)
        image.agree(self, max(image.agreed_with(self), high_watermark))

    def by_follower(self, name: str, image: LogImage, high_watermark: Offset) -> None:
        """A follower whose log is ``image`` lets readers see all below."""
        if high_watermark > self.end:
            raise Violation(f"{name}: follower's high watermark {high_watermark}, committed is {self.end}")
        if high_watermark > image.log_end:
            raise Violation(f"{name}: high watermark {high_watermark}, its log ends at {image.log_end}")
        self._agrees(name, image, high_watermark)

    def _agrees(self, name: str, image: LogImage, end: Offset) -> None:
        if not self.is_in(image, end):
            offset, here, there = self._first_difference(image, end)
            raise Violation(f"{name}: offset {offset} is {here} here, {there} was committed")

    def is_in(self, image: LogImage, end: Offset) -> bool:
        """Tell whether everything below ``end`` is in a log as it was committed, or was removed before."""
        start = max(image.agreed_with(self), image.origin)
        if start >= end:
            return True
        if image.records(start, end) != self.records[start:end]:
            return False
        image.agree(self, end)
        return True

    def shared_with(self, image: LogImage) -> Offset:
        """Return the end of what is in a log as it was committed, or was removed before.

        Of what was removed the log still knows some epochs: another one there was another record. Where it
        knows none, and another record follows, nothing tells what was there.
        """
        removed_end = min(image.origin, self.end)
        known_end = start = min(image.agreed_with(self), self.end)
        while start < removed_end:
            epoch = image.epochs.at(start)
            if epoch not in (NO_EPOCH, self.records[start][0]):
                return known_end
            start = Offset(start + 1)
            if epoch != NO_EPOCH:
                known_end = start
        here, there = image.records(start, self.end), self.records[start:]
        if here and there and here[0] != there[0]:
            return known_end
        pairs = zip(here, there, strict=False)
        return Offset(start + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)))

    def _first_difference(self, image: LogImage, end: Offset) -> tuple[int, Record | None, Record]:
        start = max(image.agreed_with(self), image.origin)
        here = image.records(start, end)
        for row, record in enumerate(self.records[start:end]):
            if row >= len(here) or here[row] != record:
                return start + row, here[row] if row < len(here) else None, record
        raise AssertionError("there is a difference")
