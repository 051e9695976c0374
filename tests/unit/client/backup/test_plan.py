from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envelope.errors import RemoteProtocolError
from envelope.types import LeaderEpoch, Offset
from jetstream.client.backup import plan
from jetstream.client.backup.plan import CutObject, ObjectCut, RangeMerged, complete_sets, ending_by, reusable
from jetstream.log.format.batch import BatchFlags, encode, verified_batches
from jetstream.log.format.schema import END_OF_STREAM, SCHEMA_MESSAGE
from jetstream.tier.backups.manifest import BackedUpStream
from tests.support.backup_manifests import WHOLE, backed_up_stream, backup_object
from tests.support.logs import values_batch

ROLL = BatchFlags.ROLL
PLAIN = BatchFlags(0)


def body_of(*batches: tuple[int, int, BatchFlags]) -> memoryview:
    """Batches with so many records, each of 100 bytes."""
    frames = [
        encode(values_batch([b"x" * 100] * (end - base), base), Offset(base), LeaderEpoch(1)).seal(flags)
        for base, end, flags in batches
    ]
    return memoryview(b"".join(frames))


def cut_of(cut: ObjectCut, *bodies: memoryview) -> list[CutObject]:
    found = [each for body in bodies for each in cut.add(body, verified_batches(body))]
    return [*found, *cut.finish()]


def test_an_object_ends_where_a_segment_does() -> None:
    bodies = [
        body_of((0, 5, ROLL), (5, 9, PLAIN)),
        body_of((9, 10, PLAIN), (10, 12, ROLL), (12, 13, ROLL)),
        body_of((13, 20, PLAIN)),
    ]
    objects = cut_of(ObjectCut(Offset(0), is_first=True), *bodies)
    assert [(each.base, each.next, each.begins_segment) for each in objects] == [
        (0, 10, True),
        (10, 12, True),
        (12, 20, True),
    ]
    stored = b"".join(bytes(piece) for each in objects for piece in each.pieces)
    assert stored == b"".join(bodies)
    for each in objects:
        whole = b"".join(bytes(chunk) for chunk in each.chunks())
        assert len(whole) == each.size
        assert whole.startswith(SCHEMA_MESSAGE)
        assert whole.endswith(END_OF_STREAM)


def test_an_object_ends_before_it_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [(number, number + 1, PLAIN if number else ROLL) for number in range(10)]
    body = body_of(*batches)
    one = len(body) // 10
    monkeypatch.setattr(plan, "OBJECT_BYTES", len(SCHEMA_MESSAGE) + len(END_OF_STREAM) + 3 * one)
    objects = cut_of(ObjectCut(Offset(0), is_first=True), body)
    assert [(each.base, each.next, each.begins_segment) for each in objects] == [
        (0, 3, True),
        (3, 6, False),
        (6, 9, False),
        (9, 10, False),
    ]


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=12), st.data())
def test_however_batches_come_they_are_cut_alike(sizes: list[tuple[int, bool]], data: st.DataObject) -> None:
    batches: list[tuple[int, int, BatchFlags]] = []
    for size, rolls in sizes:
        base = batches[-1][1] if batches else 0
        batches.append((base, base + size, ROLL if rolls or not batches else PLAIN))
    cuts: set[int] = data.draw(st.sets(st.integers(0, len(batches))))
    places = [0, *sorted(cuts - {0, len(batches)}), len(batches)]
    parts = [batches[start:end] for start, end in pairwise(places)]
    at_once = cut_of(ObjectCut(Offset(0), is_first=True), body_of(*batches))
    one_by_one = cut_of(ObjectCut(Offset(0), is_first=True), *(body_of(*part) for part in parts))
    assert [each.base for each in at_once] == [each.base for each in one_by_one]
    for first, second in zip(at_once, one_by_one, strict=True):
        assert b"".join(map(bytes, first.chunks())) == b"".join(map(bytes, second.chunks()))


def test_only_the_first_batch_of_all_may_begin_before_the_position() -> None:
    [first] = cut_of(ObjectCut(Offset(3), is_first=True), body_of((0, 5, PLAIN)))
    assert (first.base, first.next, first.begins_segment) == (0, 5, False)
    behind = ObjectCut(Offset(3), is_first=False)
    with pytest.raises(RangeMerged) as told:
        cut_of(behind, body_of((0, 5, PLAIN)))
    assert told.value.base == 0
    assert behind.finish() == []
    with pytest.raises(RemoteProtocolError):
        cut_of(ObjectCut(Offset(3), is_first=True), body_of((4, 5, PLAIN)))
    with pytest.raises(RangeMerged):
        cut_of(ObjectCut(Offset(5), is_first=True), body_of((0, 5, PLAIN)))


def test_objects_of_an_earlier_backup_are_good_while_its_records_are_there() -> None:
    assert reusable(WHOLE, WHOLE.config, Offset(4), Offset(30)) == WHOLE.objects
    assert reusable(WHOLE, WHOLE.config, Offset(15), Offset(99)) == WHOLE.objects[1:]
    assert reusable(WHOLE, WHOLE.config, Offset(30), Offset(30)) == ()
    assert reusable(WHOLE, WHOLE.config, Offset(4), Offset(29)) == (), "the stream has become shorter"
    assert reusable(WHOLE, WHOLE.config, Offset(31), Offset(99)) == (), "what is between is gone"
    assert reusable(WHOLE, WHOLE.config, Offset(3), Offset(30)) == (), "a start never goes back"
    assert reusable(None, WHOLE.config, Offset(0), Offset(30)) == ()


@pytest.mark.parametrize("before", [True, False])
def test_those_of_a_stream_that_is_or_was_compacted_never_are(before: bool) -> None:
    plain = backed_up_stream(backup_object(0, 10), end=10)
    compacted = backed_up_stream(backup_object(0, 10), end=10, compact="key")
    last, now = (compacted, plain) if before else (plain, compacted)
    assert reusable(last, now.config, Offset(0), Offset(10)) == ()


def test_what_reaches_behind_a_merged_batch_is_read_again() -> None:
    assert ending_by(WHOLE.objects, Offset(20)) == WHOLE.objects[:2]
    assert ending_by(WHOLE.objects, Offset(19)) == WHOLE.objects[:1]
    assert ending_by(WHOLE.objects, Offset(0)) == ()


def test_a_partitioned_stream_is_there_whole_or_not_at_all() -> None:
    def partition(stream: str, number: int) -> BackedUpStream:
        name, parts = f"{stream}/{number}", 2
        return backed_up_stream(
            name=name, partitions=parts, partition_by="key", partition_of=stream, partition=number
        )

    wanted = [partition("b", 0), partition("b", 1), partition("a", 0), partition("a", 1), WHOLE]
    copied = [each for each in wanted if each.name != "b/1"]
    names = [each.name for each in complete_sets(copied, [each.config for each in wanted])]
    assert names == ["a/0", "a/1", "orders"]
    # One of which some partitions were never made is as it is.
    names = [each.name for each in complete_sets(copied, [each.config for each in copied])]
    assert names == ["a/0", "a/1", "b/0", "orders"]
