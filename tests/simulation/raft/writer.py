"""The disk of one voter at work: writes take time, and a crash keeps a prefix of those under way.

A barrier, a write of nothing, takes none.
"""

import itertools
from collections import deque
from collections.abc import Callable
from random import Random

from metadata.raft.events import Persist
from tests.simulation.disk_state import DiskState
from tests.simulation.raft.swarm import Swarm
from tests.simulation.timeline import Timeline

Writes = tuple[Persist, ...]


class DiskWriter:
    """Makes the writes of one life in their order; a restarted voter gets another writer.

    ``write`` makes one durable, ``report`` tells the voter of those done together, ``fail`` that a sync
    failed. While the disk is full a write waits, and ``stalled`` is told again and again.
    """

    def __init__(
        self,
        timeline: Timeline,
        rng: Random,
        swarm: Swarm,
        write: Callable[[Persist], None],
        report: Callable[[Writes], None],
        fail: Callable[[str], None],
    ) -> None:
        self._timeline, self._rng, self._swarm = timeline, rng, swarm
        self._write, self._report, self._fail = write, report, fail
        self._waiting: deque[Persist] = deque()
        self._under_way = 0
        self._last_report = 0
        self._closed = False
        self._calm = False
        self._has_contents = False
        self.disk = DiskState()
        self.stalled: Callable[[], None] = lambda: None

    def put(self, persist: Persist) -> None:
        """Write ``persist`` after all before it."""
        self._waiting.append(persist)
        if not self._under_way:
            self._begin()

    def crash(self) -> None:
        """End here: any prefix of what waits becomes durable, nothing is reported any more."""
        self._closed = True
        for persist in list(self._waiting)[: self._rng.randint(0, len(self._waiting))]:
            self._write(persist)

    def calm(self) -> None:
        """Neither fail nor be slow from now on."""
        self._calm, self.disk.slowness = True, 1

    def _begin(self) -> None:
        self._under_way = len(self._waiting) if self._swarm.coalesced_writes else 1
        self._has_contents = any(
            persist.hard_state or persist.snapshot or persist.entries
            for persist in itertools.islice(self._waiting, self._under_way)
        )
        mean = self._swarm.write_mean * self.disk.slowness if self._has_contents else 0
        self._timeline.after(int(mean * (0.5 + self._rng.random())), self._end)

    def _end(self) -> None:
        if self._closed:
            return
        rng, swarm = self._rng, self._swarm
        if self._has_contents and self.disk.full:
            self._timeline.after(10 * swarm.write_mean, self._end)
            self.stalled()
            return
        is_failing = self._has_contents and self.disk.failing
        if is_failing or (not self._calm and rng.random() < swarm.failing_sync):
            self.disk.failing = False
            self._fail("sync_failed")
            return
        done = tuple(self._waiting.popleft() for _ in range(self._under_way))
        self._under_way = 0
        for persist in done:
            self._write(persist)
        if not self._calm and rng.random() < swarm.crash_after_write:
            self._fail("crash_after_write")
            return
        late = swarm.write_mean * 3 if rng.random() < swarm.late_report else 0
        self._last_report = max(self._last_report, self._timeline.now + int(rng.random() * late))
        self._timeline.at(self._last_report, self._tell, done)
        if self._waiting:
            self._begin()

    def _tell(self, done: Writes) -> None:
        if not self._closed:
            self._report(done)
