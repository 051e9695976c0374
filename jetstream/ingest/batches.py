"""Batch envelopes: a record batch from anybody becomes columns of the log, checked and not looped over.

Nothing of it is believed. Before Arrow decodes it: one schema of the allowed columns, one record batch, not
compressed, as many rows as the envelope says. Afterwards every length, offset and text (`validate`).

Source: Apache Arrow columnar format, "IPC Streaming Format"; "Security considerations" there.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from envelope.envelopes import Envelope
from envelope.errors import CorruptDataError, InvalidEnvelope, RecordTooLarge
from envelope.headers import MESSAGE_HEADERS
from envelope.limits import BATCH_BYTES_MAX, ENVELOPE_RECORDS_MAX
from envelope.types import Offset, TimestampUs
from jetstream.ingest.messages import BATCH_FIXED_BYTES, MESSAGE_OVERHEAD_BYTES
from jetstream.log.format.message import is_compressed
from jetstream.log.format.plain_batch_encoder import no_headers
from jetstream.log.format.schema import HEADERS_TYPE, SCHEMA

COLUMNS: Final = {name: SCHEMA.field(name).type for name in ("key", "headers", "txid", "value")}
"""What a batch may have, of these types; all may be left out but ``value``."""

_TIMESTAMP: Final = SCHEMA.field("timestamp").type
_OURS: Final = pa.array(sorted(MESSAGE_HEADERS), pa.utf8())
_HEADER_BYTES_MIN: Final = 64
"""Counted for each header of the last record: offsets, validity and padding."""

_STREAM_ENDS: Final = (b"", b"\xff\xff\xff\xff\0\0\0\0", bytes(4))
"""What may stand behind the record batch: nothing, the end of a stream, or that of an old writer's stream."""

_NO_ARROW: Final = (
    *(pa.ArrowException, OSError, EOFError),
    ValueError,  # a name in the schema that is no text
    *(CorruptDataError, struct.error),  # of our own look at the metadata
)

Headers = Sequence[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class BatchContent:
    """The rows of one batch envelope, checked."""

    subject: bytes
    columns: Mapping[str, "pa.Array[Any]"]
    """Those that it has, by name."""
    size_bytes: int
    """In the log, at most."""
    first_txid: int | None
    last_txid: int | None

    @property
    def records(self) -> int:
        """How many rows there are."""
        return len(self.columns["value"])

    def has_other_keys(self, key: bytes | None) -> bool:
        """Return whether a record has a key, and one that is not ``key``."""
        keys = self.column("key")
        if keys.null_count == len(keys):
            return False
        return key is None or pc.any(pc.not_equal(keys, pa.scalar(key, keys.type))).as_py() is True

    def largest_txid_step(self) -> int:
        """Return by how much a txid is above the one before it at most; 0: none is."""
        # As unsigned numbers, so that no difference of two signed ones is too large.
        txids = self.column("txid").drop_null().to_numpy().view(np.uint64)
        return int((txids[1:] - txids[:-1]).max(initial=0))

    def column(self, name: str) -> "pa.Array[Any]":
        """Return what the records have in a column of `COLUMNS`."""
        column = self.columns.get(name)
        return _nothing(name, self.records) if column is None else column


def joined_records(batches: Sequence[BatchContent], base: Offset, timestamp: TimestampUs) -> pa.RecordBatch:
    """Return the records of ``batches``, one at least, at ``base`` and after.

    Most of the price of a batch of the log is that of its columns, not of its rows: so small ones share it.
    """
    count = sum(batch.records for batch in batches)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(np.arange(base, base + count, dtype=np.int64)),
            pa.repeat(pa.scalar(timestamp, _TIMESTAMP), count),
            _subjects(batches),
            *(_joined(batches, name, count) for name in COLUMNS),
        ],
        schema=SCHEMA,
    )


def _subjects(batches: Sequence[BatchContent]) -> "pa.Array[Any]":
    if len(batches) == 1:
        return pa.repeat(pa.scalar(batches[0].subject.decode(), pa.utf8()), batches[0].records)
    rows = np.repeat(np.arange(len(batches)), [batch.records for batch in batches])
    return pa.array([batch.subject for batch in batches], pa.binary()).view(pa.utf8()).take(rows)


def _joined(batches: Sequence[BatchContent], name: str, count: int) -> "pa.Array[Any]":
    if not any(name in batch.columns for batch in batches):
        return _nothing(name, count)
    first, *others = (batch.column(name) for batch in batches)
    joined: pa.Array[Any] = pa.concat_arrays([first, *others]) if others else first
    return joined


@lru_cache(maxsize=64)
def _nothing(name: str, count: int) -> "pa.Array[Any]":
    """Return a column of nulls; publishers fill their envelopes alike, so the same ones are wanted again."""
    return no_headers(count) if name == "headers" else pa.nulls(count, COLUMNS[name])


def read_batch(envelope: Envelope, subject: bytes, added: Headers, record_bytes_max: int) -> BatchContent:
    """Return what a batch envelope holds.

    Args:
        envelope: of kind batch.
        subject: that its records have.
        added: headers that its last record will have besides its own.
        record_bytes_max: the stream's limit for one record.

    Raises:
        RecordTooLarge: too many records, too many bytes, or too many in one record.
        InvalidEnvelope: not zstd or Arrow, or not the Arrow that is allowed.
    """
    count = envelope.records
    if count > ENVELOPE_RECORDS_MAX:
        raise RecordTooLarge(f"a batch of {count} records, the limit is {ENVELOPE_RECORDS_MAX}")
    fixed = BATCH_FIXED_BYTES + count * (len(subject) + MESSAGE_OVERHEAD_BYTES)
    fixed += sum(len(name.encode()) + len(value) + _HEADER_BYTES_MIN for name, value in added)
    # One batch in the log, which is there or not as a whole: so it must not be split.
    if fixed + envelope.size_bytes > BATCH_BYTES_MAX:
        raise RecordTooLarge(
            f"a batch of {count} records and {envelope.size_bytes} bytes takes {fixed + envelope.size_bytes} "
            f"bytes in the log, the limit is {BATCH_BYTES_MAX}"
        )
    columns = _decoded(envelope.content(BATCH_BYTES_MAX), count)
    if "headers" in columns:
        _check_headers(columns["headers"])
    if envelope.size_bytes > record_bytes_max:
        _check_sizes(columns, record_bytes_max)
    if added:
        columns["headers"] = _extended(columns.get("headers", _nothing("headers", count)), added)
    return BatchContent(subject, columns, fixed + envelope.size_bytes, *_txids(columns))


def _extended(headers: "pa.Array[Any]", added: Headers) -> "pa.Array[Any]":
    """Return ``headers`` with those ``added`` to the last record's."""
    of_last = [(pair["key"], pair["value"]) for pair in headers[-1].as_py() or ()]
    last: pa.Array[Any] = pa.array([[*of_last, *added]], HEADERS_TYPE)
    extended: pa.Array[Any] = pa.concat_arrays([headers[:-1], last])
    return extended


def _decoded(content: bytes | memoryview, count: int) -> "dict[str, pa.Array[Any]]":
    source = pa.BufferReader(pa.py_buffer(content))
    try:
        first = pa.ipc.read_message(source)
        if first.type != "schema":  # Arrow takes whatever it is for one, and reads where nothing is
            raise InvalidEnvelope(f"an Arrow stream begins with its schema, not with a {first.type} message")
        schema = pa.ipc.read_schema(first)
        _check_schema(schema)
        batch = pa.ipc.read_message(source)
        if batch.type != "record batch":
            raise InvalidEnvelope(f"the schema is followed by a {batch.type} message, not by a record batch")
        if batch.metadata_version != pa.ipc.MetadataVersion.V5:
            raise InvalidEnvelope("the record batch is not of Arrow's metadata version 5")
        if is_compressed(batch.metadata.to_pybytes()):
            raise InvalidEnvelope("the record batch is compressed; put all of it into one zstd frame instead")
        rows = pa.ipc.read_record_batch(batch, schema)
        if rows.num_rows != count:
            raise InvalidEnvelope(f"the record batch has {rows.num_rows} rows, the extent says {count}")
        rows.validate(full=True)
    except _NO_ARROW as error:
        raise InvalidEnvelope(f"the payload is no Arrow stream of one record batch: {error}") from None
    if memoryview(content)[source.tell() :] not in _STREAM_ENDS:
        raise InvalidEnvelope("a batch envelope holds one record batch, and nothing behind its stream")
    return dict(zip(schema.names, rows.columns, strict=True))


def _check_schema(schema: pa.Schema) -> None:
    names = schema.names
    if "value" not in names or len(set(names)) != len(names):
        raise InvalidEnvelope(f"a batch has a column value, and each column once: {', '.join(names)[:200]}")
    for field in schema:
        wanted = COLUMNS.get(field.name)
        if wanted is None:
            raise InvalidEnvelope(f"a batch has no column {field.name[:64]!r}")
        if field.type != wanted:
            raise InvalidEnvelope(f"the column {field.name} is {str(field.type)[:200]}, and must be {wanted}")


def _check_headers(headers: "pa.Array[Any]") -> None:
    pairs = pc.list_flatten(headers)
    names, values = pc.struct_field(pairs, "key"), pc.struct_field(pairs, "value")
    if pairs.null_count or names.null_count or values.null_count:
        raise InvalidEnvelope("a header in a column has a name and a value")
    ours = pc.filter(names, pc.is_in(names, _OURS))
    if len(ours):
        raise InvalidEnvelope(f"the header {ours[0]} is of a message, and has no place in a column")


def _check_sizes(columns: "Mapping[str, pa.Array[Any]]", record_bytes_max: int) -> None:
    sizes = np.zeros(len(columns["value"]), dtype=np.int64)
    for name in ("key", "value"):
        if name in columns:
            lengths = pc.call_function("binary_length", [columns[name]])
            sizes += pc.fill_null(lengths, 0).to_numpy()
    if "headers" in columns:
        headers = columns["headers"]
        pairs = pc.list_flatten(headers)
        parents = pc.list_parent_indices(headers).to_numpy()
        for part in ("key", "value"):
            lengths = pc.call_function("binary_length", [pc.struct_field(pairs, part)])
            np.add.at(sizes, parents, lengths.to_numpy())
    largest = int(sizes.max())
    if largest > record_bytes_max:
        raise RecordTooLarge(f"a record of the batch has {largest} bytes, the limit is {record_bytes_max}")


def _txids(columns: "Mapping[str, pa.Array[Any]]") -> tuple[int | None, int | None]:
    """Return the first and the last transaction id."""
    if "txid" not in columns or columns["txid"].null_count == len(columns["txid"]):
        return None, None
    txids = columns["txid"].drop_null().to_numpy()
    if not (txids[1:] >= txids[:-1]).all():
        raise InvalidEnvelope("the txids of a batch decrease")
    return int(txids[0]), int(txids[-1])
