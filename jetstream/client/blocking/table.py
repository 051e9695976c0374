"""A stream as a table, for programs without asyncio."""

from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView

import pyarrow as pa

from jetstream.client.read.records import Record
from jetstream.client.read.stream_table import StreamTable


class BlockingTable(Mapping[bytes, Record]):
    """A `StreamTable` for any thread: each use sees it as it is then, never a batch half taken in."""

    def __init__(self, table: StreamTable, caught_up: Callable[[], None]) -> None:
        """Use ``table``, which an event loop elsewhere keeps up to date."""
        self._table = table
        self._caught_up = caught_up

    def __getitem__(self, key: bytes | str) -> Record:
        """See `StreamTable.__getitem__`."""
        with self._table.lock:
            return self._table[key]

    def __contains__(self, key: object) -> bool:
        """See `StreamTable.__contains__`."""
        with self._table.lock:
            return key in self._table

    def __iter__(self) -> Iterator[bytes]:
        """See `StreamTable.__iter__`."""
        with self._table.lock:
            return iter(self._table)

    def __len__(self) -> int:
        """See `StreamTable.__len__`."""
        with self._table.lock:
            return len(self._table)

    def keys(self) -> KeysView[bytes]:
        """See `StreamTable.keys`."""
        with self._table.lock:
            return self._table.keys()

    def values(self) -> ValuesView[Record]:
        """See `StreamTable.values`."""
        with self._table.lock:
            return self._table.values()

    def items(self) -> ItemsView[bytes, Record]:
        """See `StreamTable.items`."""
        with self._table.lock:
            return self._table.items()

    @property
    def next_offset(self) -> int:
        """The offset after the last that the table has taken in."""
        with self._table.lock:
            return self._table.next_offset

    def to_table(self) -> pa.Table:
        """See `StreamTable.to_table`."""
        with self._table.lock:
            return self._table.to_table()

    def caught_up(self) -> None:
        """See `StreamTable.caught_up`."""
        self._caught_up()
