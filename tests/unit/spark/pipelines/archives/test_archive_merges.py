"""Which files of an archive are merged."""

from jetstream.spark.pipelines.archives.archive_files import ArchivedFile
from jetstream.spark.pipelines.archives.archive_merges import FAN, due_merges, final_merges

TARGET = 1000


def files(*sizes: int, directory: str = "date=2026-01-01") -> list[ArchivedFile]:
    return [ArchivedFile(f"{directory}/{number}.parquet", 1, size) for number, size in enumerate(sizes)]


def test_files_of_a_class_are_merged_when_enough_have_gathered() -> None:
    few = files(*[20] * (FAN - 1))
    assert due_merges(few, TARGET) == []
    many = files(*[20] * (FAN + 1))
    (merge,) = due_merges(many, TARGET)
    assert merge.files == tuple(many[:FAN])


def test_a_file_is_not_merged_again_with_each_small_one_that_comes() -> None:
    assert due_merges(files(900, *[20] * (FAN - 1)), TARGET) == []


def test_files_are_merged_until_they_reach_the_target() -> None:
    (merge,) = due_merges(files(*[400] * FAN), TARGET)
    assert [file.bytes for file in merge.files] == [400, 400, 400]
    assert due_merges(files(*[1000] * FAN), TARGET) == final_merges(files(1000, 1000, 2000), TARGET) == []


def test_each_directory_is_merged_by_itself() -> None:
    both = files(*[20] * FAN) + files(*[20] * FAN, directory="date=2026-01-02")
    assert [merge.directory for merge in due_merges(both, TARGET)] == ["date=2026-01-01", "date=2026-01-02"]
    assert final_merges(files(1) + files(1, directory="date=2026-01-02"), TARGET) == []


def test_in_the_end_there_is_at_most_one_small_file_in_a_directory() -> None:
    merges = final_merges(files(900, 20, 400, 400, 400, 1000, 20), TARGET)
    assert [[file.bytes for file in merge.files] for merge in merges] == [[900, 20, 400], [400, 400, 20]]
