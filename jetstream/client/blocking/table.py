"""A stream as a table, for programs without asyncio."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from envelope.types import Offset
from jetstream.client.blocking.facade import Facade, awaited
from jetstream.client.read.records import Record
from jetstream.client.read.stream_table import StreamTable

_P = ParamSpec("_P")
_T = TypeVar("_T")


def _locked(
    method: Callable[Concatenate[StreamTable, _P], _T],
) -> Callable[Concatenate["BlockingTable", _P], _T]:
    @wraps(method)
    def call(self: "BlockingTable", /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        with self._target.lock:
            return method(self._target, *args, **kwargs)

    return call


class BlockingTable(Facade[StreamTable], Mapping[bytes, Record]):
    """A `StreamTable` for any thread: each call sees its current records, and all of a batch or none."""

    def __getitem__(self, key: bytes | str) -> Record:  # written out: mypy would take Mapping's signature
        with self._target.lock:
            return self._target[key]

    __contains__ = _locked(StreamTable.__contains__)
    __iter__ = _locked(StreamTable.__iter__)
    __len__ = _locked(StreamTable.__len__)
    keys = _locked(StreamTable.keys)
    values = _locked(StreamTable.values)
    items = _locked(StreamTable.items)
    to_table = _locked(StreamTable.to_table)
    caught_up = awaited(StreamTable.caught_up)

    @property
    def next_offset(self) -> Offset:
        """The offset after the last record in the table."""
        with self._target.lock:
            return self._target.next_offset
