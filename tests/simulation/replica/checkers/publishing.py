"""What publishers are told is true: an acked value is at its offset, a refused one nowhere.

And what is sent after an ack comes after what was acked.
"""

from envelope.types import Offset
from tests.simulation.replica.checkers.committed import Committed
from tests.simulation.replica.messages import Publish
from tests.simulation.violation import Violation

Process = tuple[str, int]


class Publishing:
    """The attempts to publish to one stream, and what was said to each."""

    def __init__(self, committed: Committed) -> None:
        self._committed = committed
        self.acked: dict[str, Offset] = {}
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

    def answered(self, publish: Publish, offset: Offset) -> None:
        """A leader acks."""
        value, committed = publish.value, self._committed
        if offset >= committed.end or committed.records[offset][1] != value:
            found = committed.records[offset] if offset < committed.end else None
            raise Violation(f"{value} is acked at {offset}; committed is {found} of {committed.end}")
        known = self.acked.setdefault(value, offset)
        if known == offset or value in committed.forgotten:
            return
        raise Violation(f"{value} is acked at {known} and at {offset}")

    def heard(self, publish: Publish, offset: Offset) -> None:
        """The publisher has received an ack: what is sent first from now on comes after it."""
        if offset <= self._floors[publish.value] and publish.value not in self._committed.forgotten:
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
        unclear = 0
        for value, refused in self._refused.items():
            if value not in self._committed.offset_of or len(refused) < len(self._attempts[value]):
                continue
            if self._is_certain(value, refused):
                raise Violation(f"{value} was refused, and is at {self._committed.offset_of[value]}")
            unclear += 1
        return unclear

    def certainly_refused(self) -> list[str]:
        """Return the values of which every attempt was refused by the only process that received it."""
        return [value for value, refused in self._refused.items() if self._is_certain(value, refused)]

    def _is_certain(self, value: str, refused: dict[int, Process]) -> bool:
        return all(received == {refused.get(attempt)} for attempt, received in self._attempts[value].items())
