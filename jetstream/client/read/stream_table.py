"""A stream as a table: the last record of each key, kept up to date while the stream goes on.

Theory of operation: the committed records are read first, then a task follows the stream. A record replaces
the one before it with its key, and a tombstone deletes its key. When following has ended with an error, the
table lags behind the stream for good, so every use of it raises that error.

`LatestRecords` is the last record of each key of the records read: a column at a time, in Arrow.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, ItemsView, Iterator, KeysView, Mapping, ValuesView
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from envelope.errors import InternalError, JetstreamError
from envelope.types import Offset
from jetstream.client.read.places import Start
from jetstream.client.read.reader import BatchReader
from jetstream.client.read.records import Record, records_of
from jetstream.log.format.schema import SCHEMA

_ROWS_MIN: Final = 65_536
"""So many are gathered at least before those that are replaced are dropped."""


class LatestRecords:
    """Filled in the order of offsets. Records without a key are nobody's last; a tombstone deletes its key.

    Holds at most twice as many rows as there are keys, and a few more.
    """

    def __init__(self) -> None:
        self._kept = SCHEMA.empty_table()
        self._new: list[pa.RecordBatch] = []
        self._new_rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add records that come after all others."""
        self._new.append(batch)
        self._new_rows += batch.num_rows
        if self._new_rows > max(_ROWS_MIN, self._kept.num_rows):
            self._reduce()

    def table(self) -> pa.Table:
        """Return the last record of each key that is not deleted, by offset."""
        self._reduce()
        return self._kept

    def _reduce(self) -> None:
        table = pa.concat_tables([self._kept, pa.Table.from_batches(self._new, SCHEMA)])
        self._new, self._new_rows = [], 0
        keyed = table.filter(pc.is_valid(table["key"]))
        last = keyed.select(["key", "offset"]).group_by("key").aggregate([("offset", "max")])
        is_last = pc.is_in(keyed["offset"], value_set=last["offset_max"].combine_chunks())
        self._kept = keyed.filter(pc.and_(is_last, pc.is_valid(keyed["value"]))).combine_chunks()


class OpenReader(Protocol):
    """Reads the stream of a table."""

    def __call__(self, start: Start, *, follow: bool, incarnation: str | None) -> BatchReader:
        """Return a reader from ``start`` on."""
        ...


class StreamTable(Mapping[bytes, Record]):
    """Maps each key to its last record, in the order of their offsets; made by `JetstreamClient.table`.

    A ``str`` is looked up as its UTF-8. A record that was looked up does not change; look again for a newer
    one.

    Raises:
        JetstreamError: from every use, once the stream cannot be followed any more.

    Invariant:
        C15: it is what the records below ``next_offset`` say.
    """

    def __init__(self, open_reader: OpenReader) -> None:
        """Know nothing yet."""
        self.lock = threading.RLock()
        """Held while a batch is taken in, and by other threads than the loop's while they look."""
        self._open_reader = open_reader
        self._incarnation: str | None = None
        self._records: dict[bytes, Record] = {}
        self._next_offset = Offset(0)
        self._failure: JetstreamError | None = None
        self._progress = asyncio.Event()

    @property
    def next_offset(self) -> Offset:
        """The offset after the last record in the table."""
        return self._next_offset

    def __getitem__(self, key: bytes | str) -> Record:
        """Return the last record of a key; KeyError if it has none, or was deleted."""
        return self._current()[key.encode() if isinstance(key, str) else key]

    def __contains__(self, key: object) -> bool:
        """Return whether a key has a record and was not deleted."""
        return (key.encode() if isinstance(key, str) else key) in self._current()

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over the keys as they are now."""
        return iter(self._current().copy())

    def __len__(self) -> int:
        """Number of keys."""
        return len(self._current())

    def keys(self) -> KeysView[bytes]:
        """Return the keys as they are now."""
        return self._current().copy().keys()

    def values(self) -> ValuesView[Record]:
        """Return the records as they are now."""
        return self._current().copy().values()

    def items(self) -> ItemsView[bytes, Record]:
        """Return keys and records as they are now."""
        return self._current().copy().items()

    def to_table(self) -> pa.Table:
        """Return the records as they are now as one Arrow table with the log's columns, by offset."""
        rows: list[dict[str, Any]] = [
            {
                "offset": record.offset,
                "timestamp": record.timestamp,
                "subject": record.subject,
                "key": record.key,
                "headers": [{"key": name, "value": value} for name, value in record.headers] or None,
                "txid": record.txid,
                "value": record.value,
            }
            for record in self._current().copy().values()
        ]
        columns = [pa.array([row[field.name] for row in rows], field.type) for field in SCHEMA]
        return pa.Table.from_arrays(columns, schema=SCHEMA)

    async def caught_up(self) -> None:
        """Return when the table has all records that are committed now.

        Raises:
            JetstreamError: the stream cannot be read.
        """
        async with self._open_reader("latest", follow=False, incarnation=self._incarnation) as reader:
            async for _ in reader:
                raise AssertionError("nothing lies between latest and latest")
        end = reader.next_offset
        assert end is not None, "a reader that has come to its end stands there"
        while self._next_offset < end:
            self._current()
            self._progress.clear()
            await self._progress.wait()
        self._current()

    async def load(self) -> None:
        """Read all that is committed; raises JetstreamError if that cannot be read."""
        async with self._open_reader("earliest", follow=False, incarnation=None) as reader:
            async for batch in reader:
                self._take(batch, reader)
        assert reader.next_offset is not None, "a reader that has come to its end stands there"
        self._next_offset, self._incarnation = reader.next_offset, reader.incarnation

    async def follow(self) -> None:
        """Read what comes until cancelled, or until it fails."""
        here = self._next_offset
        try:
            async with self._open_reader(here, follow=True, incarnation=self._incarnation) as reader:
                async for batch in reader:
                    self._take(batch, reader)
        except JetstreamError as error:
            self._failure = error
        except Exception as error:  # noqa: BLE001 - it is raised by every use of the table
            self._failure = InternalError(f"the stream is not followed any more: {error!r}")
            self._failure.__cause__ = error
        finally:
            self._progress.set()

    def _take(self, batch: pa.RecordBatch, reader: BatchReader) -> None:
        assert reader.last_epoch is not None, "C15: a batch has an epoch"
        assert reader.next_offset is not None, "C15: a reader that has read stands somewhere"
        last: dict[bytes, Record] = {}
        for record in records_of(batch, reader.last_epoch, reader.stream):
            if record.key is not None:
                last.pop(record.key, None)  # so that it goes behind the others
                last[record.key] = record
        with self.lock:  # no longer than needed: other threads wait
            for key, record in last.items():
                self._records.pop(key, None)
                if record.value is not None:
                    self._records[key] = record
            self._next_offset = reader.next_offset
        self._progress.set()

    def _current(self) -> dict[bytes, Record]:
        if self._failure is not None:
            raise self._failure
        return self._records


@asynccontextmanager
async def following(table: StreamTable) -> AsyncIterator[StreamTable]:
    """Keep ``table`` up to date while the block lasts, which begins when it has all that is committed."""
    await table.load()
    try:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(table.follow())
            try:
                yield table
            finally:
                task.cancel()
    except BaseExceptionGroup as group:  # callers handle errors, not groups of them
        raise group.exceptions[0] from None
