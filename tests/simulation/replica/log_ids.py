"""Which message ids a replica's process knows.

The product's `OpenedLog`, `FollowerAppend`, `Upkeep` and `Sequencer` do it, on a stand-in for the log that
says what the simulated one has. The batches of such a stream carry what would be stored, to be read back.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Protocol, cast

from envelope.types import LeaderEpoch, MonotonicNs, Offset, TimestampUs
from jetstream.ingest.internal_validators import validator_of
from jetstream.ingest.publishers.dedupe import name_of
from jetstream.ingest.sequencer import Sequencer
from jetstream.log.format.batch import BatchFlags, UnsealedBatch, verified_batches
from jetstream.log.format.plain_batch_encoder import encode_records
from jetstream.node.disk.appends import FollowerAppend, GroupAppend
from jetstream.node.disk.log_upkeep import Upkeep
from jetstream.node.disk.open_log import OpenedLog, begin_reign
from metadata.stream_config import StreamConfig
from tests.simulation.replica.log_image import Batch, LogImage
from tests.support.messages import block_of, message

if TYPE_CHECKING:
    from jetstream.log.log import Log
    from tests.simulation.replica.writer import IdsOf
    from tests.simulation.timeline import Timeline

_DIRECTORY: Final = "log"


class KnownIds(Protocol):
    """What a leader knows of the values that it has, which are their messages' ids."""

    def find(self, value: str) -> Offset | None:
        """Return where a value is stored, or will be; None: as far as is known it is not."""

    def store(self, value: str, offset: Offset) -> None:
        """Take in a value that is new."""

    def group(
        self, base: Offset, epoch: LeaderEpoch, values: tuple[str, ...]
    ) -> "tuple[Batch, IdsOf | None]":
        """Return the values that came since the last call as they are stored."""

    def committed(self, high_watermark: Offset) -> None:
        """Take in that all below stays."""

    def take_back(self) -> None:
        """Forget what is not in the log: it was refused."""


class AllIds:
    """Of a stream whose ids never leave."""

    def __init__(self, image: LogImage) -> None:
        self._image = image
        self._offsets = image.offsets()

    def find(self, value: str) -> Offset | None:
        """See `KnownIds.find`."""
        return self._offsets.get(value)

    def store(self, value: str, offset: Offset) -> None:
        """See `KnownIds.store`."""
        self._offsets[value] = offset

    def group(
        self, base: Offset, epoch: LeaderEpoch, values: tuple[str, ...]
    ) -> "tuple[Batch, IdsOf | None]":
        """See `KnownIds.group`: ids are read back from the values."""
        return Batch(base, epoch, values), None

    def committed(self, high_watermark: Offset) -> None:
        """See `KnownIds.committed`: that changes nothing."""

    def take_back(self) -> None:
        """See `KnownIds.take_back`."""
        self._offsets = self._image.offsets()


class WallClock:
    """All nodes' wall clocks."""

    def __init__(self, timeline: "Timeline") -> None:
        self._timeline = timeline

    def wall(self) -> TimestampUs:
        """Return microseconds, far from 0."""
        return TimestampUs(1_700_000_000_000_000 + self._timeline.now // 1000)

    def monotonic(self) -> MonotonicNs:
        """Return nanoseconds."""
        return MonotonicNs(self._timeline.now)


class LogIds:
    """Of one replica during one life of its node, of a stream with a dedupe window."""

    def __init__(
        self, clock: WallClock, image: LogImage, window_ns: int, high_watermark: Callable[[], Offset]
    ) -> None:
        self._clock, self._image, self._stored = clock, image, _StoredLog(image)
        window = timedelta(microseconds=window_ns // 1000)
        self._config = StreamConfig(name=image.stream, subject=f"{image.stream}.>", dedupe_window=window)
        if not image.notes.exists(_DIRECTORY):
            image.notes.mkdir(_DIRECTORY)
        log = cast("Log", self._stored)
        self._opened = OpenedLog(image.notes, log, self._config)
        self._upkeep = Upkeep(log, clock, high_watermark, lambda: self._opened.note)
        self._sequencer: Sequencer | None = None
        self._batches: list[UnsealedBatch] = []
        self._unreplayed: list[FollowerAppend] = []
        self._epoch = LeaderEpoch(0)

    def tick(self) -> None:
        """Do what is due."""
        self.learn()
        if self._upkeep.note_due():
            self._upkeep.write_note()

    # --- following --------------------------------------------------------------------------------------

    def received(self, batches: Sequence[Batch], known: Offset, committed: Offset) -> "IdsOf":
        """Return what takes in ``batches`` once they are written.

        Args:
            batches: what a leader has sent.
            known: the follower's high watermark.
            committed: the leader's, when it sent them.
        """
        sealed = verified_batches(b"".join(batch.frames for batch in batches))
        now = self._clock.wall()
        append = FollowerAppend(self._opened, b"", now, high_watermark=known, committed=committed)
        append.batches = sealed
        return _Received(append, self._unreplayed, self.learn)

    def learn(self) -> None:
        """Take in what was written: a little later, but before anything else is done on disk."""
        for append in self._unreplayed:
            append.replay()
        self._unreplayed.clear()

    def hear(self, high_watermark: Offset) -> None:
        """Take in that all below is committed."""
        self._opened.fates.observe(high_watermark, self._clock.wall())

    def cut(self) -> None:
        """Forget what is not in the log any more; or a reign has ended."""
        self.learn()
        self._sequencer = None
        self._opened.settle()

    def begin_anew(self) -> None:
        """Take in that the log is empty, and begins elsewhere."""
        self._unreplayed.clear()
        self._opened.begin_anew(self._image.origin, None, lambda: None)

    # --- leading ----------------------------------------------------------------------------------------

    def lead(self, epoch: LeaderEpoch, high_watermark: Offset) -> None:
        """Begin a reign."""
        self.learn()
        now = self._clock.wall()
        begin_reign(self._opened, epoch, now)
        history = self._opened.history
        history.lead_from(high_watermark, now)
        intake = validator_of(self._image.stream, self._config, lambda *_: False)
        self._sequencer = Sequencer(intake, self._image.log_end, history)
        self._epoch, self._batches = epoch, []

    def find(self, value: str) -> Offset | None:
        """See `KnownIds.find`."""
        history = self._opened.history
        history.expire(max(self._clock.wall(), history.last_timestamp))
        return history.dedupe.lookup(name_of(value.encode()))

    def store(self, value: str, offset: Offset) -> None:
        """See `KnownIds.store`."""
        assert self._sequencer is not None, "it leads"
        sent = message(value.encode(), value, f"{self._image.stream}.new", Nats_Msg_Id=value)
        group = self._sequencer.sequence(block_of([sent]), self._clock.wall())
        assert group.records is not None, f"{value} is new"
        assert group.base == offset, f"{value} is at {group.base} and not at {offset}"
        self._batches += encode_records(group.records, group.base, self._epoch)

    def group(
        self, base: Offset, epoch: LeaderEpoch, values: tuple[str, ...]
    ) -> "tuple[Batch, IdsOf | None]":
        """See `KnownIds.group`."""
        batches, self._batches = self._batches, []
        frames = b"".join(bytes(batch.seal(BatchFlags(0))) for batch in batches)
        log, note = cast("Log", self._stored), self._opened.note
        return Batch(base, epoch, values, frames), _Own(
            GroupAppend(log, batches, self._clock.wall(), note=note)
        )

    def committed(self, high_watermark: Offset) -> None:
        """See `KnownIds.committed`."""
        self._opened.history.committed(high_watermark, self._clock.wall())

    def take_back(self) -> None:
        """See `KnownIds.take_back`."""
        self._opened.history.forget_from(self._image.log_end)


@dataclass(frozen=True, slots=True)
class _Own:
    """A leader's own batches: it knows their ids."""

    append: GroupAppend

    def hold(self) -> None:
        """See `IdsOf.hold`."""
        self.append.hold()

    def learn(self) -> None:
        """See `IdsOf.learn`."""


@dataclass(frozen=True, slots=True)
class _Received:
    """A leader's batches, at a follower."""

    append: FollowerAppend
    unreplayed: list[FollowerAppend]
    learn_all: Callable[[], None]

    def hold(self) -> None:
        """See `IdsOf.hold`."""
        self.append.hold()
        self.unreplayed.append(self.append)

    def learn(self) -> None:
        """See `IdsOf.learn`."""
        self.learn_all()


class _StoredLog:
    """A `Log`, its reader and its writer, as far as stored records are asked for."""

    directory = _DIRECTORY
    failed = None
    corrupt_ranges = ()

    def __init__(self, image: LogImage) -> None:
        self._image = image
        self.reader = self.writer = self

    @property
    def log_start_offset(self) -> Offset:
        """First offset."""
        return self._image.log_start

    @property
    def log_end_offset(self) -> Offset:
        """Offset after the last record."""
        return self._image.log_end

    @property
    def durable_end(self) -> Offset:
        """Offset after the last record that is synced."""
        return self._image.durable_end

    @property
    def last_timestamp(self) -> TimestampUs:
        """Of the last record; 0 without one."""
        batches = self._image.batches_from(self._image.origin)
        return verified_batches(batches[-1].frames)[-1][0].max_timestamp if batches else TimestampUs(0)

    def offset_for_timestamp(self, timestamp: TimestampUs) -> Offset:
        """Return the first offset of that time, or later."""
        headers = (header for batch in self._batches() for header, _ in verified_batches(batch.frames))
        return next((h.base for h in headers if h.max_timestamp >= timestamp), self.log_end_offset)

    def read(self, offset: Offset, _size: int, end: Offset) -> bytes:
        """Return the stored messages of ``[offset, end)``."""
        sealed = (each for batch in self._batches() for each in verified_batches(batch.frames))
        return b"".join(frame for header, frame in sealed if header.next > offset and header.base < end)

    def begin_epoch(self, epoch: LeaderEpoch, now: TimestampUs) -> None:
        """Nothing: it has begun on disk."""

    def _batches(self) -> list[Batch]:
        return self._image.batches_from(self._image.origin)
