"""How far a member reads: from the cursor of what it got, record by record, to what it commits."""

from collections.abc import Iterable
from dataclasses import dataclass

from consumer_groups.assignment.partitions import Claim, Generation, GroupName, MemberId, Partition
from consumer_groups.coordinator.events import NewCursor
from consumer_groups.cursors import CursorPosition
from consumer_groups.shard.records import GroupCursorRecord
from tests.simulation.groups.cursor_checks import Origin
from tests.simulation.groups.world import World


@dataclass(slots=True)
class Reading:
    """One partition that is read."""

    generation: Generation
    """Since which it is owned."""
    life: str | None
    position: int | None = None
    """The next record; None until it is known."""
    first_fetch: int | None = None
    """The first question that asks for it."""


class Readings:
    """All partitions that a member reads."""

    def __init__(self, world: World, group: GroupName) -> None:
        self._world, self._group = world, group
        self._readings: dict[Partition, Reading] = {}

    def __contains__(self, partition: Partition) -> bool:
        return partition in self._readings

    def __len__(self) -> int:
        return len(self._readings)

    def claims(self) -> list[Claim]:
        """Return what is read, and since when it is owned."""
        return sorted(Claim(partition, each.generation) for partition, each in self._readings.items())

    def begin(self, claim: Claim) -> None:
        """Read a partition that is new."""
        life = self._world.streams.life(claim.partition.stream)
        self._readings[claim.partition] = Reading(claim.generation, life)

    def end(self, partition: Partition) -> None:
        """Stop reading it."""
        del self._readings[partition]

    def clear(self) -> None:
        """Stop reading everything."""
        self._readings.clear()

    def begin_anew(self, partitions: Iterable[Partition]) -> None:
        """Ask again where to read on."""
        for partition in partitions:
            if partition in self._readings:
                self.begin(Claim(partition, self._readings[partition].generation))

    # --- where it begins ---------------------------------------------------------------------------------

    def to_fetch(self) -> tuple[Partition, ...]:
        """Return what has no position yet."""
        return tuple(sorted(one for one, each in self._readings.items() if each.position is None))

    def asked(self, number: int, partitions: Iterable[Partition]) -> None:
        """Take note of the question that asks for these."""
        for partition in partitions:
            reading = self._readings[partition]
            reading.first_fetch = number if reading.first_fetch is None else reading.first_fetch

    def found(
        self, number: int, partitions: Iterable[Partition], cursors: Iterable[GroupCursorRecord]
    ) -> None:
        """Begin at the cursors, and where there is none at the beginning."""
        told = {cursor.partition: cursor for cursor in cursors}
        for partition in partitions:
            reading = self._readings.get(partition)
            if reading is None or reading.position is not None or reading.first_fetch is None:
                continue
            if number >= reading.first_fetch:
                cursor = told.get(partition)
                is_of_it = cursor is not None and cursor.incarnation == reading.life
                reading.position = cursor.offset if cursor is not None and is_of_it else 0

    # --- how it goes on ----------------------------------------------------------------------------------

    def read_on(self) -> None:
        """Deliver some records of everything; a stream that was made anew is read from its beginning."""
        streams, rng = self._world.streams, self._world.rng
        for partition, reading in self._readings.items():
            life = streams.life(partition.stream)
            if reading.life != life:
                reading.life, reading.position = life, 0
            end = streams.ends[partition]
            if reading.position is not None and reading.position < end:
                start, reading.position = reading.position, rng.randint(reading.position, end)
                if self._world.healing:
                    reading.position = end
                checks = self._world.cursor_checks[self._group]
                checks.delivered(life, partition, start, reading.position)

    def go_back(self, partitions: Iterable[Partition]) -> None:
        """Read something again."""
        for partition in partitions:
            reading = self._readings.get(partition)
            if reading is not None and reading.position is not None:
                reading.position = self._world.rng.randint(0, reading.position)

    def ready(self) -> list[Partition]:
        """Return what has a position."""
        return sorted(one for one, each in self._readings.items() if each.position is not None)

    def cursors(
        self, partitions: Iterable[Partition], member_id: MemberId, request: int, *, is_reset: bool
    ) -> tuple[NewCursor, ...]:
        """Return what to commit for these; for others' partitions something that they might."""
        metadata = Origin(member_id, request, is_reset).text()
        cursors = []
        for partition in partitions:
            reading = self._readings.get(partition)
            if reading is None:
                life = self._world.streams.life(partition.stream)
                position: int | None = self._world.cursor_checks[self._group].delivered_end(partition)
            else:
                life, position = reading.life, reading.position
            if position is not None:
                cursors.append(NewCursor(partition, CursorPosition(position, life, metadata)))
        return tuple(cursors)
