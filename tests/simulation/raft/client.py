"""One client: proposes commands with ids and reads, one operation at a time, and retries until answered."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from envelope.types import NodeId
from tests.simulation.raft.swarm import ELECTION_TIMEOUT
from tests.simulation.raft.tally import proposal
from tests.simulation.raft.voter import Voter
from tests.simulation.raft.world import World

_TIMEOUTS: Final = tuple(ELECTION_TIMEOUT * half // 2 for half in (1, 1, 2, 4, 8, 16))
"""How long to wait for the answer to each attempt; the last one holds for all further ones.

Longer each time: every retry of a write lengthens the log, and a slow cluster would never get to its end.
"""


@dataclass(slots=True)
class _Operation:
    number: int
    floor: int
    """What it must see at least."""
    payloads: tuple[bytes, ...] = ()
    """Empty: a read."""
    attempts: int = field(default=0)


class Client:
    """Believes in one leader until told or disappointed; its retries carry the ids of the first attempt."""

    def __init__(self, world: World, name: str, voters: Mapping[NodeId, Voter]) -> None:
        self._world, self._name, self._voters = world, name, voters
        self._believed = world.rng.choice(world.swarm.machines)
        self._number = 0
        self._operation: _Operation | None = None
        self._last_words = 2
        world.timeline.after(self._think(), self._begin)

    @property
    def done(self) -> bool:
        """Whether the write and the read with which it ends, after healing, were answered too."""
        return self._operation is None and self._last_words == 0

    @property
    def answered(self) -> int:
        """How many of its operations were answered."""
        return self._number - (self._operation is not None)

    def _begin(self) -> None:
        world = self._world
        if self.done:
            return
        writes = world.rng.random() >= world.swarm.reads
        if world.healing:
            writes = self._last_words == 2
            self._last_words -= 1
        self._number += 1
        count = world.rng.choice((1, 1, 1, 3)) if writes else 0
        payloads = tuple(proposal(f"{self._name}-{self._number}/{part}") for part in range(count))
        self._operation = _Operation(self._number, world.checks.history.begin(), payloads)
        self._attempt(self._operation)

    def _attempt(self, operation: _Operation) -> None:
        operation.attempts += 1
        timeline, target = self._world.timeline, self._voters[self._believed]
        attempt = operation.number, operation.attempts
        if not self._lost():
            timeline.after(self._delay(), self._arrive, operation, attempt, target)
        timeout = _TIMEOUTS[min(operation.attempts, len(_TIMEOUTS)) - 1]
        timeline.after(timeout, self._timed_out, attempt)

    def _arrive(self, operation: _Operation, attempt: tuple[int, int], target: Voter) -> None:
        if not target.alive:
            self._answer(attempt, None, None)  # nothing listens there
        elif operation.payloads:
            target.propose(operation.payloads, partial(self._answer, attempt))
        else:
            target.read(partial(self._answer, attempt))

    def _answer(self, attempt: tuple[int, int], count: int | None, leader: NodeId | None) -> None:
        if not self._lost():
            self._world.timeline.after(self._delay(), self._answered, attempt, count, leader)

    def _answered(self, attempt: tuple[int, int], count: int | None, leader: NodeId | None) -> None:
        operation = self._operation
        if operation is None or attempt[0] != operation.number:
            return
        if count is not None:
            self._complete(operation, count)
        elif attempt[1] == operation.attempts:
            self._believed = leader or self._somebody_else()
            # Who is asked may know of no leader, or of a dead one: do not ask more often than it learns.
            pause = self._think() + ELECTION_TIMEOUT // (10 if leader else 2)
            self._world.timeline.after(pause, self._retry, attempt)

    def _complete(self, operation: _Operation, count: int) -> None:
        history = self._world.checks.history
        if operation.payloads:
            history.end_write(operation.floor, count)
        else:
            history.end_read(operation.floor, count)
        self._operation = None
        self._world.timeline.after(self._think(), self._begin)

    def _timed_out(self, attempt: tuple[int, int]) -> None:
        if self._waits_for(attempt):
            self._believed = self._somebody_else()
            self._retry(attempt)

    def _retry(self, attempt: tuple[int, int]) -> None:
        if self._operation is not None and self._waits_for(attempt):
            self._world.trace.counts["retried"] += 1
            self._attempt(self._operation)

    def _waits_for(self, attempt: tuple[int, int]) -> bool:
        """Tell whether that is the last attempt, and unanswered."""
        operation = self._operation
        return operation is not None and attempt == (operation.number, operation.attempts)

    def _somebody_else(self) -> NodeId:
        """Return whom to ask next; in the end all in turn, as few of them may be members."""
        machines = self._world.swarm.machines
        if self._world.healing:
            return machines[(machines.index(self._believed) + 1) % len(machines)]
        return self._world.rng.choice(machines)

    def _lost(self) -> bool:
        return self._world.rng.random() < self._world.network.weather.loss

    def _delay(self) -> int:
        return int(2 * self._world.rng.random() * self._world.network.weather.delay_mean)

    def _think(self) -> int:
        return int(2 * self._world.rng.random() * self._world.swarm.think_mean)
