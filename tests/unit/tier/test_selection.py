from dataclasses import replace

from envelope.types import LeaderEpoch, Offset
from jetstream.log.rewriting.compaction_plan import CompactionBounds, cleanable, plan_compaction
from jetstream.log.state.compaction_state import CompactionState
from jetstream.node.disk.open_log import needs_tier
from jetstream.tier.selection import UploadBounds, damage_in_the_way, due_segments
from metadata.catalog.tables import TierMark
from tests.support.compaction import EAGER
from tests.support.logs import NOW, filled
from tests.support.memory_disk import MemoryDisk


def test_sealed_committed_and_intact_segments_are_due_in_order() -> None:
    log = filled(MemoryDisk(), 9)
    segments = log.reader.segments
    bases = [segment.base for segment in segments]
    assert bases == [0, 2, 4, 6, 8]

    def due(tiered: int, high_watermark: int, *corrupt: tuple[int, int], **done: int) -> list[int]:
        ends = {f"{what}_end": Offset(end) for what, end in done.items()}
        bounds = UploadBounds(Offset(high_watermark), **ends)
        ranges = [(Offset(start), Offset(end)) for start, end in corrupt]
        return [segment.base for segment in due_segments(segments, Offset(tiered), bounds, ranges)]

    assert due(0, 9) == [0, 2, 4, 6]
    assert due(4, 9) == [4, 6]
    assert due(0, 5) == [0, 2]
    assert due(0, 9, (4, 5)) == [0, 2]
    assert due(5, 9) == [4, 6], "the tier may end inside a segment"
    assert due(0, 9, cleaned=6) == [0, 2, 4]
    assert due(0, 9, rewritten=4) == [0, 2]
    assert due(0, 9, cleaned=2, rewritten=4) == [0]
    assert due(8, 9) == []


def test_damage_that_uploads_wait_for_is_named() -> None:
    segments = filled(MemoryDisk(), 9).reader.segments

    def found(tiered: int, *corrupt: tuple[int, int], **done: int) -> int | None:
        bounds = UploadBounds(Offset(7), **{f"{what}_end": Offset(end) for what, end in done.items()})
        ranges = [(Offset(start), Offset(end)) for start, end in corrupt]
        segment = damage_in_the_way(segments, Offset(tiered), bounds, ranges)
        return None if segment is None else segment.base

    assert found(0) is None
    assert found(0, (5, 6)) == 4
    assert found(2, (0, 1), (5, 6)) == 4, "what is uploaded keeps nothing up"
    assert found(2, (0, 1)) is None
    assert found(0, (7, 8)) is None, "it is not committed yet"
    assert found(2, (0, 1), rewritten=2) is None, "the rewrite passes it over"
    assert found(2, (0, 1), cleaned=9) == 0, "the clean part does not grow beyond it"


def test_compaction_begins_at_the_border_and_purges_nothing() -> None:
    log = filled(MemoryDisk(), 9)
    segments = log.reader.segments
    assert [one.base for one in cleanable(segments, Offset(9), EAGER)] == [0, 2, 4, 6]
    assert [one.base for one in cleanable(segments, Offset(9), EAGER, Offset(4))] == [4, 6]
    state = CompactionState(cleaned_end=Offset(6), waiting_end=Offset(6), waiting_since=NOW)
    far = type(NOW)(NOW + 10**15)
    bounds = CompactionBounds(Offset(9), Offset(9), far)
    plan = plan_compaction(segments, state, bounds, EAGER)
    assert plan is not None
    assert plan.purge_end > 0
    plan = plan_compaction(segments, state, replace(bounds, border=Offset(4)), EAGER)
    assert plan is not None
    assert plan.purge_end == 0
    assert plan.segments[0].base == 4


def test_a_log_begins_anew_only_if_the_tier_has_what_it_lacks() -> None:
    log = filled(MemoryDisk(), 5)
    mark = TierMark(1, Offset(0), Offset(4), LeaderEpoch(1))
    assert not needs_tier(log, None, is_unclean=True)
    assert not needs_tier(log, TierMark(1, Offset(0), Offset(0)), is_unclean=True)
    assert not needs_tier(log, mark, is_unclean=False)
    assert not needs_tier(log, mark, is_unclean=True)
    assert needs_tier(log, replace(mark, end=Offset(6)), is_unclean=False)
    assert needs_tier(log, replace(mark, last_epoch=LeaderEpoch(3)), is_unclean=True)
    assert not needs_tier(log, replace(mark, last_epoch=LeaderEpoch(3)), is_unclean=False)


def test_a_log_is_kept_where_the_tier_has_nothing_though_it_says_no_epoch() -> None:
    log = filled(MemoryDisk(), 9)
    first = TierMark(1, Offset(2), Offset(2))
    assert log.reader.epoch_at(Offset(1)) != first.last_epoch
    assert not needs_tier(log, first, is_unclean=True)
    let_go = TierMark(
        version=4, start=Offset(6), end=Offset(6), last_epoch=LeaderEpoch(7), last_txid=None, manifest="m"
    )
    assert not needs_tier(log, let_go, is_unclean=True)
    assert needs_tier(log, replace(let_go, start=Offset(5)), is_unclean=True)
    beyond = TierMark(1, Offset(10), Offset(10))
    assert needs_tier(log, beyond, is_unclean=True), "the stream begins behind its end"
