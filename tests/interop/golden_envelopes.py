"""Envelopes written once and kept: what any later version, and an encoder in any language, must agree with.

``python -m tests.interop.golden_envelopes`` writes them anew; that is right only with a new version.

``vectors.json`` says of each file what went into it, bytes in hexadecimal; ``payload`` is what stands behind
the header, so that an encoder needs neither Arrow nor zstd to be held to it.
"""

import json
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from envelope.envelopes import HeaderFields, Kind, decode, encode_batch, encode_message
from envelope.types import AckPolicy
from jetstream.log.format.schema import HEADERS_TYPE
from tests.support.envelopes import arrow, binary

DIRECTORY: Final = Path(__file__).parent / "golden" / "envelopes"
VECTORS: Final = DIRECTORY / "vectors.json"

ALL_FIELDS: Final[HeaderFields] = {
    "message_id": b"order-4711",
    "key": b"customer-7\x00\xff",
    "txid": -(1 << 63),
    "ack": AckPolicy.LEADER,
    "ack_inbox": "my.inbox.1",
    "correlation_id": "größe 1",
    "headers": [("Content-Type", b"text/plain"), ("x", b""), ("x", b"\x00")],
}
BATCH_FIELDS: Final[HeaderFields] = {
    "message_id": b"file-12/0",
    "ack": AckPolicy.ALL,
    "correlation_id": "b-1",
}
ROWS: Final = {
    "key": binary(b"a", None, b"a"),
    "headers": pa.array([[("x", b"1")], None, []], HEADERS_TYPE),
    "txid": pa.array([1, None, 2], pa.int64()),
    "value": binary(b"one", b"", None),
}


def envelopes() -> dict[str, bytes]:
    """Return all of them by name."""
    return {
        "empty": encode_message(b""),
        "message": encode_message(b"hello"),
        "all_fields": encode_message(b"hello", **ALL_FIELDS),
        "tombstone": encode_message(None, key=b"customer-7"),
        "message_zstd": encode_message(b"hello " * 100, compress=True, key=b"k"),
        "batch": encode_batch(arrow(ROWS), 3, **BATCH_FIELDS),
        "batch_zstd": encode_batch(arrow(ROWS), 3, compress=True),
    }


def vector(data: bytes) -> dict[str, Any]:
    """Return what an encoder is told so that it makes ``data``."""
    found = decode(data)
    assert found is not None
    has_extent = found.compressed or found.kind is Kind.BATCH
    return {
        "kind": found.kind.value,
        "zstd": found.compressed,
        "tombstone": found.tombstone,
        "extent": [found.records, found.size_bytes] if has_extent else None,
        "message_id": _hex(found.message_id),
        "key": _hex(found.key),
        "txid": None if found.txid is None else str(found.txid),
        "ack": found.ack,
        "ack_inbox": None if found.ack_inbox is None else found.ack_inbox.decode(),
        "correlation_id": found.correlation_id,
        "headers": [[name, value.hex()] for name, value in found.headers],
        "payload": bytes(found.payload).hex(),
    }


def _hex(value: bytes | None) -> str | None:
    return None if value is None else value.hex()


def write() -> None:
    """Write the files and the vectors."""
    DIRECTORY.mkdir(exist_ok=True)
    everything = envelopes()
    for name, data in everything.items():
        (DIRECTORY / f"{name}.bin").write_bytes(data)
    vectors = {name: vector(data) for name, data in everything.items()}
    VECTORS.write_text(json.dumps(vectors, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
