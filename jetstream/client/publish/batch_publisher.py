"""Publishing record by record, sent in batch envelopes: the application's pace, the network's sizes.

The transmit policy decides when an envelope is sent (the words are those of Apache DistributedLog):

    immediate  as soon as the event loop has turned: records that are published at once, or while all before
               them wait for acks, go together
    linger     when it is full, or a little after its first record came
    bytes      when it is full, or at a `flush`: before, its records have no acks
"""

import asyncio
from collections import deque
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, get_args

import pyarrow as pa

from envelope.envelopes import encode_batch
from envelope.errors import ConnectionLost, InternalError, JetstreamError, RecordTooLarge, RequestError
from envelope.headers import MESSAGE_HEADERS
from envelope.limits import BATCH_BYTES_MAX, KIB
from jetstream.client.publish.ack_inbox import AckFuture, ClaimedFuture
from jetstream.client.publish.batch_envelopes import arrow_pieces, checked_ack, records_in_log
from jetstream.client.publish.messages import PublishAck
from jetstream.client.publish.publisher import Publisher
from jetstream.log.format.schema import SCHEMA

Transmit = Literal["immediate", "linger", "bytes"]

LINGER_S_DEFAULT: Final = 0.005
BATCH_BYTES_DEFAULT: Final = 256 * KIB
RECORDS_MAX: Final = 16_384
"""Of one envelope: their columns are made from Python's lists, while nothing else runs."""

_RECORD_OVERHEAD_BYTES: Final = 32
"""Of a record in Arrow's columns, besides its bytes."""

_ENVELOPE_BYTES: Final = 4 * KIB
"""Of an envelope besides its records."""

_FULL_MAX: Final = 2
"""Envelopes that wait to be sent; beyond it `BatchPublisher.publish` waits."""


_FAILURES_KEPT_MAX: Final = 100

_TXID_MIN: Final = -(1 << 63)
_TXID_MAX: Final = (1 << 63) - 1

_Headers = list[tuple[str, bytes]]
_Row = tuple[bytes | None, _Headers | None, int | None, bytes | None]
"""Key, headers, txid, value."""


@dataclass(slots=True)
class _Batch:
    """Records on their way into one envelope."""

    acked: AckFuture
    rows: list[_Row] = field(default_factory=list)
    """Empty again when they are on their way, as the acks of its records may be kept for long."""
    size: int = 0


class RecordAck:
    """Await it for the ack of one record; several may."""

    __slots__ = ("_batch", "_row")

    def __init__(self, batch: _Batch, row: int) -> None:
        self._batch = batch
        self._row = row

    def __await__(self) -> Generator[Any, None, PublishAck]:
        """Return the ack of this record alone.

        It comes once the envelope is sent: with ``transmit="bytes"`` when that is full, or at a `flush`.

        Raises:
            JetstreamError: its envelope was not sent, or refused, or the outcome is unknown.
        """
        ack = yield from asyncio.shield(self._batch.acked).__await__()
        return PublishAck(
            ack.stream, ack.first_offset + self._row, ack.epoch, ack.duplicate, partition=ack.partition
        )


class BatchPublisher:
    """Gathers records of one subject; made by `JetstreamClient.batch_publisher`.

    Invariants:
        C17: records are sent in the order in which they were published, each once.
            Held by test_records_published_one_by_one_share_envelopes_and_keep_their_order.
        C18: at most `_FULL_MAX` full envelopes wait, and one that is being filled.
            Held by test_a_publisher_waits_while_envelopes_wait.
    """

    def __init__(
        self, publisher: Publisher, subject: str, transmit: Transmit, linger_s: float, batch_bytes: int
    ) -> None:
        """Fill envelopes with ``batch_bytes`` at most and send them through ``publisher``."""
        if transmit not in get_args(Transmit):
            raise RequestError(f"transmit: {transmit!r}: there are {', '.join(get_args(Transmit))}")
        self._publisher = publisher
        self._subject = subject
        self._transmit = transmit
        self._linger_s = linger_s
        self._batch_bytes = min(batch_bytes, BATCH_BYTES_MAX // 4, publisher.payload_max - _ENVELOPE_BYTES)
        self._records_max = records_in_log(subject, RECORDS_MAX)
        self._loop = asyncio.get_running_loop()
        self._filling = self._empty()
        self._full: deque[_Batch] = deque()
        self._changed = asyncio.Event()
        self._sending = 0
        """Envelopes on their way: being sent, or not yet acked."""
        self._failed: list[AckFuture] = []
        self._left = False

    async def publish(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        txid: int | None = None,
    ) -> RecordAck:
        """Take one record in; returns what to await for its ack. Waits while envelopes wait to be sent.

        A record that the stream refuses, for its size or its txid, takes those in its envelope with it: their
        acks fail as well.

        Raises:
            RecordTooLarge: it fills more than an envelope; publish it by itself.
            RequestError: a part has the wrong type, the txid more than 64 bits, or a header a name that is a
                message's or no UTF-8; or the ``async with`` block has been left. The record is not stored.
        """
        row, size = _checked(value, key, headers, txid)
        if size > self._batch_bytes:
            raise RecordTooLarge(f"a record of {size} bytes, an envelope is filled with {self._batch_bytes}")
        while len(self._full) >= _FULL_MAX and not self._left:
            await self._change()
        if self._left:
            raise RequestError("a batch publisher publishes inside its async with block")
        if self._filling.size + size > self._batch_bytes or len(self._filling.rows) >= self._records_max:
            self._close(self._filling)
        batch = self._filling
        batch.rows.append(row)
        batch.size += size
        if len(batch.rows) == 1 and self._transmit != "bytes":
            self._loop.call_later(0 if self._transmit == "immediate" else self._linger_s, self._close, batch)
        return RecordAck(batch, len(batch.rows) - 1)

    async def flush(self) -> None:
        """Send the waiting records, and return when all of them are acked.

        Raises:
            JetstreamError: the first failure that was not seen through its future.
        """
        self._close(self._filling)
        while self._full or self._sending:
            await self._change()
        failed, self._failed = [each for each in self._failed if not each.claimed], []
        for acked in failed:
            await acked

    async def run(self) -> None:
        """Send full envelopes as they come, until cancelled."""
        while True:
            while self._full:
                await self._send(self._full.popleft())
            await self._change()

    def abandon(self) -> None:
        """Send nothing any more: the acks of waiting records fail, and nobody waits for room."""
        self._left = True
        self._close(self._filling)
        while self._full:
            self._fail(self._full.popleft(), ConnectionLost("the publisher was left before this was sent"))
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _empty(self) -> _Batch:
        return _Batch(ClaimedFuture(loop=self._loop))

    def _close(self, batch: _Batch) -> None:
        """Fill ``batch`` no further; nothing happens if that is decided, or it is empty."""
        if batch is self._filling and batch.rows:
            self._full.append(batch)
            self._filling = self._empty()
            self._changed.set()

    async def _send(self, batch: _Batch) -> None:
        self._sending += 1
        records = len(batch.rows)
        sent: AckFuture | None = None
        try:
            payload = _envelope(batch.rows)
            batch.rows = []
            sent = await self._publisher.publish(self._subject, payload)
            sent.add_done_callback(partial(self._on_answer, batch, records))
        except JetstreamError as error:
            self._fail(batch, error)
        except Exception as error:  # noqa: BLE001 - it ends this envelope alone, not those of others
            self._fail(batch, InternalError(f"the envelope was not sent: {error!r}"))
        finally:
            if sent is None:
                self._fail(batch, ConnectionLost("the publisher was left while this was sent"))
                self._sent()

    def _on_answer(self, batch: _Batch, records: int, answered: "asyncio.Future[PublishAck]") -> None:
        """Pass on how an envelope ended: its records' acks are looked at, not the publisher's."""
        try:
            batch.acked.set_result(checked_ack(answered.result(), records))
        except JetstreamError as error:
            self._fail(batch, error)
        self._sent()

    def _sent(self) -> None:
        self._sending -= 1
        self._changed.set()

    def _fail(self, batch: _Batch, error: JetstreamError) -> None:
        """Fail a batch; `flush` raises the error unless a caller has looked at it."""
        if batch.acked.done():
            return
        batch.rows = []
        batch.acked.set_exception(error)
        asyncio.Future.exception(batch.acked)  # looked at, and not claimed
        if len(self._failed) >= _FAILURES_KEPT_MAX:
            self._failed = [each for each in self._failed if not each.claimed]
        if len(self._failed) < _FAILURES_KEPT_MAX:
            self._failed.append(batch.acked)


def _checked(
    value: bytes | None, key: bytes | None, headers: Mapping[str, bytes] | None, txid: int | None
) -> tuple[_Row, int]:
    """Return a record that can be put into an envelope, and its bytes; RequestError if it cannot.

    Later it would be too late: all records of an envelope would fail with it.
    """
    if type(value) is bytes and key is None and headers is None and txid is None:  # most of them
        return (None, None, None, value), len(value) + _RECORD_OVERHEAD_BYTES
    size = _bytes_of("value", value) + _bytes_of("key", key) + _RECORD_OVERHEAD_BYTES
    if txid is not None and (type(txid) is not int or not _TXID_MIN <= txid <= _TXID_MAX):
        raise RequestError(f"the txid {txid!r} is no number of 64 bits")
    if headers is None:
        return (key, None, txid, value), size
    fields: list[Any] = list(headers.items())
    for name, text in fields:
        if text is None or not isinstance(name, str):
            raise RequestError(f"the header {name!r} must be text, and its value bytes")
        if name in MESSAGE_HEADERS:
            raise RequestError(f"the header {name} is a message's: what it asks for, a record cannot")
        try:
            size += len(name.encode()) + _bytes_of("value of a header", text) + _RECORD_OVERHEAD_BYTES
        except UnicodeEncodeError:
            raise RequestError(f"the name of the header {name!r} is not UTF-8") from None
    return (key, fields, txid, value), size


def _bytes_of(what: str, part: bytes | None) -> int:
    if part is None:
        return 0
    if not isinstance(part, bytes):
        raise RequestError(f"the {what} is {type(part).__name__}, and must be bytes")
    return len(part)


def _envelope(rows: list[_Row]) -> bytes:
    keys, headers, txids, values = zip(*rows, strict=True)
    columns = {"key": keys, "headers": headers, "txid": txids, "value": values}
    # A column of nulls costs as much as one of values.
    names = [name for name, column in columns.items() if name == "value" or column.count(None) < len(column)]
    arrays = [pa.array(columns[name], SCHEMA.field(name).type) for name in names]
    batch = pa.RecordBatch.from_arrays(arrays, names=names)
    return encode_batch(arrow_pieces(batch), batch.num_rows)
