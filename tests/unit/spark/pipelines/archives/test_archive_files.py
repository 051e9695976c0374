"""What of a batch gets into an archive's manifest, and what is refused."""

from dataclasses import replace

import pytest

from envelope.errors import CorruptDataError, Fenced, InvalidConfig, JetstreamError, StreamRecreated
from jetstream.spark.pipelines.archives.archive_files import (
    ArchivedFile,
    ArchivedMicroBatch,
    ArchivedStream,
    ArchiveManifest,
    ManifestChange,
    PendingFile,
    Span,
    StagedMove,
    added_batch,
    decode_change,
    decode_manifest,
    encode_change,
    encode_manifest,
    merged_files,
)
from jetstream.spark.reading.offsets import Offsets, StreamOffset

LIFE = "c932c8bd567b9b11"
BEGUN = ArchiveManifest().begun(("date",))


def ends(start: int | None = None, **offsets: int) -> Offsets:
    return {name: StreamOffset(LIFE, offset, start) for name, offset in offsets.items()}


def staged(
    start: int, end: int, rows: int | None = None, stream: str = "orders", partition: int = 0
) -> PendingFile:
    span = Span(end - start if rows is None else rows, start, end)
    return PendingFile(
        "_work/1/date=2026-01-01/part-0.parquet", "date=2026-01-01", 100, {(stream, partition): span}
    )


def archived(
    manifest: ArchiveManifest, number: int, before: Offsets, reached: Offsets, *files: PendingFile
) -> ArchiveManifest:
    found = manifest.after(added_batch(manifest, ArchivedMicroBatch("query", number), before, reached, files))
    assert decode_manifest(encode_manifest(found)) == found
    return found


def test_batches_follow_each_other_and_move_the_border() -> None:
    first = archived(BEGUN, 0, {}, ends(5, orders=10), staged(5, 10))
    assert first.streams == {"orders": ArchivedStream(LIFE, 5, 10, 5)}
    second = archived(first, 1, ends(orders=10), ends(orders=12), staged(10, 11), staged(11, 12))
    assert second.border == {"orders": StreamOffset(LIFE, 12)}
    assert [file.path for file in second.files] == [
        "date=2026-01-01/b0000000002-00000.parquet",
        "date=2026-01-01/b0000000003-00000.parquet",
        "date=2026-01-01/b0000000003-00001.parquet",
    ]
    assert second.rows == 7
    assert second.has(ArchivedMicroBatch("query", 0))
    assert second.has(ArchivedMicroBatch("query", 1))
    assert not second.has(ArchivedMicroBatch("query", 2))
    assert not second.has(ArchivedMicroBatch("another", 1))


def test_partitions_are_told_by_their_number_and_plain_streams_by_none() -> None:
    reached = {"sales/1": StreamOffset(LIFE, 4, 0), "sales": StreamOffset(LIFE, 3, 0)}
    files = (staged(0, 4, stream="sales", partition=1), staged(0, 3, stream="sales"))
    assert archived(BEGUN, 0, {}, reached, *files).streams == {
        "sales/1": ArchivedStream(LIFE, 0, 4, 4),
        "sales": ArchivedStream(LIFE, 0, 3, 3),
    }


def test_a_stream_that_joins_later_begins_where_its_first_batch_does() -> None:
    first = archived(BEGUN, 0, {}, ends(0, orders=10), staged(0, 10))
    reached = ends(orders=10) | {"sales": StreamOffset(LIFE, 9, 7)}
    second = archived(first, 1, ends(orders=10), reached, staged(7, 9, stream="sales"))
    assert second.streams["sales"] == ArchivedStream(LIFE, 7, 9, 2)
    assert second.streams["orders"] == first.streams["orders"]


def test_compacted_ranges_have_fewer_rows_and_still_move_the_border() -> None:
    first = archived(BEGUN, 0, {}, ends(0, orders=10), staged(3, 9, rows=2))
    assert first.streams["orders"] == ArchivedStream(LIFE, 0, 10, 2)
    assert archived(first, 1, ends(orders=10), ends(orders=20)).streams["orders"].end == 20


def test_a_batch_that_retention_has_cut_begins_later_if_its_query_says_so() -> None:
    first = archived(BEGUN, 0, {}, ends(0, orders=10), staged(0, 10))
    second = archived(first, 1, ends(orders=10), ends(15, orders=20), staged(15, 20))
    assert second.streams["orders"] == ArchivedStream(LIFE, 0, 20, 15)


FIRST = archived(BEGUN, 0, {}, ends(0, orders=10), staged(0, 10))


@pytest.mark.parametrize(
    ("before", "reached", "files", "error"),
    [
        (ends(orders=8), ends(orders=12), [staged(8, 12)], Fenced),
        (ends(orders=11), ends(orders=12), [staged(11, 12)], Fenced),
        ({}, ends(0, orders=12), [staged(0, 12)], Fenced),
        ({}, ends(11, orders=12), [staged(11, 12)], Fenced),
        (ends(orders=10), ends(orders=9), [], Fenced),
        ({}, ends(orders=12), [staged(10, 12)], CorruptDataError),
        (ends(orders=10), ends(orders=12), [staged(9, 12)], CorruptDataError),
        (ends(orders=10), ends(orders=12), [staged(11, 13)], CorruptDataError),
        (ends(orders=10), ends(orders=12), [staged(10, 12), staged(10, 12)], CorruptDataError),
        (ends(orders=10), ends(orders=12), [staged(10, 12, stream="sales")], CorruptDataError),
        ({}, {"orders": StreamOffset("another", 12, 10)}, [staged(10, 12)], StreamRecreated),
        (ends(orders=10), {"orders": StreamOffset("another", 12)}, [staged(10, 12)], StreamRecreated),
        (ends(orders=10, sales=7), ends(orders=10, sales=9), [staged(7, 9, stream="sales")], Fenced),
    ],
)
def test_whatever_does_not_go_on_at_the_border_is_refused(
    before: Offsets, reached: Offsets, files: list[PendingFile], error: type[JetstreamError]
) -> None:
    with pytest.raises(error):
        added_batch(FIRST, ArchivedMicroBatch("query", 1), before, reached, files)


def test_a_query_without_its_checkpoint_goes_on_at_the_border() -> None:
    change = added_batch(FIRST, ArchivedMicroBatch("another", 0), {}, ends(10, orders=12), [staged(10, 12)])
    assert decode_change(encode_change(change)) == change
    assert FIRST.after(change).streams["orders"] == ArchivedStream(LIFE, 0, 12, 12)


def test_merged_files_have_the_rows_of_their_sources() -> None:
    second = archived(FIRST, 1, ends(orders=10), ends(orders=12), staged(10, 12))
    merged = second.after(merged_files(second, second.files, staged(0, 12)))
    assert merged.files == (ArchivedFile("date=2026-01-01/m0000000004.parquet", 12, 100),)
    assert replace(merged, version=second.version, files=second.files) == second
    with pytest.raises(CorruptDataError):
        merged_files(second, second.files, staged(0, 11))


def test_the_levels_of_an_archive_stay() -> None:
    assert BEGUN.begun(("date",)) is BEGUN
    with pytest.raises(InvalidConfig, match="by date, not date,hour"):
        BEGUN.begun(("date", "hour"))


@pytest.mark.parametrize(
    "broken",
    [
        replace(FIRST, files=FIRST.files * 2),
        replace(FIRST, files=()),
        replace(FIRST, streams={"orders": ArchivedStream(LIFE, 11, 10, 10)}),
        replace(FIRST, streams={"orders": ArchivedStream(LIFE, 1, 10, 10)}),
        replace(FIRST, streams={"orders": ArchivedStream(LIFE, -1, 10, 10)}),
        replace(FIRST, format=2),
    ],
)
def test_a_manifest_that_contradicts_itself_is_not_read(broken: ArchiveManifest) -> None:
    content = encode_manifest(FIRST) | {
        "files": [{"path": file.path, "rows": file.rows, "bytes": file.bytes} for file in broken.files],
        "format": broken.format,
        "streams": {
            name: {"incarnation": kept.incarnation, "start": kept.start, "end": kept.end, "rows": kept.rows}
            for name, kept in broken.streams.items()
        },
    }
    with pytest.raises(CorruptDataError):
        decode_manifest(content)


@pytest.mark.parametrize(
    "content", [{}, {"version": "one"}, {"version": 1, "moves": 3}, {"version": 2, "more": 1}]
)
def test_state_that_is_something_else_is_not_read(content: dict[str, int | str]) -> None:
    with pytest.raises(CorruptDataError):
        decode_change(dict(content))
    if content:
        with pytest.raises(CorruptDataError):
            decode_manifest(dict(content))


def test_only_the_next_change_and_files_that_are_there_make_a_version() -> None:
    with pytest.raises(AssertionError):
        FIRST.after(ManifestChange(FIRST.version, ()))
    with pytest.raises(AssertionError, match="A1"):
        FIRST.after(
            ManifestChange(
                FIRST.version + 1, (StagedMove("a", ArchivedFile("b", 0, 0)),), removed=("another",)
            )
        )
