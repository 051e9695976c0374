"""A table's directory: brings micro-batches in so that a crash leaves all of one or nothing of it.

Blocking, on a `Disk`. In this order, each step durable before the next:

1. what no version names is removed: files of a batch that was cut short;
2. the new files of the touched buckets, written by whoever merges them;
3. their names;
4. the version, in which readers see them;
5. files that were replaced long ago are removed.

One process at a time brings a batch in; anybody may read meanwhile.
"""

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from envelope.errors import RequestError
from envelope.types import TimestampUs
from jetstream.log.disk.port import Disk, make_directories
from jetstream.log.disk.state_file import decode_state, read_whole, write_state
from jetstream.spark.pipelines.tables.table_version import (
    FILES_DIRECTORY,
    LOCK_PATH,
    STATE_DIRECTORY,
    VERSION_PATH,
    Layout,
    MergedBucket,
    MergedMicroBatch,
    TableVersion,
    decode_version,
    encode_version,
)

Merge = Callable[[TableVersion], Sequence[MergedBucket]]
"""Merges a micro-batch into the buckets of a version, and returns those that it has touched."""


def bring_in(
    disk: Disk,
    layout: Layout,
    writer: MergedMicroBatch,
    merge: Merge,
    *,
    now: Callable[[], TimestampUs],
    grace_us: int,
) -> TableVersion:
    """Bring a micro-batch into the table, unless it is in; return the version that has it, once durable.

    Raises:
        InvalidConfig: the table has another layout.
        Fenced: it is another query's.
        StorageError: another process brings a batch in, or the disk refuses; the table is then as before, or
            has the batch.
        CorruptDataError: the table's version cannot be read.
    """
    with _held(disk):
        current = stored_version(disk) or TableVersion(layout)
        current.check_layout(layout)
        if not current.takes(writer):
            return current
        _remove_strays(disk, current)
        merged = current.merged(writer, merge(current), now(), grace_us)
        disk.sync_dir(FILES_DIRECTORY)
        write_state(disk, VERSION_PATH, encode_version(merged))
        _remove_strays(disk, merged)
        return merged


def stored_version(disk: Disk) -> TableVersion | None:
    """Return the current version of a table, None if there is none; raises `CorruptDataError`."""
    if not disk.exists(VERSION_PATH):
        return None
    return decode_version(decode_state(read_whole(disk, VERSION_PATH)))


def read_version(disk: Disk) -> TableVersion:
    """Return the current version of a table, also while another process writes to it.

    Raises:
        RequestError: there is no table.
        CorruptDataError: its version cannot be read.
    """
    version = stored_version(disk)
    if version is None:
        raise RequestError(f"there is no table: no {VERSION_PATH}")
    return version


def new_name(version: int, bucket: int) -> str:
    """Return the name of a new file of a bucket, for the version that is to have it.

    It is never used again: tasks of a killed query may still write to theirs.
    """
    return f"{version:010}-{bucket:05}-{uuid.uuid4().hex}.parquet"


@contextmanager
def _held(disk: Disk) -> Iterator[None]:
    make_directories(disk, STATE_DIRECTORY)
    make_directories(disk, FILES_DIRECTORY)
    lock = disk.lock(LOCK_PATH)
    try:
        yield
    finally:
        lock.close()


def _remove_strays(disk: Disk, version: TableVersion) -> None:
    for name in list(version.strays(disk.listdir(FILES_DIRECTORY))):
        disk.unlink(f"{FILES_DIRECTORY}/{name}")
