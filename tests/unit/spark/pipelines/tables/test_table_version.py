"""What a version of a table says, and which micro-batch it takes."""

from dataclasses import replace

import pytest

from envelope.errors import CorruptDataError, Fenced, InvalidConfig
from envelope.types import TimestampUs
from jetstream.log.disk.state_file import decode_state, encode_state
from jetstream.spark.pipelines.tables.table_version import (
    BucketFile,
    Layout,
    MergedBucket,
    MergedMicroBatch,
    ReplacedFile,
    TableVersion,
    decode_version,
    encode_version,
)

LAYOUT = Layout(buckets=4, schema="price DOUBLE")
FIRST = TableVersion(
    LAYOUT,
    version=1,
    writer=MergedMicroBatch("q", 0),
    files=(BucketFile(0, "a", 2, 20), BucketFile(3, "b", 1, 10)),
)


def at(us: int) -> TimestampUs:
    return TimestampUs(us)


def test_a_batch_is_taken_once_however_often_it_comes() -> None:
    assert TableVersion(LAYOUT).takes(MergedMicroBatch("q", 0))
    assert not FIRST.takes(MergedMicroBatch("q", 0))
    assert FIRST.takes(MergedMicroBatch("q", 1))
    assert FIRST.takes(MergedMicroBatch("q", 7)), "batches without rows have numbers too"


def test_a_query_with_another_checkpoint_is_refused_whatever_its_number() -> None:
    for batch in (0, 1):
        with pytest.raises(Fenced, match="checkpoint"):
            FIRST.takes(MergedMicroBatch("other", batch))


@pytest.mark.parametrize("layout", [Layout(8, "price DOUBLE"), Layout(4, None), Layout(4, "price INT")])
def test_a_table_keeps_its_layout(layout: Layout) -> None:
    with pytest.raises(InvalidConfig, match="buckets"):
        FIRST.check_layout(layout)


def test_only_touched_buckets_have_other_files() -> None:
    buckets = [MergedBucket(1, "c", 5, 50), MergedBucket(3, None, 0, 0)]
    second = FIRST.merged(MergedMicroBatch("q", 1), buckets, at(100), grace_us=10)
    assert second.version == 2
    assert second.writer == MergedMicroBatch("q", 1)
    assert second.file_of == {0: "a", 1: "c"}
    assert second.rows == 7
    assert second.replaced == (ReplacedFile("b", at(100)),)


def test_what_is_replaced_stays_for_the_grace_and_no_longer() -> None:
    second = FIRST.merged(MergedMicroBatch("q", 1), [MergedBucket(3, "c", 1, 1)], at(100), grace_us=10)
    third = second.merged(MergedMicroBatch("q", 2), [MergedBucket(3, "d", 1, 1)], at(109), grace_us=10)
    assert [each.path for each in third.replaced] == ["b", "c"]
    fourth = third.merged(MergedMicroBatch("q", 3), [], at(110), grace_us=10)
    assert [each.path for each in fourth.replaced] == ["c"]
    assert list(fourth.strays(["a", "b", "c", "d", "e"])) == ["b", "e"]


def test_a_version_is_read_as_it_was_written() -> None:
    second = FIRST.merged(MergedMicroBatch("q", 1), [MergedBucket(3, "c", 1, 1)], at(100), grace_us=10)
    for version in (TableVersion(LAYOUT), FIRST, second):
        assert decode_version(decode_state(encode_state(encode_version(version)))) == version


@pytest.mark.parametrize(
    "damaged",
    [
        replace(FIRST, files=(BucketFile(4, "a", 1, 1),)),
        replace(FIRST, files=(BucketFile(1, "a", 1, 1), BucketFile(1, "b", 1, 1))),
        replace(FIRST, files=(BucketFile(1, "a", 1, 1), BucketFile(2, "a", 1, 1))),
        replace(FIRST, replaced=(ReplacedFile("a", at(1)),)),
        replace(FIRST, files=(BucketFile(1, "../a", 1, 1),)),
    ],
)
def test_a_version_that_contradicts_itself_is_not_read(damaged: TableVersion) -> None:
    state = encode_version(FIRST)
    assert damaged.problem() is not None
    state["files"] = [
        {"bucket": file.bucket, "path": file.path, "rows": file.rows, "bytes": file.bytes}
        for file in damaged.files
    ]
    state["replaced"] = [{"path": each.path, "at": each.at} for each in damaged.replaced]
    with pytest.raises(CorruptDataError, match="contradicts"):
        decode_version(state)


@pytest.mark.parametrize(("field", "value"), [("format", 2), ("version", "x"), ("files", 3), ("new", 1)])
def test_a_state_of_another_kind_is_not_read(field: str, value: int | str) -> None:
    with pytest.raises(CorruptDataError):
        decode_version(encode_version(FIRST) | {field: value})
