"""The records of a source as a mirror publishes them: batches of Arrow, a column at a time; pure.

Key, value, txid and headers are those of the source. A header that would ask for something of the target
(`MESSAGE_HEADERS`: a message id, a session) has another name there, and behind the others stands the time at
which the source has stored the record.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from envelope.envelopes import HeaderFields, encode_message
from envelope.errors import SourceTruncated
from envelope.headers import MESSAGE_HEADERS, SEQUENCE, SESSION, SOURCE_PREFIX, SOURCE_TIME
from envelope.limits import KIB, MIB
from jetstream.client.mirror.positions import ANOTHER_STREAM, LastRecord
from jetstream.log.format.schema import HEADERS_TYPE, SCHEMA

_PUBLISHED: Final = [name for name in SCHEMA.names if name not in ("offset", "timestamp", "subject")]
_FEW: Final = 4
"""Records: what a batch envelope costs beside them, at both ends, is what five messages cost."""
_HEADER_BYTES: Final = 32 * KIB
"""Of keys and headers: there is not much more room for them in an envelope of one message."""
_LARGE_BYTES: Final = 512 * KIB
_BATCH_BYTES: Final = 3 * MIB
"""Above that a record may not fit into an envelope of many."""
_TXID_MIN: Final = -(1 << 63)
_MESSAGE_HEADERS: Final = pa.array(sorted(MESSAGE_HEADERS), pa.utf8())


def mirrored(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the records of ``batch`` in order: a subject, and what is to be published there.

    ``batch`` is in the log's schema. Neighbours on one subject come together, but for two kinds. A record
    with a txid below the one before begins anew: the target refuses it, until its last txid is set at this
    place. A large record is alone, as an envelope of many takes no more than 4 MiB.
    """
    columns = {name: batch.column(name) for name in _PUBLISHED}
    columns["headers"] = _mirrored_headers(batch.column("headers"), batch.column("timestamp"))
    # A column of nulls costs as much as one of values.
    names = [name for name in _PUBLISHED if name == "value" or columns[name].null_count < batch.num_rows]
    rows = pa.RecordBatch.from_arrays([columns[name] for name in names], names=names)
    subjects = batch.column("subject")
    txids = pc.fill_null(pc.fill_null_forward(batch.column("txid")), _TXID_MIN)
    is_cut = pc.or_(pc.not_equal(subjects[1:], subjects[:-1]), pc.less(txids[1:], txids[:-1]))
    sizes = pc.call_function("binary_length", [batch.column("value")])
    is_large = pc.fill_null(sizes, 0).to_numpy() > _LARGE_BYTES
    cuts = np.flatnonzero(is_cut.to_numpy(zero_copy_only=False) | is_large[1:] | is_large[:-1]) + 1
    edges = [0, *cuts.tolist(), batch.num_rows]
    for start, end in pairwise(edges):
        yield subjects[start].as_py(), rows.slice(start, end - start)


def are_few(rows: pa.RecordBatch) -> bool:
    """Return whether ``rows`` are better published as messages of their own than in a batch envelope."""
    header_bytes = rows.nbytes - rows.column("value").nbytes
    return rows.num_rows <= _FEW and (header_bytes <= _HEADER_BYTES or rows.nbytes > _BATCH_BYTES)


def are_named(rows: pa.RecordBatch) -> bool:
    """Return whether every header has a name: an envelope of one message has none without."""
    names = pc.struct_field(pc.list_flatten(rows.column("headers")), "key")
    return int(pc.index(names, "").as_py()) < 0


def singly(rows: pa.RecordBatch) -> Iterator[bytes]:
    """Yield each of a few rows of `mirrored` in an envelope of its own."""
    for row in rows.to_pylist():
        fields = HeaderFields(headers=[(pair["key"], pair["value"]) for pair in row["headers"]])
        if row.get("key") is not None:
            fields["key"] = row["key"]
        if row.get("txid") is not None:
            fields["txid"] = row["txid"]
        yield encode_message(row["value"], **fields)


def _mirrored_headers(headers: "pa.Array[Any]", times: "pa.Array[Any]") -> "pa.Array[Any]":
    count = len(times)
    fields: pa.Array[Any] = pc.list_flatten(headers)
    names, values = pc.struct_field(fields, "key"), pc.struct_field(fields, "value")
    is_ours = pc.is_in(names, _MESSAGE_HEADERS)
    if pc.any(is_ours).as_py():
        names = pc.if_else(is_ours, pc.binary_join_element_wise(SOURCE_PREFIX, names, ""), names)
    lengths = pc.fill_null(pc.list_value_length(headers), 0).to_numpy()
    ends = np.cumsum(lengths + 1)
    order = np.arange(len(fields) + count)
    is_time = np.zeros(len(order), bool)
    is_time[ends - 1] = True
    order[~is_time] = np.arange(len(fields))
    order[is_time] = len(fields) + np.arange(count)
    microseconds = times.cast(pa.int64()).cast(pa.utf8()).cast(pa.binary())
    pairs = pa.StructArray.from_arrays(
        [
            pa.concat_arrays([names, pa.repeat(SOURCE_TIME, count)]).take(pa.array(order)),
            pa.concat_arrays([values, microseconds]).take(pa.array(order)),
        ],
        names=["key", "value"],
    )
    return pa.ListArray.from_arrays(
        pa.array(np.concatenate(([0], ends)), pa.int32()), pairs, type=HEADERS_TYPE
    )


def last_record(row: pa.RecordBatch) -> LastRecord:
    """Return what the last record of the target, the only one of ``row``, tells of the copy."""
    headers = {pair["key"]: pair["value"] for pair in row.column("headers")[0].as_py() or ()}
    session, sequence = headers.get(SESSION), headers.get(SEQUENCE)
    return LastRecord(
        None if session is None else session.decode("utf-8", "backslashreplace"),
        int(sequence) if sequence is not None and sequence.isdigit() else None,
    )


def check_witness(source: pa.RecordBatch, target: pa.RecordBatch) -> None:
    """Refuse to go on behind the only record of ``source`` unless that of ``target`` is a copy of it.

    Raises:
        SourceTruncated: it is not.
    """
    same = all(
        source.column(name).equals(target.column(name)) for name in ("subject", "key", "txid", "value")
    )
    headers = [(pair["key"], pair["value"]) for pair in target.column("headers")[0].as_py() or ()]
    time = b"%d" % source.column("timestamp").cast(pa.int64())[0].as_py()
    if not same or (SOURCE_TIME, time) not in headers:
        raise SourceTruncated(
            f"the source has another record at offset {source.column(0)[0].as_py()} than was copied from "
            f"there: it has lost records; {ANOTHER_STREAM}"
        )
