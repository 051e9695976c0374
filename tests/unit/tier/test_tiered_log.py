from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from envelope.errors import DivergedHistory, OffsetOutOfRange, TierUnavailable
from envelope.types import Incarnation, LeaderEpoch, Offset, TimestampUs
from jetstream.fetch.planner import FetchQuery, RefuseRead, StreamView, plan_fetch
from jetstream.log.disk.os_disk import OsDisk
from jetstream.log.log import Log
from jetstream.log.reader import LogReader
from jetstream.tier.download import download_segment
from jetstream.tier.manifest import TieredSegment, TierManifest
from jetstream.tier.object_store import ObjectStore
from jetstream.tier.tiered_log import SegmentAway, TieredLog
from jetstream.tier.upload import upload_segment
from metadata.catalog.tables import TierMark
from tests.support.compaction import COMPACTED, append_records, compact
from tests.support.log_life import batches_of
from tests.support.logs import NOW, SMALL, Record, append, begun, filled
from tests.support.manifests import manifest, segment
from tests.support.memory_disk import MemoryDisk
from tests.support.object_stores import MemoryStore

LISTED = manifest(segment(0, 2), segment(2, 4), end=4)
MARK = TierMark(
    version=3, start=Offset(1), end=Offset(4), last_epoch=LeaderEpoch(1), last_txid=None, manifest="m"
)


@dataclass(frozen=True)
class Known:
    """What a node knows of the tier."""

    mark: TierMark | None
    manifest: TierManifest | None


def nothing_held(_: TieredSegment) -> LogReader | None:
    return None


def unused(_manifest: TierManifest, _segment: TieredSegment) -> None:
    raise AssertionError("nothing was read")


def tiered(local_start: int, *, leads: bool = True, mark: TierMark | None = MARK) -> TieredLog:
    log = filled(MemoryDisk(), 9)
    log.truncate_before(Offset(local_start), Offset(9))
    return TieredLog(log.reader, Known(mark, LISTED), leads=leads, held=nothing_held, used=unused)


def test_the_stream_begins_where_the_mark_says() -> None:
    assert tiered(4).log_start_offset == 1
    assert tiered(0).log_start_offset == 1, "what is let go is no reader's, though it is still here"
    assert tiered(4, mark=replace(MARK, start=Offset(4))).log_start_offset == 4


def test_what_is_between_both_is_gone_for_a_leader_and_unknown_to_a_follower() -> None:
    assert tiered(6).log_start_offset == 6
    assert tiered(6, mark=None).log_start_offset == 6
    follower = tiered(6, leads=False)
    assert follower.log_start_offset == 1
    with pytest.raises(SegmentAway) as away:
        follower.plan_read(Offset(5), 100, Offset(9))
    assert away.value.wanted is None
    assert tiered(6, leads=False, mark=None).log_start_offset == 0


def test_what_is_away_is_named() -> None:
    with pytest.raises(SegmentAway) as away:
        tiered(4).plan_read(Offset(3), 100, Offset(9))
    assert away.value.wanted == LISTED.segments[1]
    assert away.value.not_in_time().detail == {"base": 2, "next": 4}
    assert tiered(4).plan_read(Offset(4), 100, Offset(9)).base == 4
    with pytest.raises(OffsetOutOfRange):
        tiered(4).plan_read(Offset(10), 100, Offset(9))


def test_epochs_of_both_places_are_known() -> None:
    log = tiered(4)
    assert [log.epoch_at(Offset(offset)) for offset in (1, 3, 4, 8)] == [1, 1, 1, 1]
    with pytest.raises(SegmentAway):
        replace(log, tier=Known(MARK, None)).epoch_at(Offset(3))


def test_an_old_list_calls_no_reader_diverged() -> None:
    """A follower has dropped what its leader has, and has yet to hear where the store ends now."""
    log = begun(MemoryDisk(), SMALL)
    for offset in range(9):
        if offset == 4:
            log.writer.begin_epoch(LeaderEpoch(2), NOW)
        append(log, [b"%d" % offset])
    log.truncate_before(Offset(6), Offset(9))
    readable = TieredLog(log.reader, Known(MARK, LISTED), leads=False, held=nothing_held, used=unused)
    view = StreamView(Incarnation("life"), Offset(9), readable, LeaderEpoch(2), leads=False)
    for offset in (5, 6):
        plan = plan_fetch(FetchQuery(Offset(offset), 100, LeaderEpoch(2)), view, load=True)
        assert not isinstance(plan, RefuseRead) or not isinstance(plan.error, DivergedHistory)
    with pytest.raises(SegmentAway) as away:
        readable.epoch_at(Offset(5))
    assert away.value.wanted is None


def test_other_bytes_are_not_taken() -> None:
    objects, disk = MemoryStore(), MemoryDisk()
    stored = upload_segment(objects.store, "d", filled(MemoryDisk(), 3).reader.segments[0], LeaderEpoch(1))
    path = f"bucket/{stored.path}"
    assert download_segment(objects.store, disk, "tier/1", stored).log_end_offset == 2
    objects.objects[path] = objects.objects[path].replace(b"orders.new", b"orders.odd")
    with pytest.raises(TierUnavailable, match="other bytes"):
        download_segment(objects.store, disk, "tier/2", stored)
    assert disk.listdir("tier") == ["1"]


def test_a_folder_on_the_same_file_system_is_read_where_it_is(tmp_path: Path) -> None:
    store = ObjectStore.at(str(tmp_path / "store"))
    uploaded = upload_segment(store, "d", filled(MemoryDisk(), 3).reader.segments[0], LeaderEpoch(1))
    disk = OsDisk(tmp_path / "data")
    log = download_segment(store, disk, "tier/1", uploaded, root=tmp_path / "data")
    [found] = (tmp_path / "data").rglob("*.arrows")
    assert found.samefile(tmp_path / "store" / uploaded.path)
    assert len(log.read(Offset(0), 1 << 20, Offset(2))) > 0
    damaged = found.read_bytes()[:-9] + b"!" + found.read_bytes()[-8:]
    (tmp_path / "store" / uploaded.path).write_bytes(damaged)
    with pytest.raises(TierUnavailable, match="no segment"):
        download_segment(store, disk, "tier/2", uploaded, root=tmp_path / "data")
    disk.close()


# --- a log that drops what the store has, meanwhile ---------------------------------------------------------


class DropsMeanwhile:
    """A tier whose next mark comes while its list is looked at, and a log that drops what it covers."""

    def __init__(self, log: Log, now: Known, then: Known) -> None:
        self._log = log
        self._now = now
        self._then = then

    @property
    def mark(self) -> TierMark | None:
        return self._now.mark

    @property
    def manifest(self) -> TierManifest | None:
        found, self._now = self._now.manifest, self._then
        assert self._then.mark is not None
        self._log.truncate_before(self._then.mark.end, Offset(9))
        return found


BY_TIME_AND_BY_TXID: Sequence[Callable[[TieredLog, int], Offset]] = [
    lambda log, offset: log.offset_for_timestamp(TimestampUs(NOW + offset)),
    lambda log, offset: log.first_with_txid(10 * offset),
]


@pytest.mark.parametrize("offset", [0, 2, 3, 5, 6, 8])
@pytest.mark.parametrize("look_up", BY_TIME_AND_BY_TXID)
def test_a_place_is_found_though_its_record_is_dropped_here_while_it_is_looked_for(
    look_up: Callable[[TieredLog, int], Offset], offset: int
) -> None:
    disk, objects = MemoryDisk(), MemoryStore()
    log = begun(disk, SMALL)
    for number in range(9):
        append_records(log, [Record(txid=10 * number, timestamp=TimestampUs(NOW + number))])
    uploaded = [
        upload_segment(objects.store, "d", segment, LeaderEpoch(1)) for segment in log.reader.segments[:3]
    ]
    assert [segment.next for segment in uploaded] == [2, 4, 6]
    held = {
        segment.path: download_segment(objects.store, disk, f"tier/{segment.base}", segment)
        for segment in uploaded
    }
    now, then = (
        Known(
            replace(MARK, start=Offset(0), end=Offset(2 * count), last_txid=20 * count - 10),
            manifest(*uploaded[:count], end=2 * count),
        )
        for count in (1, 3)
    )
    log.truncate_before(Offset(2), Offset(9))
    tier = DropsMeanwhile(log, now, then)
    readable = TieredLog(log.reader, tier, leads=True, held=lambda one: held.get(one.path), used=unused)
    assert look_up(readable, offset) == offset


# --- transaction ids ---------------------------------------------------------------------------------------

TXID_KEYS = (None, b"a", b"b", None, b"b", None, None, None, None)
"""Of records of which each has ten times its offset as txid: three batches to a segment."""


def with_txids(disk: MemoryDisk, *, start: int, border: int, are_here: bool = True) -> TieredLog:
    """A stream of two segments in the tier, as they were written, and a local log that was compacted.

    The local log begins at ``border``, the stream at ``start``.
    """
    log = begun(disk, COMPACTED)
    for number, key in enumerate(TXID_KEYS):
        append_records(log, [Record(key=key, txid=10 * number)])
    assert [segment.next for segment in log.reader.segments] == [3, 6, 9]
    objects = MemoryStore()
    uploaded = [
        upload_segment(objects.store, "d", segment, LeaderEpoch(1)) for segment in log.reader.segments[:2]
    ]
    assert [segment.last_txid for segment in uploaded] == [20, 50]
    held = {
        segment.path: download_segment(objects.store, disk, f"tier/{segment.base}", segment)
        for segment in uploaded
        if are_here
    }
    assert compact(disk, log, NOW)
    assert log.reader.segments[0].last_txid == 10, "the largest of the first segment was superseded"
    log.truncate_before(Offset(border), Offset(9))
    mark = TierMark(
        version=3, start=Offset(start), end=Offset(6), last_epoch=LeaderEpoch(1), last_txid=50, manifest="m"
    )
    listed = manifest(*uploaded, start=start, end=6)
    return TieredLog(
        log=log.reader,
        tier=Known(mark, listed),
        leads=True,
        held=lambda segment: held.get(segment.path),
        used=unused,
    )


@pytest.mark.parametrize(
    ("border", "found"),
    [
        (0, {0: 0, 10: 1, 11: 3, 20: 3, 21: 3, 31: 4, 51: 6, 81: 9}),  # here the record with 20 is gone
        (3, {0: 0, 10: 1, 11: 2, 20: 2, 21: 3, 31: 4, 51: 6, 81: 9}),  # there it is kept
        (2, {0: 0, 10: 1, 11: 3, 20: 3, 21: 3}),  # read here from offset 2 on, whatever the object has
        (6, {20: 2, 21: 3, 40: 4, 50: 5, 51: 6}),
    ],
)
def test_a_txid_is_found_where_its_record_is_read(border: int, found: dict[int, int]) -> None:
    log = with_txids(MemoryDisk(), start=0, border=border)
    assert {txid: log.first_with_txid(txid) for txid in found} == found


def test_a_txid_of_a_record_below_the_start_is_not_found_there() -> None:
    log = with_txids(MemoryDisk(), start=4, border=6)
    assert [log.first_with_txid(txid) for txid in (0, 20, 41, 51)] == [4, 4, 5, 6]


def test_only_the_segment_that_may_have_a_txid_has_to_be_here() -> None:
    log = with_txids(MemoryDisk(), start=0, border=6, are_here=False)
    assert log.first_with_txid(51) == 6
    for txid, wanted in ((20, 0), (21, 3)):
        with pytest.raises(SegmentAway) as away:
            log.first_with_txid(txid)
        assert away.value.wanted is not None
        assert away.value.wanted.base == wanted


# --- stored bytes ------------------------------------------------------------------------------------------

HUGE = 2**63 - 1


@dataclass
class ByteScene:
    """Nine batches of one record in segments of two: the first three in the tier, from the fourth on here."""

    sizes: list[int]
    held: dict[str, LogReader]
    log: TieredLog
    stored: dict[int, TieredSegment]
    objects: MemoryStore

    def bring_in(self, base: int) -> None:
        segment = self.stored[base]
        self.held[segment.path] = download_segment(self.objects.store, MemoryDisk(), f"tier/{base}", segment)


def byte_scene(border: int = 6) -> ByteScene:
    log = filled(MemoryDisk(), 9)
    sizes = [batch.bytes for batch in batches_of(log)]
    objects = MemoryStore()
    uploaded = [
        upload_segment(objects.store, "d", segment, LeaderEpoch(1)) for segment in log.reader.segments[:3]
    ]
    assert [segment.batch_bytes for segment in uploaded] == [sum(sizes[at : at + 2]) for at in (0, 2, 4)]
    log.truncate_before(Offset(border), Offset(9))
    mark = TierMark(
        version=3, start=Offset(0), end=Offset(6), last_epoch=LeaderEpoch(1), last_txid=None, manifest="m"
    )
    held: dict[str, LogReader] = {}
    listed = manifest(*uploaded, end=6)
    tiered_log = TieredLog(
        log=log.reader,
        tier=Known(mark, listed),
        leads=True,
        held=lambda segment: held.get(segment.path),
        used=unused,
    )
    return ByteScene(sizes, held, tiered_log, {segment.base: segment for segment in uploaded}, objects)


def test_segments_that_are_away_count_whole_and_are_not_brought_in() -> None:
    scene = byte_scene()
    sizes = scene.sizes
    for count, reached in ((2, 2), (3, 2), (4, 4), (6, 6), (7, 7), (9, 9)):
        assert scene.log.batches_within(Offset(0), sum(sizes[:count]), Offset(9)) == (
            reached,
            sum(sizes[:reached]),
        )
    assert scene.log.batches_within(Offset(2), HUGE, Offset(8)) == (8, sum(sizes[2:8]))


@pytest.mark.parametrize(("offset", "max_bytes", "end"), [(0, 1, 9), (3, HUGE, 9), (4, HUGE, 5)])
def test_a_segment_that_has_to_be_divided_at_once_is_brought_in(
    offset: int, max_bytes: int, end: int
) -> None:
    scene = byte_scene()
    with pytest.raises(SegmentAway) as away:
        scene.log.batches_within(Offset(offset), max_bytes, Offset(end))
    base = offset - offset % 2
    assert away.value.wanted == scene.stored[base]
    scene.bring_in(base)
    found = scene.log.batches_within(Offset(offset), max_bytes, Offset(end))
    reached = end if max_bytes == HUGE else offset + 1
    assert found == (reached, sum(scene.sizes[offset:reached]))


def test_a_segment_that_is_here_is_divided() -> None:
    scene = byte_scene()
    scene.bring_in(2)
    assert scene.log.batches_within(Offset(0), sum(scene.sizes[:3]), Offset(9)) == (3, sum(scene.sizes[:3]))


def test_what_is_in_both_places_is_counted_here() -> None:
    scene = byte_scene(border=3)
    assert scene.log.batches_within(Offset(3), scene.sizes[3], Offset(9)) == (4, scene.sizes[3])


def test_without_the_list_what_follows_is_not_counted() -> None:
    scene = byte_scene()
    unlisted = replace(scene.log, tier=Known(scene.log.tier.mark, None))
    assert unlisted.batches_within(Offset(6), HUGE, Offset(9)).next == 9
    with pytest.raises(SegmentAway) as away:
        unlisted.batches_within(Offset(0), HUGE, Offset(9))
    assert away.value.wanted is None
    late = replace(scene.log, leads=False, tier=Known(scene.log.tier.mark, manifest(scene.stored[0], end=2)))
    assert late.batches_within(Offset(0), HUGE, Offset(9)).next == 2
