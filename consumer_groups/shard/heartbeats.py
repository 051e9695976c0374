"""Heartbeats that wait for news: one for each connection."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from consumer_groups.assignment.partitions import GroupName
from consumer_groups.coordinator.events import Beat, ConnectionId
from consumer_groups.shard.alarms import Alarms
from consumer_groups.shard.events import QuestionId
from envelope.types import MonotonicNs


@dataclass(frozen=True, slots=True)
class Parked:
    """A heartbeat that waits."""

    question: QuestionId
    beats: Mapping[GroupName, tuple[Beat, ...]]


class ParkedHeartbeats:
    """Those of all connections.

    Invariants:
        H4: a connection has one at most, and it is found by each of its groups.
    """

    def __init__(self) -> None:
        self._parked: dict[ConnectionId, Parked] = {}
        self._of_group: dict[GroupName, dict[ConnectionId, None]] = {}
        self._ends: Alarms[ConnectionId] = Alarms()

    def __len__(self) -> int:
        return len(self._parked)

    def park(self, connection: ConnectionId, parked: Parked, until: MonotonicNs) -> None:
        """Let one wait."""
        assert connection not in self._parked, f"H4: {connection} has one"
        self._parked[connection] = parked
        for group in parked.beats:
            self._of_group.setdefault(group, {})[connection] = None
        self._ends.set(connection, until)

    def take(self, connection: ConnectionId) -> Parked | None:
        """Take away the one of a connection, if it has one."""
        parked = self._parked.pop(connection, None)
        if parked is not None:
            for group in parked.beats:
                connections = self._of_group[group]
                del connections[connection]
                if not connections:
                    del self._of_group[group]
            self._ends.clear(connection)
        assert self._parked or not self._of_group, f"H4: nothing waits, but in {self._of_group}"
        return parked

    def of_group(self, group: GroupName) -> list[tuple[ConnectionId, Parked]]:
        """Return those with members of a group."""
        return [(connection, self._parked[connection]) for connection in self._of_group.get(group, ())]

    def next_end(self) -> MonotonicNs:
        """Return when the first one has waited long enough."""
        return self._ends.next()

    def take_due(self, now: MonotonicNs) -> Iterable[Parked]:
        """Take away those that have waited long enough."""
        found = [self.take(connection) for connection in self._ends.due(now)]
        return [parked for parked in found if parked is not None]
