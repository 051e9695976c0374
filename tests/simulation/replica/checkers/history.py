"""What publishers and readers may say of a log that lost nothing, from what they saw alone.

An implementation of its own of the anomalies that the Kafka workload of Jepsen looks for, per stream. It
knows nothing of nodes: operations have a client, a beginning, perhaps an end, and values with offsets.

Source: jepsen-io/jepsen, ``jepsen.tests.kafka``, whose words these are. Offsets here have no gaps, and
nothing is removed, so that a skipped or missing offset is an anomaly at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

from tests.simulation.violation import Violation


class Ending(StrEnum):
    """What came of an operation, as far as its client knows."""

    OK = "ok"
    FAIL = "fail"
    """It has certainly not happened."""
    INFO = "info"
    """It may have happened, or may still happen."""


@dataclass(slots=True)
class Send:
    """One value that a client published; ``offset`` is what the ack said."""

    process: str
    value: str
    begun: int
    """Order of events: by it operations are before or after each other."""
    ended: int | None = None
    ending: Ending = Ending.INFO
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Poll:
    """What a client read in one go, in its order."""

    process: str
    at: int
    records: tuple[tuple[int, str], ...]


@dataclass(slots=True)
class History:
    """All operations on one stream."""

    sends: dict[str, Send] = field(default_factory=dict)
    polls: list[Poll] = field(default_factory=list)
    other_acks: list[tuple[int, str]] = field(default_factory=list)
    """Of a value that was acked before, at another offset."""
    events: int = 0

    def send(self, process: str, value: str) -> None:
        """A client begins to publish a value, for the first time."""
        if value not in self.sends:
            self.sends[value] = Send(process, value, self._next())

    def acked(self, value: str, offset: int) -> None:
        """The client is told where the value is; once is enough."""
        send = self.sends[value]
        if send.ending is not Ending.OK:
            send.ending, send.offset, send.ended = Ending.OK, offset, self._next()
        elif send.offset != offset:
            self.other_acks.append((offset, value))

    def failed(self, value: str) -> None:
        """The client is told that the value is not stored, and it was sent once only."""
        send = self.sends[value]
        if send.ending is Ending.INFO:
            send.ending, send.ended = Ending.FAIL, self._next()

    def poll(self, process: str, records: Sequence[tuple[int, str]]) -> None:
        """A client has read."""
        self.polls.append(Poll(process, self._next(), tuple(records)))

    def check(self, *, drained: bool) -> None:
        """Check everything.

        Args:
            drained: the last poll of some client saw the whole log, after all had ended.

        Raises:
            Violation: an anomaly; the text begins with its name.
        """
        values = self._values_at()
        self._one_value_at_each_offset(values)
        places = {next(iter(found)): offset for offset, found in values.items()}
        self._one_offset_for_each_value(values)
        for anomaly in (
            *self._aborted_reads(places),
            *self._lost_writes(places),
            *(self._unseen() if drained else ()),
            *self._disorderly_polls(),
            *self._disorderly_sends(),
        ):
            raise Violation(anomaly)

    def _next(self) -> int:
        self.events += 1
        return self.events

    def _values_at(self) -> dict[int, set[str]]:
        """Return every value that anybody was told to be at an offset."""
        values: dict[int, set[str]] = {}
        for poll in self.polls:
            for offset, value in poll.records:
                values.setdefault(offset, set()).add(value)
        for send in self.sends.values():
            if send.offset is not None:
                values.setdefault(send.offset, set()).add(send.value)
        for offset, value in self.other_acks:
            values.setdefault(offset, set()).add(value)
        return values

    def _one_value_at_each_offset(self, values: dict[int, set[str]]) -> None:
        for offset, found in sorted(values.items()):
            if len(found) > 1:
                raise Violation(f"inconsistent-offsets: {offset} is said to hold {sorted(found)}")

    def _one_offset_for_each_value(self, values: dict[int, set[str]]) -> None:
        known: dict[str, int] = {}
        for offset, found in sorted(values.items()):
            for value in found:
                if known.setdefault(value, offset) != offset:
                    raise Violation(f"duplicate: {value} is at {known[value]} and at {offset}")

    def _read(self) -> set[str]:
        return {value for poll in self.polls for _, value in poll.records}

    def _aborted_reads(self, places: dict[str, int]) -> Iterator[str]:
        for value in self._read():
            send = self.sends.get(value)
            if send is None:
                yield f"unexpected: {value} was read at {places[value]}, and nobody sent it"
            elif send.ending is Ending.FAIL:
                yield f"G1a: {value} was refused, and read at {places[value]}"

    def _lost_writes(self, places: dict[str, int]) -> Iterator[str]:
        """A value below one that was read has to be read by somebody."""
        read = self._read()
        bound = max((places[value] for value in read), default=-1)
        for send in self.sends.values():
            if send.offset is not None and send.offset <= bound and send.value not in read:
                yield f"lost-write: {send.value} was acked at {send.offset}; up to {bound} was read, not it"

    def _unseen(self) -> Iterator[str]:
        read = self._read()
        for send in self.sends.values():
            if send.ending is Ending.OK and send.value not in read:
                yield f"unseen: {send.value} was acked at {send.offset}, and nobody ever read it"

    def _disorderly_polls(self) -> Iterator[str]:
        last: dict[str, int] = {}
        for poll in self.polls:
            offsets = [offset for offset, _ in poll.records]
            before = last.get(poll.process)
            steps = pairwise(offsets if before is None else [before, *offsets])
            for earlier, later in steps:
                if later <= earlier:
                    yield f"nonmonotonic-poll: {poll.process} reads {later} after {earlier}"
                elif later > earlier + 1:
                    yield f"poll-skip: {poll.process} reads {later} after {earlier}"
            if offsets:
                last[poll.process] = offsets[-1]

    def _disorderly_sends(self) -> Iterator[str]:
        """What a client sends after an ack comes after what was acked."""
        acked: dict[str, list[tuple[int, int, Send]]] = {}
        for send in self.sends.values():
            if send.offset is not None and send.ended is not None:
                acked.setdefault(send.process, []).append((send.ended, send.offset, send))
        for process, sends in acked.items():
            ends = sorted(sends, key=lambda found: found[0])
            highest, done = -1, 0
            for _, offset, send in sorted(sends, key=lambda found: found[2].begun):
                while done < len(ends) and ends[done][0] < send.begun:
                    highest, done = max(highest, ends[done][1]), done + 1
                if offset <= highest:
                    text = f"{send.value} is at {offset}, sent after an ack of {highest}"
                    yield f"nonmonotonic-send: {process}: {text}"
