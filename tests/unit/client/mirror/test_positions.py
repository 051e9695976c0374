"""Where a mirror goes on, and when it must not."""

import pyarrow as pa
import pytest

from envelope.errors import (
    OffsetsApart,
    OriginDiffers,
    Overloaded,
    RecordTooLarge,
    SequenceGap,
    SequencePassed,
    SessionExpired,
    SourceTruncated,
)
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
    check_first_refusal,
    check_reached,
    group_of,
    may_try_again,
    resumed,
)

ORIGIN = Origin("orders", "life-1", "target-1")
SESSION = "mirror:life-1/target-1/orders"
SOURCE = CommittedRange(Offset(20), Offset(90), "life-1")
FOREIGN = LastRecord(None, None)
BEGUN = MirrorStart(SESSION, 20, 100)
"""It differs by 80."""


def copy(sequence: int, session: str = SESSION) -> LastRecord:
    return LastRecord(session, sequence)


def test_a_session_is_of_one_life_of_the_source_and_of_the_target_and_short_enough() -> None:
    assert ORIGIN.session == SESSION
    long = [Origin("x" * 255, "s" * 16, target).session for target in ("t" * 15 + "1", "t" * 15 + "2")]
    assert [len(session) for session in long] == [128, 128]
    assert long[0] != long[1]


def test_the_group_of_its_processes_is_in_the_namespace_of_the_source() -> None:
    assert group_of("shop/orders", "life-2") == "shop/orders/mirror-life-2"
    assert group_of("x" * 127 + "/y", "life-2") == f"{'x' * 127}/mirror-life-2"


def test_a_start_is_read_back_from_its_cursor() -> None:
    assert MirrorStart.parse(BEGUN.target_offset, BEGUN.metadata) == BEGUN
    assert BEGUN.difference == 80


@pytest.mark.parametrize("metadata", [None, "", "mine", SESSION, "mirror:x y", "other 7"])
def test_a_cursor_of_somebody_else_is_no_start(metadata: str | None) -> None:
    with pytest.raises(OriginDiffers, match="no mirror's"):
        MirrorStart.parse(7, metadata)


@pytest.mark.parametrize(
    ("target", "resumption"),
    [
        # nothing is copied yet
        (TargetState(0, None, None), Resumption(20, MirrorStart(SESSION, 20, 0), 20, 0)),
        (TargetState(7, FOREIGN, None), Resumption(20, MirrorStart(SESSION, 20, 7), 20, 0)),
        (TargetState(100, FOREIGN, BEGUN), Resumption(20, BEGUN, 20, 0)),
        (
            TargetState(7, None, MirrorStart(SESSION, 4, 7)),
            Resumption(20, MirrorStart(SESSION, 20, 7), 20, 0),
        ),
        # the last record is a copy
        (TargetState(130, copy(50), BEGUN), Resumption(50, BEGUN, 49, 50)),
        (TargetState(130, copy(50), None), Resumption(50, MirrorStart(SESSION, 49, 129), 49, 50)),
        # and the cursor is of a process that was overtaken
        (TargetState(131, copy(50), BEGUN), Resumption(50, MirrorStart(SESSION, 49, 130), 49, 50)),
        # retention has removed that record in the source
        (
            TargetState(100, copy(20), MirrorStart(SESSION, 4, 84)),
            Resumption(20, MirrorStart(SESSION, 4, 84), 20, 20),
        ),
        # retention has removed everything in the target
        (TargetState(130, None, BEGUN), Resumption(50, BEGUN, 50, 50)),
        # all is copied
        (TargetState(170, copy(90), BEGUN), Resumption(90, BEGUN, 89, 90)),
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
        TargetState(130, copy(50, "mirror:life-0/target-1/orders"), None),
        TargetState(130, copy(50, "mirror:life-0/target-1/orders"), BEGUN),
        TargetState(130, FOREIGN, MirrorStart("mirror:life-0/target-1/orders", 20, 130)),
        TargetState(130, copy(50, "mirror:life-1/target-2/orders"), None),
    ],
)
def test_a_mirror_of_another_life_or_into_another_stream_is_refused(target: TargetState) -> None:
    with pytest.raises(OriginDiffers, match="earlier life"):
        resumed(ORIGIN, SOURCE, target)


@pytest.mark.parametrize("begun", [None, BEGUN])
def test_a_cursor_that_was_put_right_is_no_beginning_of_nothing(begun: MirrorStart | None) -> None:
    right = resumed(ORIGIN, SOURCE, TargetState(131, copy(50), begun)).start
    assert resumed(ORIGIN, SOURCE, TargetState(131, None, right)) == Resumption(50, right, 50, 50)


@pytest.mark.parametrize("target", [TargetState(171, copy(91), BEGUN), TargetState(171, None, BEGUN)])
def test_a_source_that_ends_before_the_copy_has_lost_records(target: TargetState) -> None:
    with pytest.raises(SourceTruncated, match="offset 91: it ends at 90"):
        resumed(ORIGIN, SOURCE, target)


def test_the_number_that_a_target_names_tells_whether_its_last_records_are_of_the_mirror() -> None:
    at_50 = Resumption(50, BEGUN, 49, 50)
    for is_empty in (False, True):
        with pytest.raises(OffsetsApart, match="has it up to 49"):
            check_first_refusal(SequenceGap("gap", last_sequence=49), at_50, is_empty=is_empty)
        with pytest.raises(SequencePassed, match="up to offset 60"):
            check_first_refusal(SequenceGap("gap", last_sequence=60), at_50, is_empty=is_empty)
    check_first_refusal(SessionExpired("expired"), at_50, is_empty=False)
    with pytest.raises(OffsetsApart, match="nobody can tell"):
        check_first_refusal(SessionExpired("expired"), at_50, is_empty=True)


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
