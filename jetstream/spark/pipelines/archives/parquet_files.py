"""Parquet files on a `Disk`: their content, and several written as one.

Arrow's columns all the way; memory does not grow with the files but with their row groups.
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from envelope.errors import CorruptDataError
from jetstream.log.disk.port import Disk, File, parent_of
from jetstream.spark.pipelines.archives.archive_files import ArchivedFile, PendingFile, Span, StreamPlace

Compression = Literal["zstd", "snappy", "gzip", "lz4", "none"]
"""By the names that Spark and pyarrow both know."""

ROW_GROUP_BYTES: Final = 64 << 20
"""Of Arrow columns, before they are encoded."""
ROW_GROUP_ROWS: Final = 1 << 20
_BATCH_ROWS: Final = 1 << 16
_WRITE_BYTES: Final = 1 << 20
_PLACE_COLUMNS: Final = ["stream", "partition", "offset"]


class DiskStream(io.RawIOBase):
    """A file of a `Disk` as Python's files are: with a cursor, and left open when the stream is closed.

    Attributes:
        is_given_up: nothing more is written: the last writes of a failed writer come when it is
            garbage-collected.
    """

    def __init__(self, file: File) -> None:
        """Begin at the first byte."""
        super().__init__()
        self._file = file
        self._at = 0
        self.is_given_up = False

    def readable(self) -> bool:
        """It is."""
        return True

    def writable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def read(self, size: int = -1, /) -> bytes:
        """Return up to ``size`` bytes, all that follow if it is negative."""
        wanted = self._file.size() - self._at if size < 0 else size
        found = self._file.read(self._at, max(wanted, 0))
        self._at += len(found)
        return found

    def write(self, data: Any, /) -> int:  # noqa: ANN401  # any buffer, as for every file of Python's
        """Write all of ``data``."""
        if not self.is_given_up:
            self._file.write((data,), self._at)
        size = memoryview(data).nbytes
        self._at += size
        return size

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move the cursor and return where it is."""
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size()}[whence]
        self._at = origin + offset
        return self._at

    def tell(self) -> int:
        """Return where the cursor is."""
        return self._at


def measured(disk: Disk, path: str, directory: str) -> PendingFile:
    """Return the content of a file of rows that belongs into ``directory``; reads three of its columns.

    Raises:
        CorruptDataError: it is not Parquet, or has other columns.
    """
    with _opened(disk, path) as (file, parquet):
        spans: dict[StreamPlace, Span] = {}
        for number in range(parquet.num_row_groups):
            for place, span in _spans(parquet.read_row_group(number, columns=_PLACE_COLUMNS)):
                seen = spans.get(place, Span(0, span.start, span.end))
                both = (seen.rows + span.rows, min(seen.start, span.start), max(seen.end, span.end))
                spans[place] = Span(*both)
        return PendingFile(path, directory, file.size(), spans)


def merge_files(disk: Disk, files: Sequence[ArchivedFile], target: str, compression: Compression) -> None:
    """Write the rows of ``files``, one file after the other, into a new file; nothing is durable yet.

    Raises:
        CorruptDataError: one of them is not Parquet, or has other columns than the first.
        DiskFull, StorageError: the disk refuses.
    """
    file = disk.create(target)
    stream = DiskStream(file)
    try:
        tables = _row_groups(disk, files)
        first = next(tables)
        buffered = io.BufferedWriter(stream, _WRITE_BYTES)
        with pq.ParquetWriter(
            pa.PythonFile(buffered, mode="w"), first.schema, compression=compression
        ) as writer:
            for table in chain((first,), tables):
                writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
        buffered.flush()
    except pa.ArrowException as error:
        raise CorruptDataError(f"files of {parent_of(files[0].path)} cannot be merged: {error}") from error
    finally:
        stream.is_given_up = True
        file.close()


def _row_groups(disk: Disk, files: Sequence[ArchivedFile]) -> Iterator[pa.Table]:
    """Yield all rows, gathered into tables of a good size."""
    gathered: list[pa.RecordBatch] = []
    rows = nbytes = 0
    for archived in files:
        with _opened(disk, archived.path) as (_, parquet):
            for batch in parquet.iter_batches(_BATCH_ROWS):
                gathered.append(batch)
                rows, nbytes = rows + batch.num_rows, nbytes + batch.nbytes
                if rows >= ROW_GROUP_ROWS or nbytes >= ROW_GROUP_BYTES:
                    yield pa.Table.from_batches(gathered)
                    gathered, rows, nbytes = [], 0, 0
    if gathered:
        yield pa.Table.from_batches(gathered)


def _spans(table: pa.Table) -> Iterator[tuple[StreamPlace, Span]]:
    groups = table.group_by(["stream", "partition"])
    found = groups.aggregate([("offset", "min"), ("offset", "max"), ("offset", "count")])
    for row in found.to_pylist():
        span = Span(row["offset_count"], row["offset_min"], row["offset_max"] + 1)
        yield (row["stream"], row["partition"]), span


@contextmanager
def _opened(disk: Disk, path: str) -> Iterator[tuple[File, pq.ParquetFile]]:
    file = disk.open(path)
    try:
        yield file, pq.ParquetFile(pa.PythonFile(DiskStream(file), mode="r"))
    except (pa.ArrowException, KeyError) as error:
        raise CorruptDataError(f"{path} cannot be read as rows of a stream: {error}") from error
    finally:
        file.close()
