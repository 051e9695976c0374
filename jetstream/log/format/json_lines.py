"""Records as lines of JSON, and as server-sent events of such; made a column at a time, never a record.

JSON keeps every byte: a key, value or header value that is UTF-8 stands under its own name, any other under
the name with ``_base64`` behind it. A field that is null in the record is left out, except ``value``, whose
null is a tombstone.

Source: RFC 8259 (JSON); WHATWG HTML, section 9.2 (server-sent events).
"""

import json
from collections.abc import Collection
from typing import Any, cast

import pyarrow as pa

from jetstream.log.format.record_texts import (
    OPTIONAL_COLUMNS,
    headers_json,
    joined,
    json_escaped,
    json_member,
    slices,
    text_bytes,
    timestamp_texts,
)


def json_lines(
    batch: pa.RecordBatch, columns: Collection[str] | None = None, stream: str | None = None
) -> memoryview:
    r"""Return one JSON object a record, each with ``\n`` behind it, as UTF-8.

    Args:
        batch: in the log's schema.
        columns: of key, headers, txid and value; the others are left out altogether. None: all.
        stream: named in each of them; None: it goes without saying.
    """
    named = "" if stream is None else f'"stream":{json.dumps(stream, ensure_ascii=False)},'
    return _lines(batch, columns, (f'{{{named}"offset":',), "}\n")


def event_lines(batch: pa.RecordBatch, columns: Collection[str] | None = None) -> memoryview:
    """Return one server-sent event a record: its offset as the event's id, its JSON object as the data.

    Args:
        batch: in the log's schema.
        columns: as `json_lines`.
    """
    return _lines(batch, columns, ("id: ", '\ndata: {"offset":'), "}\n\n")


def _lines(
    batch: pa.RecordBatch, columns: Collection[str] | None, before: tuple[str, ...], end: str
) -> memoryview:
    """Return the lines; the offset stands behind each text of ``before``."""
    parts = [text_bytes(_objects(part, columns, before, end)) for part in slices(batch)]
    return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))


def _objects(
    batch: pa.RecordBatch, columns: Collection[str] | None, before: tuple[str, ...], end: str
) -> "pa.Array[Any]":
    wanted = OPTIONAL_COLUMNS if columns is None else columns
    offset, timestamp, subject, key, headers, txid, value = cast("list[Any]", batch.columns)
    offsets = offset.cast(pa.utf8())
    pieces: list[pa.Array[Any] | str] = []
    for text in before:
        pieces += [text, offsets]
    pieces += [',"timestamp":"', timestamp_texts(timestamp), 'Z","subject":"', json_escaped(subject), '"']
    if "key" in wanted and key.null_count < len(key):
        pieces.append(json_member("key", key))
    if "headers" in wanted and headers.null_count < len(headers):
        pieces.append(joined(',"headers":', headers_json(headers)))
    if "txid" in wanted and txid.null_count < len(txid):
        pieces.append(joined(',"txid":', txid.cast(pa.utf8())))
    if "value" in wanted:
        pieces.append(json_member("value", value).fill_null(',"value":null'))
    return joined(*pieces, end, skip_nulls=True)
