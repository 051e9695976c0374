"""The disk of one replica at work: one job after the other, each takes time; a crash may do half of one."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from envelope.errors import JetstreamError
from envelope.types import LeaderEpoch, Offset
from jetstream.log.rewriting.repair import Hole
from jetstream.replica.reconcile import LogState
from tests.simulation.disk_state import DiskState
from tests.simulation.replica.log_image import Batch, LogImage

if TYPE_CHECKING:
    from tests.simulation.replica.world import World


class IdsOf(Protocol):
    """What is to be done with the ids of some batches."""

    def hold(self) -> None:
        """Note what must be known of ids before the batches are written."""

    def learn(self) -> None:
        """Take their ids in, once they are written."""


@dataclass(frozen=True, slots=True)
class Write:
    """Append batches; none if what they follow was refused."""

    batches: tuple[Batch, ...]
    ids: IdsOf | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Sync:
    """Make everything durable."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Cut back to ``end`` or the boundary before it; begin anew there if ``all_of_it``."""

    end: Offset
    all_of_it: bool


@dataclass(frozen=True, slots=True)
class BeginEpoch:
    """Record the epoch's start."""

    epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class Fill:
    """Put back what was in a hole."""

    hole: Hole
    batches: tuple[Batch, ...]


Job = Write | Sync | Cut | BeginEpoch | Fill


@dataclass(frozen=True, slots=True)
class Done:
    """A job is done, and this was the log then."""

    job: Job
    log: LogState


@dataclass(frozen=True, slots=True)
class Full:
    """A write was refused; all writes that were asked for until this is told are dropped."""


@dataclass(frozen=True, slots=True)
class Filled:
    """A hole is filled, or not, for this reason."""

    job: Fill
    error: JetstreamError | None


Report = Done | Full | Filled


class LogWriter:
    """Performs jobs on ``image`` and hands reports to ``tell``, in order and some of them late."""

    def __init__(
        self, world: "World", image: LogImage, disk: DiskState, tell: Callable[[Report], None]
    ) -> None:
        self._world, self._image, self._disk, self._tell = world, image, disk, tell
        self._jobs: deque[Job] = deque()
        self._under_way = False
        self._untold = 0
        self._last_report = 0
        self._closed = False
        self._refusing = False

    @property
    def idle(self) -> bool:
        """Whether everything was done and told."""
        return not self._jobs and not self._untold

    def append(self, batches: tuple[Batch, ...], ids: IdsOf | None = None) -> None:
        """Write ``batches`` after everything before, and sync them; without ``sync: always`` now and then."""
        jobs = self._jobs
        waits = len(jobs) > 1 and isinstance(jobs[-1], Sync)
        if waits and self._world.rng.random() < 0.5:
            jobs.insert(len(jobs) - 1, Write(batches, ids))
            return
        self._put(Write(batches, ids))
        if self._image.syncs or self._world.rng.random() < self._world.swarm.syncs:
            self._put(Sync())

    def cut(self, end: Offset, *, all_of_it: bool) -> None:
        """Cut the log after everything before."""
        self._put(Cut(end, all_of_it))

    def fill(self, job: Fill) -> None:
        """Put back what was in a hole, after everything before."""
        self._put(job)

    def begin_epoch(self, epoch: LeaderEpoch) -> None:
        """Record an epoch's start after everything before."""
        self._put(BeginEpoch(epoch))

    def crash(self, *, power: bool) -> None:
        """End here: the job under way may be done, or half of it; ``power`` also loses what is not synced."""
        self._closed = True
        rng, image = self._world.rng, self._image
        if self._under_way and rng.random() < 0.5:
            job = self._jobs[0]
            if isinstance(job, Write):
                kept = rng.randint(0, len(job.batches))
                job = Write(job.batches[:kept], job.ids if kept else None)
            if not isinstance(job, Write) or not self._refusing:
                self._perform(job)
        if power:
            ends = [end for end in image.boundaries() if end > image.durable_end]
            image.lose_power(
                rng.choice([image.durable_end, *ends]) if rng.random() < 0.6 else image.durable_end
            )
        image.sync()  # what is found at the start is made durable

    # --- jobs -----------------------------------------------------------------------------------------

    def _put(self, job: Job) -> None:
        self._jobs.append(job)
        if not self._under_way:
            self._begin()

    def _begin(self) -> None:
        self._under_way = True
        # To write takes less than to sync.
        mean = self._world.swarm.write_mean * self._disk.slowness
        share = 0.2 if isinstance(self._jobs[0], Write) else 1.0
        self._world.timeline.after(int(mean * share * (0.5 + self._world.rng.random())), self._end)

    def _end(self) -> None:
        if self._closed:
            return
        if self._disk.failing and isinstance(self._jobs[0], Sync):
            self._disk.failing = False
            self._disk.failed()
            return
        job = self._jobs.popleft()
        if isinstance(job, Write) and job.batches and (self._refusing or self._disk.full):
            if not self._refusing:
                self._refusing = True
                self._report(Full())
        else:
            self._report(self._perform(job))
        self._under_way = False
        if self._jobs:
            self._begin()

    def _perform(self, job: Job) -> Report:
        image = self._image
        match job:
            case Write(batches, ids):
                if ids is not None:
                    ids.hold()
                for batch in batches:
                    self._world.checks.written(image, batch)
                    image.append(batch)
            case Sync():
                image.sync()
            case Cut(end, all_of_it):
                if all_of_it:
                    image.reset(end)
                else:
                    image.cut(end)
                self._world.trace.counts["truncated"] += 1
                self._world.checks.lost(image)
            case BeginEpoch(epoch):
                image.begin_epoch(epoch)
            case Fill(hole, put_back):
                return Filled(job, self._world.checks.filled(image, hole, put_back))
        return Done(job, image.state())

    def _report(self, report: Report) -> None:
        rng, swarm = self._world.rng, self._world.swarm
        late = swarm.write_mean * 3 if rng.random() < swarm.late_report else 0
        self._last_report = max(self._last_report, self._world.timeline.now + int(rng.random() * late))
        self._untold += 1
        self._world.timeline.at(self._last_report, self._hand_over, report)

    def _hand_over(self, report: Report) -> None:
        if not self._closed:
            self._tell(report)

    def told(self, report: Report) -> None:
        """The report has arrived at the machine: it may have been held until now."""
        self._untold -= 1
        if isinstance(report, Full):
            self._refusing = False
            # They follow what was not written.
            self._jobs = deque(Write(()) if isinstance(job, Write) else job for job in self._jobs)
