"""The bodies of record responses: how each format begins, is made of records, and ends."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa

from envelope.types import LeaderEpoch, Offset
from jetstream.fetch.selection import Encoder
from jetstream.log.format.csv_lines import csv_lines
from jetstream.log.format.json_lines import event_lines, json_lines
from jetstream.log.format.schema import END_OF_STREAM, NO_RECORDS, SCHEMA_MESSAGE
from jetstream.node.http.v1.query import COLUMNS, BodyFormat
from jetstream.protocol.requests import Column

_KEEP_ALIVE: Final = b":\n\n"
"""A comment of server-sent events: it holds the connection open, and finds out whether the peer is there."""


@dataclass(frozen=True, slots=True)
class BodyShape:
    """The parts of a body in one format."""

    begin: bytes
    encode: Encoder | None
    """Makes a part of decoded records; None: stored batches are parts as they are."""
    end: bytes
    keep_alive: bytes
    """Sent while a reader waits for records; empty where the format has no such thing."""


def body_shape(body_format: BodyFormat, columns: list[Column] | None) -> BodyShape:
    """Return the shape of a body with the columns that are kept."""
    kept = COLUMNS if columns is None else tuple(columns)
    match body_format:
        case BodyFormat.ARROW:
            return BodyShape(SCHEMA_MESSAGE, None, END_OF_STREAM, b"")
        case BodyFormat.NDJSON:
            return BodyShape(b"", _encoder(partial(json_lines, columns=kept)), b"", b"")
        case BodyFormat.CSV:
            names = bytes(csv_lines(NO_RECORDS, columns=kept))
            return BodyShape(names, _encoder(partial(csv_lines, columns=kept, header=False)), b"", b"")
        case BodyFormat.EVENTS:
            return BodyShape(b"", _encoder(partial(event_lines, columns=kept)), b"", _KEEP_ALIVE)


def _encoder(lines: Callable[[pa.RecordBatch], bytes | memoryview]) -> Encoder:
    def encode(records: pa.RecordBatch, start: Offset, end: Offset, epoch: LeaderEpoch) -> memoryview:
        del start, end, epoch
        return memoryview(lines(records))

    return encode
