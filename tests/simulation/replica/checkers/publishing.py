"""What publishers are told is true: an acked value is at its offset, a refused one nowhere.

And what is sent after an ack comes after what was acked.
"""

from envelope.types import LeaderEpoch, Offset
from tests.simulation.replica.checkers.truths import Truths
from tests.simulation.replica.messages import Publish
from tests.simulation.violation import Violation

Process = tuple[str, int]


class Publishing:
    """The attempts to publish to one stream, and what was said to each."""

    def __init__(self, truths: Truths) -> None:
        self._truths = truths
        self.acked: dict[str, tuple[Offset, LeaderEpoch]] = {}
        """Where every acked value is, by the newest reign that said so."""
        self._highest = -1
        self._floors: dict[str, int] = {}
        self._attempts: dict[str, dict[int, set[Process]]] = {}
        self._refused: dict[str, dict[int, Process]] = {}

    def sent(self, publish: Publish) -> None:
        """An attempt leaves its publisher."""
        self._floors.setdefault(publish.value, self._highest)
        self._attempts.setdefault(publish.value, {})[publish.attempt] = set()

    def received(self, publish: Publish, leader: Process) -> None:
        """A process that believes it leads takes an attempt in."""
        self._attempts[publish.value][publish.attempt].add(leader)

    def answered(self, publish: Publish, offset: Offset, epoch: LeaderEpoch) -> None:
        """A leader acks in this reign."""
        value, committed = publish.value, self._truths.of(epoch)
        if offset >= committed.end or committed.records[offset][1] != value:
            found = committed.records[offset] if offset < committed.end else None
            raise Violation(f"{value} is acked at {offset}; committed is {found} of {committed.end}")
        known, when = self.acked.get(value, (offset, epoch))
        self.acked[value] = max((known, when), (offset, epoch), key=lambda found: found[1])
        if known == offset or value in committed.forgotten:
            return
        former = known if when <= epoch else offset
        if not self._truths.is_lost(former, min(when, epoch), max(when, epoch)):
            raise Violation(f"{value} is acked at {known} and at {offset}")

    def heard(self, publish: Publish, offset: Offset) -> None:
        """The publisher has received an ack: what is sent first from now on comes after it.

        Unless records were lost: then the offsets of those are given again.
        """
        spared = self._truths.has_parted or publish.value in self._truths.newest.forgotten
        if offset <= self._floors[publish.value] and not spared:
            floor = self._floors[publish.value]
            raise Violation(f"{publish.value} is acked at {offset}; {floor} was acked before it was sent")
        self._highest = max(self._highest, offset)

    def refused(self, publish: Publish, leader: Process) -> None:
        """A leader refuses an attempt: it has not stored it and never will."""
        self._refused.setdefault(publish.value, {})[publish.attempt] = leader

    def check_refusals(self) -> int:
        """Check that what was refused is nowhere; return how often it cannot be told who stored a value.

        A message goes to all who are subscribed: one that another leader received too may be stored there.
        """
        unclear, offset_of = 0, self._truths.newest.offset_of
        for value, refused in self._refused.items():
            if value not in offset_of or len(refused) < len(self._attempts[value]):
                continue
            if self._is_certain(value, refused):
                raise Violation(f"{value} was refused, and is at {offset_of[value]}")
            unclear += 1
        return unclear

    def certainly_refused(self) -> list[str]:
        """Return the values of which every attempt was refused by the only process that received it."""
        return [value for value, refused in self._refused.items() if self._is_certain(value, refused)]

    def _is_certain(self, value: str, refused: dict[int, Process]) -> bool:
        return all(received == {refused.get(attempt)} for attempt, received in self._attempts[value].items())
