"""Where a mirror goes on, and when it must not."""

import pyarrow as pa
import pytest

from envelope.errors import OffsetsApart, OriginDiffers, Overloaded, RecordTooLarge, SourceTruncated
from envelope.group_errors import MemberFenced
from envelope.types import Offset
from jetstream.client.admin.group_lag import CommittedRange
from jetstream.client.mirror.positions import (
    LastRecord,
    MirrorStart,
    Origin,
    Resumption,
    TargetState,
    check_dense,
    check_reached,
    group_of,
    may_try_again,
    resumed,
)

ORIGIN = Origin("orders", "life-1")
SESSION = "mirror:life-1/orders"
SOURCE = CommittedRange(Offset(20), Offset(90), "life-1")
FOREIGN = LastRecord(None, None)
BEGUN = MirrorStart(SESSION, 20, 100)
"""It differs by 80."""


def copy(sequence: int, session: str = SESSION) -> LastRecord:
    return LastRecord(session, sequence)


def test_a_session_is_of_one_life_of_the_source_and_short_enough() -> None:
    assert ORIGIN.session == SESSION
    assert Origin("x" * 255, "life-1").session == ("mirror:life-1/" + "x" * 255)[:128]


def test_the_group_of_its_processes_is_in_the_namespace_of_the_source() -> None:
    assert group_of("shop/orders", "life-2") == "shop/orders/mirror-life-2"
    assert group_of("x" * 127 + "/y", "life-2") == f"{'x' * 127}/mirror-life-2"


def test_a_start_is_read_back_from_its_cursor() -> None:
    assert MirrorStart.parse(BEGUN.target_offset, BEGUN.metadata) == BEGUN
    assert BEGUN.difference == 80


@pytest.mark.parametrize("metadata", [None, "", "mine", "mirror:life-1/orders", "mirror:x y", "other 7"])
def test_a_cursor_of_somebody_else_is_no_start(metadata: str | None) -> None:
    with pytest.raises(OriginDiffers, match="no mirror's"):
        MirrorStart.parse(7, metadata)


@pytest.mark.parametrize(
    ("target", "resumption"),
    [
        # nothing is copied yet
        (TargetState(0, None, None), Resumption(20, MirrorStart(SESSION, 20, 0), 20)),
        (TargetState(7, FOREIGN, None), Resumption(20, MirrorStart(SESSION, 20, 7), 20)),
        (TargetState(100, FOREIGN, BEGUN), Resumption(20, BEGUN, 20)),
        (TargetState(7, None, MirrorStart(SESSION, 4, 7)), Resumption(20, MirrorStart(SESSION, 20, 7), 20)),
        # the last record is a copy
        (TargetState(130, copy(50), BEGUN), Resumption(50, BEGUN, 49)),
        (TargetState(130, copy(50), None), Resumption(50, MirrorStart(SESSION, 50, 130), 49)),
        # retention has removed that record in the source
        (
            TargetState(100, copy(20), MirrorStart(SESSION, 4, 84)),
            Resumption(20, MirrorStart(SESSION, 4, 84), 20),
        ),
        # retention has removed everything in the target
        (TargetState(130, None, BEGUN), Resumption(50, BEGUN, 50)),
    ],
)
def test_the_targets_end_says_where_to_go_on(target: TargetState, resumption: Resumption) -> None:
    assert resumed(ORIGIN, SOURCE, target) == resumption


@pytest.mark.parametrize(
    "target",
    [
        TargetState(131, FOREIGN, BEGUN),
        TargetState(131, LastRecord("s", 51), BEGUN),
        TargetState(131, LastRecord(SESSION, None), BEGUN),
        TargetState(131, copy(50), BEGUN),
        TargetState(90, FOREIGN, BEGUN),
        TargetState(90, None, BEGUN),
    ],
)
def test_a_target_that_others_have_changed_is_refused(target: TargetState) -> None:
    with pytest.raises(OffsetsApart):
        resumed(ORIGIN, SOURCE, target)


@pytest.mark.parametrize(
    "target",
    [
        TargetState(130, copy(50, "mirror:life-0/orders"), None),
        TargetState(130, copy(50, "mirror:life-0/orders"), BEGUN),
        TargetState(130, FOREIGN, MirrorStart("mirror:life-0/orders", 20, 130)),
    ],
)
def test_a_mirror_of_another_life_is_refused(target: TargetState) -> None:
    with pytest.raises(OriginDiffers, match="earlier life"):
        resumed(ORIGIN, SOURCE, target)


def test_records_that_do_not_follow_each_other_are_refused() -> None:
    def batch(*offsets: int) -> pa.RecordBatch:
        return pa.record_batch({"offset": pa.array(offsets, pa.int64())})

    check_dense(batch(5, 6, 7), 5)
    for wrong in (batch(6, 7), batch(5, 7), batch(4, 5)):
        with pytest.raises(OffsetsApart, match="compacted"):
            check_dense(wrong, 5)


def test_an_end_that_is_not_reached_is_refused() -> None:
    check_reached(5, None)
    check_reached(5, 5)
    with pytest.raises(OffsetsApart, match="from 5 to 6"):
        check_reached(5, 7)


def test_a_definite_refusal_is_met_with_one_more_attempt_at_each_position() -> None:
    for passing in (Overloaded("full"), MemberFenced("gone")):
        assert may_try_again(passing, 5, 5)
    for definite in (RecordTooLarge("large"), SourceTruncated("gone")):
        assert may_try_again(definite, 5, None)
        assert may_try_again(definite, 5, 4)
        assert not may_try_again(definite, 5, 5)
    for final in (OffsetsApart("apart"), OriginDiffers("other")):
        assert not may_try_again(final, 5, None)
