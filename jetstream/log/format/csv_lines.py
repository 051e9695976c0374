"""Records as comma-separated values, a column at a time.

The columns are those of the log; ``key`` and ``value`` have another one each, ``key_base64`` and
``value_base64``, for what is not UTF-8. So the columns of all batches are the same, whatever the records
hold, and which of the two a value is in tells how it is written. A null is an empty field without quotes, an
empty key or value is ``""``: a tombstone has neither ``value`` nor ``value_base64``. Headers are the JSON of
`json_lines`. Values that a spreadsheet would take for formulas are left as they are.

Source: RFC 4180; lines end with LF.
"""

from collections.abc import Collection
from typing import Any, cast

import pyarrow as pa
from pyarrow import csv

from jetstream.log.format.record_texts import (
    OPTIONAL_COLUMNS,
    byte_texts,
    headers_json,
    joined,
    slices,
    timestamp_texts,
)


def csv_lines(
    batch: pa.RecordBatch, columns: Collection[str] | None = None, header: bool = True
) -> memoryview:
    r"""Return one line a record, each with ``\n`` behind it, as UTF-8.

    Args:
        batch: in the log's schema.
        columns: of key, headers, txid and value; the others are left out altogether. None: all.
        header: begin with a line of the names of the columns, also where there are no records.
    """
    output = pa.BufferOutputStream()
    for part in slices(batch):
        csv.write_csv(_texts(part, columns), output, csv.WriteOptions(include_header=header))
        header = False
    return memoryview(output.getvalue())


def _texts(batch: pa.RecordBatch, columns: Collection[str] | None) -> pa.RecordBatch:
    wanted = OPTIONAL_COLUMNS if columns is None else columns
    offset, timestamp, subject, key, headers, txid, value = cast("list[Any]", batch.columns)
    texts: dict[str, pa.Array[Any]] = {
        "offset": offset,
        "timestamp": joined(timestamp_texts(timestamp), "Z"),
        "subject": subject,
    }
    if "key" in wanted:
        texts |= _byte_columns("key", key)
    if "headers" in wanted:
        texts["headers"] = headers_json(headers)
    if "txid" in wanted:
        texts["txid"] = txid
    if "value" in wanted:
        texts |= _byte_columns("value", value)
    return pa.RecordBatch.from_pydict(texts)


def _byte_columns(name: str, column: "pa.Array[Any]") -> "dict[str, pa.Array[Any]]":
    texts = byte_texts(column)
    base64 = pa.nulls(len(column), pa.utf8()) if texts.base64 is None else texts.base64
    return {name: texts.utf8, f"{name}_base64": base64}
