"""What a fetch is answered, from every place a reader can stand."""

from dataclasses import dataclass, replace

import pytest

from envelope.errors import (
    CorruptDataError,
    DivergedHistory,
    JetstreamError,
    OffsetOutOfRange,
    StreamRecreated,
    UnavailableError,
)
from envelope.types import Incarnation, LeaderEpoch, Offset
from jetstream.fetch.planner import (
    FetchQuery,
    Nothing,
    Plan,
    RefuseRead,
    ServeRange,
    StreamView,
    Wait,
    boundary,
    committed,
    plan_fetch,
)
from jetstream.log.segments.index import StoredBatches


@dataclass(frozen=True)
class ARange:
    base: Offset
    next: Offset


class NeedsFile(UnavailableError):
    """What an index says when it would have to read a file and must not."""


@dataclass
class AnIndex:
    """Batches of ten records in [start, end); epoch 1 below offset 50, epoch 2 from there on."""

    log_start_offset: Offset
    log_end_offset: Offset
    failure: JetstreamError | None = None

    def plan_read(
        self, offset: Offset, max_bytes: int, end: Offset, *, max_records: int | None, load: bool
    ) -> ARange:
        if self.failure and not (load and isinstance(self.failure, NeedsFile)):
            raise self.failure
        base = offset - offset % 10
        count = max(1, max_bytes // 100)
        return ARange(Offset(base), Offset(min(base + 10 * count, end)))

    def epoch_at(self, offset: Offset) -> LeaderEpoch:
        assert self.log_start_offset <= offset < self.log_end_offset
        return LeaderEpoch(1 if offset < 50 else 2)


def a_view(
    start: int = 20, high_watermark: int = 80, end: int = 100, *, leads: bool = True
) -> StreamView[ARange]:
    index = AnIndex(Offset(start), Offset(end))
    return StreamView(Incarnation("one"), Offset(high_watermark), index, LeaderEpoch(2), leads)


def plan(
    offset: int,
    view: StreamView[ARange] | None = None,
    last_epoch: int | None = None,
    incarnation: str | None = None,
    *,
    load: bool = True,
    end: int | None = None,
) -> Plan[ARange]:
    query = FetchQuery(
        Offset(offset),
        1000,
        None if last_epoch is None else LeaderEpoch(last_epoch),
        None if incarnation is None else Incarnation(incarnation),
        end=None if end is None else Offset(end),
    )
    return plan_fetch(query, view or a_view(), load=load)


def refusal(decision: Plan[ARange]) -> JetstreamError:
    assert isinstance(decision, RefuseRead)
    return decision.error


@pytest.mark.parametrize(("offset", "base"), [(20, 20), (25, 20), (79, 70)])
def test_committed_offsets_are_served_in_whole_batches(offset: int, base: int) -> None:
    decision = plan(offset)
    assert isinstance(decision, ServeRange)
    assert decision.file_range == ARange(Offset(base), Offset(80))


@pytest.mark.parametrize("offset", [80, 81, 99, 100])
def test_an_offset_from_the_high_watermark_to_the_log_end_waits(offset: int) -> None:
    assert plan(offset) == Wait(Offset(offset))


@pytest.mark.parametrize("offset", [0, 19, 101, 2**62])
def test_any_other_offset_is_out_of_range_and_the_error_says_what_is_in_range(offset: int) -> None:
    error = refusal(plan(offset))
    assert isinstance(error, OffsetOutOfRange)
    assert error.detail == {
        "offset": offset,
        "log_start_offset": 20,
        "log_end_offset": 100,
        "high_watermark": 80,
    }


@pytest.mark.parametrize(("offset", "end"), [(50, 50), (50, 20), (80, 80), (100, 90)])
def test_from_its_end_on_a_reader_gets_nothing_and_does_not_wait(offset: int, end: int) -> None:
    assert plan(offset, end=end) == Nothing()


def test_the_batch_that_holds_the_last_wanted_record_comes_whole() -> None:
    decision = plan(50, end=51)
    assert isinstance(decision, ServeRange)
    assert decision.file_range.next >= 60


def test_an_end_makes_no_offset_valid() -> None:
    assert isinstance(refusal(plan(101, end=90)), OffsetOutOfRange)


def test_an_empty_log_waits_at_its_only_offset() -> None:
    assert plan(0, a_view(0, 0, 0)) == Wait(Offset(0))


@pytest.mark.parametrize(("offset", "epoch"), [(50, 1), (51, 2), (21, 1), (80, 2), (100, 2)])
def test_a_reader_on_this_history_goes_on(offset: int, epoch: int) -> None:
    assert not isinstance(plan(offset, last_epoch=epoch), RefuseRead)


@pytest.mark.parametrize(("offset", "epoch"), [(50, 2), (51, 1), (60, 3), (100, 1)])
def test_a_reader_on_another_history_is_told(offset: int, epoch: int) -> None:
    error = refusal(plan(offset, last_epoch=epoch))
    assert isinstance(error, DivergedHistory)
    assert error.detail["leader_epoch"] in (1, 2)


@pytest.mark.parametrize("offset", [80, 100, 101, 2**62])
def test_at_a_follower_every_offset_from_the_high_watermark_on_waits(offset: int) -> None:
    assert plan(offset, a_view(leads=False)) == Wait(Offset(offset))


def test_a_follower_serves_what_is_committed_and_knows_what_retention_has_removed() -> None:
    decision = plan(79, a_view(leads=False))
    assert isinstance(decision, ServeRange)
    assert decision.file_range.next == 80
    assert isinstance(refusal(plan(19, a_view(leads=False))), OffsetOutOfRange)


@pytest.mark.parametrize(("offset", "epoch"), [(50, 0), (51, 1), (80, 1)])
def test_a_follower_tells_of_another_history_below_its_high_watermark(offset: int, epoch: int) -> None:
    assert isinstance(refusal(plan(offset, a_view(leads=False), epoch)), DivergedHistory)


@pytest.mark.parametrize(("offset", "epoch"), [(81, 1), (100, 1), (101, 1), (101, 2)])
def test_what_a_follower_does_not_know_to_be_committed_is_no_history_to_compare_with(
    offset: int, epoch: int
) -> None:
    assert plan(offset, a_view(leads=False), epoch) == Wait(Offset(offset))


@pytest.mark.parametrize("offset", [50, 79, 80, 101])
def test_a_reader_from_a_later_reign_waits_until_the_follower_knows_of_it(offset: int) -> None:
    assert plan(offset, a_view(leads=False), 3) == Wait(Offset(offset))
    assert isinstance(refusal(plan(offset, a_view(), 3)), DivergedHistory | OffsetOutOfRange)


def test_retention_is_not_divergence() -> None:
    assert isinstance(plan(20, last_epoch=7), ServeRange)


def test_a_stream_created_again_is_not_the_one_the_reader_began_with() -> None:
    assert isinstance(refusal(plan(30, incarnation="zero")), StreamRecreated)
    assert isinstance(plan(30, incarnation="one"), ServeRange)


def test_a_corrupt_range_is_refused_and_not_skipped() -> None:
    view = replace(a_view(), index=AnIndex(Offset(0), Offset(80), CorruptDataError("bad batch")))
    assert isinstance(refusal(plan(30, view)), CorruptDataError)


def test_files_are_read_for_a_plan_only_where_they_may_be() -> None:
    view = replace(a_view(), index=AnIndex(Offset(0), Offset(80), NeedsFile("it is in a file")))
    assert isinstance(refusal(plan(30, view, load=False)), NeedsFile)
    assert isinstance(plan(30, view, load=True), ServeRange)


@pytest.mark.parametrize(("offset", "nearest"), [(0, 20), (20, 20), (50, 50), (80, 80), (95, 80)])
def test_a_start_is_moved_into_what_can_be_read(offset: int, nearest: int) -> None:
    assert committed(Offset(offset), a_view()) == nearest


# --- where bytes end ---------------------------------------------------------------------------------------


def tens(offset: Offset, max_bytes: int, end: Offset) -> StoredBatches:
    """Batches of ten records and 100 bytes."""
    base = offset - offset % 10
    reached = min(base + 10 * max(1, max_bytes // 100), end - end % 10)
    return StoredBatches(Offset(max(reached, offset)), 10 * max(reached - base, 0))


def ends(
    offset: int, max_bytes: int, view: StreamView[ARange] | None = None, incarnation: str | None = None
) -> StoredBatches:
    life = None if incarnation is None else Incarnation(incarnation)
    return boundary(FetchQuery(Offset(offset), max_bytes, incarnation=life), view or a_view(), tens)


def test_bytes_are_counted_below_the_high_watermark() -> None:
    assert ends(25, 300) == (50, 300)
    assert ends(25, 1) == (30, 100)
    assert ends(25, 2**63 - 1) == (80, 600)
    assert ends(75, 1, a_view(high_watermark=80, end=78)) == (75, 0), (
        "a follower may have less than it knows of"
    )


@pytest.mark.parametrize(("offset", "leads"), [(80, True), (100, True), (80, False), (2**62, False)])
def test_where_a_fetch_waits_there_are_no_bytes(offset: int, leads: bool) -> None:
    assert ends(offset, 1000, a_view(leads=leads)) == (offset, 0)


@pytest.mark.parametrize(
    ("offset", "incarnation", "refused"),
    [(19, None, OffsetOutOfRange), (101, None, OffsetOutOfRange), (30, "zero", StreamRecreated)],
)
def test_where_a_fetch_is_refused_bytes_are_too(
    offset: int, incarnation: str | None, refused: type[JetstreamError]
) -> None:
    with pytest.raises(refused):
        ends(offset, 1000, incarnation=incarnation)
