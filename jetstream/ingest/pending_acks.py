"""Acks that wait for the high watermark; `StreamIngest` knows those that wait for an append alone."""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

from envelope.acks import AckWriter
from envelope.types import Offset
from envelope.values import value


@value(frozen=True, slots=True)
class Acks:
    """Records to ack, one at least: ascending offsets, each with its reply subject."""

    offsets: Sequence[int]
    replies: Sequence[bytes]
    echoing: bool = False
    """Whether an `EchoingReply` may be among the replies."""

    def split(self, end: Offset) -> tuple["Acks", "Acks"]:
        """Return the acks of records below ``end`` and the others, of both one at least."""
        count = bisect_left(self.offsets, end)
        return Acks(self.offsets[:count], self.replies[:count], self.echoing), Acks(
            self.offsets[count:], self.replies[count:], self.echoing
        )


class PendingAcks:
    """The acks that publishers of one stream wait for.

    Attributes:
        count: how many.

    Invariants:
        A1: an ack is released once, and not before the high watermark has passed its record (`release`) or
            its append has returned (`appended`, for those who asked for no more).
        A2: a repeat is released only after the high watermark has passed its original.
            Held by test_a_repeat_of_an_uncommitted_record_waits_for_the_high_watermark.
    """

    def __init__(self, writer: AckWriter) -> None:
        """Write acks with ``writer``."""
        self._writer = writer
        self._waiting: deque[Acks] = deque()
        # A heap; the number keeps arrival order.
        self._duplicates: list[tuple[Offset, int, bytes, bool]] = []
        self._duplicates_seen = 0
        self.count = 0

    def add(self, leaders: Sequence[Acks], commits: Sequence[Acks]) -> None:
        """Note whom to ack about a group whose append begins: when it returns, or when it is committed.

        The offsets ascend from one to the next, and from group to group.
        """
        self._waiting += commits
        for acks in (*leaders, *commits):
            self.count += len(acks.replies)

    def add_duplicate(self, original: Offset, reply: bytes, *, is_exact: bool = True) -> None:
        """Note whom to tell that the record at ``original`` has its message already.

        Unless ``is_exact`` that is a record before it whose offset is forgotten.
        """
        heappush(self._duplicates, (original, self._duplicates_seen, reply, is_exact))
        self._duplicates_seen += 1
        self.count += 1

    def appended(self, leaders: Sequence[Acks]) -> tuple[bytes, int]:
        """An append returned: return the acks of those who asked for no more, and their number."""
        parts: list[bytes] = []
        count = 0
        for acks in leaders:
            parts.append(self._writer.acks(acks.offsets, acks.replies, echoing=acks.echoing))
            count += len(acks.replies)
        self.count -= count
        assert self.count >= 0, f"A1: {count} acks of {self.count + count} are released"
        return b"".join(parts), count

    def release(self, high_watermark: Offset) -> tuple[bytes, int]:
        """Return the acks of what is committed now, and their number."""
        parts: list[bytes] = []
        count = 0
        while self._waiting and self._waiting[0].offsets[0] < high_watermark:
            acks = self._waiting.popleft()
            if acks.offsets[-1] >= high_watermark:
                acks, rest = acks.split(high_watermark)
                self._waiting.appendleft(rest)
            assert acks.offsets[-1] < high_watermark, f"A1: {acks.offsets[-1]} at {high_watermark}"
            parts.append(self._writer.acks(acks.offsets, acks.replies, echoing=acks.echoing))
            count += len(acks.replies)
        while self._duplicates and self._duplicates[0][0] < high_watermark:
            original, _, reply, is_exact = heappop(self._duplicates)
            parts.append(self._writer.duplicate(reply, original if is_exact else None))
            count += 1
        self.count -= count
        assert self.count >= 0, f"A1: {count} acks of {self.count + count} are released"
        assert not self._duplicates or self._duplicates[0][0] >= high_watermark, "A2: a repeat is still here"
        return b"".join(parts), count

    def take_back(self, base: Offset, leaders: Iterable[Acks]) -> list[bytes]:
        """All appends in flight, from ``base`` on, failed: return who waits for them, repeats included.

        Those who asked for no more than an append are ``leaders``. Of repeats whose own offset is forgotten
        nobody knows: they hear nothing.
        """
        commits: deque[Acks] = deque()
        while self._waiting and self._waiting[-1].offsets[0] >= base:
            commits.appendleft(self._waiting.pop())
        replies = [reply for acks in (*leaders, *commits) for reply in acks.replies]
        failed = sorted(entry for entry in self._duplicates if entry[0] >= base)
        self._duplicates = [entry for entry in self._duplicates if entry[0] < base]
        heapify(self._duplicates)
        self.count -= len(replies) + len(failed)
        assert self.count >= 0, f"A1: {len(replies)} acks and {len(failed)} repeats are taken back"
        replies += (reply for _, _, reply, is_exact in failed if is_exact)
        return replies
