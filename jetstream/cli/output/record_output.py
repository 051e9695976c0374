"""Where records go: lines or Arrow to standard output, or a file that appears when it is complete."""

import os
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from io import BufferedWriter
from pathlib import Path
from typing import Final, Protocol, cast

import pyarrow as pa
from pyarrow import parquet

from envelope.limits import KIB, MIB
from jetstream.cli.output.record_format import RecordFormat, text_line
from jetstream.log.format.json_lines import json_lines
from jetstream.log.format.schema import SCHEMA


class RecordOutput(Protocol):
    """Takes batches in order."""

    def write(self, batch: pa.RecordBatch, stream: str | None = None) -> None:
        """Take one batch; lines say of which stream it is, if that is given.

        Raises:
            OSError: it cannot be written.
        """

    def finish(self) -> None:
        """Write what is gathered and what ends the format; nothing comes after it."""


@contextmanager
def record_output(
    record_format: RecordFormat,
    path: Path | None,
    at_once: bool = False,
    columns: Collection[str] | None = None,
) -> Iterator[RecordOutput]:
    """Yield where to write records; what they were written to is complete when the block ends.

    Args:
        record_format: Parquet needs a file.
        path: the file, see `complete_file`; None is standard output, where a block that fails leaves what
            was written so far.
        at_once: somebody waits for each batch: gather none.
        columns: of key, headers, txid and value those that stand in JSON lines; None: all.

    Raises:
        OSError: the file cannot be written.
    """
    if path is None:
        assert record_format is not RecordFormat.PARQUET, "a Parquet file cannot be written to a pipe"
        # What it is, unless somebody has put another object in its place.
        output = _output(record_format, cast("BufferedWriter", sys.stdout.buffer), at_once, columns)
        yield output
        output.finish()
        return
    with complete_file(path) as file:
        if record_format is RecordFormat.PARQUET:
            with parquet.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
                parquet_output = _ParquetOutput(writer)
                yield parquet_output
                parquet_output.finish()
        else:
            output = _output(record_format, file, at_once, columns)
            yield output
            output.finish()


@contextmanager
def complete_file(path: Path) -> Iterator[BufferedWriter]:
    """Yield a file to write, which takes the name ``path`` only when the block ends without an error.

    Until then it lies beside it under a hidden name of its own, which is removed if the block fails; a
    process that is killed leaves it. A file that was there under ``path`` is replaced. The content is on disk
    before it has the name.

    Raises:
        FileNotFoundError: its directory is not there.
        OSError: it cannot be written, or not be put in place.
    """
    target = path.resolve()  # a symbolic link stays one
    if not target.parent.is_dir():
        raise FileNotFoundError(f"there is no directory {target.parent}")
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with partial.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    directory = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _output(
    record_format: RecordFormat, file: BufferedWriter, at_once: bool, columns: Collection[str] | None
) -> RecordOutput:
    if record_format is RecordFormat.ARROW:
        return _ArrowOutput(file, at_once)
    if record_format is RecordFormat.TEXT:
        return _TextOutput(file)
    return _JsonOutput(file, columns)


class _JsonOutput:
    def __init__(self, file: BufferedWriter, columns: Collection[str] | None) -> None:
        self._file = file
        self._columns = columns

    def write(self, batch: pa.RecordBatch, stream: str | None = None) -> None:
        self._file.write(json_lines(batch, self._columns, stream))
        self._file.flush()  # a reader may be waiting at the other end of a pipe

    def finish(self) -> None:
        """Lines have no end."""


class _TextOutput:
    def __init__(self, file: BufferedWriter) -> None:
        self._file = file

    def write(self, batch: pa.RecordBatch, stream: str | None = None) -> None:
        self._file.write("".join(f"{text_line(row, stream)}\n" for row in batch.to_pylist()).encode())
        self._file.flush()  # as above

    def finish(self) -> None:
        """Lines have no end."""


class _Gathered:
    """Batches that are written as one: a stream may have been stored a record at a time."""

    def __init__(self, records_max: int, bytes_max: int) -> None:
        self._records_max = records_max
        self._bytes_max = bytes_max
        self._batches: list[pa.RecordBatch] = []
        self._records = 0
        self._bytes = 0

    def add(self, batch: pa.RecordBatch) -> bool:
        """Take one batch in; return whether it is time to write."""
        self._batches.append(batch)
        self._records += batch.num_rows
        self._bytes += batch.nbytes
        return self._records >= self._records_max or self._bytes >= self._bytes_max

    def take(self) -> pa.Table:
        """Return what was gathered, each column in one piece, and begin anew."""
        table = pa.Table.from_batches(self._batches, SCHEMA).combine_chunks()
        self._batches, self._records, self._bytes = [], 0, 0
        return table


class _ArrowOutput:
    _RECORDS_MAX: Final = 64 * KIB
    _BYTES_MAX: Final = 4 * MIB

    def __init__(self, file: BufferedWriter, at_once: bool) -> None:
        self._file = file
        self._gathered = _Gathered(1 if at_once else self._RECORDS_MAX, self._BYTES_MAX)
        self._writer = pa.ipc.new_stream(file, SCHEMA)

    def write(self, batch: pa.RecordBatch, stream: str | None = None) -> None:
        del stream  # the log's columns have no place for it
        if self._gathered.add(batch):
            self._writer.write_table(self._gathered.take())
            self._file.flush()

    def finish(self) -> None:
        self._writer.write_table(self._gathered.take())
        self._writer.close()
        self._file.flush()


class _ParquetOutput:
    _GROUP_RECORDS_MAX: Final = 1024 * KIB
    """Of a row group, which is what a reader of the file takes in at once."""
    _GROUP_BYTES_MAX: Final = 64 * MIB

    def __init__(self, writer: parquet.ParquetWriter) -> None:
        self._gathered = _Gathered(self._GROUP_RECORDS_MAX, self._GROUP_BYTES_MAX)
        self._writer = writer

    def write(self, batch: pa.RecordBatch, stream: str | None = None) -> None:
        del stream  # as above
        if self._gathered.add(batch):
            self._writer.write_table(self._gathered.take())

    def finish(self) -> None:
        self._writer.write_table(self._gathered.take())
